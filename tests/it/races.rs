//! Races over HTTP: under any concurrent calls, a key has one holder, and every caller's answer fits one history. On
//! every engine, and through two gateways that share a store.

use std::any::Any;
use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::time::Duration;

use oncegate_testkit::client::{Answer, Client};
#[cfg(feature = "etcd")]
use oncegate_testkit::etcd_cluster::EtcdCluster;
use oncegate_testkit::fresh;
#[cfg(feature = "postgres")]
use oncegate_testkit::postgres_server::PostgresServer;
use oncegate_testkit::redis_server::RedisServer;
use oncegate_testkit::wait::until;
#[cfg(feature = "zookeeper")]
use oncegate_testkit::zookeeper_cluster::ZooKeeperCluster;
use serde_json::{Value, json};
use tokio::sync::Barrier;
use tokio::task::JoinSet;

use crate::support::gateway;

/// Gateways to call, and the resources that must live as long as they do.
struct Stage {
    clients: Vec<Client>,
    keep: Vec<Box<dyn Any>>,
}

impl Stage {
    async fn memory() -> Option<Self> {
        let gateway = gateway::on_memory().start().await;
        Some(Self { clients: vec![gateway.client()], keep: vec![Box::new(gateway)] })
    }

    async fn disk() -> Option<Self> {
        let folder = tempfile::tempdir().unwrap();
        let gateway = gateway::on_disk(&folder.path().join("claims")).start().await;
        Some(Self { clients: vec![gateway.client()], keep: vec![Box::new(gateway), Box::new(folder)] })
    }

    async fn redis() -> Option<Self> {
        Self::gateways_on_redis(1).await
    }

    async fn two_gateways() -> Option<Self> {
        Self::gateways_on_redis(2).await
    }

    async fn gateways_on_redis(count: usize) -> Option<Self> {
        let redis = RedisServer::start().await?;
        Some(Self::gateways_on(redis.url(), count, Box::new(redis)).await)
    }

    #[cfg(feature = "postgres")]
    async fn postgres() -> Option<Self> {
        let postgres = PostgresServer::start().await?;
        Some(Self::gateways_on(postgres.url(), 1, Box::new(postgres)).await)
    }

    #[cfg(feature = "postgres")]
    async fn two_gateways_on_postgres() -> Option<Self> {
        let postgres = PostgresServer::start().await?;
        Some(Self::gateways_on(postgres.url(), 2, Box::new(postgres)).await)
    }

    #[cfg(feature = "etcd")]
    async fn two_gateways_on_etcd() -> Option<Self> {
        let cluster = EtcdCluster::start_one().await?;
        Some(Self::gateways_on(cluster.patient_url(), 2, Box::new(cluster)).await)
    }

    #[cfg(feature = "zookeeper")]
    async fn two_gateways_on_zookeeper() -> Option<Self> {
        let cluster = ZooKeeperCluster::start_one().await?;
        Some(Self::gateways_on(cluster.patient_url(), 2, Box::new(cluster)).await)
    }

    /// Gateways that share a store.
    async fn gateways_on(url: String, count: usize, store: Box<dyn Any>) -> Self {
        let mut stage = Self { clients: Vec::new(), keep: Vec::new() };
        for _ in 0..count {
            let gateway = gateway::on(&url).patient().start().await;
            let client = gateway.client();
            until("service", Duration::from_secs(20), async || client.claim(fresh::contents()).await.status == 201)
                .await;
            stage.clients.push(client);
            stage.keep.push(Box::new(gateway));
        }
        stage.keep.push(store);
        stage
    }
}

macro_rules! races {
    ($stage:ident: $($race:ident)*) => {
        mod $stage {
            $(#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
            async fn $race() {
                let Some(stage) = super::Stage::$stage().await else { return };
                super::$race(&stage.clients).await;
            })*
        }
    };
}

races!(memory: one_of_two_hundred_is_granted one_holder_at_a_time one_nonce_is_one_attempt batches_race_singles a_success_stays);
races!(disk: one_of_two_hundred_is_granted one_holder_at_a_time one_nonce_is_one_attempt batches_race_singles a_success_stays);
races!(redis: one_of_two_hundred_is_granted one_holder_at_a_time one_nonce_is_one_attempt batches_race_singles a_success_stays);
races!(two_gateways: one_of_two_hundred_is_granted one_holder_at_a_time one_nonce_is_one_attempt batches_race_singles a_success_stays);

