//! The outcome call, after an operation.

use std::time::Duration;

use oncegate_core::attempt::Attempt;
use oncegate_core::call::{Answered, CallContext};
use oncegate_core::canonical::Canonical;
use oncegate_core::claim::{LateTerms, Outcome, OutcomeRequest, OutcomeResponse};
use oncegate_core::clock::Timestamp;
use oncegate_core::engine::EngineError;
use oncegate_core::global_id::GlobalId;
use oncegate_core::observed::WouldBe;
use oncegate_core::record::{ClaimId, ClaimState, Contents, Key};
use oncegate_core::suspect::{Cause, MaskedAttempt, Superseded, Suspect};
use oncegate_core::tenant::Operation;
use oncegate_core::terms::OutcomeOnOutage;
use oncegate_telemetry::metrics::{OutcomeResult, ReportedOutcome};
use oncegate_telemetry::traces;
use tracing::field::Empty;

use super::claim::{check_retention, observed_label};
use super::quota::refund_contents;
use super::{Failure, Gateway, StoreResult, batch, failure, within};
use crate::tenants::App;
use oncegate_outage::OutcomeAnswer;
use oncegate_outage::crash::{self, Point};

/// A late outcome is not recorded if its attempt is older than its retention plus this.
const LATE_GRACE: Duration = Duration::from_hours(24);

/// Longest time that an answer waits for its suspect to be on the disk.
const KEPT_WITHIN: Duration = Duration::from_secs(1);

/// An outcome call.
#[derive(Debug)]
pub struct OutcomeCall {
    /// The claim.
    pub id: ClaimId,
    /// The attempt that reports.
    pub attempt: Attempt,
    /// Outcome of the work.
    pub outcome: Outcome,
    /// The operation, if the caller names it. A late outcome takes its terms.
    pub operation: Option<Operation>,
    /// The contents, if the caller sends them. They must give the claim's ID.
    pub contents: Option<Canonical>,
}

/// The answer to an outcome call.
#[derive(Debug)]
pub enum Reported {
    /// The store answered, or a policy instead of it.
    Settled {
        /// The claim.
        global_id: GlobalId,
        /// The answer.
        settled: OutcomeResponse,
        /// End of the retention, by the same clock as in [`ClaimView`](super::ClaimView).
        expires_at: Option<Timestamp>,
    },
    /// The store is unavailable. The outcome is in the journal and will be delivered.
    Spooled {
        /// The claim.
        global_id: GlobalId,
    },
    /// The attempt held nothing, in observe mode. This is no error.
    Observed {
        /// The claim.
        global_id: GlobalId,
        /// The attempt was a duplicate of a claim in this state and has succeeded: the operation ran a second time.
        ran_twice: Option<ClaimState>,
    },
}

/// An item of a batch.
enum Prepared {
    /// For the store.
    Request(Box<OutcomeRequest>, CallContext<OutcomeOnOutage>, Option<Operation>),
    /// Answered without the store.
    Observed(Reported),
}

impl Gateway {
    /// Reports an outcome.
    ///
    /// # Errors
    /// There is no answer; a superseded outcome is an answer.
    pub async fn settle(&self, app: &App, report: OutcomeCall) -> Result<Answered<Reported>, Failure> {
        if report.attempt.nonce().is_observed() {
            return Ok(Answered::by_store(self.observed(app, &report)));
        }
        let (request, context) = self.prepare_settle(app, &report)?;
        let span = traces::child!(
            "outcome",
            oncegate.app = %app.key,
            oncegate.global_id = %request.key.global_id,
            oncegate.outcome = reported_outcome(&request.outcome).label(),
            oncegate.result = Empty,
        );
        let call = async { self.policies(app)?.settle(&request, context).await };
        let answer = traces::in_span!(span, within(context.deadline, call));
        let answer = self.answer_settle(app, &request, report.operation.as_ref(), answer);
        if !span.is_none() {
            span.record("oncegate.result", outcome_result(&answer).label());
        }
        if let Some(suspect) = self.suspect(app, &request, report.operation, &answer) {
            self.keep_suspects(app, vec![suspect]).await;
        }
        answer
    }

