//! Gateways that crash between two steps: after the store executed a call, before its caller was answered. Every answer
//! remains true, and a repeated call gets the lost answer.

use std::any::Any;
use std::os::unix::process::ExitStatusExt as _;
use std::sync::Arc;
use std::time::Duration;

use oncegate_core::clock::SystemClock;
use oncegate_core::terms::{LeaseEnd, Retention, Terms};
use oncegate_testkit::client::Client;
use oncegate_testkit::fresh;
use oncegate_testkit::gateway::{Gateway, Setup};
use oncegate_testkit::history::History;
use oncegate_testkit::history::check::explained_with_echoes;
use oncegate_testkit::history::http_service::HttpService;
use oncegate_testkit::history::workload::{Service, Workload};
use oncegate_testkit::output::print;
#[cfg(feature = "postgres")]
use oncegate_testkit::postgres_server::PostgresServer;
#[cfg(feature = "redis")]
use oncegate_testkit::redis_server::RedisServer;
use serde_json::{Value, json};
use tokio_util::sync::CancellationToken;

use crate::support::gateway;

/// Place where a gateway must crash.
const CRASH_AT: &str = "ONCEGATE_CRASH_AT";
/// Signal of `abort`.
const SIGABRT: i32 = 6;

/// A store, with the resources that must live until its last use.
struct Store {
    setup: Setup,
    _keep: Box<dyn Any>,
}

impl Store {
    #[cfg(feature = "disk")]
    async fn disk() -> Option<Self> {
        let folder = tempfile::tempdir().unwrap();
        std::future::ready(Some(Self {
            setup: gateway::on_disk(&folder.path().join("claims")),
            _keep: Box::new(folder),
        }))
        .await
    }

    #[cfg(feature = "redis")]
    async fn redis() -> Option<Self> {
        let server = RedisServer::start().await?;
        Some(Self { setup: gateway::on(server.url()), _keep: Box::new(server) })
    }

    #[cfg(feature = "postgres")]
    async fn postgres() -> Option<Self> {
        let server = PostgresServer::start().await?;
        Some(Self { setup: gateway::on(server.url()), _keep: Box::new(server) })
    }
}

macro_rules! crashes {
    ($($store:ident)*) => {$(
        mod $store {
            #[tokio::test]
            async fn a_claim_whose_gateway_crashed_is_found_again_by_its_nonce() {
                let Some(store) = super::Store::$store().await else { return };
                super::a_claim_is_found_again(&store.setup.clone().patient()).await;
            }

            #[tokio::test]
            async fn an_outcome_whose_gateway_crashed_is_there() {
                let Some(store) = super::Store::$store().await else { return };
                super::an_outcome_is_there(&store.setup.clone().patient()).await;
            }
        }
    )*};
}

#[cfg(feature = "disk")]
crashes!(disk);
#[cfg(feature = "redis")]
crashes!(redis);
#[cfg(feature = "postgres")]
crashes!(postgres);

/// Makes a call that has no answer, because the gateway crashes.
async fn lost(gateway: &mut Gateway, path: &str, body: &Value) {
    let headers = [("content-type", "application/json")];
    let answer = gateway.client().try_send("POST", path, &headers, body.to_string()).await;
    assert!(answer.is_err(), "answered: {answer:?}");
    assert_eq!(gateway.ended().await.signal(), Some(SIGABRT), "{}", gateway.log());
}

async fn a_claim_is_found_again(setup: &Setup) {
    let body = json!({ "contents": "A-1", "attempt_nonce": "0123456789abcdef", "lease": "1h" });
    let mut crashing = setup.clone().env(CRASH_AT, "claimed").start().await;
    lost(&mut crashing, "/v1/claims", &body).await;
    let gateway = setup.start().await;
    let client = gateway.client();
    assert_eq!(client.claim(json!("A-1")).await.code(), (409, "duplicate"), "the store has it");
    let granted = client.post("/v1/claims", &body).await.expect(201);
    assert_eq!(granted.body["repeated"], true, "{}", granted.text);
    client.settle(&granted, "success").await.expect(200);
}

