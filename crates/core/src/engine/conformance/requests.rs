//! Requests that no other test uses.

use std::sync::Arc;
use std::time::Duration;

use crate::attempt::{Attempt, Issuer, Nonce, SystemEntropy};
use crate::canonical::Canonical;
use crate::claim::{ClaimRequest, LateTerms, Outcome, OutcomeRequest, OutcomeResponse, RenewalRequest};
use crate::clock::SystemClock;
use crate::global_id::GlobalId;
use crate::record::{ClaimState, Contents, Key, Realm};
use crate::tenant::{AppKey, Operation};
use crate::terms::{LeaseEnd, Retention, Terms};

/// Terms that are longer than any test.
pub(super) fn long_terms() -> Terms {
    Terms {
        lease: Duration::from_hours(1),
        retention: Retention::For(Duration::from_hours(24)),
        unknown_retention: Retention::For(Duration::from_hours(24 * 7)),
        on_lease_end: LeaseEnd::Release,
    }
}

pub(super) fn issuer() -> &'static Issuer {
    static ISSUER: std::sync::OnceLock<Issuer> = std::sync::OnceLock::new();
    ISSUER.get_or_init(|| Issuer::new(Arc::new(SystemClock::new()), Arc::new(SystemEntropy)))
}

pub(super) fn attempt() -> Attempt {
    issuer().issue(None)
}

/// Deadline of calls in tests, long enough for slow machines.
pub const DEADLINE: Duration = Duration::from_secs(30);

pub(super) fn app(name: &str) -> AppKey {
    name.parse().expect("an app key")
}

/// Returns a claim of contents that no other test uses.
pub fn fresh_claim() -> ClaimRequest {
    let unique = attempt();
    claim_of("conformance", &format!("{{\"order\":\"{}\"}}", unique.timestamp().as_micros()))
}

pub(super) fn claim_of(app_name: &str, contents: &str) -> ClaimRequest {
    let (app, operation) = (app(app_name), Operation::default());
    let contents = Canonical::trusted(contents);
    ClaimRequest {
        key: Key { global_id: GlobalId::of(&app, &operation, &contents), realm: Realm::Api, app },
        attempt: attempt(),
        operation,
        contents,
        contents_stored_bytes: 1024,
        fingerprint: None,
        terms: long_terms(),
        caller: None,
        take_over: false,
        waits: false,
    }
}

/// Returns attempts that are not the attempt of a claim: neither its nonce alone nor its timestamp alone is the attempt.
pub(super) fn strangers_to(request: &ClaimRequest) -> [Attempt; 3] {
    let same_nonce = issuer().issue(Some(request.attempt.nonce().clone()));
    let same_timestamp = Attempt::new(request.attempt.timestamp(), Nonce::from_bits(7));
    [attempt(), same_nonce, same_timestamp]
}

/// Returns a claim of the same operation by a new attempt.
pub(super) fn again(request: &ClaimRequest) -> ClaimRequest {
    ClaimRequest { attempt: attempt(), ..request.clone() }
}

pub(super) fn settle_of(request: &ClaimRequest, outcome: Outcome) -> OutcomeRequest {
    settle_by(request, &request.attempt, outcome)
}

pub(super) fn settle_by(request: &ClaimRequest, attempt: &Attempt, outcome: Outcome) -> OutcomeRequest {
    let late = LateTerms { operation: None, contents: Contents::Unverified, terms: request.terms };
    OutcomeRequest { key: request.key.clone(), attempt: attempt.clone(), outcome, late: Some(late) }
}

pub(super) fn success(result: Option<&str>) -> Outcome {
    Outcome::Success { result: result.map(Into::into), retention: None }
}

/// Returns the answer to an outcome, without its end, like [`super::Subject::settle`].
pub(super) fn done(state: Option<ClaimState>, left: Option<Duration>, late: bool) -> OutcomeResponse {
    OutcomeResponse::Done { state, left, ends_at: None, late: Some(late) }
}

pub(super) fn renew_of(request: &ClaimRequest, lease: Option<Duration>) -> RenewalRequest {
    RenewalRequest { key: request.key.clone(), attempt: request.attempt.clone(), lease }
}