    /// Reports many outcomes, under the rules of [`Gateway::claim_many`].
    pub async fn settle_many<Refusal: From<Failure>>(
        &self,
        app: &App,
        reports: Vec<Result<OutcomeCall, Refusal>>,
    ) -> Vec<Result<Answered<Reported>, Refusal>> {
        let started = self.clock.monotonic();
        let prepare = |report: Result<OutcomeCall, Refusal>| {
            let report = report?;
            if report.attempt.nonce().is_observed() {
                return Ok(Prepared::Observed(self.observed(app, &report)));
            }
            let (request, context) = self.prepare_settle(app, &report)?;
            Ok(Prepared::Request(Box::new(request), context, report.operation))
        };
        let prepared: Vec<Result<Prepared, Refusal>> = reports.into_iter().map(prepare).collect();
        let requests: Vec<_> = prepared
            .iter()
            .filter_map(|item| match item {
                Ok(Prepared::Request(request, context, _)) => Some((&**request, *context)),
                Ok(Prepared::Observed(_)) | Err(_) => None,
            })
            .collect();
        let answers = match self.policies(app) {
            Ok(policies) => {
                let (elapsed, permits) = (|| self.since(started), &self.batch_permits.of(&app.key));
                let settle = async |(request, context): &(&OutcomeRequest, CallContext<OutcomeOnOutage>)| {
                    let _permit = permits.acquire().await;
                    policies.settle(request, *context).await
                };
                let span = traces::child!("outcomes", oncegate.app = %app.key, oncegate.items = requests.len());
                traces::in_span!(
                    span,
                    batch::run(&requests, |(request, context)| (&request.key, context.deadline), elapsed, settle)
                )
            }
            Err(error) => batch::fail(requests.len(), &error),
        };
        let mut answers = answers.into_iter();
        let mut suspects = Vec::new();
        let answer = |item: Result<Prepared, Refusal>| match item? {
            Prepared::Observed(reported) => Ok(Answered::by_store(reported)),
            Prepared::Request(request, _, operation) => {
                let answer = answers.next().unwrap_or_else(|| Err(EngineError::no_answer()));
                let answer = self.answer_settle(app, &request, operation.as_ref(), answer);
                suspects.extend(self.suspect(app, &request, operation, &answer));
                answer.map_err(Refusal::from)
            }
        };
        let answers = prepared.into_iter().map(answer).collect();
        self.keep_suspects(app, suspects).await;
        answers
    }

    /// Answers the outcome of an attempt that holds nothing, because its claim was let through in observe mode.
    fn observed(&self, app: &App, report: &OutcomeCall) -> Reported {
        if let Some(metrics) = self.metrics.load().get(&app.key) {
            let operation = report.operation.as_ref().map(AsRef::as_ref);
            let outcome = reported_outcome(&report.outcome);
            metrics.settled(operation, outcome, OutcomeResult::Observed);
            metrics.observed_outcome(operation, outcome, observed_label(report.attempt.nonce().would_be()));
        }
        let ran_twice = match (&report.outcome, report.attempt.nonce().would_be()) {
            (Outcome::Success { .. }, Some(WouldBe::Duplicate(state))) => Some(state),
            _ => None,
        };
        Reported::Observed { global_id: report.id.global_id, ran_twice }
    }

    fn prepare_settle(
        &self,
        app: &App,
        report: &OutcomeCall,
    ) -> Result<(OutcomeRequest, CallContext<OutcomeOnOutage>), Failure> {
        if let Outcome::Success { retention: Some(retention), .. } = report.outcome {
            check_retention(app, retention)?;
        }
        let named = report.operation.as_ref();
        if let Some(contents) = &report.contents {
            let operation = named.cloned().unwrap_or_default();
            if GlobalId::of(&app.key, &operation, contents) != report.id.global_id {
                return Err(Failure::NotItsContents);
            }
        }
        let key = Key::new(&app.key, report.id);
        let granted = self.granted.of(app, &key);
        let terms = granted.as_ref().or(named).map_or(&app.terms, |operation| app.terms_of(operation));
        let request = OutcomeRequest {
            key,
            attempt: report.attempt.clone(),
            outcome: report.outcome.clone(),
            late: self.late_terms(app, report),
        };
        self.charge_outcome(app, &request)?;
        Ok((request, CallContext { deadline: terms.deadline, on_outage: terms.outcome_on_outage }))
    }

    /// Returns the terms of an outcome that finds no claim; nothing if its attempt is older than its retention.
    fn late_terms(&self, app: &App, report: &OutcomeCall) -> Option<LateTerms> {
        let named = report.operation.as_ref().map(|operation| app.terms_of(operation));
        let terms = named.map_or_else(|| app.longest_terms(), |own| own.terms);
        let retention = match &report.outcome {
            Outcome::Success { retention, .. } => retention.unwrap_or(terms.retention),
            Outcome::Failure | Outcome::Unknown => terms.retention,
        };
        let age = self.clock.wall().since(report.attempt.timestamp());
        if retention.duration().is_some_and(|retention| age > retention.saturating_add(LATE_GRACE)) {
            return None;
        }
        let contents_stored_bytes = named.unwrap_or(&app.terms).contents_stored_bytes;
        let (operation, contents) = match &report.contents {
            // They give the claim's ID, so an operation that was left out is `default`.
            Some(contents) => {
                (Some(report.operation.clone().unwrap_or_default()), Contents::keep(contents, contents_stored_bytes))
            }
            None => (report.operation.clone(), Contents::Unverified),
        };
        Some(LateTerms { operation, contents, terms })
    }

