//! kill -9: answers of a gateway remain true after any crash of the gateway or of its store, and service is back soon.

use std::collections::BTreeSet;
use std::path::Path;
use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering};
use std::sync::{Arc, Mutex};
use std::time::Duration;

use oncegate_testkit::client::{Answer, Client};
use oncegate_testkit::fresh;
use oncegate_testkit::gateway::Gateway;
#[cfg(feature = "postgres")]
use oncegate_testkit::postgres_server::PostgresServer;
use oncegate_testkit::wait::{answered_within, until};
use rand::rngs::SmallRng;
use rand::seq::IndexedRandom;
use rand::{RngExt, SeedableRng};
use serde_json::{Value, json};
use tokio::task::JoinSet;

use crate::support::exposition::Page;
use crate::support::gateway;

/// Knowledge of a key: the last answer, or the open call when the gateway died.
#[derive(Clone, PartialEq, Debug)]
enum Known {
    ClaimSent,
    Held,
    SuccessSent(Value),
    Succeeded(Value),
    FailureSent,
    Released,
    UnknownSent,
    Unknown,
}

/// One key, and whose attempt was granted last.
#[derive(Clone, Debug)]
struct Entry {
    contents: String,
    timestamp: Option<u64>,
    fence: u64,
    known: Known,
}

/// All keys that were ever touched.
#[derive(Default)]
struct Ledger {
    entries: Mutex<Vec<Entry>>,
    answers: AtomicUsize,
    names: AtomicUsize,
    /// True from right before a crash until callers start again.
    is_over: AtomicBool,
    /// True if the store may die, too: then the gateway reports that, and a call that was sent may have taken effect or
    /// not.
    store_may_die: bool,
}

const CALLERS: u64 = 8;

