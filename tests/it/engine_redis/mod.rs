//! The Redis engine on real servers: the contract that all engines keep, what a server may be told while it runs, and
//! all that can go wrong between the two.

mod conformance;
mod faults;
mod layout;
mod operators;
mod replies;
mod tls;

use std::sync::Arc;
use std::time::Duration;

use oncegate::domain::attempt::{Attempt, Issuer, SystemEntropy};
use oncegate::domain::claim::{Claim, Claimed, Grant, LateTerms, Outcome, Renew, Settle};
use oncegate::domain::clock::SystemClock;
use oncegate::domain::record::Contents;
use oncegate::domain::terms::OutcomeOnOutage;
use oncegate::engine::conformance::fresh_claim;
use oncegate::engine::redis::{Options, Redis};
use oncegate::engine::{Determinate, Engine, EngineError};

use crate::support::redis_server::RedisServer;
use crate::support::tcp_proxy::TcpProxy;

/// Options whose times suit a test's patience.
fn options() -> Options {
    Options { health_interval: Duration::from_millis(50), ..Options::default() }
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
    let redis = Redis::open(&format!("redis://{}?connections=1", proxy.address()), options).expect("a good URL");
    redis.probe().await.expect("the server is up");
    (proxy, redis)
}

/// Waits until the engine serves: at most a second, which is what the gateway promises.
async fn back_within_a_second(redis: &Redis) {
    let served = async {
        // The probe asks over every connection.
        while redis.probe().await.is_err() || redis.claim(&fresh_claim()).await.is_err() {
            tokio::time::sleep(Duration::from_millis(5)).await;
        }
    };
    tokio::time::timeout(Duration::from_secs(1), served).await.expect("service is back within a second");
}

/// Waits until something holds.
async fn soon(what: &str, mut holds: impl AsyncFnMut() -> bool) {
    let waiting = async {
        while !holds().await {
            tokio::time::sleep(Duration::from_millis(5)).await;
        }
    };
    tokio::time::timeout(Duration::from_secs(5), waiting).await.unwrap_or_else(|_| panic!("never: {what}"));
}

fn attempt() -> Attempt {
    static ISSUER: std::sync::LazyLock<Issuer> =
        std::sync::LazyLock::new(|| Issuer::new(Arc::new(SystemClock::new()), Arc::new(SystemEntropy)));
    ISSUER.issue(None)
}

/// The same operation, tried by somebody else.
fn again(ask: &Claim) -> Claim {
    Claim { attempt: attempt(), ..ask.clone() }
}

fn settle(ask: &Claim, outcome: Outcome) -> Settle {
    let late = LateTerms { operation: None, contents: Contents::Unverified, terms: ask.terms };
    Settle {
        key: ask.key.clone(),
        attempt: ask.attempt.clone(),
        outcome,
        late: Some(late),
        deadline: Duration::from_secs(30),
        on_outage: OutcomeOnOutage::FailClosed,
    }
}

fn renew(ask: &Claim, lease: Option<Duration>) -> Renew {
    Renew { key: ask.key.clone(), attempt: ask.attempt.clone(), lease, deadline: Duration::from_secs(30) }
}

fn success(result: &str) -> Outcome {
    Outcome::Success { result: Some(result.into()), retention: None }
}

/// The name of a claim in the store.
fn name(ask: &Claim) -> String {
    format!("og:{{{}}}:{}", ask.key.global_id, ask.key.app)
}

async fn granted(redis: &Redis, ask: &Claim) -> Grant {
    match redis.claim(ask).await {
        Ok(Claimed::Granted(grant)) => grant,
        other => panic!("expected a grant, got {other:?}"),
    }
}

async fn is_duplicate(redis: &Redis, ask: &Claim) -> bool {
    matches!(redis.claim(ask).await, Ok(Claimed::Duplicate(_)))
}

/// Why a call certainly did not happen.
fn unavailable<T: std::fmt::Debug>(answer: Result<T, EngineError>) -> String {
    match answer {
        Err(EngineError::Determinate(Determinate::Unavailable(why))) => why,
        other => panic!("expected the store to be unavailable, got {other:?}"),
    }
}

fn is_uncertain<T>(answer: &Result<T, EngineError>) -> bool {
    matches!(answer, Err(EngineError::Indeterminate(_)))
}
