//! Tests of the Redis engine on single servers. Clusters and Sentinels are in `tests/cluster`.

#![expect(clippy::unwrap_used, reason = "a test that cannot continue fails")]

mod batches;
mod conformance;
mod damaged;
mod faults;
mod layout;
mod notifications;
mod operators;
mod replies;
mod tls;
mod unknowns;

use std::time::Duration;

use oncegate_core::claim::ClaimRequest;
use oncegate_core::engine::Topology as _;
use oncegate_redis::{Options, Redis};
use oncegate_testkit::calls::{
    again, attempt, granted, is_duplicate, is_uncertain, renew, serves_again, settle, success, unavailable,
};
use oncegate_testkit::redis_server::RedisServer;
use oncegate_testkit::tcp_proxy::TcpProxy;

/// Options for a machine that other tests share: only a very slow call counts as slow. The server is checked often.
fn options() -> Options {
    let (response_timeout, health_check_interval) = (Duration::from_secs(10), Duration::from_millis(50));
    Options { response_timeout, health_check_interval, ..Options::default() }
}

/// The same with a short timeout, for calls that get no answer.
fn impatient() -> Options {
    Options { response_timeout: Duration::from_secs(1), ..options() }
}

fn open(url: &str) -> Redis {
    Redis::open(url, options()).expect("a good URL")
}

/// An engine that reaches the server through a proxy, over one connection.
async fn behind_proxy(server: &RedisServer) -> (TcpProxy, Redis) {
    behind_proxy_with(server, options()).await
}

async fn behind_proxy_with(server: &RedisServer, options: Options) -> (TcpProxy, Redis) {
    let proxy = TcpProxy::start(server.address()).await;
    // The server is not checked, so every reply belongs to a call.
    let rare = Duration::from_hours(1);
    let options = Options { health_check_interval: rare, heartbeat_interval: rare, ..options };
    let redis = Redis::open(&format!("redis://{}?connections=1", proxy.address()), options).expect("a good URL");
    redis.probe().await.expect("the server is up");
    (proxy, redis)
}

/// Waits until something holds.
async fn soon(what: &str, holds: impl AsyncFnMut() -> bool) {
    oncegate_testkit::wait::until(what, Duration::from_secs(15), holds).await;
}

/// The name of a claim in the store.
fn name(request: &ClaimRequest) -> String {
    format!("og:{{{}}}:{}", request.key.global_id, request.key.app)
}
