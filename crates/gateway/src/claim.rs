//! The claim call, before an operation.

use std::time::Duration;

use oncegate_core::attempt::{Attempt, Nonce};
use oncegate_core::call::{Answered, CallContext};
use oncegate_core::caller::Caller;
use oncegate_core::canonical::Canonical;
use oncegate_core::claim::{ClaimRequest, ClaimResponse, Grant, Mismatch};
use oncegate_core::clock::{Timestamp, millis};
use oncegate_core::engine::EngineError;
use oncegate_core::global_id::GlobalId;
use oncegate_core::observed::WouldBe;
use oncegate_core::record::{ClaimState, Key, Realm, fingerprint_digest};
use oncegate_core::tenant::Operation;
use oncegate_core::terms::{ClaimOnOutage, LeaseEnd, Mode, Retention, Terms};
use oncegate_telemetry::metrics::{ClaimResult, observed};
use oncegate_telemetry::traces;
use tracing::field::Empty;

use super::batch::FittedAnswer;
use super::result_memory::KeptResults;
use super::{ClaimView, Failure, Gateway, NamedChain, StoreResult, batch, failure, within};
use crate::resilience::deadline_budget;
use crate::tenants::App;
use oncegate_outage::PolicyClaim;
use oncegate_outage::crash::{self, Point};

/// A claim call.
#[derive(Debug)]
pub struct ClaimCall {
    /// The realm of the claim.
    pub realm: Realm,
    /// The operation.
    pub operation: Operation,
    /// The contents, which make two operations the same.
    pub contents: Canonical,
    /// The fingerprint, which must be the same on a repeat.
    pub fingerprint: Option<Canonical>,
    /// The caller's nonce for this try.
    pub nonce: Option<Nonce>,
    /// The name that the caller gives itself.
    pub caller: Option<Caller>,
    /// The lease, if not the operation's.
    pub lease: Option<Duration>,
    /// The retention, if not the operation's.
    pub retention: Option<Retention>,
    /// Take the claim over if it is `unknown`.
    pub take_over: bool,
    /// The claim becomes `unknown` at the end of its lease. The operation's term does not count then.
    pub unknown_on_lease_end: bool,
}

impl ClaimCall {
    /// Returns a claim call of the API that asks for nothing else, for tests.
    #[cfg(any(test, feature = "test-util"))]
    pub fn plain(operation: Operation, contents: Canonical) -> Self {
        Self {
            realm: Realm::Api,
            operation,
            contents,
            fingerprint: None,
            nonce: None,
            caller: None,
            lease: None,
            retention: None,
            take_over: false,
            unknown_on_lease_end: false,
        }
    }
}

/// The answer to a claim call.
#[derive(Debug)]
#[expect(clippy::large_enum_variant, reason = "one for each call, and not kept")]
pub enum ClaimAnswer {
    /// The claim is granted.
    Granted(Granted),
    /// There is a live claim.
    Duplicate(ClaimView),
    /// A live claim has the same ID and other contents, or another fingerprint.
    Mismatch(Mismatch),
}

/// A granted claim, for its holder.
#[derive(Debug)]
pub struct Granted {
    /// The claim.
    pub global_id: GlobalId,
    /// The attempt that holds it.
    pub attempt: Attempt,
    /// A number that rises strictly over the attempts of a key, if the engine promises it.
    pub fence: Option<u64>,
    /// An earlier claim call with the same nonce got the claim.
    pub repeated: bool,
    /// The claim was `unknown` before.
    pub taken_over: bool,
    /// Remaining time of the lease, in whole milliseconds, counted from before the store was called.
    pub lease_ms: u64,
    /// End of the lease, by the store's clock if the store reports it, else by this gateway's; for display.
    pub lease_expires_at: Timestamp,
    /// In observe mode, the answer that enforcing would have given. The attempt holds nothing.
    pub would_be: Option<WouldBe>,
}

/// The request to the store, and the parameters of its call.
pub(super) type Prepared = (ClaimRequest, CallContext<ClaimOnOutage>);