/// Starts callers, and waits until the gateway has given some answers.
async fn answered(client: &Client, ledger: &Arc<Ledger>, seed: u64, random: &mut SmallRng) -> JoinSet<()> {
    ledger.is_over.store(false, Ordering::SeqCst);
    let mut callers = JoinSet::new();
    for caller in 0..CALLERS {
        let random = SmallRng::seed_from_u64(seed ^ caller);
        callers.spawn(call_until_it_dies(client.clone(), ledger.clone(), random));
    }
    let answers = ledger.answers.load(Ordering::SeqCst) + random.random_range(1..150);
    until("the gateway answers", Duration::from_secs(20), async || ledger.answers.load(Ordering::SeqCst) >= answers)
        .await;
    callers
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn answers_hold_after_fifty_crashes() {
    let seed = fresh::number();
    println!("seed {seed}");
    let mut random = SmallRng::seed_from_u64(seed);
    let folder = tempfile::tempdir().unwrap();
    let claims = folder.path().join("claims");
    let ledger = Arc::new(Ledger::default());
    for crash in 0..50 {
        let mut gateway = start(&claims).await;
        let client = gateway.client();
        let before = ledger.entries.lock().unwrap().len();
        let callers = answered(&client, &ledger, seed ^ (crash << 8), &mut random).await;
        ledger.is_over.store(true, Ordering::SeqCst);
        gateway.kill();
        callers.join_all().await;

        let mut gateway = start(&claims).await;
        let mut entries = ledger.entries.lock().unwrap().clone();
        // All keys that this crash may have harmed, and some keys of earlier crashes.
        let mut looked_at: BTreeSet<usize> = (before..entries.len()).collect();
        looked_at.extend((0..before.min(20)).map(|_| random.random_range(0..before)));
        check(&gateway.client(), &mut entries, &looked_at).await;
        *ledger.entries.lock().unwrap() = entries;
        // Sometimes nothing more happens before the next one, not even an orderly end.
        gateway.kill();
    }
    let gateway = start(&claims).await;
    let mut entries = ledger.entries.lock().unwrap().clone();
    println!("{} keys, {} answers", entries.len(), ledger.answers.load(Ordering::SeqCst));
    let all = (0..entries.len()).collect();
    check(&gateway.client(), &mut entries, &all).await;
}

/// The gateway dies, or its database, or both, while callers are at work.
#[cfg(feature = "postgres")]
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn answers_hold_after_crashes_of_postgres_and_its_gateways() {
    let Some(mut server) = PostgresServer::start().await else { return };
    let seed = fresh::number();
    println!("seed {seed}");
    let mut random = SmallRng::seed_from_u64(seed);
    let ledger = Arc::new(Ledger { store_may_die: true, ..Ledger::default() });
    // Callers go on with another key after a call that a busy machine delays for longer.
    let setup = gateway::on(server.url()).env("ONCEGATE_DEFAULTS__DEADLINE", "5s");
    let mut gateway = setup.start().await;
    for crash in 0..12 {
        let client = gateway.client();
        let callers = answered(&client, &ledger, seed ^ (crash << 8), &mut random).await;
        let (server_dies, gateway_dies) = [(true, false), (false, true), (true, true)][random.random_range(0..3)];
        ledger.is_over.store(true, Ordering::SeqCst);
        if server_dies {
            server.kill();
        }
        if gateway_dies {
            gateway.kill();
        }
        callers.join_all().await;
        if server_dies {
            server.restart().await;
        }
        if gateway_dies {
            gateway = setup.start().await;
        }
        let grants = async |count| {
            let items: Vec<Value> = (0..count).map(|_| json!({ "contents": fresh::contents() })).collect();
            let answer = gateway.client().post("/v1/claims/batch", &json!({ "items": items })).await.expect(200);
            answer.body["items"].as_array().unwrap().iter().all(|item| item["status"] == 201)
        };
        // Back within a second, with no human action. So many that each of the gateway's connections has some.
        until("it is back", Duration::from_secs(10), async || grants(30).await).await;
        let mut entries = ledger.entries.lock().unwrap().clone();
        // A breaker that was open lets more and more through at once, up to all.
        let all_at_once = entries.len().clamp(1, 500);
        until("it takes all at once", Duration::from_secs(10), async || grants(all_at_once).await).await;
        let all = (0..entries.len()).collect();
        // By a gateway whose calls wait for a slow store.
        let patient = gateway::on(server.url()).patient().start().await;
        check(&patient.client(), &mut entries, &all).await;
        *ledger.entries.lock().unwrap() = entries;
    }
    println!("{} answers", ledger.answers.load(Ordering::SeqCst));
}

async fn start(claims: &Path) -> Gateway {
    gateway::on_disk(claims).start().await
}

/// Claims and settles one key after another, and records the answers, until the gateway no longer runs.
async fn call_until_it_dies(client: Client, ledger: Arc<Ledger>, mut random: SmallRng) {
    loop {
        let contents = format!("order-{}", ledger.names.fetch_add(1, Ordering::SeqCst));
        let mut entry = Entry { contents, timestamp: None, fence: 0, known: Known::ClaimSent };
        let alive = live(&client, &ledger, &mut entry, &mut random).await;
        ledger.entries.lock().unwrap().push(entry);
        if alive.is_none() {
            if ledger.is_over.load(Ordering::SeqCst) {
                return;
            }
            tokio::time::sleep(Duration::from_millis(100)).await;
        }
    }
}

/// The life of one key. Nothing if a call for it was not answered.
async fn live(client: &Client, ledger: &Ledger, entry: &mut Entry, random: &mut SmallRng) -> Option<()> {
    // Longer than the test, so nothing expires.
    let body = json!({ "contents": entry.contents, "lease": "24h" });
    loop {
        let granted = answer(client, ledger, "/v1/claims", &body).await?.expect(201);
        entry.hold(&granted.body);
        let result = json!({ "of": entry.contents });
        let (outcome, sent, taken) = match random.random_range(0..4) {
            0 => return Some(()),
            1 => ("success", Known::SuccessSent(result.clone()), Known::Succeeded(result.clone())),
            2 => ("failure", Known::FailureSent, Known::Released),
            _ => ("unknown", Known::UnknownSent, Known::Unknown),
        };
        entry.known = sent;
        let mut report = json!({ "attempt": granted.body["attempt"], "outcome": outcome });
        if outcome == "success" {
            report["result"] = result;
        }
        answer(client, ledger, &granted.path("/outcome"), &report).await?.expect(200);
        entry.known = taken;
        if entry.known != Known::Released || random.random_bool(0.5) {
            return Some(());
        }
        entry.known = Known::ClaimSent;
    }
}

async fn answer(client: &Client, ledger: &Ledger, path: &str, body: &Value) -> Option<Answer> {
    let headers = [("content-type", "application/json")];
    let answer = client.try_send("POST", path, &headers, body.to_string()).await.ok()?;
    if ledger.store_may_die && answer.status == 503 {
        return None;
    }
    ledger.answers.fetch_add(1, Ordering::SeqCst);
    Some(answer)
}

impl Entry {
    /// An attempt was granted; its fence is higher than any before it.
    fn hold(&mut self, granted: &Value) {
        let fence = granted["fence"].as_u64().expect("disk promises fences");
        assert!(fence > self.fence, "{self:?}: fence {fence}");
        (self.fence, self.timestamp, self.known) = (fence, granted["timestamp"].as_u64(), Known::Held);
    }

    /// Checks the answer to another caller's claim call against the knowledge of the key.
    fn check(&mut self, answer: &Value) {
        let granted = answer["status"] == 201;
        let state = answer["state"].as_str().unwrap_or("");
        assert!(granted || answer["code"] == "duplicate", "{self:?}: {answer}");
        let was = self.known.clone();
        match (&was, granted, state) {
            (Known::ClaimSent | Known::FailureSent | Known::Released, true, _) => return self.hold(answer),
            (Known::ClaimSent | Known::Held, false, "in_progress") => self.known = Known::Held,
            (Known::SuccessSent(_) | Known::FailureSent | Known::UnknownSent, false, "in_progress") => {
                self.known = Known::Held;
            }
            (Known::SuccessSent(result) | Known::Succeeded(result), false, "succeeded") => {
                assert_eq!(answer["result"], *result, "{self:?}");
                self.known = Known::Succeeded(result.clone());
            }
            (Known::UnknownSent | Known::Unknown, false, "unknown") => self.known = Known::Unknown,
            _ => panic!("{self:?}, but another caller is answered {answer}"),
        }
        // A claim with a lost answer may still be live, or the one before it may never have been granted.
        if was != Known::ClaimSent {
            assert_eq!(answer["timestamp"].as_u64(), self.timestamp, "{self:?}: {answer}");
        }
        self.timestamp = answer["timestamp"].as_u64();
    }
}

/// Claims these keys as another caller, and checks every answer.
async fn check(client: &Client, entries: &mut [Entry], looked_at: &BTreeSet<usize>) {
    let places: Vec<usize> = looked_at.iter().copied().collect();
    for places in places.chunks(500) {
        let body = |place: &usize| json!({ "contents": entries[*place].contents, "lease": "24h" });
        let items: Vec<Value> = places.iter().map(body).collect();
        let answer = client.post("/v1/claims/batch", &json!({ "items": items })).await.expect(200);
        for (place, answer) in places.iter().zip(answer.body["items"].as_array().unwrap()) {
            entries[*place].check(answer);
        }
    }
}

#[tokio::test]
async fn a_folder_is_held_by_one_gateway() {
    let folder = tempfile::tempdir().unwrap();
    let claims = folder.path().join("claims");
    let mut first = start(&claims).await;
    let (status, log) = gateway::on_disk(&claims).try_start().await.err().expect("the folder is taken");
    assert!(!status.success());
    assert!(log.contains("is held by process") && log.contains(claims.to_str().unwrap()), "{log}");
    first.client().claim(json!("still served")).await.expect(201);
    // However its holder ends, the folder is free at once.
    first.kill();
    let second = start(&claims).await;
    second.client().claim(json!("still served")).await.expect(409);
}

/// The limit of the start is a limit of CPU time, since tests share their machine. The larger test below measures
/// elapsed time.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_hundred_thousand_claims_do_not_delay_the_start() {
    fill_and_restart(100_000, Duration::from_secs(10)).await;
}

