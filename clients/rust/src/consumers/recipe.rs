//! One operation on messages: derive the contents, run the handler once, report, and decide.

use std::fmt;
use std::future::Future;
use std::pin::Pin;
use std::sync::Arc;
use std::time::Duration;

use serde::Serialize;
use serde::de::DeserializeOwned;

use crate::claim::Once;
use crate::consume::{Action, Consumer, Decision};
use crate::contents::Contents;
use crate::error::{BoxError, Error, OnceError, WorkError};
use crate::grant::Grant;

type Running = Pin<Box<dyn Future<Output = Verdict> + Send>>;

/// One operation on messages of type `M`. Clones share it.
pub struct Recipe<M>(Arc<dyn Fn(Arc<M>, u32) -> Running + Send + Sync>);

/// A decision without the types of its work.
pub(crate) struct Verdict {
    pub(crate) action: Action,
    #[cfg_attr(
        not(any(feature = "async-nats", feature = "lapin", feature = "rdkafka")),
        expect(dead_code, reason = "an entry of a Redis stream is pending until it was idle")
    )]
    pub(crate) delay: Duration,
    /// Runs of this message that ended with [`WorkError::nothing_happened`], this one included.
    pub(crate) failures: u32,
    /// Reason in one word, for the header of a message that is moved.
    pub(crate) why: String,
}

impl<M: Send + Sync + 'static> Recipe<M> {
    /// Returns a recipe. `contents` derives what makes two messages the same operation: an order number, never the ID of the delivery; an
    /// error is a dead letter. `handle` is the work, once; it runs to its end although the consumer stops.
    pub fn new<T, F>(
        consumer: Consumer,
        contents: impl Fn(&M) -> Result<Contents, BoxError> + Send + Sync + 'static,
        handle: impl Fn(Arc<M>, Grant) -> F + Send + Sync + 'static,
    ) -> Self
    where
        T: Serialize + DeserializeOwned + Send + Sync + 'static,
        F: Future<Output = Result<T, WorkError>> + Send + 'static,
    {
        let handle = Arc::new(handle);
        Self(Arc::new(move |message, failures| {
            let (consumer, handle, derived) = (consumer.clone(), Arc::clone(&handle), contents(&message));
            if let Err(error) = &derived {
                tracing::error!("The contents of a message could not be derived: {error}");
            }
            Box::pin(async move {
                let work = |grant| handle(message, grant);
                verdict_of(&consumer.consume_once(derived, failures, work).await, failures)
            })
        }))
    }

    /// Handles one message. A future that is dropped leaves the work running, and its report.
    pub(crate) async fn run(&self, message: &Arc<M>, failures: u32) -> Verdict {
        match tokio::spawn((self.0)(Arc::clone(message), failures)).await {
            Ok(verdict) => verdict,
            // The outcome is reported as unknown.
            Err(_) => Verdict { action: Action::Park, delay: Duration::ZERO, failures, why: "panic".to_owned() },
        }
    }
}

impl<M> Clone for Recipe<M> {
    fn clone(&self) -> Self {
        Self(Arc::clone(&self.0))
    }
}

impl<M> fmt::Debug for Recipe<M> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Recipe").finish_non_exhaustive()
    }
}

fn verdict_of<T>(decision: &Decision<T>, failures: u32) -> Verdict {
    let why = why(decision);
    match decision.action {
        Action::Ack => {}
        Action::Redeliver => tracing::debug!(why, "A message is redelivered"),
        Action::Park => tracing::error!(why, end = %end_of(decision), "A message is parked: look up its effect"),
        Action::DeadLetter => tracing::error!(why, end = %end_of(decision), "A message is a dead letter"),
    }
    Verdict {
        action: decision.action,
        delay: decision.delay,
        failures: failures.saturating_add(u32::from(decision.is_failure())),
        why,
    }
}

fn why<T>(decision: &Decision<T>) -> String {
    match &decision.end {
        None => "contents".to_owned(),
        Some(Ok(Once::Done(_))) => "done".to_owned(),
        Some(Ok(Once::Duplicate(duplicate))) => duplicate.state.name().to_owned(),
        Some(Ok(Once::Mismatch(mismatch))) => mismatch.code.clone(),
        Some(Err(OnceError::Work(error))) if !error.is_nothing_happened() => "error".to_owned(),
        Some(Err(OnceError::Work(_))) if decision.action == Action::DeadLetter => "poison".to_owned(),
        Some(Err(OnceError::Work(_))) => "nothing_happened".to_owned(),
        Some(Err(OnceError::Call { error, .. })) => match error {
            Error::Rejected(rejected) => rejected.code.clone(),
            Error::OutcomeRefused { code } => code.clone(),
            Error::NotSettled { .. } => "not_settled".to_owned(),
            Error::NotCanonical(_) => "contents".to_owned(),
            _ => "unavailable".to_owned(),
        },
    }
}

/// Returns the error that led to a decision, for the log.
fn end_of<T>(decision: &Decision<T>) -> String {
    match &decision.end {
        Some(Err(error)) => error.to_string(),
        _ => String::new(),
    }
}