    fn answer_settle(
        &self,
        app: &App,
        request: &OutcomeRequest,
        operation: Option<&Operation>,
        answer: Result<Answered<OutcomeAnswer>, EngineError>,
    ) -> Result<Answered<Reported>, Failure> {
        if answer.is_ok() {
            crash::here(Point::Settled);
        }
        refund_contents(app, request, answer.as_ref().map(|answered| &answered.answer));
        let global_id = request.key.global_id;
        let reported = |answer| {
            let OutcomeAnswer::Response(settled) = answer else { return Reported::Spooled { global_id } };
            let expires_at = match &settled {
                OutcomeResponse::Done { left, ends_at, .. } => self.expires_at(*left, *ends_at),
                _ => None,
            };
            match &settled {
                OutcomeResponse::Done { state: Some(ClaimState::Unknown), .. } => {
                    self.met_unknowns.add(app, &request.key, self.clock.wall());
                }
                OutcomeResponse::Done { .. } => self.met_unknowns.remove(&request.key),
                _ => {}
            }
            Reported::Settled { global_id, settled, expires_at }
        };
        let answer = answer.map_err(|error| failure(error, None)).map(|answered| answered.map(reported));
        if let Some(metrics) = self.metrics.load().get(&app.key) {
            let (outcome, result) = (reported_outcome(&request.outcome), outcome_result(&answer));
            metrics.settled(operation.map(AsRef::as_ref), outcome, result);
        }
        answer
    }

    /// Returns the suspect that an outcome reveals: the operation ran, or may have, although another attempt held the claim.
    fn suspect(
        &self,
        app: &App,
        request: &OutcomeRequest,
        operation: Option<Operation>,
        answer: &Result<Answered<Reported>, Failure>,
    ) -> Option<Suspect> {
        let reported = answer.as_ref().ok().map(|answered| &answered.answer);
        let Some(Reported::Settled { settled: OutcomeResponse::Superseded { state, .. }, .. }) = reported else {
            return None;
        };
        let outcome = match request.outcome {
            Outcome::Success { .. } => Superseded::SupersededSuccess,
            Outcome::Unknown => Superseded::SupersededUnknown,
            Outcome::Failure => return None,
        };
        Some(Suspect {
            id: 0,
            cause: Cause::Double(outcome),
            app: app.key.clone(),
            operation: operation.or_else(|| self.granted.of(app, &request.key)),
            realm: request.key.realm,
            global_id: request.key.global_id,
            ours: MaskedAttempt::from(&request.attempt),
            theirs: None,
            state: Some(*state),
            noticed_at: self.clock.wall(),
            checked: None,
        })
    }

    /// Keeps suspects for operators. Their answers wait for the disk, but not for long.
    async fn keep_suspects(&self, app: &App, suspects: Vec<Suspect>) {
        let Ok(policies) = self.policies(app) else { return };
        let kept = suspects.into_iter().map(|suspect| policies.suspect(suspect));
        // The work continues after that.
        let _ = tokio::time::timeout(KEPT_WITHIN, futures_util::future::join_all(kept)).await;
    }
}

fn reported_outcome(outcome: &Outcome) -> ReportedOutcome {
    match outcome {
        Outcome::Success { .. } => ReportedOutcome::Success,
        Outcome::Failure => ReportedOutcome::Failure,
        Outcome::Unknown => ReportedOutcome::Unknown,
    }
}

fn outcome_result(answer: &Result<Answered<Reported>, Failure>) -> OutcomeResult {
    match answer.as_ref().map(|answered| &answered.answer) {
        Ok(Reported::Observed { .. }) => OutcomeResult::Observed,
        Ok(Reported::Spooled { .. }) => OutcomeResult::Spooled,
        Ok(Reported::Settled { settled, .. }) => match settled {
            OutcomeResponse::Done { late: Some(true), .. } => OutcomeResult::Late,
            OutcomeResponse::Done { .. } => OutcomeResult::Recorded,
            OutcomeResponse::AlreadySucceeded => OutcomeResult::AlreadySucceeded,
            OutcomeResponse::Superseded { .. } => OutcomeResult::Superseded,
            OutcomeResponse::Expired => OutcomeResult::Expired,
        },
        Err(failure) => match failure.store_result() {
            StoreResult::Full => OutcomeResult::StoreFull,
            StoreResult::Incompatible => OutcomeResult::StoreIncompatible,
            StoreResult::Unavailable => OutcomeResult::StoreUnavailable,
            StoreResult::Unknown => OutcomeResult::OutcomeUnknown,
        },
    }
}
