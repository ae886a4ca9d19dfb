//! Requests to an engine, and checks of its answers.

use std::sync::Arc;
use std::time::Duration;

use oncegate_core::attempt::{Attempt, Issuer, SystemEntropy};
use oncegate_core::claim::{ClaimRequest, ClaimResponse, Grant, LateTerms, Outcome, OutcomeRequest, RenewalRequest};
use oncegate_core::clock::SystemClock;
use oncegate_core::engine::conformance::{DEADLINE, fresh_claim};
use oncegate_core::engine::{Determinate, Engine, EngineError};
use oncegate_core::record::Contents;

use crate::wait::PATIENCE;

pub fn attempt() -> Attempt {
    static ISSUER: std::sync::LazyLock<Issuer> =
        std::sync::LazyLock::new(|| Issuer::new(Arc::new(SystemClock::new()), Arc::new(SystemEntropy)));
    ISSUER.issue(None)
}

/// The same operation by another attempt.
pub fn again(request: &ClaimRequest) -> ClaimRequest {
    ClaimRequest { attempt: attempt(), ..request.clone() }
}

pub fn settle(request: &ClaimRequest, outcome: Outcome) -> OutcomeRequest {
    let late = LateTerms { operation: None, contents: Contents::Unverified, terms: request.terms };
    OutcomeRequest { key: request.key.clone(), attempt: request.attempt.clone(), outcome, late: Some(late) }
}

pub fn renew(request: &ClaimRequest, lease: Option<Duration>) -> RenewalRequest {
    RenewalRequest { key: request.key.clone(), attempt: request.attempt.clone(), lease }
}

pub fn success(result: &str) -> Outcome {
    Outcome::Success { result: Some(result.into()), retention: None }
}

/// The first answer to a claim, repeated until there is one: on a busy machine a call may come too late.
async fn answered(engine: &impl Engine, request: &ClaimRequest) -> ClaimResponse {
    let answered = async {
        loop {
            if let Ok(answer) = engine.claim(request, DEADLINE).await {
                return answer;
            }
            tokio::time::sleep(Duration::from_millis(5)).await;
        }
    };
    tokio::time::timeout(PATIENCE, answered).await.expect("the claim is answered")
}

pub async fn granted(engine: &impl Engine, request: &ClaimRequest) -> Grant {
    match answered(engine, request).await {
        ClaimResponse::Granted(grant) => grant,
        other => panic!("expected a grant, got {other:?}"),
    }
}

pub async fn is_duplicate(engine: &impl Engine, request: &ClaimRequest) -> bool {
    matches!(answered(engine, request).await, ClaimResponse::Duplicate(_))
}

/// Returns why a call certainly took no effect.
pub fn unavailable<T: std::fmt::Debug>(answer: Result<T, EngineError>) -> String {
    match answer {
        Err(EngineError::Determinate(Determinate::Unavailable(why))) => why,
        other => panic!("expected the store to be unavailable, got {other:?}"),
    }
}

pub fn is_uncertain<T>(answer: &Result<T, EngineError>) -> bool {
    matches!(answer, Err(EngineError::Indeterminate(_)))
}

/// Waits until the engine serves. `make faults-cluster` and the load generator measure how long that takes.
pub async fn serves_again(engine: &impl Engine) {
    let served = async {
        // The probe uses every connection.
        while engine.probe().await.is_err() || engine.claim(&fresh_claim(), DEADLINE).await.is_err() {
            tokio::time::sleep(Duration::from_millis(5)).await;
        }
    };
    tokio::time::timeout(PATIENCE, served).await.expect("the engine serves again");
}
