//! Batches of claims and of outcomes. They are not atomic: each item has its own answer.

use std::sync::Arc;
use std::sync::atomic::Ordering;
use std::time::Duration;

use bytes::Bytes;
use http::Method;
use serde::Serialize;
use serde_json::value::RawValue;

use crate::answer::{Answer, Body};
use crate::call::{Call, jitter};
use crate::claim::{Claimed, DISABLED, Undelivered};
use crate::client::{Client, FOREVER};
use crate::contents::Contents;
use crate::error::{Cause, Error, Kind};
use crate::grant::Grant;
use crate::report::{Report, Settled, not_settled};
use crate::result::{encode, marker};
use crate::state::State;
use crate::terms::Terms;

const BATCH_MAX: usize = 1000;

/// One claim of a batch.
#[derive(Clone, Debug)]
pub struct ClaimItem {
    /// Operation.
    pub operation: String,
    /// Contents.
    pub contents: Contents,
    /// Terms; batches do not wait.
    pub terms: Terms,
}

impl ClaimItem {
    /// Returns a claim on the operator's terms.
    pub fn new(operation: impl Into<String>, contents: impl Into<Contents>) -> Self {
        Self { operation: operation.into(), contents: contents.into(), terms: Terms::default() }
    }
}

/// One report of a batch.
#[derive(Clone, Debug)]
pub struct OutcomeItem {
    grant: Grant,
    end: &'static str,
    result: Option<Box<RawValue>>,
    omitted: Option<&'static str>,
}

impl OutcomeItem {
    /// Returns a report that the work is finished; duplicates get the result.
    pub fn success<T: Serialize>(grant: &Grant, result: &T) -> Self {
        let (result, omitted) = match encode(result) {
            Ok(result) => (result, None),
            Err(omitted) => (marker(omitted.code), Some(omitted.code)),
        };
        Self { grant: grant.clone(), end: "success", result, omitted }
    }

    /// Returns a report that nothing happened.
    pub fn failure(grant: &Grant) -> Self {
        Self { grant: grant.clone(), end: "failure", result: None, omitted: None }
    }

    /// Returns a report that it is not known if it happened.
    pub fn unknown(grant: &Grant) -> Self {
        Self { grant: grant.clone(), end: "unknown", result: None, omitted: None }
    }
}

impl Client {
    /// Claims up to 1000 operations in one call. Items that were not done (429, 5xx) are sent again with their nonces. Granted claims
    /// are renewed until they are reported or dropped.
    ///
    /// # Errors
    ///
    /// No gateway answered, or a wrong item; each other error is of its item.
    pub async fn claim_batch(&self, items: Vec<ClaimItem>) -> Result<Vec<Result<Claimed, Error>>, Error> {
        check(items.len())?;
        let mut claims = Vec::with_capacity(items.len());
        for item in items {
            if !item.terms.wait.is_zero() {
                return Err(Error::Argument("batches do not wait".to_owned()));
            }
            claims.push(Arc::new(self.claim_call(&item.operation, &item.contents, &item.terms)?));
        }
        if !self.0.is_enabled {
            let grant = |claim| Ok(Claimed::Grant(Grant::of_caller(self, claim, DISABLED)));
            return Ok(claims.iter().map(grant).collect());
        }
        let bodies = claims.iter().map(|claim| Bytes::copy_from_slice(claim.body.as_bytes())).collect();
        let first = self.0.first.load(Ordering::Relaxed);
        let answers = self.batch("/v1/claims/batch", self.0.claim_within, first, bodies).await?;
        let claimed = claims.iter().zip(answers).map(|(claim, answer)| {
            let claimed = self.claimed(claim, answer?)?;
            self.event_of(&claim.about, &claimed);
            if let Claimed::Grant(grant) = &claimed {
                if let Some(rejected) = grant.identity_differs() {
                    grant.stop();
                    // Dropped at once, which releases it in the background.
                    drop(Undelivered { claimed: Some(Ok(claimed)), call: None });
                    return Err(rejected);
                }
                grant.expire();
            }
            Ok(claimed)
        });
        Ok(claimed.collect())
    }

