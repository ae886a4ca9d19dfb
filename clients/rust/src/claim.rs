//! Claims, and `once`: claim, run the work, report.

use std::error::Error as StdError;
use std::future::Future;
use std::pin::Pin;
use std::sync::Arc;
use std::sync::atomic::Ordering;
use std::time::{Duration, Instant, SystemTime};

use http::Method;
use serde::Serialize;
use serde::de::DeserializeOwned;
use serde_json::value::RawValue;
use tokio::runtime::Handle;
use tokio::sync::{oneshot, watch};
use tracing::Instrument as _;

use crate::answer::{Answer, Body};
use crate::call::{Call, PAUSE_MIN, Stop, object, quoted, sleep, with_wait, written};
use crate::client::{Client, FOREVER, OnUnavailable, nonce};
use crate::contents::{Contents, canonical, global_id_of, spell};
use crate::error::{Cause, Error, Harmless, Kind, OnceError, WorkError};
use crate::event::{About, Level, cause_field};
use crate::grant::Grant;
use crate::problem::Problem;
use crate::report::omitted;
use crate::time;
use crate::traces;

type Late<'a> = Pin<Box<dyn Future<Output = Result<(Claimed, Duration), Error>> + Send + 'a>>;

/// The longest wait of one call: proxies in between may cut off a longer one.
pub(crate) const WAIT_MAX: Duration = Duration::from_secs(20);

/// Code of a grant whose global ID is not the client's own.
pub(crate) const IDENTITY_DIFFERS: &str = "identity_differs";

/// Value of `degraded` where the client is switched off.
pub(crate) const DISABLED: &str = "disabled";

/// Result of [`Client::once`].
#[derive(Debug)]
pub enum Once<T> {
    /// The work ran here, and its outcome was reported.
    Done(Done<T>),
    /// Another attempt is running or has completed the operation.
    Duplicate(Duplicate<T>),
    /// The operation was claimed with another fingerprint, or with other contents of the same ID.
    Mismatch(Mismatch),
}

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

/// Work that ran here.
#[derive(Clone, PartialEq, Debug)]
#[non_exhaustive]
pub struct Done<T> {
    /// Global ID of the operation.
    pub global_id: String,
    /// Result of the work.
    pub result: T,
    /// `succeeded`, `observed`, `spooled` (a gateway delivers it later), or nothing without a record
    /// ([`OnUnavailable::Proceed`]).
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

/// An operation that another attempt is running or has completed. Its result is JSON after [`Client::claim`], and of the type of the work
/// after [`Client::once`].
#[derive(Clone, PartialEq, Debug)]
#[non_exhaustive]
pub struct Duplicate<T = Box<RawValue>> {
    /// Global ID of the operation.
    pub global_id: String,
    /// `in_progress`, `succeeded` or `unknown`.
    pub state: State,
    /// The result stored with the success. `()`, and nothing, are none.
    pub result: Option<T>,
    /// Reason why the result of the success was not stored: `too_large`, `not_serialisable` or `refused`.
    pub result_omitted: Option<String>,
    /// Time after which a repeat is useful, while it is in progress.
    pub retry_after: Duration,
    /// Time at which the claim was granted.
    pub claimed_at: Option<SystemTime>,
    /// End of the record.
    pub expires_at: Option<SystemTime>,
    /// False for a record of a late outcome that came without its contents.
    pub contents_verified: bool,
    /// The outage policy that answered.
    pub degraded: Option<String>,
    /// In observe mode, what enforcing would have answered.
    pub would_be: Option<String>,
    /// True if the call has waited for the other attempt.
    pub(crate) has_waited: bool,
}

impl Duplicate {
    /// Reads the result.
    ///
    /// # Errors
    ///
    /// [`Error::ResultNotRead`]: the result is of another type.
    pub fn decode<T: DeserializeOwned>(self) -> Result<Duplicate<T>, Error> {
        let read = |text: Box<RawValue>| {
            serde_json::from_str(text.get()).map_err(|error| Error::ResultNotRead(error.to_string()))
        };
        Ok(Duplicate {
            result: self.result.map(read).transpose()?,
            result_omitted: self.result_omitted,
            global_id: self.global_id,
            state: self.state,
            retry_after: self.retry_after,
            claimed_at: self.claimed_at,
            expires_at: self.expires_at,
            contents_verified: self.contents_verified,
            degraded: self.degraded,
            would_be: self.would_be,
            has_waited: self.has_waited,
        })
    }
}

/// An operation that was claimed with another fingerprint, or with other contents of the same ID.
#[derive(Clone, PartialEq, Eq, Debug)]
#[non_exhaustive]
pub struct Mismatch {
    /// Global ID of the operation.
    pub global_id: String,
    /// `contents_mismatch` or `fingerprint_mismatch`.
    pub code: String,
}

/// State of a claim.
#[derive(Clone, PartialEq, Eq, Debug)]
#[non_exhaustive]
pub enum State {
    /// Its work runs.
    InProgress,
    /// Its work is finished.
    Succeeded,
    /// Unknown whether its work has happened.
    Unknown,
    /// Had no effect, and can be claimed again.
    Released,
    /// Observe mode: it was only looked at.
    Observed,
    /// A gateway has accepted the outcome and delivers it later.
    Spooled,
    /// Of a later version of the gateway.
    Other(String),
}

impl State {
    pub(crate) fn of(name: &str) -> Self {
        match name {
            "in_progress" => Self::InProgress,
            "succeeded" => Self::Succeeded,
            "unknown" => Self::Unknown,
            "released" => Self::Released,
            "observed" => Self::Observed,
            "spooled" => Self::Spooled,
            other => Self::Other(other.to_owned()),
        }
    }

