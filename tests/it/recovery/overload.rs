//! More calls than permits: new work is refused, but outcomes and renewals are not.

use std::time::Duration;

use oncegate_testkit::fresh;
use oncegate_testkit::redis_server::RedisServer;
use oncegate_testkit::tcp_proxy::{Mode, TcpProxy};
use serde_json::json;

use super::{BACK, NOTICED, served};
use crate::support::gateway;

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_flood_of_claims_on_a_stalled_store_leaves_room_for_outcomes_and_renewals() {
    let Some(server) = RedisServer::start().await else { return };
    let mut proxy = TcpProxy::start(server.address()).await;
    let setup = gateway::on(format!("redis://{}", proxy.address())).env("ONCEGATE_LIMITS__REQUESTS_IN_FLIGHT", 16);
    // All calls of the flood have come before the first ones end.
    let gateway = setup.env("ONCEGATE_DEFAULTS__DEADLINE", "5s").start().await;
    served(&gateway, NOTICED).await;
    let client = gateway.client();
    let held = client.claim(json!("held")).await.expect(201);
    proxy.set(Mode::HalfOpen);
    let flood = (0..64).map(|_| async { client.claim(fresh::contents()).await });
    let settled = async {
        // The flood is there.
        tokio::time::sleep(Duration::from_millis(100)).await;
        tokio::join!(client.settle(&held, "success"), client.renew(&held, None))
    };
    let (response, (settled, renewed)) = tokio::join!(futures_util::future::join_all(flood), settled);
    let overloaded = response.iter().filter(|answer| answer.code() == (503, "overloaded")).count();
    assert_eq!(overloaded, 64 - 14, "two places of sixteen are not for claims");
    for answer in [settled, renewed] {
        assert!(matches!(answer.code(), (503, "store_unavailable" | "outcome_unknown")), "{}", answer.text);
    }
    proxy.heal().await;
    served(&gateway, BACK).await;
    client.settle(&held, "success").await.expect(200);
}