impl Gateway {
    /// Claims an operation.
    ///
    /// # Errors
    /// There is no answer; a duplicate is an answer.
    pub async fn claim(&self, app: &App, call: ClaimCall) -> Result<Answered<ClaimAnswer>, Failure> {
        let started = self.clock.monotonic();
        let (request, context) = self.prepare(app, call)?;
        let span = traces::child!(
            "claim",
            oncegate.app = %app.key,
            oncegate.operation = %request.operation,
            oncegate.global_id = %request.key.global_id,
            oncegate.result = Empty,
        );
        let call = async { self.policies(app)?.claim(&request, context).await };
        let answer = traces::in_span!(span, within(context.deadline, call));
        let answer = self.answer_claim(app, &request, answer, started);
        if !span.is_none() {
            span.record("oncegate.result", claim_result(&answer).label());
        }
        answer
    }

    /// Repeats a claim whose result is uncertain, with its nonce. If the repeat fails, the result stays uncertain: that failure says
    /// nothing about the first call.
    ///
    /// # Errors
    /// There is no answer.
    pub async fn claim_again(
        &self,
        app: &App,
        call: ClaimCall,
        nonce: Nonce,
    ) -> Result<Answered<ClaimAnswer>, Failure> {
        let call = ClaimCall { nonce: Some(nonce.clone()), ..call };
        self.claim(app, call).await.map_err(|_| Failure::OutcomeUnknown(Some(nonce)))
    }

    /// Claims many operations. Each has its own answer, in order; items that were rejected before keep their index. The results
    /// of duplicates have `results_max` bytes at most; dropping [`KeptResults`] releases their memory.
    pub async fn claim_many<Rejection: From<Failure>>(
        &self,
        app: &App,
        calls: Vec<Result<ClaimCall, Rejection>>,
        results_max: usize,
    ) -> (Vec<Result<Answered<ClaimAnswer>, Rejection>>, KeptResults) {
        let started = self.clock.monotonic();
        let prepare = |call: Result<_, _>| call.and_then(|call| self.prepare(app, call).map_err(Rejection::from));
        let prepared: Vec<Result<Prepared, Rejection>> = calls.into_iter().map(prepare).collect();
        let claims: Vec<_> =
            prepared.iter().flatten().map(|(request, context)| PolicyClaim { request, context: *context }).collect();
        let span = traces::child!("claims", oncegate.app = %app.key, oncegate.items = claims.len());
        let (answers, kept) = match self.named_chain(app) {
            Ok(NamedChain { chain, policies }) => {
                let (memory, began) = (self.result_memory.of(&app.key), chain.moment());
                let batch = batch::run_claims(policies, &claims, &memory, results_max, || self.since(started));
                let (mut answers, kept) = traces::in_span!(span, batch);
                // The first grants have waited for the last answer since the chain has checked them.
                for (answer, claim) in answers.iter_mut().zip(&claims) {
                    if answer.as_ref().is_ok_and(FittedAnswer::is_granted_by_store)
                        && let Err(switched) = chain.check_grant(&began, &claim.request.key)
                    {
                        *answer = Err(switched);
                    }
                }
                (answers, kept)
            }
            Err(error) => (batch::fail(claims.len(), &error), KeptResults::default()),
        };
        let mut answers = answers.into_iter();
        let answer = |prepared: Result<Prepared, Rejection>| {
            let (request, _) = prepared?;
            let answer = answers.next().unwrap_or_else(|| Err(EngineError::no_answer()));
            let omitted = answer.as_ref().is_ok_and(|fitted| fitted.result_omitted);
            let answer = self.answer_claim(app, &request, answer.map(|fitted| fitted.answered), started)?;
            Ok(answer.map(|answer| match answer {
                ClaimAnswer::Duplicate(found) => ClaimAnswer::Duplicate(ClaimView { result_omitted: omitted, ..found }),
                other => other,
            }))
        };
        (prepared.into_iter().map(answer).collect(), kept)
    }