    /// Returns its name, the same in every language.
    pub fn name(&self) -> &str {
        match self {
            Self::InProgress => "in_progress",
            Self::Succeeded => "succeeded",
            Self::Unknown => "unknown",
            Self::Released => "released",
            Self::Observed => "observed",
            Self::Spooled => "spooled",
            Self::Other(name) => name,
        }
    }
}

/// Terms of one claim.
#[derive(Clone, Default, Debug)]
#[must_use]
pub struct Terms {
    fingerprint: Option<Contents>,
    lease: Option<Duration>,
    retention: Option<Duration>,
    take_over: bool,
    unknown_on_lease_end: bool,
    pub(crate) wait: Duration,
    harmless: Harmless,
}

impl Terms {
    /// Returns the operator's choice of everything.
    pub fn new() -> Self {
        Self::default()
    }

    /// Sets what else must be equal on a repeat, without being part of the identity.
    pub fn fingerprint(mut self, fingerprint: impl Into<Contents>) -> Self {
        self.fingerprint = Some(fingerprint.into());
        self
    }

    /// Sets how long to hold the claim while in progress.
    pub fn lease(mut self, lease: Duration) -> Self {
        self.lease = Some(lease);
        self
    }

    /// Sets how long a success is kept against repeats; [`FOREVER`] is possible.
    pub fn retention(mut self, retention: Duration) -> Self {
        self.retention = Some(retention);
        self
    }

    /// Takes over a claim that is unknown. Only after its effect was looked up.
    pub fn take_over(mut self) -> Self {
        self.take_over = true;
        self
    }

    /// Makes the claim unknown if its lease ends without an outcome, also where the term of the operation releases it.
    pub fn unknown_on_lease_end(mut self) -> Self {
        self.unknown_on_lease_end = true;
        self
    }

    /// Declares errors of the work that had no effect: the operation is released, and the error is returned unchanged.
    /// The error of the work counts, its causes do not.
    pub fn nothing_happened_if<E: StdError + 'static>(
        mut self,
        is_harmless: impl Fn(&E) -> bool + Send + Sync + 'static,
    ) -> Self {
        self.harmless.add(is_harmless);
        self
    }