async fn an_outcome_is_there(setup: &Setup) {
    for (outcome, state, late) in
        [("success", "succeeded", false), ("unknown", "unknown", false), ("failure", "released", true)]
    {
        let mut crashing = setup.clone().env(CRASH_AT, "settled:2").start().await;
        let client = crashing.client();
        let other = client.claim(json!(["other", outcome])).await.expect(201);
        client.settle(&other, "success").await.expect(200);
        let granted = client.claim(json!(outcome)).await.expect(201);
        let report = json!({ "attempt": granted.body["attempt"], "outcome": outcome });
        lost(&mut crashing, &granted.path("/outcome"), &report).await;
        let gateway = setup.start().await;
        let client = gateway.client();
        // A failure has left nothing to be found.
        let again = client.post(&granted.path("/outcome"), &report).await.expect(200);
        assert_eq!((&again.body["state"], &again.body["late"]), (&json!(state), &json!(late)), "{}", again.text);
        let next = client.claim(json!(outcome)).await;
        assert_eq!(next.status, if outcome == "failure" { 201 } else { 409 }, "{}", next.text);
    }
}

/// The shortest lease that callers ask for; half of it is the shortest deadline.
const SHORTEST_LEASE: Duration = Duration::from_millis(300);

/// Callers continue while one gateway crashes again and again; the store is a folder, or shared with a gateway that stays.
async fn crash_again_and_again(setup: &Setup, others: Vec<Client>) {
    let seed = fresh::number() >> 8;
    print(format_args!("seed {seed}"));
    let day = Retention::For(Duration::from_hours(24));
    let terms = Terms {
        lease: Duration::from_secs(30),
        retention: day,
        unknown_retention: Retention::For(day.duration().expect("a day") * 7),
        on_lease_end: LeaseEnd::Release,
    };
    let workload = Workload {
        seed,
        callers: 16,
        keys: 8,
        events_per_key: 14,
        terms,
        leases: vec![SHORTEST_LEASE, Duration::from_secs(2)],
        retentions: vec![Retention::For(Duration::from_secs(1)), day],
        pace: Duration::from_millis(10),
    };
    // It always listens on the same address, so that callers find it again.
    let setup = setup.clone().listen(&format!("127.0.0.1:{}", fresh::port()));
    let mut gateway = setup.start().await;
    let mut services: Vec<Arc<dyn Service>> = vec![Arc::new(HttpService(gateway.client()))];
    services.extend(others.into_iter().map(|client| Arc::new(HttpService(client)) as Arc<dyn Service>));
    let (history, stop) = (History::new(Arc::new(SystemClock::new())), CancellationToken::new());
    let calling = tokio::spawn(workload.run(services, history.clone(), stop.clone()));
    gateway.kill();
    for point in ["claimed:7", "settled:9", "claimed:20", "settled:15", "claimed:31"] {
        let (status, log) = match setup.clone().env(CRASH_AT, point).try_start().await {
            Ok(mut crashing) => (crashing.ended().await, crashing.log()),
            // Callers use it as soon as it listens, so it may crash before its log says that it is in service.
            Err(ended) => ended,
        };
        assert_eq!(status.signal(), Some(SIGABRT), "{log}");
    }
    let _gateway = setup.start().await;
    stop.cancel();
    calling.await.unwrap();
    // A gateway that has waited for half of the shortest deadline may have sent a call a second time.
    let echoes = explained_with_echoes(&history, SHORTEST_LEASE / 4);
    print(format_args!("{echoes} keys were held for a lease by a call that was sent twice"));
}

#[cfg(feature = "disk")]
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn histories_over_a_folder_are_explained_whatever_crashes() {
    let Some(store) = Store::disk().await else { return };
    crash_again_and_again(&store.setup, Vec::new()).await;
}

#[cfg(feature = "redis")]
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn histories_over_a_shared_store_are_explained_whatever_crashes() {
    let Some(store) = Store::redis().await else { return };
    let other = store.setup.start().await;
    crash_again_and_again(&store.setup, vec![other.client()]).await;
}
