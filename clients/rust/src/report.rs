//! Reports of outcomes, repeated until they are accepted.

use std::time::Duration;

use bytes::Bytes;
use http::Method;
use serde::{Deserialize, Serialize};
use serde_json::value::RawValue;
use tokio::runtime::Handle;
use tracing::Instrument as _;

use crate::about::About;
use crate::answer::Answer;
use crate::call::{Call, has_global_id};
use crate::claim::Claimed;
use crate::claim_call::ClaimCall;
use crate::client::Client;
use crate::duplicate::Duplicate;
use crate::error::{Error, OnceError, Rejected};
use crate::event::Level;
use crate::grant::Grant;
use crate::result::{REFUSED, encode, marker};
use crate::state::State;
use crate::traces;

/// Work that ran here.
#[derive(Clone, PartialEq, Debug)]
#[non_exhaustive]
pub struct Done<T> {
    /// Global ID of the operation.
    pub global_id: String,
    /// Result of the work.
    pub result: T,
    /// `succeeded`, `observed`, `spooled` (a gateway delivers it later), or nothing without a record
    /// ([`crate::OnUnavailable::Proceed`]).
    pub state: Option<State>,
    /// The outage policy that answered instead of the store, of the claim or else of the outcome; `caller` for the caller's own.
    pub degraded: Option<String>,
    /// True if the claim had ended before the outcome arrived. Then another attempt may have run. Nothing: not known.
    pub late: Option<bool>,
    /// In observe mode, what enforcing would have answered.
    pub would_be: Option<String>,
    /// Reason why the result was not stored: `too_large`, `not_serialisable` or `refused`. The success itself was
    /// recorded, and duplicates learn this, too.
    pub result_omitted: Option<String>,
}

/// Answer to a report.
#[derive(Clone, PartialEq, Eq, Debug)]
#[non_exhaustive]
pub struct Settled {
    /// Global ID of the operation.
    pub global_id: String,
    /// `succeeded`, `released`, `unknown`, `observed` or `spooled`; nothing if nothing was recorded.
    pub state: Option<State>,
    /// The outage policy that answered.
    pub degraded: Option<String>,
    /// True if the claim had ended before the outcome arrived.
    pub late: Option<bool>,
    /// Reason why the result was not stored: `too_large`, `not_serialisable` or `refused`.
    pub result_omitted: Option<String>,
}

/// JSON that every language reads. Keep its members.
#[derive(Serialize, Deserialize, Clone)]
pub(crate) struct Report {
    #[serde(skip_serializing_if = "Option::is_none")]
    global_id: Option<String>,
    attempt: String,
    outcome: String,
    #[serde(default, skip_serializing_if = "Option::is_none")]
    operation: Option<String>,
    #[serde(default, skip_serializing_if = "Option::is_none")]
    contents: Option<Box<RawValue>>,
    #[serde(default, skip_serializing_if = "Option::is_none")]
    result: Option<Box<RawValue>>,
    #[serde(default, skip_serializing_if = "Option::is_none")]
    gateway: Option<String>,
}

impl Grant {
    /// Reports that the work is finished and must never run again, also if the answer is "declined". Duplicates get the result; `()` is
    /// none. If it cannot be sent, the success is reported without it: see [`Done::result_omitted`].
    ///
    /// # Errors
    ///
    /// The outcome was refused, or no gateway has accepted it.
    pub async fn succeed<T: Serialize>(&self, result: T) -> Result<Done<T>, OnceError<T>> {
        let (text, omitted) = match encode(&result) {
            Ok(text) => (text, None),
            Err(omitted) => (marker(omitted.code), Some(omitted)),
        };
        if let Some(omitted) = &omitted {
            let about = &self.0.claim.about;
            self.0.client.event(about, "result_omitted", Level::Warn, || vec![("why", omitted.detail.as_str().into())]);
        }
        match self.report("success", text, marker(REFUSED)).await {
            Ok(settled) => Ok(Done {
                global_id: self.0.global_id.clone(),
                result,
                state: settled.state,
                degraded: self.0.degraded.clone().or(settled.degraded),
                late: settled.late,
                would_be: self.0.would_be.clone(),
                result_omitted: omitted.map(|omitted| omitted.code.to_owned()).or(settled.result_omitted),
            }),
            Err(error) => Err(OnceError::Call { error, result: Some(result) }),
        }
    }

