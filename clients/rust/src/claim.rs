//! Claims: the claim call, its wait, and its answer.

use std::future::Future;
use std::pin::Pin;
use std::sync::Arc;
use std::sync::atomic::Ordering;
use std::time::{Duration, Instant};

use http::Method;
use tokio::runtime::Handle;
use tokio::sync::{oneshot, watch};
use tracing::Instrument as _;

use crate::about::About;
use crate::answer::{Answer, Body};
use crate::call::{Call, PAUSE_MIN, Stop, sleep, with_wait};
use crate::claim_call::ClaimCall;
use crate::client::{Client, FOREVER, OnUnavailable};
use crate::contents::Contents;
use crate::duplicate::{Duplicate, Mismatch};
use crate::error::{Cause, Error, Kind};
use crate::event::{Level, cause_field};
use crate::grant::Grant;
use crate::result::omitted;
use crate::state::State;
use crate::terms::Terms;
use crate::time;
use crate::traces;

type Late<'a> = Pin<Box<dyn Future<Output = Result<(Claimed, Duration), Error>> + Send + 'a>>;

/// The longest wait of one call: proxies in between may cut off a longer one.
pub(crate) const WAIT_MAX: Duration = Duration::from_secs(20);

/// Value of `degraded` where the client is switched off.
pub(crate) const DISABLED: &str = "disabled";

/// Result of [`Client::claim`].
#[derive(Debug)]
pub enum Claimed {
    /// Run the work, then report its outcome.
    Grant(Grant),
    /// Another attempt is running or has completed the operation.
    Duplicate(Duplicate),
    /// The operation was claimed with another fingerprint, or with other contents of the same ID.
    Mismatch(Mismatch),
}

impl Client {
    /// Claims the operation. A grant is renewed until it is reported or dropped. [`Client::once`] does all three.
    ///
    /// # Errors
    ///
    /// No gateway answered, a mistake of the caller, or contents that are not canonical.
    pub async fn claim(&self, operation: &str, contents: impl Into<Contents>) -> Result<Claimed, Error> {
        self.claim_with(operation, contents, Terms::default()).await
    }

    /// Claims the operation on these terms.
    ///
    /// # Errors
    ///
    /// No gateway answered, a mistake of the caller, or contents that are not canonical.
    pub async fn claim_with(
        &self,
        operation: &str,
        contents: impl Into<Contents>,
        terms: Terms,
    ) -> Result<Claimed, Error> {
        let span = traces::claim(operation);
        let claiming = self.claim_in_background(operation, contents.into(), terms);
        let claimed = claiming.instrument(span.clone()).await;
        match &claimed {
            Ok(Claimed::Grant(grant)) => traces::record(&span, Some("in_progress"), grant.degraded()),
            Ok(Claimed::Duplicate(it)) => traces::record(&span, Some(it.state.name()), it.degraded.as_deref()),
            Ok(Claimed::Mismatch(it)) => traces::record(&span, Some(&it.code), None),
            Err(_) => {}
        }
        claimed
    }

    async fn claim_in_background(&self, operation: &str, contents: Contents, terms: Terms) -> Result<Claimed, Error> {
        let claim = Arc::new(self.claim_call(operation, &contents, &terms)?);
        if !self.0.is_enabled {
            return Ok(Claimed::Grant(Grant::of_caller(self, &claim, DISABLED)));
        }
        // A caller that leaves keeps no claim: the call ends in the background.
        let (staying, stop) = watch::channel(());
        let (answered, answer) = oneshot::channel();
        let (client, background) = (self.clone(), Arc::clone(&claim));
        self.spawn(&Handle::current(), async move {
            let claimed = client.claim_and_wait(&background, stop).await;
            // If the caller no longer waits, the result is dropped, which releases the grant.
            let call = Some((client, Handle::current(), background));
            drop(answered.send(Undelivered { claimed: Some(claimed), call }));
        });
        let claimed = match answer.await {
            Ok(mut undelivered) => undelivered.claimed.take(),
            Err(_) => None,
        };
        drop(staying);
        match claimed {
            Some(Err(Error::Unavailable { causes, may_have_acted })) => {
                let fields = || vec![("causes", causes.iter().map(cause_field).collect())];
                if self.0.on_unavailable == OnUnavailable::Proceed {
                    self.event(&claim.about, "proceeded", Level::Warn, fields);
                    return Ok(Claimed::Grant(Grant::of_caller(self, &claim, "caller")));
                }
                self.event(&claim.about, "unavailable", Level::Warn, fields);
                self.give_back(&Handle::current(), &claim);
                Err(Error::Unavailable { causes, may_have_acted })
            }
            Some(Err(error)) => {
                self.give_back(&Handle::current(), &claim);
                Err(error)
            }
            Some(claimed) => claimed,
            None => Err(Error::unavailable(Vec::new())),
        }
    }

