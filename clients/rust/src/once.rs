//! `once`: claim, run the work, report.

use std::future::Future;
use std::time::Duration;

use serde::Serialize;
use serde::de::DeserializeOwned;
use tracing::Instrument as _;

use crate::claim::Claimed;
use crate::client::Client;
use crate::contents::Contents;
use crate::duplicate::{Duplicate, Mismatch};
use crate::error::{OnceError, WorkError};
use crate::grant::Grant;
use crate::problem::Problem;
use crate::report::Done;
use crate::state::State;
use crate::terms::Terms;
use crate::traces;

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
    /// The error of the work, or [`crate::Error`] with the result of the work.
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
    /// The error of the work, or [`crate::Error`] with the result of the work.
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