    /// Reports a success with a result in JSON, and what to store instead if the gateway refuses it.
    #[cfg(feature = "middleware")]
    pub(crate) async fn succeed_with(
        &self,
        result: Option<Box<RawValue>>,
        fallback: Option<Box<RawValue>>,
    ) -> Result<Settled, Error> {
        self.report("success", result, fallback).await
    }

    /// Reports that nothing happened: the operation can be claimed again at once.
    ///
    /// # Errors
    ///
    /// The outcome was refused, or no gateway has accepted it.
    pub async fn fail(&self) -> Result<Settled, Error> {
        self.report("failure", None, None).await
    }

    /// Reports that it is not known if it happened. Repeats are stopped until an operator or a take-over settles it.
    ///
    /// # Errors
    ///
    /// The outcome was refused, or no gateway has accepted it.
    pub async fn give_up(&self) -> Result<Settled, Error> {
        self.report("unknown", None, None).await
    }

    /// Reports in the background, so that the report is finished if its caller goes away.
    async fn report(
        &self,
        outcome: &'static str,
        result: Option<Box<RawValue>>,
        fallback: Option<Box<RawValue>>,
    ) -> Result<Settled, Error> {
        let grant = self.clone();
        let kept = grant.report_of(outcome, result.clone());
        let span = traces::outcome(&self.0.claim.about.operation, outcome);
        let reporting = async move { grant.report_now(outcome, result, fallback).await };
        match self.0.client.spawn(&Handle::current(), reporting.instrument(span.clone())).await {
            Ok(settled) => {
                if let Ok(settled) = &settled {
                    traces::record(&span, settled.state.as_ref().map(State::name), settled.degraded.as_deref());
                }
                settled
            }
            Err(error) => match error.try_into_panic() {
                Ok(panic) => std::panic::resume_unwind(panic),
                // The runtime is shutting down.
                Err(_) => Err(not_settled(&kept, Error::unavailable(Vec::new()))),
            },
        }
    }

    async fn report_now(
        &self,
        outcome: &'static str,
        result: Option<Box<RawValue>>,
        fallback: Option<Box<RawValue>>,
    ) -> Result<Settled, Error> {
        let client = &self.0.client;
        if self.0.attempt.is_some() {
            let settled = client.settle_report(self.report_of(outcome, result), fallback, &self.0.claim.about).await;
            self.stop();
            return settled;
        }
        let unrecorded = |late| Settled {
            global_id: self.0.global_id.clone(),
            state: None,
            degraded: None,
            late,
            result_omitted: None,
        };
        if !client.0.is_enabled {
            return Ok(unrecorded(None));
        }
        // Granted by this caller's own policy. If a gateway answers now, repeats are stopped from here on.
        match client.claim_late(&self.0.claim).await {
            Ok((Claimed::Grant(grant), _)) => {
                let settled =
                    client.settle_report(grant.report_of(outcome, result), fallback, &self.0.claim.about).await;
                grant.stop();
                settled
            }
            answered => {
                let late = answered.is_ok().then_some(true);
                if let Ok((claimed @ Claimed::Duplicate(Duplicate { state: State::InProgress, .. }), _)) = &answered {
                    client.event_of(&self.0.claim.about, claimed);
                }
                Ok(unrecorded(late))
            }
        }
    }

    pub(crate) fn report_of(&self, outcome: &str, result: Option<Box<RawValue>>) -> Report {
        let claim = &self.0.claim;
        Report {
            global_id: Some(self.0.global_id.clone()),
            attempt: self.0.attempt.clone().unwrap_or_default(),
            outcome: outcome.to_owned(),
            operation: Some(claim.about.operation.to_string()),
            contents: RawValue::from_string(claim.contents.clone()).ok(),
            result,
            gateway: Some(self.0.client.0.servers[self.0.at].url.clone()),
        }
    }
}

impl Client {
    /// Repeats a report until it is accepted. It is safe to repeat, also with a report of another language's client.
    ///
    /// # Errors
    ///
    /// The outcome was refused, no gateway has accepted it, or the text is no report.
    pub async fn settle(&self, report: &str) -> Result<Settled, Error> {
        let report: Report =
            serde_json::from_str(report).map_err(|error| Error::Argument(format!("not a report: {error}")))?;
        let global_id = report.global_id.as_deref().filter(|id| is_global_id(id));
        if global_id.is_none() || report.attempt.is_empty() || report.outcome.is_empty() {
            return Err(Error::Argument("not a report: it needs global_id, attempt and outcome".to_owned()));
        }
        let about = self.about(report.operation.as_deref().unwrap_or_default(), global_id);
        self.settle_report(report, marker(REFUSED), &about).await
    }