    /// Repeats the claim while it is in progress and there is time to wait.
    async fn claim_and_wait(&self, claim: &Arc<ClaimCall>, mut stop: Stop) -> Result<Claimed, Error> {
        let ends = self.end_after(claim.wait);
        let (mut left, mut has_waited) = (claim.wait, false);
        loop {
            let wait = left.min(WAIT_MAX);
            let (mut claimed, pause) = self.try_claim(claim, self.0.claim_within, wait, Some(stop.clone())).await?;
            if let Claimed::Grant(grant) = &claimed
                && let Some(rejected) = grant.identity_differs()
            {
                grant.stop();
                drop(grant.fail().await);
                return Err(rejected);
            }
            if let Claimed::Duplicate(duplicate) = &mut claimed {
                duplicate.has_waited |= has_waited;
                has_waited = duplicate.has_waited;
            }
            let Claimed::Duplicate(Duplicate { state: State::InProgress, .. }) = claimed else { return Ok(claimed) };
            left = left_until(ends, self.now() + pause);
            if left < Duration::from_millis(1) {
                self.event_of(&claim.about, &claimed);
                return Ok(claimed);
            }
            if !sleep(pause, Some(&mut stop)).await {
                return Ok(claimed);
            }
            left = whole_millis(left_until(ends, self.now()));
        }
    }

    /// Makes one claim call with its repeats. Returns the pause before the next one, too.
    pub(crate) async fn try_claim(
        &self,
        claim: &Arc<ClaimCall>,
        within: Duration,
        wait: Duration,
        stop: Option<Stop>,
    ) -> Result<(Claimed, Duration), Error> {
        let call = Call {
            endpoint: "claim",
            method: Method::POST,
            path: "/v1/claims",
            body: with_wait(&claim.body, wait),
            within,
            wait,
            first: self.0.first.load(Ordering::Relaxed),
            stop,
            genuine: is_grant,
            about: &claim.about,
        };
        let mut uncertain = claim.is_uncertain.load(Ordering::Relaxed);
        let answer = self.call(call, &mut uncertain).await;
        claim.is_uncertain.store(answer.is_err() && uncertain, Ordering::Relaxed);
        let answer = answer?;
        self.0.first.store(answer.at, Ordering::Relaxed);
        let (at, pause) = (answer.at, pause_between(wait, &answer));
        let claimed = self.claimed(claim, answer)?;
        match &claimed {
            // `claim_and_wait` decides about one that is in progress.
            Claimed::Duplicate(Duplicate { state: State::InProgress, .. }) => {}
            Claimed::Grant(grant) if !grant.is_live() => {
                self.event_of(&claim.about, &claimed);
                grant.stop();
                drop(grant.fail().await);
                let detail = "the grant arrived after its lease had ended, and was released";
                return Err(Error::unavailable(vec![Cause::of(&self.0.servers[at].url, Kind::TooLate, detail)]));
            }
            _ => self.event_of(&claim.about, &claimed),
        }
        Ok((claimed, pause))
    }

    /// Claims after the work, for a grant of the caller's own policy. Boxed, because a report may need it and it may report.
    pub(crate) fn claim_late<'a>(&'a self, claim: &'a Arc<ClaimCall>) -> Late<'a> {
        Box::pin(self.try_claim(claim, self.0.timeout, Duration::ZERO, None))
    }

