//! A primary that Sentinels name.

use std::sync::Arc;
use std::time::Duration;

use oncegate_core::claim::ClaimResponse;
use oncegate_core::engine::conformance::{Subject, fresh_claim};
use oncegate_core::engine::{Claims as _, Topology as _};
use oncegate_redis::{Options, Redis};
use oncegate_testkit::redis_sentinels::{RedisSentinels, Sentinel};
use oncegate_testkit::shared::Shared;
use oncegate_testkit::wait::in_time;

use super::load::{Load, NOTHING, lost};
use super::{DEADLINE, again, answered, granted, name, now, open, since, soon, unavailable};

mod conformance {
    use super::*;

    async fn subject() -> Option<Subject> {
        static GROUP: Shared<RedisSentinels> = Shared::new();
        let group = GROUP.get(RedisSentinels::start(1)).await?;
        Some(Subject {
            engine: Arc::new(open(&format!("{}?replicas=1", group.url()))),
            pass: Box::new(|span| Box::pin(tokio::time::sleep(span))),
            tick: Duration::from_millis(100),
            exact_time: false,
            keep: Box::new(group),
        })
    }

    // A sample: the whole suite runs on a cluster and on one server.
    oncegate_core::conformance! { subject();
        a_first_claim_is_granted
        a_second_attempt_is_a_duplicate_and_changes_nothing
        a_success_is_final_and_replays_its_result
        a_failure_frees_the_key_at_once
        a_renewal_extends_and_never_shortens
        of_many_racing_compare_and_sets_exactly_one_succeeds
        the_end_of_a_claim_is_notified_to_those_who_wait_for_it
        a_record_is_changed_only_over_the_expected_version
        a_change_that_notifies_reaches_the_subscriptions_of_its_record
        an_exclusive_hold_excludes_every_other_owner
        shared_holds_exclude_exclusive_ones_only
        of_many_racing_requests_for_a_lock_exactly_one_is_granted
        a_withdrawn_nonce_of_a_lock_is_refused
        fair_requests_for_a_lock_are_granted_in_order_and_none_barges
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn a_killed_primary_loses_nothing_that_all_its_replicas_acknowledged() {
    let Some(mut group) = RedisSentinels::start(2).await else { return };
    let redis = Arc::new(open(&format!("{}?replicas=2", group.url())));
    granted(&*redis, &fresh_claim()).await;
    let load = Load::start(&redis, 16);
    tokio::time::sleep(Duration::from_millis(300)).await;
    group.servers[0].kill();
    let new = group.taken_over(0).await;
    group.servers[0].restart().await;
    let primary = group.servers[new].address();
    group.servers[0].query::<()>(&format!("REPLICAOF {} {}", primary.ip(), primary.port()));
    soon("two replicas are in step", async || {
        group.servers[new].query::<String>("INFO replication").matches("state=online").count() == 2
    })
    .await;
    soon("service is back", async || redis.claim(&fresh_claim(), DEADLINE).await.is_ok()).await;
    let ledger = load.stop().await;
    assert_eq!((ledger.doubled, lost(&*redis, &ledger).await), (0, NOTHING), "of {}", ledger.granted.len());
}

#[tokio::test(flavor = "multi_thread")]
async fn the_former_primary_gets_no_writes_when_it_is_back() {
    let Some(mut group) = RedisSentinels::start(1).await else { return };
    let redis = open(&group.url());
    let held = fresh_claim();
    granted(&redis, &held).await;
    // Replication is asynchronous here.
    soon("the replica has it", async || group.servers[1].query_words::<i64>(&["EXISTS", &name(&held)]) == 1).await;
    group.servers[0].kill();
    group.taken_over(0).await;
    soon("service is back", async || redis.claim(&fresh_claim(), DEADLINE).await.is_ok()).await;
    assert!(matches!(answered(&redis, &again(&held)).await, ClaimResponse::Duplicate(_)));
    assert_eq!(redis.losses(0), 1);
    group.servers[0].restart().await;
    for _ in 0..100 {
        answered(&redis, &fresh_claim()).await;
    }
    let stats: String = group.servers[0].query("INFO commandstats");
    // Each batch ends with an ECHO. After its demotion it replicates data without a marker.
    assert!(!stats.contains("cmdstat_echo"), "{stats}");
    assert_eq!(redis.data_lost(), 0);
}

/// `SENTINEL FAILOVER` demotes a primary whose connections stay open.
#[tokio::test(flavor = "multi_thread")]
#[ignore = "the Sentinels take a quarter of a minute: make faults-cluster"]
async fn lookups_go_to_the_new_primary_after_a_failover() {
    let Some(group) = RedisSentinels::start(1).await else { return };
    let redis = open(&format!("{}?replicas=1", group.url()));
    let held = fresh_claim();
    granted(&redis, &held).await;
    let former = group.primary();
    group.failover();
    group.taken_over(former).await;
    group.settled(1).await;
    let started = now();
    soon("lookups are answered", async || redis.read(&held.key).await.is_ok()).await;
    in_time("lookups after a failover", since(started), Duration::from_secs(1));
    for _ in 0..100 {
        redis.read(&held.key).await.expect("no connection to the former primary is left");
    }
}

#[tokio::test]
async fn dead_sentinels_cost_nothing() {
    let Some(mut group) = RedisSentinels::start(1).await else { return };
    group.sentinels[0].kill();
    let redis = open(&group.url());
    let started = now();
    granted(&redis, &fresh_claim()).await;
    in_time("a claim while a Sentinel is dead", since(started), Duration::from_secs(1));
    group.sentinels[1].kill();
    group.sentinels[2].kill();
    for _ in 0..20 {
        granted(&redis, &fresh_claim()).await;
    }
}

#[tokio::test]
async fn gateways_whose_sentinels_disagree_use_one_primary() {
    let Some(group) = RedisSentinels::start(0).await else { return };
    let Some(other) = RedisSentinels::start(0).await else { return };
    let sentinels: Vec<_> = [&group, &other].iter().flat_map(|group| &group.sentinels).map(Sentinel::address).collect();
    // Most are of the first group, in every order.
    let open_in = |order: [usize; 5]| {
        let hosts: Vec<_> = order.iter().map(|index| sentinels[*index].to_string()).collect();
        open(&format!("redis+sentinel://{}/main", hosts.join(",")))
    };
    let [one, two] = [open_in([0, 1, 2, 3, 4]), open_in([4, 3, 2, 1, 0])];
    soon("both use the primary that most name", async || {
        let ask = fresh_claim();
        granted(&one, &ask).await;
        let is_duplicate = matches!(two.claim(&again(&ask), DEADLINE).await, Ok(ClaimResponse::Duplicate(_)));
        is_duplicate && group.servers[0].query_words::<i64>(&["EXISTS", &name(&ask)]) == 1
    })
    .await;
    let keys: i64 = other.servers[0].query("DBSIZE");
    for _ in 0..20 {
        let ask = fresh_claim();
        granted(&one, &ask).await;
        assert!(matches!(answered(&two, &again(&ask)).await, ClaimResponse::Duplicate(_)));
    }
    assert_eq!(other.servers[0].query::<i64>("DBSIZE"), keys, "the other primary is not written to");
}

#[tokio::test]
async fn a_wrong_name_or_wrong_servers_are_reported_with_what_to_write() {
    let Some(group) = RedisSentinels::start(0).await else { return };
    let refusal = async |url: &str| open(url).claim(&fresh_claim(), DEADLINE).await.unwrap_err().to_string();
    let why = refusal(&group.url().replace("/main", "/other")).await;
    assert!(why.contains("do not know the name `other`"), "{why}");
    let why = refusal(&format!("redis+sentinel://{}/main", group.servers[0].address())).await;
    assert!(why.contains("not a Sentinel"), "{why}");
}

#[tokio::test(flavor = "multi_thread")]
async fn what_a_demoted_server_refuses_is_sent_again_for_most_of_the_deadline() {
    let Some(group) = RedisSentinels::start(0).await else { return };
    // Without heartbeats, which would find the demotion first.
    let seldom = Duration::from_hours(1);
    let options = Options { heartbeat_interval: seldom, health_check_interval: seldom, ..Options::default() };
    let redis = Arc::new(Redis::open(&format!("{}?connections=1", group.url()), options).unwrap());
    let serves = async || {
        soon("service", async || redis.claim(&fresh_claim(), DEADLINE).await.is_ok()).await;
        // For a missing primary, as after a failover that the Sentinels have not reported yet.
        group.servers[0].query::<()>("REPLICAOF 127.0.0.1 1");
    };
    serves().await;
    let started = now();
    let why = unavailable(redis.claim(&fresh_claim(), Duration::from_millis(800)).await);
    assert!(why.contains("no other server has become the primary"), "{why}");
    assert!(since(started) >= Duration::from_millis(600), "{:?}", since(started));
    group.servers[0].query::<()>("REPLICAOF NO ONE");
    serves().await;
    let waits = tokio::spawn({
        let redis = redis.clone();
        async move { redis.claim(&fresh_claim(), Duration::from_secs(20)).await }
    });
    tokio::time::sleep(Duration::from_millis(300)).await;
    assert!(!waits.is_finished());
    group.servers[0].query::<()>("REPLICAOF NO ONE");
    assert!(matches!(waits.await.unwrap(), Ok(ClaimResponse::Granted(_))));
}