#[cfg(feature = "postgres")]
races!(postgres: one_of_two_hundred_is_granted one_holder_at_a_time one_nonce_is_one_attempt batches_race_singles a_success_stays);
#[cfg(feature = "postgres")]
races!(two_gateways_on_postgres: one_of_two_hundred_is_granted one_holder_at_a_time one_nonce_is_one_attempt batches_race_singles a_success_stays);

#[cfg(feature = "etcd")]
races!(two_gateways_on_etcd: one_of_two_hundred_is_granted one_holder_at_a_time one_nonce_is_one_attempt batches_race_singles a_success_stays);

#[cfg(feature = "zookeeper")]
races!(two_gateways_on_zookeeper: one_of_two_hundred_is_granted one_holder_at_a_time one_nonce_is_one_attempt batches_race_singles a_success_stays);

/// Runs the same call from that many callers at once, spread over the gateways; their answers in no order.
async fn at_once<Answers, Call>(
    clients: &[Client],
    callers: usize,
    call: impl Fn(usize, Client) -> Call,
) -> Vec<Answers>
where
    Answers: Send + 'static,
    Call: Future<Output = Answers> + Send + 'static,
{
    let start = Arc::new(Barrier::new(callers));
    let mut running = JoinSet::new();
    for caller in 0..callers {
        let (call, start) = (call(caller, clients[caller % clients.len()].clone()), start.clone());
        running.spawn(async move {
            start.wait().await;
            call.await
        });
    }
    running.join_all().await
}

async fn one_of_two_hundred_is_granted(clients: &[Client]) {
    for round in 0..4 {
        let contents = json!({ "seat": round });
        let contents = &contents;
        let answers = at_once(clients, 200, |_, client| {
            let contents = contents.clone();
            async move { client.claim(contents).await }
        })
        .await;
        let (granted, refused): (Vec<_>, Vec<_>) = answers.into_iter().partition(|answer| answer.status == 201);
        assert_eq!(granted.len(), 1, "round {round}");
        for answer in &refused {
            assert_eq!(answer.code(), (409, "duplicate"), "{}", answer.text);
            assert_eq!(answer.body["state"], "in_progress");
            assert_eq!(answer.body["timestamp"], granted[0].body["timestamp"], "all see the one holder");
        }
        let report = json!({ "outcome": "success", "result": { "round": round } });
        clients[0].report(&granted[0], report).await.expect(200);
        let answers = at_once(clients, 20, |_, client| {
            let contents = contents.clone();
            async move { client.claim(contents).await }
        })
        .await;
        for answer in answers {
            assert_eq!((answer.status, &answer.body["state"]), (409, &json!("succeeded")), "{}", answer.text);
            assert_eq!(answer.body["result"], json!({ "round": round }));
        }
    }
}

/// Thirty callers claim one key; each holder fails until one succeeds. Between a grant and its
/// outcome there is no other grant, and all callers stay until the success.
async fn one_holder_at_a_time(clients: &[Client]) {
    const FAILURES: usize = 25;
    let holders = Arc::new(AtomicUsize::new(0));
    let failures = Arc::new(AtomicUsize::new(0));
    let done = at_once(clients, 30, |_, client| {
        let (holders, failures) = (holders.clone(), failures.clone());
        async move {
            loop {
                let answer = client.claim(json!("the only one")).await;
                if answer.status != 201 {
                    assert_eq!(answer.code(), (409, "duplicate"), "{}", answer.text);
                    if answer.body["state"] == "succeeded" {
                        return (false, answer.body["result"].clone());
                    }
                    continue;
                }
                assert_eq!(holders.fetch_add(1, Ordering::SeqCst), 0, "another caller holds it");
                let succeeds = failures.load(Ordering::SeqCst) == FAILURES;
                client.renew(&answer, None).await.expect(200);
                // It may be claimed again as soon as its outcome is in flight.
                holders.fetch_sub(1, Ordering::SeqCst);
                if succeeds {
                    let result = json!("done");
                    client.report(&answer, json!({ "outcome": "success", "result": result })).await.expect(200);
                    return (true, result);
                }
                failures.fetch_add(1, Ordering::SeqCst);
                let released = client.settle(&answer, "failure").await.expect(200);
                assert_eq!((&released.body["state"], &released.body["late"]), (&json!("released"), &json!(false)));
            }
        }
    })
    .await;
    assert_eq!(done.iter().filter(|(did_it, _)| *did_it).count(), 1);
    assert!(done.iter().all(|(_, result)| *result == "done"));
    assert_eq!(failures.load(Ordering::SeqCst), FAILURES, "no failure follows the success");
}

