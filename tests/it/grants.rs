//! Grants of every kind, while the store must not grant: each reason to refuse one kind refuses all.

use std::time::Duration;

use futures_util::future::join_all;
use oncegate_testkit::client::{Answer, Client};
use oncegate_testkit::fresh;
use oncegate_testkit::redis_server::RedisServer;
use oncegate_testkit::wait::{answered_within, until};
use serde_json::{Value, json};

use crate::proxy::{Caller, Upstream, at, config};
use crate::support::exposition::Page;
use crate::support::gateway;

/// Longer than anything here takes on a busy machine.
const SOON: Duration = Duration::from_secs(40);

/// A reason to refuse grants.
struct Reason {
    name: &'static str,
    /// Configuration of the server, query of its URL, and settings of the chain.
    server: &'static [&'static str],
    query: &'static str,
    chain: &'static str,
    begins: Begins,
    /// Code of all refusals.
    code: &'static str,
}

/// Beginning of the state in which the store must not grant.
enum Begins {
    Config(&'static [&'static str]),
    ReplicaIsLost,
    DataIsLost,
}

const EVICTING: [&str; 1] = ["maxmemory 100mb"];

const REASONS: [Reason; 7] = [
    Reason {
        name: "keys may be evicted, the oldest first",
        server: &EVICTING,
        query: "",
        chain: "",
        begins: Begins::Config(&["maxmemory-policy allkeys-lru"]),
        code: "store_incompatible",
    },
    Reason {
        name: "keys may be evicted, those that end soonest first",
        server: &EVICTING,
        query: "",
        chain: "",
        begins: Begins::Config(&["maxmemory-policy volatile-ttl"]),
        code: "store_incompatible",
    },
    Reason {
        name: "keys may be evicted at random",
        server: &EVICTING,
        query: "",
        chain: "",
        begins: Begins::Config(&["maxmemory-policy allkeys-random"]),
        code: "store_incompatible",
    },
    Reason {
        name: "the store does not keep what the chain requires",
        server: &["appendonly yes", "appendfsync always"],
        query: "",
        chain: "requires = [\"durable\"]\n",
        begins: Begins::Config(&["appendfsync everysec"]),
        code: "store_incompatible",
    },
    Reason {
        name: "the store is full",
        server: &[],
        query: "",
        chain: "",
        begins: Begins::Config(&["maxmemory 1"]),
        code: "store_full",
    },
    Reason {
        name: "a replica is missing",
        server: &[],
        query: "?replicas=1",
        chain: "",
        begins: Begins::ReplicaIsLost,
        code: "outcome_unknown",
    },
    Reason {
        name: "the store has lost its data",
        server: &[],
        query: "",
        chain: "on_data_loss = \"freeze\"\n",
        begins: Begins::DataIsLost,
        code: "store_unavailable",
    },
];

#[tokio::test]
async fn what_refuses_a_grant_refuses_every_kind_of_grant() {
    join_all(REASONS.iter().map(refuses_every_kind)).await;
}

impl Reason {
    /// Makes a call that may grant. Repeats it with its nonces while the answer is uncertain, which a busy store makes of any call,
    /// unless this is the answer that the reason gives.
    async fn ask(&self, client: &Client, path: &str, mut body: Value) -> Answer {
        let with_nonce = |body: &mut Value| body["attempt_nonce"] = format!("{:016x}", fresh::number()).into();
        match body.get_mut("items").and_then(Value::as_array_mut) {
            Some(items) => items.iter_mut().for_each(with_nonce),
            None => with_nonce(&mut body),
        }
        let certain = async {
            loop {
                let answer = client.post(path, &body).await;
                if self.code == "outcome_unknown" || !answer.text.contains("outcome_unknown") {
                    break answer;
                }
            }
        };
        answered_within(SOON, certain).await
    }

    async fn claim(&self, client: &Client, contents: Value) -> Answer {
        self.ask(client, "/v1/claims", json!({ "contents": contents })).await
    }

    async fn hold(&self, client: &Client, lock: &str, body: Value) -> Answer {
        self.ask(client, &format!("/v1/locks/{lock}/holds"), body).await
    }
}

