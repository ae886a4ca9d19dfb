//! NATS JetStream with async-nats: `+WPI` while the work runs, a delay with `-NAK`, and a copy that is stored before the acknowledgement.

use std::future::Future;
use std::pin::pin;
use std::sync::Arc;
use std::time::Duration;

use async_nats::HeaderMap;
use async_nats::jetstream::consumer::pull::Batch;
use async_nats::jetstream::consumer::{AckPolicy, Config, PullConsumer};
use async_nats::jetstream::{AckKind, Message};
use futures_util::StreamExt;
use tokio::sync::watch;
use tokio::task::JoinSet;
use tokio::time::MissedTickBehavior;

use super::recipe::{Recipe, Verdict};
use crate::consume::Action;
use crate::error::BoxError;

/// Header that counts the runs that ended with [`crate::WorkError::nothing_happened`].
const FAILURES: &str = "Oncegate-Failures";
/// Header with the reason of the last move.
const WHY: &str = "Oncegate-Why";
/// Headers of the server and of the first publisher. They have no meaning for a copy.
const RESERVED: &str = "Nats-";
/// Time that a request for messages waits at the server.
const FETCH_FOR: Duration = Duration::from_secs(1);

/// The subjects of messages that are not done: subjects of a stream, but not of the consumed one.
#[derive(Clone, Debug)]
#[must_use]
pub struct Subjects {
    parked: String,
    dead: String,
    workers: usize,
}

impl Subjects {
    /// Returns the subjects of unknown outcomes, and of mistakes and poison.
    pub fn new(parked: impl Into<String>, dead: impl Into<String>) -> Self {
        Self { parked: parked.into(), dead: dead.into(), workers: 16 }
    }

    /// Sets how many messages are handled at the same time. Default 16.
    pub fn workers(mut self, count: u16) -> Self {
        self.workers = count.max(1).into();
        self
    }

    /// Handles messages until `stop` ends, and finishes running work. Messages that were fetched and not started are
    /// returned at once.
    ///
    /// # Errors
    ///
    /// The consumer does not acknowledge explicitly. Or the server ended a request, or did not confirm an
    /// acknowledgement or a copy: the original stays in the stream, and is delivered again. Call it again then.
    pub async fn consume(
        &self,
        consumer: &PullConsumer,
        recipe: &Recipe<Message>,
        stop: impl Future<Output = ()>,
    ) -> Result<(), BoxError> {
        let progress_every = progress_of(&consumer.cached_info().config)?;
        let (stopping, stopped) = watch::channel(());
        let (mut running, mut stop) = (JoinSet::new(), pin!(stop));
        let mut batch = None;
        let mut end = loop {
            if batch.is_none() && running.len() < self.workers {
                // No more than can be started at once: the time for an acknowledgement runs from the delivery.
                match fetch(consumer, self.workers - running.len()).await {
                    Ok(fetched) => batch = Some(fetched),
                    Err(error) => break Err(error),
                }
            }
            tokio::select! {
                () = &mut stop => break Ok(()),
                Some(handled) = running.join_next() => match handled {
                    Ok(Ok(())) => {}
                    Ok(Err(error)) => break Err(error),
                    Err(panic) => break Err(panic.into()),
                },
                message = next_of(&mut batch), if batch.is_some() => match message {
                    Some(Ok(message)) => {
                        running.spawn(handle(self.clone(), recipe.clone(), message, progress_every, stopped.clone()));
                    }
                    Some(Err(error)) => break Err(error),
                    None => batch = None,
                },
            }
        };
        drop(stopping);
        if end.is_ok() {
            while let Some(Ok(message)) = next_of(&mut batch).await {
                end = end.and(message.ack_with(AckKind::Nak(None)).await);
            }
        }
        // Started work is finished, so a shutdown leaves no unknown outcomes.
        while let Some(handled) = running.join_next().await {
            end = end.and(handled.unwrap_or_else(|panic| Err(panic.into())));
        }
        end
    }

