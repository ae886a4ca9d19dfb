//! The proxy on each engine: the table of its behaviour, and a store that is killed in the middle of an exchange.

use std::sync::Arc;

use oncegate_testkit::gateway::{Gateway, Setup};
#[cfg(feature = "postgres")]
use oncegate_testkit::postgres_server::PostgresServer;
use oncegate_testkit::redis_server::RedisServer;
use oncegate_testkit::wait::until;
use serde_json::Value;
use tempfile::TempDir;
use tokio::task::JoinHandle;

use super::{Answer, Caller, LARGE, SOON, Upstream, at, config, large};
use crate::support::gateway;

/// Bounds of a route that stores the longest responses.
const STORES_LARGE: &str = "response_bytes = \"1MiB\"\n";

#[tokio::test]
async fn a_repeat_gets_what_its_state_says_on_memory_and_disk() {
    has_the_table_of_repeats(gateway::on_memory()).await;
    let folder = tempfile::tempdir().unwrap();
    has_the_table_of_repeats(gateway::on_disk(folder.path())).await;
}

#[tokio::test]
async fn a_repeat_gets_what_its_state_says_on_redis() {
    let Some(server) = RedisServer::start().await else { return };
    has_the_table_of_repeats(gateway::on(server.url()).patient()).await;
}

#[cfg(feature = "postgres")]
#[tokio::test]
async fn a_repeat_gets_what_its_state_says_on_postgresql() {
    let Some(server) = PostgresServer::start().await else { return };
    has_the_table_of_repeats(gateway::on(server.url()).patient()).await;
}

/// Checks the answer to a repeat for each result of the first request, and whether the repeat reaches the upstream.
async fn has_the_table_of_repeats(setup: Setup) {
    let (upstream, port) = Upstream::start().await;
    let gateway = setup.config(&config("", &at(port), STORES_LARGE)).start().await;
    let caller = Arc::new(Caller::of(&gateway));
    until("the store serves", SOON, async || caller.post("/orders/a", "k-0", "one").await.status == 201).await;
    for (path, first_status, status, code) in [
        ("/orders/a", 201, 201, ""),
        ("/orders/empty", 204, 204, ""),
        ("/orders/large", 201, 201, ""),
        ("/orders/larger", 201, 409, "response_not_stored"),
        ("/orders/private", 201, 409, "response_not_stored"),
        ("/orders/broken", 500, 409, "outcome_unknown"),
        ("/orders/busy", 429, 429, ""),
    ] {
        let before = upstream.requests();
        let first = caller.post(path, path, "one").await;
        assert_eq!((first.status, first.is_replay()), (first_status, false), "{path}");
        let repeat = caller.post(path, path, "one").await;
        assert_eq!(repeat.status, status, "{path}");
        match (status, code) {
            (429, _) => assert_eq!(upstream.requests(), before + 2, "{path}: the key is free"),
            (409, _) => {
                let document = repeat.json();
                let is_expected =
                    document["code"] == code || document["state"] == "unknown" && code == "outcome_unknown";
                assert!(is_expected, "{path}: {document}");
                assert_eq!(upstream.requests(), before + 1, "{path}");
            }
            _ => {
                assert!(repeat.is_replay() && repeat.body == first.body, "{path}");
                assert_eq!(repeat.headers.get("location"), first.headers.get("location"), "{path}");
                assert_eq!(upstream.requests(), before + 1, "{path}");
            }
        }
        let other = caller.post(path, path, "two").await;
        assert_eq!(other.status, if status == 429 { 429 } else { 422 }, "{path}: another body");
    }
    let effects = upstream.effects();
    let running = post(&caller, "/orders/slow", "k-running");
    until("the upstream has it", SOON, async || upstream.effects() == effects + 1).await;
    let conflict = caller.post("/orders/slow", "k-running", "one").await;
    assert_eq!((conflict.status, &conflict.json()["state"]), (409, &Value::from("in_progress")));
    upstream.gate.add_permits(1);
    let first = running.await.unwrap();
    let repeat = caller.post("/orders/slow", "k-running", "one").await;
    assert!(repeat.is_replay() && repeat.body == first.body);
    assert_eq!(upstream.effects(), effects + 1);
}

#[tokio::test]
async fn no_request_runs_twice_when_redis_is_killed_in_the_middle() {
    // It loses nothing when it is killed.
    let durable = RedisServer::start_with(&["appendonly yes", "appendfsync always"]).await;
    let Some(mut server) = durable else { return };
    let exchanges = Exchange::start_all(&server.url()).await;
    server.kill();
    let exchanges = Exchange::answer_all(exchanges).await;
    server.restart().await;
    Exchange::replay_all(exchanges).await;
}

#[cfg(feature = "postgres")]
#[tokio::test]
async fn no_request_runs_twice_when_postgresql_is_killed_in_the_middle() {
    let Some(mut server) = PostgresServer::start().await else { return };
    let exchanges = Exchange::start_all(&server.url()).await;
    server.kill();
    let exchanges = Exchange::answer_all(exchanges).await;
    server.restart().await;
    Exchange::replay_all(exchanges).await;
}