async fn refuses_every_kind(reason: &'static Reason) {
    let Some(mut server) = RedisServer::start_with(reason.server).await else { return };
    let replica_of = format!("replicaof 127.0.0.1 {}", server.address().port());
    let mut replica = match reason.begins {
        Begins::ReplicaIsLost => RedisServer::start_with(&[&replica_of]).await,
        _ => None,
    };
    let (upstream, port) = Upstream::start().await;
    let chain = format!("[chains.default]\nengines = [\"primary\"]\n{}[defaults]\nlease = \"20s\"\n", reason.chain);
    let gateway = gateway::on(format!("{}{}", server.url(), reason.query))
        .config(&format!("{chain}{}", config("", &at(port), "")))
        .start()
        .await;
    let (client, caller) = (gateway.client(), Caller::of(&gateway));
    until("service", SOON, async || client.claim(fresh::contents()).await.status == 201).await;
    let unknown = reason.claim(&client, json!("unknown")).await.expect(201);
    client.settle(&unknown, "unknown").await.expect(200);
    let in_the_way = reason.claim(&client, json!("waited for")).await.expect(201);
    let owner = "owner-0123456789abcdef";
    for (lock, body) in [("owned", json!({ "owner": owner })), ("shared", json!({ "mode": "shared" }))] {
        reason.hold(&client, lock, body).await.expect(201);
    }
    let of_waiters = reason.hold(&client, "waited-for", json!({})).await.expect(201);

    let waits = |path: &'static str, body: Value| {
        let client = client.clone();
        tokio::spawn(async move { reason.ask(&client, path, body).await })
    };
    let waiting = [
        ("a claim that waits", waits("/v1/claims", json!({ "contents": "waited for", "wait": "30s" }))),
        ("a lock that waits", waits("/v1/locks/waited-for/holds", json!({ "wait": "30s" }))),
        ("a fair lock that waits", waits("/v1/locks/waited-for/holds", json!({ "wait": "30s", "fair": true }))),
    ];
    let admin = gateway.admin_client();
    until("they wait", SOON, async || {
        let queued = &client.get("/v1/locks/waited-for").await.body["waiting"];
        *queued == json!(1) && Page::get(&admin).await.sum("oncegate_claims_waiting", &[]) == 1
    })
    .await;

    match reason.begins {
        Begins::Config(settings) => {
            for setting in settings {
                server.query::<String>(&format!("CONFIG SET {setting}"));
            }
        }
        Begins::ReplicaIsLost => replica.as_mut().expect("it was started").kill(),
        Begins::DataIsLost => server.restart_empty().await,
    }
    until(reason.name, SOON, async || client.claim(fresh::contents()).await.body["code"] == reason.code).await;

    let mut answers = vec![
        ("a claim", reason.claim(&client, json!("new")).await),
        (
            "a claim that would wait",
            reason.ask(&client, "/v1/claims", json!({ "contents": "newer", "wait": "1s" })).await,
        ),
        ("a lock", reason.hold(&client, "free", json!({})).await),
        ("a lock that would wait", reason.hold(&client, "free2", json!({ "wait": "1s" })).await),
        ("a fair lock", reason.hold(&client, "free3", json!({ "fair": true })).await),
    ];
    answers.extend([
        ("a take-over", reason.ask(&client, "/v1/claims", json!({ "contents": "unknown", "take_over": true })).await),
        ("a shared hold", reason.hold(&client, "shared", json!({ "mode": "shared" })).await),
        ("a hold of the owner", reason.hold(&client, "owned", json!({ "owner": owner })).await),
        ("a place in the queue", reason.hold(&client, "owned", json!({ "fair": true })).await),
    ]);
    let items = json!({ "items": [{ "contents": "b1" }, { "contents": "b2" }] });
    let batch = reason.ask(&client, "/v1/claims/batch", items).await.expect(200);
    for item in batch.body["items"].as_array().unwrap() {
        assert_eq!((&item["status"], &item["code"]), (&json!(503), &json!(reason.code)), "{}: a batch", reason.name);
    }
    // A grant can be ended, also where the answer to that waits for a replica.
    client.settle(&in_the_way, "failure").await;
    client.post("/v1/locks/waited-for/release", &json!({ "attempt": of_waiters.body["attempt"] })).await;
    for (kind, waits) in waiting {
        answers.push((kind, tokio::time::timeout(SOON, waits).await.expect("an answer").expect("no panic")));
    }
    for (kind, answer) in answers {
        if (reason.code, kind) == ("store_full", "a take-over") {
            // It replaces a value, so it needs no room.
            assert_eq!(answer.status, 201, "{}", answer.text);
            continue;
        }
        assert_eq!(answer.code(), (503, reason.code), "{}: {kind}: {}", reason.name, answer.text);
    }
    assert_eq!(caller.post("/orders/a", "k-1", "one").await.status, 503, "{}: the proxy", reason.name);
    assert_eq!(upstream.effects(), 0, "{}", reason.name);
}