    /// Waits up to this time for an operation that is in progress.
    pub fn wait(mut self, wait: Duration) -> Self {
        self.wait = wait;
        self
    }
}

/// One try at an operation: all repeats send the same parts.
pub(crate) struct ClaimCall {
    /// The contents in canonical form.
    pub(crate) contents: String,
    pub(crate) global_id: String,
    pub(crate) body: String,
    pub(crate) wait: Duration,
    pub(crate) about: About,
}

impl Client {
    /// Runs the work unless the operation is a duplicate, renews the claim while it runs, and reports the outcome.
    /// Duplicates get the result of the work, as JSON.
    ///
    /// Work that returns [`WorkError::nothing_happened`] is reported as failure: the operation can be claimed again at once. After any
    /// other error the effect may have happened: the outcome is unknown. Both are returned as they are.
    ///
    /// If the future is dropped before the claim is answered, a grant that crosses it is released. If it is dropped
    /// during the work, or if the work panics, the outcome is reported as unknown. Reports continue without it, within
    /// [`crate::Options::settle_within`].
    ///
    /// # Errors
    ///
    /// The error of the work, or [`Error`] with the result of the work.
    pub async fn once<T, F>(
        &self,
        operation: &str,
        contents: impl Into<Contents>,
        work: impl FnOnce(Grant) -> F,
    ) -> Result<Once<T>, OnceError<T>>
    where
        T: Serialize + DeserializeOwned,
        F: Future<Output = Result<T, WorkError>>,
    {
        self.once_with(operation, contents, Terms::default(), work).await
    }

