//! Two builds at the same time on one store, under traffic: gateways are replaced one after the other, and back. `make test-upgrade`
//! builds an earlier revision for it; otherwise both are this build, which tests the order of the steps alone.

use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, Mutex};
use std::time::Duration;

use oncegate_testkit::client::{Answer, Client};
use oncegate_testkit::gateway::{Gateway, Setup};
#[cfg(feature = "postgres")]
use oncegate_testkit::postgres_server::PostgresServer;
#[cfg(feature = "redis")]
use oncegate_testkit::redis_server::RedisServer;
use oncegate_testkit::wait::until;
use serde_json::{Value, json};

use crate::support::gateway;

/// Longest wait for operations to be done.
const SOON: Duration = Duration::from_mins(1);

/// Callers that work at a time.
const CALLERS: usize = 4;

/// Operations that are done in each phase.
const OPERATIONS: u64 = 40;

/// Operations that each caller has to do twice, to see duplicates: one of so many.
const REPEATED: u64 = 3;

/// Returns a gateway of the earlier build on this store.
fn earlier(url: &str) -> Setup {
    #[expect(clippy::disallowed_methods, reason = "the make target names the build")]
    match std::env::var_os("ONCEGATE_EARLIER") {
        Some(program) if !program.is_empty() => Setup::new(program, Some(url.to_owned())),
        _ => gateway::on(url).patient(),
    }
}

/// The gateways in service, as a load balancer knows them, and the operations that ran through them.
#[derive(Default)]
struct Site {
    clients: Mutex<Vec<Arc<Client>>>,
    /// Number of runs of each operation, by its number.
    runs: Mutex<Vec<u64>>,
    done: AtomicU64,
    next: AtomicU64,
    stop: std::sync::atomic::AtomicBool,
}

impl Site {
    fn set(&self, gateways: &[&Gateway]) {
        *self.clients.lock().unwrap() = gateways.iter().map(|gateway| Arc::new(gateway.client())).collect();
    }

    /// Sends a request until it is answered: to another gateway, if one is stopping.
    async fn call(&self, turn: u64, path: &str, body: &Value) -> Answer {
        let headers = [("content-type", "application/json")];
        for turn in turn.. {
            let client = {
                let clients = self.clients.lock().unwrap();
                clients[usize::try_from(turn).unwrap() % clients.len()].clone()
            };
            match client.try_send("POST", path, &headers, body.to_string()).await {
                Ok(answer) if answer.status < 500 => return answer,
                _ => tokio::time::sleep(Duration::from_millis(5)).await,
            }
        }
        unreachable!("turns do not end")
    }

    /// Does operations until it is stopped: each is claimed, run, renewed and reported at different gateways, and some are claimed again.
    async fn work(self: Arc<Self>) {
        while !self.stop.load(Ordering::Relaxed) {
            let number = self.next.fetch_add(1, Ordering::Relaxed);
            let claim = json!({ "operation": "order.submit", "contents": { "order": number }, "lease": "5m",
                "attempt_nonce": format!("upgrade-nonce-{number:08}") });
            let granted = self.call(number, "/v1/claims", &claim).await.expect(201);
            {
                let mut runs = self.runs.lock().unwrap();
                let at = usize::try_from(number).unwrap();
                if runs.len() <= at {
                    runs.resize(at + 1, 0);
                }
                runs[at] += 1;
            }
            let attempt = &granted.body["attempt"];
            let renewed = self.call(number + 1, &granted.path("/renewal"), &json!({ "attempt": attempt })).await;
            renewed.expect(200);
            let outcome = json!({ "attempt": attempt, "outcome": "success", "result": number });
            let reported = self.call(number + 2, &granted.path("/outcome"), &outcome).await.expect(200);
            assert_eq!(reported.body["state"], "succeeded", "{}", reported.text);
            if number.is_multiple_of(REPEATED) {
                let again = json!({ "operation": "order.submit", "contents": { "order": number } });
                let repeated = self.call(number + 3, "/v1/claims", &again).await;
                assert_eq!((repeated.code(), &repeated.body["result"]), ((409, "duplicate"), &json!(number)));
            }
            self.done.fetch_add(1, Ordering::Relaxed);
        }
    }

    /// Waits until as many operations as a phase has are done.
    async fn phase(&self, name: &str) {
        let until_done = self.done.load(Ordering::Relaxed) + OPERATIONS;
        until(name, SOON, async || self.done.load(Ordering::Relaxed) >= until_done).await;
    }
}

