//! A broken cable between a gateway and a member, which sees its clients as before.

use std::sync::Arc;
use std::time::Duration;

use oncegate_core::claim::ClaimResponse;
use oncegate_core::clock::{Clock as _, SystemClock, Timestamp};
use oncegate_core::engine::conformance::{DEADLINE, fresh_claim};
use oncegate_core::engine::{Claims as _, RecordName, Records as _, Topology as _};
use oncegate_driver::scheme::Host;
use oncegate_testkit::tcp_proxy::{Mode, TcpProxy};

use super::{Cluster, again, engine, is_duplicate, open, serves_again, soon};

/// Returns the URL of an engine that reaches the first member through a proxy, and the others directly.
async fn through_proxy(cluster: &Cluster) -> (TcpProxy, String) {
    let (url, addresses) = (cluster.url(), cluster.addresses());
    let proxy = TcpProxy::start_any(addresses[0].parse().expect("an address")).await;
    let url = url.replacen(&addresses[0], &proxy.address().to_string(), 1);
    (proxy, format!("{url}?members=fixed"))
}

/// Only replies are lost, or only requests, or nothing comes through at all.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_member_behind_a_broken_cable_is_left_and_each_call_has_one_effect() {
    let Some(cluster) = Cluster::start().await else { return };
    let (proxy, url) = through_proxy(&cluster).await;
    let engine = engine::open(&url, engine::Options::default()).unwrap();
    serves_again(&engine).await;
    for mode in [Mode::HalfOpen, Mode::Unheard, Mode::Blackhole] {
        proxy.set(mode);
        for _ in 0..3 {
            let request = fresh_claim();
            // A lost call is repeated with the same attempt.
            soon("a grant", async || engine.claim(&request, DEADLINE).await.is_ok()).await;
            assert!(is_duplicate(&engine, &again(&request)).await);
        }
        proxy.set(Mode::Pass);
        serves_again(&engine).await;
    }
}

/// Opening takes several round trips, so it must have longer as well.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_slow_member_serves_if_the_url_lets_it_take_longer() {
    let Some(cluster) = Cluster::start_one().await else { return };
    let (proxy, url) = through_proxy(&cluster).await;
    // Each way: no session is open within the default limits.
    proxy.set(Mode::Delay(Duration::from_millis(150)));
    let host = Host { clock: Arc::new(SystemClock::new()), cores: Vec::new() };
    let opened = (engine::SCHEME.open)(&format!("{url}&response_timeout=3s"), host).unwrap();
    let (request, deadline) = (fresh_claim(), Duration::from_secs(9));
    soon("a grant", async || opened.claim(&request, deadline).await.is_ok()).await;
    assert!(matches!(opened.claim(&again(&request), deadline).await, Ok(ClaimResponse::Duplicate(_))));
}

/// One connection advances the clock while another one is opened, which reads it a little earlier.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn connections_that_are_lost_again_and_again_are_no_loss_of_data() {
    let Some(cluster) = Cluster::start_one().await else { return };
    // Half of the connections stay.
    let server = cluster.addresses()[0].parse().expect("an address");
    let (lost, stays) = (TcpProxy::start_any(server).await, TcpProxy::start_any(server).await);
    let scheme = cluster.url().split_once("://").expect("a URL").0.to_owned();
    let url = format!("{scheme}://{},{}?members=fixed&tick=50ms", lost.address(), stays.address());
    let engine = open(&url);
    serves_again(&engine).await;
    // Not for so long that the other way would be tried.
    lost.set(Mode::Delay(Duration::from_millis(6)));
    for _ in 0..40 {
        lost.drop_connections();
        tokio::time::sleep(Duration::from_millis(250)).await;
    }
    serves_again(&engine).await;
    assert_eq!(engine.data_lost(), 0);
}

/// Each write of the clock, and each reading before it, is late by most of a second, or stands still for longer.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_gateway_whose_ticks_are_late_pushes_the_clock_no_further() {
    let Some(cluster) = Cluster::start_one().await else { return };
    let (proxy, url) = through_proxy(&cluster).await;
    let (late, direct) = (open(&url), open(&cluster.url()));
    for engine in [&late, &direct] {
        serves_again(engine).await;
    }
    let (own, name) = (SystemClock::new(), RecordName::Metadata("none".into()));
    let look = async || -> (Duration, Duration, Timestamp) {
        let sent = own.monotonic();
        let now = direct.get_record(&name, DEADLINE).await.unwrap().now;
        (sent, own.monotonic(), now)
    };
    let (first_sent, _, first) = look().await;
    for mode in
        [Mode::Delay(Duration::from_millis(700)), Mode::Pass, Mode::HalfOpen, Mode::Pass, Mode::Blackhole, Mode::Pass]
    {
        proxy.set(mode);
        let until = own.monotonic() + Duration::from_millis(1200);
        while own.monotonic() < until {
            let (_, answered, now) = look().await;
            let (gained, passed) = (now.since(first), answered.saturating_sub(first_sent));
            assert!(gained <= passed + Duration::from_millis(500), "{mode:?}: {gained:?} in {passed:?}");
            tokio::time::sleep(Duration::from_millis(20)).await;
        }
    }
}