    pub(super) fn prepare(&self, app: &App, call: ClaimCall) -> Result<Prepared, Failure> {
        let ClaimCall {
            realm,
            operation,
            contents,
            fingerprint,
            nonce,
            caller,
            lease,
            retention,
            take_over,
            unknown_on_lease_end,
        } = call;
        if nonce.as_ref().is_some_and(Nonce::is_observed) {
            return Err(Failure::NonceReserved);
        }
        if let Some(nonce) = &nonce
            && [Some(&contents), fingerprint.as_ref()].into_iter().flatten().any(|json| holds_string(json, nonce))
        {
            return Err(Failure::NonceInContents);
        }
        if let Some(retention) = retention {
            check_retention(app, retention)?;
        }
        let own = app.terms_of(&operation);
        if unknown_on_lease_end && !own.accept_loss && self.forgets_by_itself(app) {
            return Err(Failure::ChainForgets);
        }
        let terms = Terms {
            lease: lease.unwrap_or(own.terms.lease),
            retention: retention.unwrap_or(own.terms.retention),
            on_lease_end: if unknown_on_lease_end { LeaseEnd::Unknown } else { own.terms.on_lease_end },
            ..own.terms
        };
        let request = ClaimRequest {
            key: Key { app: app.key.clone(), realm, global_id: GlobalId::of(&app.key, &operation, &contents) },
            attempt: self.issuer.issue(nonce),
            operation,
            contents,
            contents_stored_bytes: own.contents_stored_bytes,
            fingerprint: fingerprint.as_ref().map(fingerprint_digest),
            caller,
            terms,
            take_over,
            waits: false,
        };
        self.charge_claim(app, &request)?;
        let deadline = deadline_budget::of_claim(own.deadline, terms.lease);
        Ok((request, CallContext { deadline, on_outage: own.claim_on_outage }))
    }

    pub(super) fn answer_claim(
        &self,
        app: &App,
        request: &ClaimRequest,
        answer: Result<Answered<ClaimResponse>, EngineError>,
        started: Duration,
    ) -> Result<Answered<ClaimAnswer>, Failure> {
        if answer.as_ref().is_ok_and(|answered| is_granted(answered) || answered.policy.is_some()) {
            crash::here(Point::Claimed);
        }
        let took = self.since(started);
        let observing = app.terms_of(&request.operation).mode == Mode::Observe;
        let would_be = answer.as_ref().ok().and_then(|answered| WouldBe::of(&answered.answer)).filter(|_| observing);
        let answer = match answer {
            Ok(Answered { policy, .. }) if let Some(would_be) = would_be => {
                Ok(Answered { answer: self.let_through(request, would_be), policy })
            }
            Ok(Answered { answer, policy }) => {
                self.claim_answer(request, answer, took).map(|answer| Answered { answer, policy })
            }
            Err(error) => Err(failure(error, Some(request.attempt.nonce().clone()))),
        };
        match answer.as_ref().map(|answered| &answered.answer) {
            Ok(ClaimAnswer::Granted(granted)) => {
                self.granted.add(app, &request.key, &request.operation);
                if granted.taken_over {
                    self.met_unknowns.remove(&request.key);
                }
            }
            Ok(ClaimAnswer::Duplicate(found)) if found.claim.record.state == ClaimState::Unknown => {
                self.met_unknowns.add(app, &request.key, self.unknown_since(&found.claim));
            }
            _ => {}
        }
        if let Some(metrics) = self.metrics.load().get(&app.key) {
            metrics.claimed(request.operation.as_ref(), claim_result(&answer), took);
            if let Some(would_be) = would_be {
                metrics.observed_claim(request.operation.as_ref(), observed_label(Some(would_be)));
            }
        }
        answer
    }

    fn claim_answer(
        &self,
        request: &ClaimRequest,
        answer: ClaimResponse,
        took: Duration,
    ) -> Result<ClaimAnswer, Failure> {
        Ok(match answer {
            ClaimResponse::Granted(grant) => ClaimAnswer::Granted(self.granted(request, grant, took)?),
            ClaimResponse::Duplicate(claim) => ClaimAnswer::Duplicate(self.view(request.key.global_id, claim)),
            ClaimResponse::Mismatch(mismatch) => ClaimAnswer::Mismatch(mismatch),
        })
    }

    /// Returns a grant for its holder, with the lease that is left. If the answer took the whole lease, the grant is worthless:
    /// the caller repeats the call to learn the claim's state.
    fn granted(&self, request: &ClaimRequest, grant: Grant, took: Duration) -> Result<Granted, Failure> {
        let left = grant.lease_left.unwrap_or(request.terms.lease).saturating_sub(took);
        let lease_ms = millis(left);
        if lease_ms == 0 {
            return Err(Failure::OutcomeUnknown(Some(grant.attempt.nonce().clone())));
        }
        Ok(Granted {
            global_id: request.key.global_id,
            attempt: grant.attempt,
            fence: grant.fence,
            repeated: grant.repeated,
            taken_over: grant.taken_over,
            lease_ms,
            lease_expires_at: grant.lease_ends_at.unwrap_or_else(|| self.clock.wall().plus(left)),
            would_be: None,
        })
    }