/// `cargo test --release --test it -- --ignored a_million_claims_do_not_delay_the_start`
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
#[ignore = "takes minutes to fill; run it with --release and with the machine to itself"]
async fn a_million_claims_do_not_delay_the_start() {
    fill_and_restart(1_000_000, Duration::from_secs(2)).await;
}

async fn fill_and_restart(count: usize, timeout: Duration) {
    let folder = tempfile::tempdir().unwrap();
    let claims = folder.path().join("claims");
    let mut gateway = start(&claims).await;
    let batches = Arc::new(AtomicUsize::new(0));
    let mut filling = JoinSet::new();
    for _ in 0..4 {
        let (client, batches) = (gateway.client(), batches.clone());
        filling.spawn(async move {
            loop {
                let batch = batches.fetch_add(1, Ordering::SeqCst);
                if batch >= count / 1000 {
                    return;
                }
                let body = |number: usize| json!({ "contents": { "order": batch * 1000 + number }, "lease": "24h" });
                let items: Vec<Value> = (0..1000).map(body).collect();
                let granted = client.post_unchecked("/v1/claims/batch", &json!({ "items": items })).await;
                assert_eq!(granted.matches("\"status\":201").count(), 1000);
            }
        });
    }
    filling.join_all().await;
    gateway.kill();
    let gateway = answered_within(timeout, start(&claims)).await;
    // In whole seconds, rounded down.
    let cpu_seconds = Page::get(&gateway.admin_client()).await.sum("process_cpu_seconds_total", &[]);
    assert!(cpu_seconds < 2, "the start has cost {cpu_seconds} s");
    let client = gateway.client();
    let random = &mut SmallRng::seed_from_u64(0);
    let orders: Vec<usize> = (0..count).collect();
    for order in orders.sample(random, 100) {
        assert_eq!(client.claim(json!({ "order": order })).await.body["state"], "in_progress");
    }
}
