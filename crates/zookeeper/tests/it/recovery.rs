//! Sessions that end with calls on their way, servers that start with nothing, and snapshots under load.

use std::time::Duration;

use futures_util::future::join_all;
use oncegate_core::claim::{ClaimRequest, ClaimResponse};
use oncegate_core::engine::conformance::{DEADLINE, fresh_claim};
use oncegate_core::engine::{Claims as _, Topology as _};
use oncegate_testkit::calls::is_uncertain;
use oncegate_testkit::tcp_proxy::{Mode, TcpProxy};
use oncegate_testkit::wait;
use oncegate_testkit::zookeeper_cluster::ZooKeeperCluster;
use oncegate_zookeeper::Options;

use super::{again, granted, is_duplicate, nodes, open, serves_again};

fn claims(count: usize) -> Vec<ClaimRequest> {
    (0..count).map(|_| fresh_claim()).collect()
}

/// `clock5` says no more than the clock.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_period_that_alone_was_deleted_is_made_again_and_no_loss() {
    let Some(cluster) = ZooKeeperCluster::start_one().await else { return };
    let engine = open(&cluster.url());
    let request = fresh_claim();
    granted(&engine, &request).await;
    nodes(&cluster).delete("/oncegate/clock5");
    serves_again(&engine).await;
    assert!(is_duplicate(&engine, &again(&request)).await);
    assert_eq!(engine.data_lost(), 0);
}

/// The servers have executed the calls, no reply comes, and then the session expires.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_session_that_expires_with_calls_on_their_way_leaves_each_of_them_done_once() {
    let Some(cluster) = ZooKeeperCluster::start_one().await else { return };
    let sessions = || {
        let answer = cluster.ask(0, "mntr")?;
        answer.lines().find_map(|line| line.strip_prefix("zk_global_sessions")?.trim().parse::<usize>().ok())
    };
    let direct = open(&cluster.url());
    serves_again(&direct).await;
    let others = sessions().expect("a number of sessions");
    let proxy = TcpProxy::start_any(cluster.addresses()[0].parse().unwrap()).await;
    let url = format!("zookeeper://{}?members=fixed&session=2s", proxy.address());
    let engine = oncegate_zookeeper::open(&url, Options::default()).unwrap();
    for round in 0..2 {
        serves_again(&engine).await;
        let requests = claims(40);
        proxy.set(Mode::HalfOpen);
        let answers = join_all(requests.iter().map(|request| engine.claim(request, DEADLINE))).await;
        assert!(answers.iter().all(Result::is_err), "{round}: {answers:?}");
        assert!(answers.iter().any(is_uncertain), "{round}: {answers:?}");
        proxy.set(Mode::Blackhole);
        let limit = Duration::from_secs(20);
        wait::until("its sessions have expired", limit, async || sessions().is_some_and(|open| open <= others)).await;
        proxy.set(Mode::Pass);
        serves_again(&engine).await;
        for request in &requests {
            let repeated = engine.claim(request, DEADLINE).await;
            assert!(matches!(repeated, Ok(ClaimResponse::Granted(_))), "{round}: {repeated:?}");
            assert!(is_duplicate(&direct, &again(request)).await, "{round}");
        }
    }
}

/// As documented for a server whose disk has failed.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn servers_that_start_with_nothing_get_everything_from_the_others() {
    let Some(mut cluster) = ZooKeeperCluster::start().await else { return };
    let engine = open(&cluster.url());
    let mut requests = Vec::new();
    for member in 0..cluster.size() {
        let request = fresh_claim();
        granted(&engine, &request).await;
        requests.push(request);
        cluster.replace(member);
        assert!(cluster.is_ready().await);
        serves_again(&engine).await;
        for request in &requests {
            assert!(is_duplicate(&engine, &again(request)).await, "after server {member}");
        }
    }
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn snapshots_under_load_lose_no_claim() {
    let Some(mut cluster) = ZooKeeperCluster::start_with(1, &["snapCount=200"]).await else { return };
    let engine = open(&cluster.url());
    let mut requests = Vec::new();
    for _ in 0..20 {
        let some = claims(50);
        join_all(some.iter().map(|request| granted(&engine, request))).await;
        requests.extend(some);
    }
    assert!(cluster.snapshots(0) > 1, "it made snapshots");
    cluster.restart(0);
    assert!(cluster.is_ready().await);
    serves_again(&engine).await;
    let answers = join_all(requests.iter().map(async |request| is_duplicate(&engine, &again(request)).await)).await;
    assert!(answers.iter().all(|is_duplicate| *is_duplicate));
}