/// Policies for claims and outcomes, and whether the gateway is killed before the store is back.
const POLICIES: [(&str, &str, bool); 4] = [
    ("fail_closed", "fail_closed", false),
    ("fail_closed", "spool", true),
    ("local", "spool", false),
    ("fail_open", "spool", false),
];

/// A gateway with an exchange that runs while its store is killed. Its response is as long as any that is stored.
struct Exchange {
    claim: &'static str,
    dies: bool,
    upstream: Arc<Upstream>,
    folder: TempDir,
    setup: Setup,
    gateway: Gateway,
    caller: Arc<Caller>,
    running: Option<JoinHandle<Answer>>,
}

impl Exchange {
    async fn start_all(store: &str) -> Vec<Self> {
        let mut exchanges = Vec::new();
        for (claim, outcome, dies) in POLICIES {
            let (upstream, port) = Upstream::start().await;
            // Each policy has its own keys.
            let more = format!("{STORES_LARGE}[defaults.on_outage]\nclaim = \"{claim}\"\noutcome = \"{outcome}\"\n");
            let folder = tempfile::tempdir().unwrap();
            let setup = gateway::on(store).data_dir(folder.path()).config(&config("", &at(port), &more));
            let gateway = setup.start().await;
            let caller = Arc::new(Caller::of(&gateway));
            until("the store serves", SOON, async || {
                let answer = caller.post("/orders/a", &format!("{claim}-{dies}-0"), "one").await;
                answer.status == 201 && !answer.headers.contains_key("oncegate-degraded")
            })
            .await;
            let effects = upstream.effects();
            let running = Some(post(&caller, "/orders/slow-large", &format!("{claim}-{dies}-1")));
            until("the upstream has it", SOON, async || upstream.effects() == effects + 1).await;
            exchanges.push(Self { claim, dies, upstream, folder, setup, gateway, caller, running });
        }
        exchanges
    }

    /// Checks the answers to new requests while the store is out, and that the exchange ends as usual.
    async fn answer_all(mut exchanges: Vec<Self>) -> Vec<Self> {
        for exchange in &mut exchanges {
            let Self { claim, ref upstream, ref caller, .. } = *exchange;
            let new = exchange.key(2);
            until("the store is missed", SOON, async || {
                let effects = upstream.effects();
                let answer = caller.post("/orders/a", &new, "one").await;
                if claim == "fail_closed" {
                    assert_eq!((answer.status, upstream.effects()), (503, effects), "{claim}");
                    return answer.json()["code"] == "store_unavailable";
                }
                answer.headers.get("oncegate-degraded").is_some_and(|policy| policy == claim)
            })
            .await;
            let effects = upstream.effects();
            if claim == "local" {
                let repeat = caller.post("/orders/a", &new, "one").await;
                assert!(repeat.status == 409 || repeat.is_replay(), "{claim}: {}", repeat.status);
                assert_eq!(upstream.effects(), effects, "this gateway remembers what it has granted");
            }
            upstream.gate.add_permits(1);
            let first = exchange.running.take().unwrap().await.unwrap();
            assert_eq!((first.status, first.is_replay()), (201, false), "{claim}");
            assert!(first.body.as_deref() == Some(&large(LARGE)[..]), "{claim}: the response is whole");
            if claim == "fail_closed" {
                // A gateway that has spooled the outcome knows it.
                let repeat = caller.post("/orders/slow-large", &exchange.key(1), "one").await;
                assert!(repeat.status == 503 || repeat.is_replay() && exchange.dies, "{}", repeat.status);
                assert_eq!(upstream.effects(), effects);
            }
            if exchange.dies {
                exchange.gateway.kill();
            }
        }
        exchanges
    }

    /// Checks that each response has reached the store after its recovery.
    async fn replay_all(exchanges: Vec<Self>) {
        for mut exchange in exchanges {
            if exchange.dies {
                exchange.gateway = exchange.setup.start().await;
                exchange.caller = Arc::new(Caller::of(&exchange.gateway));
            }
            let (claim, key, effects) = (exchange.claim, exchange.key(1), exchange.upstream.effects());
            until("the response is stored", 2 * SOON, async || {
                let repeat = exchange.caller.post("/orders/slow-large", &key, "one").await;
                if repeat.status == 201 {
                    assert!(repeat.is_replay(), "{claim}: it ran again");
                    assert!(repeat.body.as_deref() == Some(&large(LARGE)[..]), "{claim}: byte for byte");
                }
                repeat.status == 201
            })
            .await;
            if claim != "fail_closed" {
                let new = exchange.key(2);
                until("what a policy has granted is stored too", 2 * SOON, async || {
                    exchange.caller.post("/orders/a", &new, "one").await.is_replay()
                })
                .await;
            }
            assert_eq!(exchange.upstream.effects(), effects, "{claim}");
            drop(exchange.folder);
        }
    }

    fn key(&self, number: usize) -> String {
        format!("{}-{}-{number}", self.claim, self.dies)
    }
}

fn post(caller: &Arc<Caller>, path: &'static str, key: &str) -> JoinHandle<Answer> {
    let (caller, key) = (caller.clone(), key.to_owned());
    tokio::spawn(async move { caller.post(path, &key, "one").await })
}