    /// Reports that nothing happened, for an attempt without a grant here.
    pub(crate) async fn fail_attempt(&self, claim: &ClaimCall, attempt: String) -> Result<Settled, Error> {
        let report = Report {
            global_id: Some(claim.global_id.clone()),
            attempt,
            outcome: "failure".to_owned(),
            operation: Some(claim.about.operation.to_string()),
            contents: RawValue::from_string(claim.contents.clone()).ok(),
            result: None,
            gateway: None,
        };
        self.settle_report(report, None, &claim.about).await
    }

    async fn settle_report(
        &self,
        mut report: Report,
        fallback: Option<Box<RawValue>>,
        about: &About,
    ) -> Result<Settled, Error> {
        let outcome = report.outcome.clone();
        let kept = report.clone();
        let mut omitted = None;
        let mut answered = self.send_report(&report, about).await;
        if let Some(refused) = refusal(&answered).filter(|_| report.result.is_some()) {
            // The operation has succeeded, if its result can be stored or not.
            let why = refused.to_string();
            self.event(about, "result_omitted", Level::Warn, || vec![("why", why.as_str().into())]);
            omitted = Some(REFUSED.to_owned());
            report.result = fallback;
            answered = self.send_report(&report, about).await;
        }
        let answered =
            answered.and_then(|answer| if answer.status == 422 { Err(answer.rejection()) } else { Ok(answer) });
        let answer = answered.map_err(|cause| {
            self.event(about, "not_settled", Level::Error, || vec![("outcome", outcome.as_str().into())]);
            not_settled(&kept, cause)
        })?;
        if answer.status == 409 {
            let code = answer.code().to_owned();
            self.event(about, "outcome_refused", Level::Error, || {
                vec![("outcome", outcome.as_str().into()), ("code", code.as_str().into())]
            });
            return Err(Error::OutcomeRefused { code });
        }
        let state = if answer.status == 202 { Some("spooled") } else { answer.body.state.as_deref() };
        let state = state.map(State::of);
        let late = answer.body.late;
        let level = if late == Some(true) { Level::Warn } else { Level::Debug };
        let degraded = answer.body.degraded;
        self.event(about, "reported", level, || {
            vec![
                ("outcome", outcome.as_str().into()),
                ("state", state.as_ref().map(State::name).into()),
                ("late", late.into()),
                ("degraded", degraded.as_deref().into()),
            ]
        });
        let global_id = kept.global_id.unwrap_or_default();
        Ok(Settled { global_id, state, degraded, late, result_omitted: omitted })
    }

    async fn send_report(&self, report: &Report, about: &About) -> Result<Answer, Error> {
        let granted = |url: &String| self.0.servers.iter().position(|server| server.url == *url);
        let call = Call {
            endpoint: "outcome",
            method: Method::POST,
            path: &format!("/v1/claims/{}/outcome", report.global_id.as_deref().unwrap_or_default()),
            body: report.body(),
            within: self.0.settle_within,
            wait: Duration::ZERO,
            first: report.gateway.as_ref().and_then(granted).unwrap_or(0),
            stop: None,
            genuine: has_global_id,
            about,
        };
        self.call(call, &mut false).await
    }
}

impl Report {
    /// Returns the body of the outcome call.
    pub(crate) fn body(&self) -> Bytes {
        let body = Self { global_id: None, gateway: None, ..self.clone() };
        // Texts and JSON: nothing in it can fail.
        Bytes::from(serde_json::to_vec(&body).unwrap_or_default())
    }

    /// Returns its item of a batch.
    pub(crate) fn item(&self) -> Bytes {
        let item = Self { gateway: None, ..self.clone() };
        Bytes::from(serde_json::to_vec(&item).unwrap_or_default())
    }
}

pub(crate) fn is_global_id(text: &str) -> bool {
    text.len() == 32 && text.bytes().all(|byte| matches!(byte, b'0'..=b'9' | b'a'..=b'f'))
}

pub(crate) fn not_settled(report: &Report, cause: Error) -> Error {
    Error::NotSettled { report: serde_json::to_string(report).unwrap_or_default(), cause: Box::new(cause) }
}

/// Returns the answer that may be about the result.
fn refusal(answered: &Result<Answer, Error>) -> Option<Rejected> {
    let rejected = match answered {
        Ok(answer) if answer.status == 422 => answer.rejected(),
        Err(Error::Rejected(rejected)) => rejected.clone(),
        _ => return None,
    };
    matches!(rejected.status, 400 | 413 | 422).then_some(rejected)
}
