//! PostgreSQL as a store, held to its promises over real servers.

mod conformance;
mod database;
mod faults;
mod layout;
mod measure;
mod sweeping;
mod tls;

use std::sync::Arc;
use std::time::Duration;

use oncegate::domain::attempt::{Attempt, Issuer, SystemEntropy};
use oncegate::domain::claim::{Claim, Claimed, Grant, LateTerms, Outcome, Settle};
use oncegate::domain::clock::SystemClock;
use oncegate::domain::record::Contents;
use oncegate::domain::terms::OutcomeOnOutage;
use oncegate::engine::conformance::fresh_claim;
use oncegate::engine::postgres::{Options, Postgres};
use oncegate::engine::{Determinate, Engine, EngineError};

/// Options for a machine that other tests share: nothing is slow until it is very slow.
fn options() -> Options {
    Options {
        connect_timeout: Duration::from_secs(10),
        response_timeout: Duration::from_secs(10),
        sweep_every: Duration::from_millis(50),
        ..Options::default()
    }
}

fn open(url: &str) -> Postgres {
    Postgres::open(url, options()).expect("a good URL")
}

/// Waits until the engine serves: at most a second, which is what the gateway promises.
async fn back_within_a_second(engine: &Postgres) {
    let served = async {
        // The probe asks over every connection.
        while engine.probe().await.is_err() || engine.claim(&fresh_claim()).await.is_err() {
            tokio::time::sleep(Duration::from_millis(5)).await;
        }
    };
    tokio::time::timeout(Duration::from_secs(1), served).await.expect("service is back within a second");
}

/// Waits until something holds.
async fn soon(what: &str, holds: impl AsyncFnMut() -> bool) {
    crate::support::wait::until(what, Duration::from_secs(10), holds).await;
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

fn success(result: &str) -> Outcome {
    Outcome::Success { result: Some(result.into()), retention: None }
}

/// How SQL names the row of a claim.
fn row(ask: &Claim) -> String {
    format!("oncegate_claims WHERE app = '{}' AND global_id = decode('{}', 'hex')", ask.key.app, ask.key.global_id)
}

async fn granted(engine: &Postgres, ask: &Claim) -> Grant {
    match engine.claim(ask).await {
        Ok(Claimed::Granted(grant)) => grant,
        other => panic!("expected a grant, got {other:?}"),
    }
}

async fn is_duplicate(engine: &Postgres, ask: &Claim) -> bool {
    matches!(engine.claim(ask).await, Ok(Claimed::Duplicate(_)))
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
