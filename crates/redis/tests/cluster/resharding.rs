//! Slots that move under load.

use std::sync::{Arc, Mutex};
use std::time::Duration;

use oncegate_core::claim::ClaimResponse;
use oncegate_core::engine::{BatchClaim, Claims as _, Topology as _};
use oncegate_redis::{Options, Redis};
use oncegate_testkit::output::print;

use super::load::{Load, NOTHING, lost};
use super::{DEADLINE, RedisCluster, again, claim_on, granted, is_duplicate, many, open};
use super::{renew, settle, success};

/// Deadline of calls that have to be answered.
const PATIENCE: Duration = Duration::from_secs(20);

#[tokio::test(flavor = "multi_thread")]
async fn slots_that_move_there_and_back_lose_nothing_and_are_not_seen() {
    let Some(cluster) = RedisCluster::start(3, 0).await else { return };
    // Each call has time enough on a busy machine: one without a clear answer is a fault.
    let options = Options { response_timeout: PATIENCE, ..Options::default() };
    let redis = Arc::new(Redis::open(&cluster.url(), options).expect("a good URL"));
    let load = Load::start_with(&redis, 16, PATIENCE);
    tokio::time::sleep(Duration::from_millis(200)).await;
    cluster.move_slots(0..4000, 0, 1).await;
    cluster.move_slots(0..4000, 1, 0).await;
    let ledger = load.stop().await;
    assert_eq!((ledger.doubled, lost(&*redis, &ledger).await), (0, NOTHING), "of {}", ledger.granted.len());
    assert_eq!(ledger.failed(), 0, "slowest {:?}", ledger.slowest());
    assert_eq!(redis.data_lost(), 0, "a marker that moves is no loss");
    print(format_args!("granted {}, slowest {:?}", ledger.granted.len(), ledger.slowest()));
}

/// Its commands went to the former primary of these slots, which has executed none of them.
#[tokio::test]
async fn the_claims_of_a_batch_follow_slots_that_have_moved() {
    let Some(cluster) = RedisCluster::start(3, 0).await else { return };
    let options = Options { health_check_interval: Duration::from_hours(1), ..Options::default() };
    let redis = Redis::open(&cluster.url(), options).expect("a good URL");
    granted(&redis, &claim_on(&cluster, 0)).await;
    cluster.move_slots(0..4000, 0, 1).await;
    let claims = many();
    let batch: Vec<_> = claims.iter().map(|request| BatchClaim { request, deadline: PATIENCE }).collect();
    let refused = Mutex::new(Vec::new());
    let sink = |_, answer| match answer {
        Ok(ClaimResponse::Granted(_)) => {}
        other => refused.lock().unwrap().push(other),
    };
    redis.claim_batch(&batch, &sink).await;
    assert!(refused.lock().unwrap().is_empty(), "{:?}", refused.lock().unwrap());
}

#[tokio::test(flavor = "multi_thread")]
async fn slots_that_move_to_a_new_primary_are_acknowledged_there() {
    let Some(mut cluster) = RedisCluster::start(3, 1).await else { return };
    let redis = Arc::new(open(&format!("{}?replicas=1", cluster.url())));
    let (held, load) = (many(), Load::start(&redis, 8));
    for ask in &held {
        granted(&*redis, ask).await;
    }
    // The new one has a replica, too: the former replica of another shard would leave that one without.
    let (new, replica) = (cluster.add_node().await, cluster.add_node().await);
    let id: String = cluster.nodes[new].query("CLUSTER MYID");
    oncegate_testkit::wait::until("the replica follows", Duration::from_secs(15), async || {
        let _ = oncegate_testkit::redis_server::RedisServer::try_query::<()>(
            &cluster.nodes[replica].url(),
            &["CLUSTER", "REPLICATE", &id],
        );
        cluster.nodes[new].query::<String>("INFO replication").contains("state=online")
    })
    .await;
    cluster.move_slots(0..500, 0, new).await;
    let ledger = load.stop().await;
    assert_eq!((ledger.doubled, lost(&*redis, &ledger).await), (0, NOTHING), "of {}", ledger.granted.len());
    for ask in &held {
        assert!(is_duplicate(&*redis, &again(ask)).await);
    }
}

#[tokio::test]
async fn each_step_on_a_slot_that_is_on_its_way_is_asked_for() {
    let Some(cluster) = RedisCluster::start(3, 0).await else { return };
    let redis = open(&cluster.url());
    let (held, new) = {
        let held = claim_on(&cluster, 0);
        granted(&redis, &held).await;
        // The same slot: the tag is the global ID.
        let mut new = held.clone();
        new.key.app = "another".parse().unwrap();
        (held, again(&new))
    };
    let slot: u16 = cluster.nodes[0].query_words(&["CLUSTER", "KEYSLOT", &super::name(&held)]);
    let ids: Vec<String> = [0, 1].map(|index| cluster.nodes[index].query("CLUSTER MYID")).into();
    cluster.nodes[1].query::<()>(&format!("CLUSTER SETSLOT {slot} IMPORTING {}", ids[0]));
    cluster.nodes[0].query::<()>(&format!("CLUSTER SETSLOT {slot} MIGRATING {}", ids[1]));
    // The other node has no script of ours yet.
    cluster.nodes[1].query::<()>("SCRIPT FLUSH");

    granted(&redis, &new).await;
    let keys_at = |node: usize| cluster.nodes[node].query::<i64>(&format!("CLUSTER COUNTKEYSINSLOT {slot}"));
    assert_eq!((keys_at(0), keys_at(1)), (1, 1), "it went to the new owner");
    redis.renew(&renew(&new, None), DEADLINE).await.expect("by a script, after ASKING");
    assert!(is_duplicate(&redis, &again(&new)).await);
    assert!(is_duplicate(&redis, &again(&held)).await, "what has not moved is found where it was");
    redis.settle(&settle(&new, success("1")), DEADLINE).await.expect("settled");
    assert!(is_duplicate(&redis, &again(&new)).await);
}