    /// Returns the answer to a claim, or an error of the caller.
    pub(crate) fn claimed(&self, claim: &Arc<ClaimCall>, answer: Answer) -> Result<Claimed, Error> {
        let global_id = claim.global_id.clone();
        match answer.status {
            ..300 => Ok(Claimed::Grant(Grant::of(self, claim, answer))),
            409 => {
                let retry_after = answer.retry_after();
                let mut body = answer.body;
                let result_omitted = body.result.as_deref().and_then(omitted);
                if result_omitted.is_some() {
                    body.result = None;
                }
                let instant = |text: Option<String>| text.as_deref().and_then(time::instant);
                Ok(Claimed::Duplicate(Duplicate {
                    global_id,
                    state: State::of(body.state.as_deref().unwrap_or_default()),
                    result: body.result,
                    result_omitted,
                    has_waited: body.waited_ms.is_some_and(|waited| waited > 0),
                    retry_after,
                    claimed_at: instant(body.claimed_at),
                    expires_at: instant(body.expires_at),
                    contents_verified: body.contents_verified.unwrap_or(true),
                    degraded: body.degraded,
                    would_be: body.would_be,
                }))
            }
            422 if answer.code().ends_with("_mismatch") => {
                Ok(Claimed::Mismatch(Mismatch { global_id, code: answer.code().to_owned() }))
            }
            _ => Err(answer.rejection()),
        }
    }

    pub(crate) fn event_of(&self, about: &About, claimed: &Claimed) {
        match claimed {
            Claimed::Grant(grant) => {
                let level = if grant.degraded().is_some() { Level::Warn } else { Level::Debug };
                self.event(about, "granted", level, || {
                    vec![
                        ("repeated", grant.repeated().into()),
                        ("taken_over", grant.taken_over().into()),
                        ("degraded", grant.degraded().into()),
                        ("would_be", grant.would_be().into()),
                    ]
                });
            }
            Claimed::Duplicate(duplicate) => {
                self.event(about, "duplicate", Level::Debug, || vec![("state", duplicate.state.name().into())]);
            }
            Claimed::Mismatch(mismatch) => {
                self.event(about, "mismatch", Level::Info, || vec![("code", mismatch.code.as_str().into())]);
            }
        }
    }
}

fn is_grant(body: &Body) -> bool {
    body.global_id.is_some() && body.attempt.is_some() && body.lease_ms.is_some_and(|lease| lease > 0)
}

/// Returns the pause after a wait. It is short if the gateway shortened the wait. If the gateway did not wait, it is
/// the pause that the gateway asks for.
pub(crate) fn pause_between(wait: Duration, answer: &Answer) -> Duration {
    let pause = answer.retry_after();
    if answer.body.waited_ms.is_some_and(|waited| waited > 0) && !wait.is_zero() { pause.min(PAUSE_MIN) } else { pause }
}

pub(crate) fn left_until(ends: Option<Instant>, now: Instant) -> Duration {
    ends.map_or(FOREVER, |ends| ends.saturating_duration_since(now))
}

/// Returns the time in whole milliseconds, at least one.
pub(crate) fn whole_millis(left: Duration) -> Duration {
    Duration::from_millis(u64::try_from(left.as_millis()).unwrap_or(u64::MAX).max(1))
}

/// A claim that is being delivered to its caller. If it does not arrive, nothing has run: it is released.
pub(crate) struct Undelivered {
    pub(crate) claimed: Option<Result<Claimed, Error>>,
    /// The call, whose answer may have been lost.
    pub(crate) call: Option<(Client, Handle, Arc<ClaimCall>)>,
}

impl Drop for Undelivered {
    fn drop(&mut self) {
        match (self.claimed.take(), self.call.take()) {
            (Some(Ok(Claimed::Grant(grant))), _) => {
                let (client, runtime) = (grant.0.client.clone(), grant.0.runtime.clone());
                client.spawn(&runtime, async move { drop(grant.fail().await) });
            }
            (Some(Err(_)), Some((client, runtime, call))) => client.give_back(&runtime, &call),
            _ => {}
        }
    }
}
