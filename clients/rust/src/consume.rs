//! Consumers of messages: each end of `once` becomes one decision, which the caller carries out at its broker.

use std::fmt;
use std::future::Future;
use std::pin::Pin;
use std::sync::Arc;
use std::time::Duration;

use serde::Serialize;
use serde::de::DeserializeOwned;

use crate::client::Client;
use crate::contents::Contents;
use crate::error::{BoxError, Error, OnceError, WorkError};
use crate::grant::Grant;
use crate::once::Once;
use crate::state::State;
use crate::terms::Terms;

/// Action of a consumer on a message.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Action {
    /// Done, here or before.
    Ack,
    /// Delivered again later: in progress, no gateway, a quota, nothing happened.
    Redeliver,
    /// Its outcome is unknown: keep it in a separate queue, for a program or a person who looks up the effect and takes over.
    Park,
    /// A repeat cannot correct it.
    DeadLetter,
}

/// Decision about a message.
#[derive(Debug)]
pub struct Decision<T> {
    /// Action on the message.
    pub action: Action,
    /// The least time before a redelivery.
    pub delay: Duration,
    /// The end that led to it: log an error. Nothing if the contents could not be derived.
    pub end: Option<Result<Once<T>, OnceError<T>>>,
}

impl<T> Decision<T> {
    /// Returns true if the run counts as a failure of its message.
    pub fn is_failure(&self) -> bool {
        matches!(&self.end, Some(Err(OnceError::Work(error))) if error.nothing_happened)
    }
}

type Kept = Pin<Box<dyn Future<Output = Result<(), BoxError>> + Send>>;
type KeepReport = Arc<dyn Fn(String) -> Kept + Send + Sync>;

/// Handles messages of one operation.
#[derive(Clone)]
#[must_use]
pub struct Consumer {
    client: Client,
    operation: String,
    terms: Terms,
    redeliver_after: Duration,
    max_failures: u32,
    keep_report: Option<KeepReport>,
}

impl Consumer {
    /// Returns a consumer of messages that ask for this operation.
    pub fn new(client: &Client, operation: impl Into<String>) -> Self {
        Self {
            client: client.clone(),
            operation: operation.into(),
            terms: Terms::default(),
            redeliver_after: Duration::from_secs(5),
            max_failures: 3,
            keep_report: None,
        }
    }

    /// Sets the terms of the claims.
    pub fn terms(mut self, terms: Terms) -> Self {
        self.terms = terms;
        self
    }

    /// Sets the delay where the gateway names none. Default 5 s.
    pub fn redeliver_after(mut self, delay: Duration) -> Self {
        self.redeliver_after = delay;
        self
    }

    /// Sets how many runs may end with [`WorkError::nothing_happened`] before a message is poison. Default 3.
    pub fn max_failures(mut self, count: u32) -> Self {
        self.max_failures = count.max(1);
        self
    }

    /// Stores the report of an outcome that no gateway accepted, to be passed to [`Client::settle`] later. Without it the message is
    /// redelivered.
    pub fn keep_report<F>(mut self, keep: impl Fn(String) -> F + Send + Sync + 'static) -> Self
    where
        F: Future<Output = Result<(), BoxError>> + Send + 'static,
    {
        self.keep_report = Some(Arc::new(move |report| Box::pin(keep(report))));
        self
    }

    /// Handles one message, and returns what to do with it. Acknowledge nothing before it has returned.
    ///
    /// The contents are derived from the message: a payout number, never the ID of the delivery; an error is a dead letter. `failures`
    /// is the number of earlier runs of this message that ended with [`WorkError::nothing_happened`].
    pub async fn consume_once<T, F>(
        &self,
        contents: Result<Contents, BoxError>,
        failures: u32,
        handle: impl FnOnce(Grant) -> F,
    ) -> Decision<T>
    where
        T: Serialize + DeserializeOwned,
        F: Future<Output = Result<T, WorkError>>,
    {
        let Ok(contents) = contents else {
            return Decision { action: Action::DeadLetter, delay: Duration::ZERO, end: None };
        };
        let end = self.client.once_with(&self.operation, contents, self.terms.clone(), handle).await;
        let mut report_is_kept = false;
        if let (Some(keep), Err(OnceError::Call { error: Error::NotSettled { report, .. }, .. })) =
            (&self.keep_report, &end)
        {
            report_is_kept = keep(report.clone()).await.is_ok();
        }
        let (action, delay) = self.decide(&end, failures, report_is_kept);
        Decision { action, delay, end: Some(end) }
    }

    /// Returns what to do with a message for this end of `once`, and the least time before a redelivery.
    pub fn decide<T>(
        &self,
        end: &Result<Once<T>, OnceError<T>>,
        failures: u32,
        report_is_kept: bool,
    ) -> (Action, Duration) {
        let later = (Action::Redeliver, self.redeliver_after);
        let now = |action| (action, Duration::ZERO);
        match end {
            Ok(Once::Done(_)) => now(Action::Ack),
            Ok(Once::Mismatch(_)) => now(Action::DeadLetter),
            Ok(Once::Duplicate(duplicate)) => match duplicate.state {
                State::Succeeded => now(Action::Ack),
                State::InProgress => (Action::Redeliver, duplicate.retry_after),
                _ => now(Action::Park),
            },
            Err(OnceError::Work(error)) if !error.nothing_happened => now(Action::Park),
            Err(OnceError::Work(_)) if failures.saturating_add(1) >= self.max_failures => now(Action::DeadLetter),
            Err(OnceError::Work(_)) => later,
            Err(OnceError::Call { error, .. }) => match error {
                Error::NotSettled { .. } if report_is_kept => now(Action::Ack),
                // The work is done, and only a person can help: the error is in the log. Or an earlier run has succeeded, with a result
                // of another type.
                Error::OutcomeRefused { .. } | Error::ResultNotRead(_) => now(Action::Ack),
                Error::NotCanonical(_) => now(Action::DeadLetter),
                Error::Rejected(rejected) => match rejected.status {
                    429 => (Action::Redeliver, rejected.retry_after.unwrap_or(self.redeliver_after)),
                    // These are not about the message.
                    401 | 403 | 404 | 405 => later,
                    _ => now(Action::DeadLetter),
                },
                _ => later,
            },
        }
    }
}

impl fmt::Debug for Consumer {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Consumer").field("operation", &self.operation).finish_non_exhaustive()
    }
}