/// Stops a gateway as an upgrade does.
async fn drain(mut gateway: Gateway) {
    gateway.signal("TERM");
    assert!(gateway.ended().await.success(), "it drains");
}

/// Lets one build complete the claims, unknown outcomes and locks that the other one began.
async fn each_completes_what_the_other_began(one: &Client, other: &Client, label: &str) {
    let begun = one.claim(json!({ "begun": label })).await.expect(201);
    assert_eq!(other.claim(json!({ "begun": label })).await.code(), (409, "duplicate"));
    other.renew(&begun, Some("1m")).await.expect(200);
    other.report(&begun, json!({ "outcome": "success", "result": { "by": label } })).await.expect(200);
    let repeated = one.claim(json!({ "begun": label })).await.expect(409);
    assert_eq!(repeated.body["result"], json!({ "by": label }));

    let doubtful = one.claim(json!({ "doubtful": label })).await.expect(201);
    one.settle(&doubtful, "unknown").await.expect(200);
    let taken =
        other.post("/v1/claims", &json!({ "contents": { "doubtful": label }, "take_over": true })).await.expect(201);
    one.settle(&taken, "failure").await.expect(200);
    other.claim(json!({ "doubtful": label })).await.expect(201);

    let (holds, release) = (format!("/v1/locks/{label}/holds"), format!("/v1/locks/{label}/release"));
    let held = one.post(&holds, &json!({ "lease": "5m" })).await.expect(201);
    assert_eq!(other.post(&holds, &json!({})).await.code(), (409, "lock_held"));
    other.post(&release, &json!({ "attempt": held.body["attempt"] })).await.expect(200);
    one.post(&holds, &json!({})).await.expect(201);
}

async fn rolls_forward_and_back(url: &str) {
    let (old, new) = (earlier(url), gateway::on(url).patient());
    let site = Arc::new(Site::default());
    let (old_1, old_2) = (old.start().await, old.start().await);
    site.set(&[&old_1, &old_2]);
    let callers: Vec<_> = (0..CALLERS).map(|_| tokio::spawn(site.clone().work())).collect();
    site.phase("the earlier build works").await;

    let new_1 = new.start().await;
    site.set(&[&new_1, &old_2]);
    drain(old_1).await;
    site.phase("both builds work").await;
    each_completes_what_the_other_began(&old_2.client(), &new_1.client(), "forward").await;
    each_completes_what_the_other_began(&new_1.client(), &old_2.client(), "backward").await;
    let new_2 = new.start().await;
    site.set(&[&new_1, &new_2]);
    drain(old_2).await;
    site.phase("the new build works").await;

    let old_1 = old.start().await;
    site.set(&[&old_1, &new_2]);
    drain(new_1).await;
    site.phase("both builds work again").await;
    let old_2 = old.start().await;
    site.set(&[&old_1, &old_2]);
    drain(new_2).await;
    site.phase("the earlier build is back").await;

    site.stop.store(true, Ordering::Relaxed);
    for caller in callers {
        caller.await.expect("each call got the right answer");
    }
    let runs = site.runs.lock().unwrap().clone();
    assert!(runs.iter().all(|times| *times == 1), "each operation ran once: {runs:?}");
    // After the rollback, the earlier build knows the records of the new one.
    for number in 0..runs.len() {
        let again = json!({ "operation": "order.submit", "contents": { "order": number } });
        let repeated = old_1.client().post("/v1/claims", &again).await;
        assert_eq!((repeated.code(), &repeated.body["result"]), ((409, "duplicate"), &json!(number)));
    }
}

#[cfg(feature = "redis")]
#[tokio::test]
async fn builds_replace_each_other_on_redis_under_traffic() {
    let Some(server) = RedisServer::start().await else { return };
    rolls_forward_and_back(&server.url()).await;
}

#[cfg(feature = "postgres")]
#[tokio::test]
async fn builds_replace_each_other_on_postgres_under_traffic() {
    use crate::support::command::oncegate;

    let Some(server) = PostgresServer::start().await else { return };
    let url = server.database("upgrade").await;
    // As docs/upgrading.md has it: the earlier build finds the schema of the new one.
    let folder = tempfile::tempdir().unwrap();
    let without_options = url.split('?').next().unwrap();
    drop(earlier(&url).start().await);
    let migrated = oncegate(folder.path(), &["migrate", "--engine", without_options]);
    assert_eq!(migrated.code, Some(0), "{}", migrated.err);
    rolls_forward_and_back(&url).await;
}
