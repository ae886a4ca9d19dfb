//! Calls of several gateways on one key at once, where something stands that has ended.

use std::time::Duration;

use futures_util::future::join_all;
use oncegate_core::claim::{ClaimResponse, RenewalResponse};
use oncegate_core::engine::Engine;
use oncegate_core::engine::conformance::DEADLINE;
use oncegate_testkit::calls::renew;
use oncegate_testkit::tcp_proxy::{Mode, TcpProxy};
use oncegate_testkit::zookeeper_cluster::ZooKeeperCluster;

use super::{again, granted, leased, open, serves_again, soon};

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn of_many_that_take_over_an_ended_claim_exactly_one_is_granted() {
    let Some(cluster) = ZooKeeperCluster::start_one().await else { return };
    let engines = [open(&cluster.url()), open(&cluster.url()), open(&cluster.url())];
    for engine in &engines {
        serves_again(engine).await;
    }
    for _ in 0..4 {
        let ended = leased(Duration::from_millis(100));
        granted(&engines[0], &ended).await;
        soon("the lease ends", async || engines[1].read(&ended.key).await == Ok(None)).await;
        let long = leased(Duration::from_hours(1)).terms;
        let requests: Vec<_> =
            (0..60).map(|_| oncegate_core::claim::ClaimRequest { terms: long, ..again(&ended) }).collect();
        let calls = requests.iter().zip(engines.iter().cycle());
        let answers = join_all(calls.map(|(request, engine)| engine.claim(request, DEADLINE))).await;
        let granted = answers.iter().filter(|answer| matches!(answer, Ok(ClaimResponse::Granted(_)))).count();
        assert_eq!(granted, 1, "{answers:?}");
    }
}

/// What a gateway knows of the clock is older than what the store has, where its replies take long: the step itself compares.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_lease_that_has_ended_is_not_renewed_by_a_gateway_whose_clock_is_late() {
    let Some(cluster) = ZooKeeperCluster::start_one().await else { return };
    let near = open(&cluster.url());
    serves_again(&near).await;
    let proxy = TcpProxy::start(cluster.addresses()[0].parse().unwrap()).await;
    proxy.set(Mode::Delay(Duration::from_millis(150)));
    let far = open(&format!("zookeeper://{}?members=fixed", proxy.address()));
    serves_again(&far).await;
    for _ in 0..3 {
        let request = leased(Duration::from_secs(2));
        granted(&far, &request).await;
        soon("the lease ends", async || near.read(&request.key).await == Ok(None)).await;
        let renewed = far.renew(&renew(&request, None), DEADLINE).await;
        assert_eq!(renewed, Ok(RenewalResponse::LeaseLost));
    }
}
