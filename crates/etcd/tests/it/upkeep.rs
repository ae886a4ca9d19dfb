//! What operators do to a cluster that is in use: compaction, defragmentation, tokens that end soon.

use std::time::Duration;

use futures_util::future::join;
use oncegate_core::claim::{ClaimRequest, ClaimResponse};
use oncegate_core::clock::{Clock as _, SystemClock};
use oncegate_core::engine::conformance::{DEADLINE, fresh_claim};
use oncegate_core::engine::{Channel, Claims as _, Engine, Records as _, Topology as _};
use oncegate_etcd::Options;
use oncegate_testkit::etcd_cluster::EtcdCluster;
use oncegate_testkit::tcp_proxy::{Mode, TcpProxy};

use super::{again, auth, granted, is_duplicate, open, serves_again, settle, soon, success};

/// Claims for so long. Each call is repeated until it is answered. Returns what was granted, and the number of calls that were not
/// answered.
async fn claims_for(engine: &impl Engine, time: Duration) -> (Vec<ClaimRequest>, usize) {
    let (clock, mut requests, mut unanswered) = (SystemClock::new(), Vec::new(), 0);
    while clock.monotonic() < time {
        let request = fresh_claim();
        soon("it is granted", async || {
            let answer = engine.claim(&request, DEADLINE).await;
            unanswered += usize::from(answer.is_err());
            answer.is_ok_and(|answer| {
                assert!(matches!(answer, ClaimResponse::Granted(_)), "{answer:?}");
                true
            })
        })
        .await;
        requests.push(request);
    }
    (requests, unanswered)
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn compaction_of_all_history_disturbs_no_call_and_no_watch() {
    let Some(cluster) = EtcdCluster::start_one().await else { return };
    let engine = open(&cluster.url());
    let watched = fresh_claim();
    granted(&engine, &watched).await;
    let mut subscription = engine.subscribe(&Channel::of_claim(&watched.key)).await;
    soon("it is live", async || subscription.is_live()).await;
    let compacting = async {
        for _ in 0..20 {
            // Refused if nothing was written since the last time.
            let _ = cluster.try_ctl(&["compact", &cluster.revision().to_string(), "--physical"]);
            tokio::time::sleep(Duration::from_millis(50)).await;
        }
    };
    let ((requests, unanswered), ()) = join(claims_for(&engine, Duration::from_secs(2)), compacting).await;
    assert_eq!(unanswered, 0);
    for request in &requests {
        assert!(is_duplicate(&engine, &again(request)).await);
    }
    engine.settle(&settle(&watched, success("1")), DEADLINE).await.unwrap();
    // A watch that a compaction has cancelled would have ended the subscription. Then its caller asks, too.
    tokio::time::timeout(Duration::from_secs(10), subscription.notified()).await.expect("it is notified");
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn members_that_are_defragmented_one_after_another_lose_no_claim() {
    let Some(cluster) = EtcdCluster::start().await else { return };
    let engine = oncegate_etcd::open(&cluster.url(), Options::default()).unwrap();
    serves_again(&engine).await;
    let defragmenting = async {
        for address in cluster.addresses() {
            assert!(cluster.try_ctl(&["--endpoints", &address, "defrag"]).is_some());
        }
    };
    let ((requests, _), ()) = join(claims_for(&engine, Duration::from_secs(2)), defragmenting).await;
    for request in &requests {
        soon("it is known", async || {
            matches!(engine.claim(&again(request), DEADLINE).await, Ok(ClaimResponse::Duplicate(_)))
        })
        .await;
    }
    assert_eq!(engine.data_lost(), 0);
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_token_that_ends_is_replaced_within_the_call() {
    let Some(cluster) = EtcdCluster::start_with(1, &["--auth-token-ttl=2"]).await else { return };
    auth::add_users(&cluster);
    let proxy = TcpProxy::start(cluster.addresses()[0].parse().unwrap()).await;
    let engine = open(&format!("etcd://gateway:hunter2@{}?members=fixed", proxy.address()));
    granted(&engine, &fresh_claim()).await;
    // Each use of a token extends it. So nothing comes through for longer than it lasts.
    proxy.set(Mode::Blackhole);
    tokio::time::sleep(Duration::from_secs(4)).await;
    proxy.set(Mode::Pass);
    serves_again(&engine).await;
    // Each change of roles makes all tokens old.
    let changing = async {
        for number in 0..4 {
            cluster.ctl(&["--user", "root:secret", "role", "add", &format!("other{number}")]);
            tokio::time::sleep(Duration::from_millis(300)).await;
        }
    };
    let ((requests, unanswered), ()) = join(claims_for(&engine, Duration::from_secs(2)), changing).await;
    assert_eq!(unanswered, 0, "of {}", requests.len());
}