async fn one_nonce_is_one_attempt(clients: &[Client]) {
    let body = json!({ "contents": "resent", "attempt_nonce": "resent-by-everybody" });
    let body = &body;
    let answers = at_once(clients, 50, |_, client| {
        let body = body.clone();
        // A busy store may refuse a call. The nonce is for its repetition.
        async move {
            let mut answer = client.post("/v1/claims", &body).await;
            for _ in 0..600 {
                if answer.status != 503 {
                    break;
                }
                tokio::time::sleep(Duration::from_millis(100)).await;
                answer = client.post("/v1/claims", &body).await;
            }
            answer.expect(201)
        }
    })
    .await;
    assert!(answers.iter().all(|answer| answer.body["attempt"] == answers[0].body["attempt"]));
    let fresh: Vec<&Answer> = answers.iter().filter(|answer| answer.body["repeated"] == false).collect();
    assert_eq!(fresh.len(), 1, "one of them was the first");
    let lease_ms = |answer: &Answer| answer.body["lease_ms"].as_u64().unwrap();
    let longest = lease_ms(fresh[0]);
    for client in clients {
        until("the lease runs", Duration::from_secs(10), async || {
            let again = client.post("/v1/claims", body).await.expect(201);
            assert_eq!((&again.body["attempt"], &again.body["repeated"]), (&fresh[0].body["attempt"], &json!(true)));
            assert_eq!(again.body["fence"], fresh[0].body["fence"]);
            lease_ms(&again) < longest
        })
        .await;
        let other = json!({ "contents": "resent", "attempt_nonce": "of-another-caller" });
        assert_eq!(client.post("/v1/claims", &other).await.code(), (409, "duplicate"));
    }
}

/// Single claims and batches, with the shared key twice in each batch, all at once.
async fn batches_race_singles(clients: &[Client]) {
    for round in 0..4 {
        let answers = at_once(clients, 40, |caller, client| async move {
            let shared = json!({ "contents": { "shared": round } });
            if caller % 4 != 0 {
                return vec![client.post("/v1/claims", &shared).await.body];
            }
            let own = json!({ "contents": { "own": [round, caller] } });
            let batch = client.post("/v1/claims/batch", &json!({ "items": [shared, own, shared] })).await.expect(200);
            let mut items = batch.body["items"].as_array().unwrap().clone();
            assert_eq!(items.len(), 3);
            assert_eq!(items.remove(1)["status"], 201, "{}", batch.text);
            assert_eq!(items[1]["status"], 409, "what the same batch has claimed is its own duplicate");
            items
        })
        .await;
        // A single grant has its status only in the head.
        let granted = |answer: &&Value| answer["attempt"].is_string();
        let (granted, refused): (Vec<_>, Vec<_>) = answers.iter().flatten().partition(granted);
        assert_eq!(granted.len(), 1, "round {round}");
        assert_eq!(refused.len(), 30 + 2 * 10 - 1);
        for answer in refused {
            assert_eq!((&answer["code"], &answer["state"]), (&json!("duplicate"), &json!("in_progress")));
            assert_eq!(answer["timestamp"], granted[0]["timestamp"]);
        }
    }
}

/// One attempt reports contradicting outcomes at once. Whichever come first, in the end it is done and stays so, and
/// the result that was taken first stays.
async fn a_success_stays(clients: &[Client]) {
    for round in 0..5 {
        let granted = clients[0].claim(json!({ "torn": round })).await.expect(201);
        let granted = &granted;
        let answers = at_once(clients, 20, |caller, client| {
            let granted = granted.clone();
            async move {
                let success = caller % 2 == 0;
                let report = if success {
                    json!({ "outcome": "success", "result": caller })
                } else {
                    json!({ "outcome": "failure" })
                };
                (success, client.report(&granted, report).await)
            }
        })
        .await;
        for (success, answer) in &answers {
            match (success, answer.code()) {
                (true, (200, _)) => assert_eq!(answer.body["state"], "succeeded"),
                (false, (200, _)) => assert_eq!(answer.body["state"], "released"),
                (false, code) => assert_eq!(code, (409, "already_succeeded")),
                (true, _) => panic!("{}", answer.text),
            }
        }
        let seen = clients.iter().map(|client| client.claim(json!({ "torn": round })));
        let seen = futures_util::future::join_all(seen).await;
        for answer in &seen {
            assert_eq!((answer.status, &answer.body["state"]), (409, &json!("succeeded")), "{}", answer.text);
            assert_eq!(answer.body["result"], seen[0].body["result"]);
        }
        assert_eq!(clients[0].settle(granted, "failure").await.code(), (409, "already_succeeded"));
    }
}