    /// In observe mode, lets through a claim that enforcing would stop, with an attempt that holds nothing.
    fn let_through(&self, request: &ClaimRequest, would_be: WouldBe) -> ClaimAnswer {
        ClaimAnswer::Granted(Granted {
            global_id: request.key.global_id,
            attempt: self.issuer.issue_observed(would_be),
            fence: None,
            repeated: false,
            taken_over: false,
            lease_ms: millis(request.terms.lease),
            lease_expires_at: self.clock.wall().plus(request.terms.lease),
            would_be: Some(would_be),
        })
    }
}

pub(super) fn is_granted(answered: &Answered<ClaimResponse>) -> bool {
    matches!(answered.answer, ClaimResponse::Granted(_))
}

/// Returns whether canonical JSON contains the nonce as a whole string. A nonce needs no escapes, so its text is searched for
/// between quotes; a quote after a backslash is inside a longer string.
fn holds_string(json: &Canonical, nonce: &Nonce) -> bool {
    let quoted = format!("\"{}\"", nonce.as_str());
    json.as_str().match_indices(&quoted).any(|(at, _)| !json.as_str()[..at].ends_with('\\'))
}

fn claim_result(answer: &Result<Answered<ClaimAnswer>, Failure>) -> ClaimResult {
    match answer.as_ref().map(|answered| &answered.answer) {
        Ok(ClaimAnswer::Granted(Granted { would_be: Some(WouldBe::Duplicate(_)), .. })) => {
            ClaimResult::ObservedDuplicate
        }
        Ok(ClaimAnswer::Granted(Granted { would_be: Some(WouldBe::Mismatch(_)), .. })) => ClaimResult::ObservedMismatch,
        Ok(ClaimAnswer::Granted(granted)) if granted.repeated => ClaimResult::Repeated,
        Ok(ClaimAnswer::Granted(granted)) if granted.taken_over => ClaimResult::TakenOver,
        Ok(ClaimAnswer::Granted(_)) => ClaimResult::Granted,
        Ok(ClaimAnswer::Duplicate(found)) => match found.claim.record.state {
            ClaimState::InProgress => ClaimResult::DuplicateInProgress,
            ClaimState::Succeeded => ClaimResult::DuplicateSucceeded,
            ClaimState::Unknown => ClaimResult::DuplicateUnknown,
        },
        Ok(ClaimAnswer::Mismatch(Mismatch::Contents)) | Err(Failure::NotItsContents) => ClaimResult::ContentsMismatch,
        Ok(ClaimAnswer::Mismatch(Mismatch::Fingerprint)) => ClaimResult::FingerprintMismatch,
        Err(failure) => match failure.store_result() {
            StoreResult::Full => ClaimResult::StoreFull,
            StoreResult::Incompatible => ClaimResult::StoreIncompatible,
            StoreResult::Unavailable => ClaimResult::StoreUnavailable,
            StoreResult::Unknown => ClaimResult::OutcomeUnknown,
        },
    }
}

/// Returns the label of a claim that was let through. An attempt that no gateway issued may not contain one.
pub(super) fn observed_label(would_be: Option<WouldBe>) -> observed::WouldBe {
    match would_be {
        Some(WouldBe::Duplicate(ClaimState::InProgress)) => observed::WouldBe::DuplicateInProgress,
        Some(WouldBe::Duplicate(ClaimState::Succeeded)) => observed::WouldBe::DuplicateSucceeded,
        Some(WouldBe::Duplicate(ClaimState::Unknown)) => observed::WouldBe::DuplicateUnknown,
        Some(WouldBe::Mismatch(Mismatch::Contents)) => observed::WouldBe::ContentsMismatch,
        Some(WouldBe::Mismatch(Mismatch::Fingerprint)) => observed::WouldBe::FingerprintMismatch,
        None => observed::WouldBe::Other,
    }
}

/// Checks that callers of the app may ask for this retention.
pub(super) fn check_retention(app: &App, retention: Retention) -> Result<(), Failure> {
    if retention <= app.retention_max { Ok(()) } else { Err(Failure::RetentionTooLong(app.retention_max)) }
}
