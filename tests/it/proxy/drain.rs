//! A gateway that is stopped while requests are running.

use std::sync::Arc;

use oncegate_testkit::wait::until;

use super::{Caller, SOON, Upstream, at, config};
use crate::support::gateway;

#[tokio::test]
async fn a_gateway_that_stops_waits_for_exchanges_with_and_without_callers() {
    let (upstream, port) = Upstream::start().await;
    let folder = tempfile::tempdir().unwrap();
    let setup = gateway::on_disk(folder.path()).config(&config("", &at(port), ""));
    let mut gateway = setup.start().await;
    let caller = Arc::new(Caller::of(&gateway));
    let [stays, leaves] = ["k-stays", "k-leaves"].map(|key| {
        let caller = caller.clone();
        tokio::spawn(async move { caller.post("/orders/slow", key, "one").await })
    });
    until("the upstream has both", SOON, async || upstream.effects() == 2).await;
    leaves.abort();
    assert!(leaves.await.is_err(), "it has hung up");
    gateway.signal("TERM");
    until("no connection is accepted any more", SOON, async || {
        tokio::net::TcpStream::connect(&caller.address).await.is_err()
    })
    .await;
    upstream.gate.add_permits(2);
    assert_eq!(stays.await.unwrap().status, 201);
    assert!(gateway.ended().await.success());
    let gateway = setup.start().await;
    let caller = Caller::of(&gateway);
    for key in ["k-stays", "k-leaves"] {
        let repeat = caller.post("/orders/slow", key, "one").await;
        assert!(repeat.status == 201 && repeat.is_replay(), "{key}: {}", repeat.status);
    }
    assert_eq!(upstream.effects(), 2);
}