    /// Returns the destination for the copy of a message that is neither done nor delivered again.
    fn target(&self, verdict: &Verdict, failures: u32, from: &str) -> Option<String> {
        match verdict.action {
            Action::Park => Some(self.parked.clone()),
            Action::DeadLetter => Some(self.dead.clone()),
            // The server counts deliveries, not failures, and keeps no header: so it is another message.
            Action::Redeliver if verdict.failures > failures => Some(from.to_owned()),
            Action::Ack | Action::Redeliver => None,
        }
    }
}

/// Returns how often `+WPI` is sent: three times before the server would deliver the message again.
fn progress_of(config: &Config) -> Result<Duration, BoxError> {
    if config.ack_policy != AckPolicy::Explicit {
        return Err("the consumer does not acknowledge explicitly; create it with AckPolicy::Explicit".into());
    }
    if config.max_deliver > 0 {
        tracing::warn!(
            max_deliver = config.max_deliver,
            "The consumer limits deliveries. A message in progress counts towards it, and is lost past it: remove the limit"
        );
    }
    // The steps of a backoff take the place of the wait.
    let wait = config.backoff.iter().min().copied().unwrap_or(config.ack_wait);
    Ok((wait / 3).max(Duration::from_millis(1)))
}

async fn fetch(consumer: &PullConsumer, count: usize) -> Result<Batch, BoxError> {
    Ok(consumer.batch().max_messages(count).expires(FETCH_FOR).messages().await?)
}

async fn next_of(batch: &mut Option<Batch>) -> Option<Result<Message, BoxError>> {
    match batch {
        Some(batch) => batch.next().await,
        None => None,
    }
}

async fn handle(
    subjects: Subjects,
    recipe: Recipe<Message>,
    message: Message,
    progress_every: Duration,
    mut stopped: watch::Receiver<()>,
) -> Result<(), BoxError> {
    let message = Arc::new(message);
    let failures = failures_of(message.headers.as_ref());
    let work = async {
        let verdict = recipe.run(&message, failures).await;
        let target = subjects.target(&verdict, failures, &message.subject);
        if target.is_some() && verdict.action == Action::Redeliver {
            // A copy has no delay. A consumer that stops does not wait for it.
            drop(tokio::time::timeout(verdict.delay, stopped.changed()).await);
        }
        (verdict, target)
    };
    let (verdict, target) = in_progress(&message, progress_every, work).await;
    if let Some(target) = target {
        // First stored there, then acknowledged here: a crash between the two leaves two messages, one a duplicate.
        publish(&message, target, &verdict).await?;
    } else if verdict.action == Action::Redeliver {
        return message.ack_with(AckKind::Nak(Some(verdict.delay))).await;
    }
    message.double_ack().await
}

/// Runs work, and regularly reports that it continues, so that the server does not deliver the message to another
/// consumer.
async fn in_progress<T>(message: &Message, every: Duration, work: impl Future<Output = T>) -> T {
    let mut work = pin!(work);
    let mut ticks = tokio::time::interval_at(tokio::time::Instant::now() + every, every);
    ticks.set_missed_tick_behavior(MissedTickBehavior::Delay);
    loop {
        tokio::select! {
            done = &mut work => return done,
            _ = ticks.tick() => {
                // Without it the message is delivered again, and is then in progress.
                if let Err(error) = message.ack_with(AckKind::Progress).await {
                    tracing::warn!("Work that continues could not be reported to the server: {error}");
                }
            }
        }
    }
}

async fn publish(message: &Message, target: String, verdict: &Verdict) -> Result<(), BoxError> {
    let headers = moved(message.headers.as_ref(), verdict);
    let sent = message.context.publish_with_headers(target.clone(), headers, message.payload.clone()).await;
    let stored = match sent {
        Ok(sent) => sent.await,
        Err(error) => Err(error),
    };
    stored.map_err(|error| format!("no stream has stored a message for {target}: {error}"))?;
    Ok(())
}