    /// Reports up to 1000 outcomes in one call. Items that were not done are sent again. An item that no gateway accepts is
    /// [`Error::NotSettled`] with its report.
    ///
    /// # Errors
    ///
    /// No gateway answered, or a wrong item; each other error is of its item.
    pub async fn settle_batch(&self, outcomes: Vec<OutcomeItem>) -> Result<Vec<Result<Settled, Error>>, Error> {
        check(outcomes.len())?;
        if !self.0.is_enabled {
            let settled = |outcome: &OutcomeItem| {
                let global_id = outcome.grant.global_id().to_owned();
                Ok(Settled {
                    global_id,
                    state: None,
                    degraded: Some(DISABLED.to_owned()),
                    late: None,
                    result_omitted: None,
                })
            };
            return Ok(outcomes.iter().map(settled).collect());
        }
        if outcomes.iter().any(|outcome| outcome.grant.attempt().is_none()) {
            return Err(Error::Argument("a batch of outcomes needs grants of a gateway".to_owned()));
        }
        let reports: Vec<_> =
            outcomes.iter().map(|outcome| outcome.grant.report_of(outcome.end, outcome.result.clone())).collect();
        let bodies = reports.iter().map(Report::item).collect();
        let first = outcomes[0].grant.0.at;
        let answers = self.batch("/v1/outcomes/batch", self.0.settle_within, first, bodies).await?;
        let settled = outcomes.iter().zip(&reports).zip(answers).map(|((outcome, report), answer)| {
            outcome.grant.stop();
            match answer {
                Ok(answer) if answer.status == 409 => Err(Error::OutcomeRefused { code: answer.code().to_owned() }),
                Ok(answer) if answer.is_success() => Ok(Settled {
                    global_id: outcome.grant.global_id().to_owned(),
                    state: answer.body.state.as_deref().map(State::of),
                    degraded: answer.body.degraded,
                    late: answer.body.late,
                    result_omitted: outcome.omitted.map(str::to_owned),
                }),
                Ok(answer) => Err(not_settled(report, answer.rejection())),
                Err(error) => Err(not_settled(report, error)),
            }
        });
        Ok(settled.collect())
    }

    /// Sends the items until each has an answer or time is over.
    async fn batch(
        &self,
        path: &str,
        within: Duration,
        mut first: usize,
        bodies: Vec<Bytes>,
    ) -> Result<Vec<Result<Answer, Error>>, Error> {
        let about = self.about("", None);
        let ends = self.end_after(within);
        let mut answers: Vec<Option<Answer>> = bodies.iter().map(|_| None).collect();
        let mut failed: Vec<Option<Error>> = bodies.iter().map(|_| None).collect();
        let mut open: Vec<usize> = (0..bodies.len()).collect();
        for round in 1.. {
            let mut body = b"{\"items\":[".to_vec();
            for (position, at) in open.iter().enumerate() {
                if position > 0 {
                    body.push(b',');
                }
                body.extend_from_slice(&bodies[*at]);
            }
            body.extend_from_slice(b"]}");
            let left = ends.map_or(FOREVER, |ends| ends.saturating_duration_since(self.now()));
            let call = Call {
                endpoint: "batch",
                method: Method::POST,
                path,
                body: Bytes::from(body),
                within: left.max(Duration::from_millis(1)),
                wait: Duration::ZERO,
                first,
                stop: None,
                genuine: |body| body.items.is_some(),
                about: &about,
            };
            let answer = match self.call(call, &mut false).await {
                Ok(answer) if answer.is_success() => answer,
                Ok(answer) if round == 1 => return Err(answer.rejection()),
                Err(error) if round == 1 => return Err(error),
                // An unfinished item has its last answer.
                _ => break,
            };
            first = answer.at;
            let mut again = Vec::new();
            let mut pause = jitter(round);
            let items = answer.body.items.unwrap_or_default();
            for (position, at) in open.iter().enumerate() {
                let item = items.get(position).and_then(|text| serde_json::from_str::<Body>(text.get()).ok());
                let Some((status, body)) = item.and_then(|body| Some((body.status?, body))) else {
                    let url = &self.0.servers[answer.at].url;
                    let cause = Cause::of(url, Kind::NotAGateway, "an item of a batch is no answer");
                    failed[*at] = Some(Error::unavailable(vec![cause]));
                    continue;
                };
                if status == 429 || status >= 500 {
                    again.push(*at);
                    pause = pause.max(body.retry_after_ms.map(Duration::from_millis).unwrap_or_default());
                }
                answers[*at] = Some(Answer { status, body, text: Bytes::new(), sent: answer.sent, at: answer.at });
            }
            open = again;
            if open.is_empty() || ends.is_some_and(|ends| self.now() + pause > ends) {
                break;
            }
            tokio::time::sleep(pause).await;
        }
        let answered = answers.into_iter().zip(failed).map(|(answer, failed)| match (answer, failed) {
            (_, Some(error)) => Err(error),
            (Some(answer), None) if answer.status == 429 => Err(answer.rejection()),
            (Some(answer), None) if answer.status >= 500 => {
                Err(Error::unavailable(vec![answer.cause(&self.0.servers[answer.at].url)]))
            }
            (Some(answer), None) => Ok(answer),
            (None, None) => Err(Error::unavailable(Vec::new())),
        });
        Ok(answered.collect())
    }
}

fn check(count: usize) -> Result<(), Error> {
    if (1..=BATCH_MAX).contains(&count) {
        return Ok(());
    }
    Err(Error::Argument(format!("a batch has 1 to {BATCH_MAX} items, not {count}")))
}
