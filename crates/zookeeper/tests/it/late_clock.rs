//! A gateway whose view of the clock is late.

use std::time::Duration;

use oncegate_core::claim::RenewalResponse;
use oncegate_core::engine::Claims as _;
use oncegate_core::engine::conformance::DEADLINE;
use oncegate_testkit::calls::renew;
use oncegate_testkit::tcp_proxy::{Mode, TcpProxy};

use super::{Cluster, granted, leased, open, serves_again, soon};

/// With slow replies, a gateway knows an older clock than the store has: the step itself compares.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_lease_that_has_ended_is_not_renewed_by_a_gateway_whose_clock_is_late() {
    let Some(cluster) = Cluster::start_one().await else { return };
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