/// Returns the headers of the copy.
fn moved(first: Option<&HeaderMap>, verdict: &Verdict) -> HeaderMap {
    let mut headers = HeaderMap::new();
    for (name, values) in first.into_iter().flat_map(HeaderMap::iter) {
        if !AsRef::<str>::as_ref(name).starts_with(RESERVED) {
            for value in values {
                headers.append(name.clone(), value.clone());
            }
        }
    }
    headers.insert(FAILURES, verdict.failures.to_string());
    headers.insert(WHY, verdict.why.as_str());
    headers
}

fn failures_of(headers: Option<&HeaderMap>) -> u32 {
    let count = headers.and_then(|headers| headers.get(FAILURES));
    count.and_then(|count| count.as_str().parse().ok()).unwrap_or(0)
}

#[cfg(test)]
mod tests {
    use async_nats::HeaderValue;
    use async_nats::jetstream::consumer::IntoConsumerConfig;
    use async_nats::jetstream::consumer::pull::Config as PullConfig;

    use super::*;

    fn verdict(action: Action, failures: u32) -> Verdict {
        Verdict { action, delay: Duration::from_secs(3), failures, why: "error".to_owned() }
    }

    #[test]
    fn a_subject_stands_for_each_decision_and_a_failure_is_another_message() {
        let subjects = Subjects::new("aside.parked", "aside.dead");
        let target = |action, after| subjects.target(&verdict(action, after), 1, "payouts.eu");
        assert_eq!(target(Action::Ack, 1), None);
        assert_eq!(target(Action::Redeliver, 1), None);
        assert_eq!(target(Action::Redeliver, 2).as_deref(), Some("payouts.eu"));
        assert_eq!(target(Action::Park, 1).as_deref(), Some("aside.parked"));
        assert_eq!(target(Action::DeadLetter, 2).as_deref(), Some("aside.dead"));
    }

    #[test]
    fn a_copy_keeps_the_headers_of_the_application_only_and_counts_failures() {
        let mut first = HeaderMap::new();
        first.insert("Nats-Msg-Id", "m-1");
        first.insert("Nats-Expected-Stream", "PAYOUTS");
        first.append("Tenant", "one");
        first.append("Tenant", "two");
        first.insert(FAILURES, "1");
        let copy = moved(Some(&first), &verdict(Action::Redeliver, 2));
        assert_eq!((copy.get("Nats-Msg-Id"), copy.get("Nats-Expected-Stream")), (None, None));
        assert_eq!(copy.get_all("Tenant").map(HeaderValue::as_str).collect::<Vec<_>>(), ["one", "two"]);
        assert_eq!((failures_of(Some(&copy)), copy.get(WHY).map(HeaderValue::as_str)), (2, Some("error")));
        assert_eq!(copy.get_all(FAILURES).count(), 1);
    }

    #[test]
    fn a_count_that_is_no_number_is_none() {
        let mut headers = HeaderMap::new();
        headers.insert(FAILURES, "many");
        assert_eq!((failures_of(Some(&headers)), failures_of(None)), (0, 0));
    }

    #[test]
    fn progress_is_reported_three_times_within_the_shortest_wait() {
        let every = |config: PullConfig| progress_of(&config.into_consumer_config());
        let explicit = PullConfig { ack_wait: Duration::from_secs(30), ..PullConfig::default() };
        assert_eq!(every(explicit.clone()).unwrap(), Duration::from_secs(10));
        let backoff = vec![Duration::from_secs(3), Duration::from_secs(60)];
        assert_eq!(every(PullConfig { backoff, ..explicit }).unwrap(), Duration::from_secs(1));
    }

    #[test]
    fn a_consumer_that_does_not_acknowledge_explicitly_is_refused() {
        let config = PullConfig { ack_policy: AckPolicy::None, ..PullConfig::default() };
        let refused = progress_of(&config.into_consumer_config()).unwrap_err();
        assert!(refused.to_string().contains("AckPolicy::Explicit"), "{refused}");
    }
}