    /// Does [`Client::once`] on these terms.
    ///
    /// # Errors
    ///
    /// The error of the work, or [`Error`] with the result of the work.
    pub async fn once_with<T, F>(
        &self,
        operation: &str,
        contents: impl Into<Contents>,
        terms: Terms,
        work: impl FnOnce(Grant) -> F,
    ) -> Result<Once<T>, OnceError<T>>
    where
        T: Serialize + DeserializeOwned,
        F: Future<Output = Result<T, WorkError>>,
    {
        let harmless = terms.harmless.clone();
        let grant = match self.claim_with(operation, contents, terms).await? {
            Claimed::Grant(grant) => grant,
            Claimed::Duplicate(duplicate) => return Ok(Once::Duplicate(duplicate.decode()?)),
            Claimed::Mismatch(mismatch) => return Ok(Once::Mismatch(mismatch)),
        };
        let unfinished = Unfinished::of(&grant);
        let span = traces::run(operation, grant.degraded());
        let mut returned = work(grant.clone()).instrument(span).await;
        unfinished.disarm();
        if let Err(error) = &mut returned {
            error.nothing_happened |= harmless.includes(&error.error) || self.0.harmless.includes(&error.error);
        }
        match returned {
            Ok(result) => grant.succeed(result).await.map(Once::Done),
            Err(error) => {
                // The error of the work says more than one of this report. The claim ends with its lease.
                if error.nothing_happened {
                    drop(grant.fail().await);
                } else {
                    drop(grant.give_up().await);
                }
                Err(OnceError::Work(error))
            }
        }
    }

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
            drop(answered.send(Undelivered(Some(claimed))));
        });
        let claimed = match answer.await {
            Ok(mut undelivered) => undelivered.0.take(),
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
                Err(Error::Unavailable { causes, may_have_acted })
            }
            Some(claimed) => claimed,
            None => Err(Error::unavailable(Vec::new())),
        }
    }

    pub(crate) fn claim_call(&self, operation: &str, contents: &Contents, terms: &Terms) -> Result<ClaimCall, Error> {
        let contents = canonical(contents)?;
        let global_id = global_id_of(&self.0.app, operation, &contents);
        let fingerprint = terms.fingerprint.as_ref().map(spell).transpose()?.map(|(text, _)| text);
        let length =
            |length: Option<Duration>| length.map(|length| written(length).map(|text| quoted(&text))).transpose();
        let (lease, retention) = (length(terms.lease)?, length(terms.retention)?);
        let (quoted_operation, quoted_nonce) = (quoted(operation), quoted(&nonce()?));
        let members = [
            ("operation", Some(quoted_operation.as_str())),
            ("contents", Some(contents.as_str())),
            ("attempt_nonce", Some(quoted_nonce.as_str())),
            ("fingerprint", fingerprint.as_deref()),
            ("lease", lease.as_deref()),
            ("retention", retention.as_deref()),
            ("take_over", terms.take_over.then_some("true")),
            ("on_lease_end", terms.unknown_on_lease_end.then_some("\"unknown\"")),
        ];
        let body = object(members.into_iter().filter_map(|(name, value)| Some((name, value?))));
        let about = self.about(operation, Some(&global_id));
        Ok(ClaimCall { contents, global_id, body, wait: terms.wait, about })
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
        let answer = self.call(call, &mut false).await?;
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
pub(crate) struct Undelivered(pub(crate) Option<Result<Claimed, Error>>);

impl Drop for Undelivered {
    fn drop(&mut self) {
        if let Some(Ok(Claimed::Grant(grant))) = self.0.take() {
            let (client, runtime) = (grant.0.client.clone(), grant.0.runtime.clone());
            client.spawn(&runtime, async move { drop(grant.fail().await) });
        }
    }
}

/// Work that runs. If it is dropped, its effect may have happened.
pub(crate) struct Unfinished(Option<Grant>);

impl Unfinished {
    pub(crate) fn of(grant: &Grant) -> Self {
        Self(Some(grant.clone()))
    }

    pub(crate) fn disarm(mut self) {
        self.0 = None;
    }
}

impl Drop for Unfinished {
    fn drop(&mut self) {
        if let Some(grant) = self.0.take() {
            let (client, runtime) = (grant.0.client.clone(), grant.0.runtime.clone());
            client.spawn(&runtime, async move { drop(grant.give_up().await) });
        }
    }
}

impl<T> Once<T> {
    /// Returns the result of the work, of this run or of an earlier one; otherwise the problem as a service answers it.
    ///
    /// # Errors
    ///
    /// The operation is in progress, its outcome is unknown, its result was not stored, or it was claimed with other values.
    pub fn into_result(self) -> Result<T, Problem> {
        match self {
            Self::Done(done) => Ok(done.result),
            Self::Duplicate(mut duplicate) => match duplicate.result.take() {
                Some(result) if duplicate.state == State::Succeeded => Ok(result),
                _ => Err(Problem::from(&duplicate)),
            },
            Self::Mismatch(mismatch) => Err(Problem::from(&mismatch)),
        }
    }
}

/// Results as a test of the caller needs them, without a gateway.
impl<T> Once<T> {
    /// Returns work that ran here.
    pub fn done(result: T, state: Option<State>) -> Self {
        let global_id = String::new();
        let (degraded, late, would_be, result_omitted) = (None, None, None, None);
        Self::Done(Done { global_id, result, state, degraded, late, would_be, result_omitted })
    }

    /// Returns an operation that another attempt is running or has completed.
    pub fn duplicate(state: State, retry_after: Duration) -> Self {
        Self::Duplicate(Duplicate {
            global_id: String::new(),
            state,
            result: None,
            result_omitted: None,
            has_waited: false,
            retry_after,
            claimed_at: None,
            expires_at: None,
            contents_verified: true,
            degraded: None,
            would_be: None,
        })
    }

    /// Returns an operation that was claimed with other contents or another fingerprint.
    pub fn mismatch(code: impl Into<String>) -> Self {
        Self::Mismatch(Mismatch { global_id: String::new(), code: code.into() })
    }
}
