//! Kafka with rdkafka: one record of a partition at a time, in a task. A thread keeps polling, so long work causes no
//! rebalance.

mod group;
mod partitions;

use std::future::Future;
use std::pin::pin;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::thread;
use std::time::Duration;

use rdkafka::ClientConfig;
use rdkafka::consumer::{BaseConsumer, Consumer};
use rdkafka::error::KafkaError;
use rdkafka::message::{Header, Headers, Message, OwnedHeaders, OwnedMessage};
use rdkafka::producer::{FutureProducer, FutureRecord};
use tokio::sync::oneshot;
use tokio::time::timeout;

use self::group::{Group, Poll};
use super::recipe::{Recipe, Verdict};
use crate::consume::Action;
use crate::error::BoxError;

/// Header with the reason of the last move.
const WHY: &str = "oncegate-why";
/// Longest time until all in-sync replicas have a copy.
const COPIED_WITHIN: Duration = Duration::from_secs(30);

/// Topics whose records are handled. Each has the additional topics `TOPIC.parked` and `TOPIC.dead`.
#[derive(Clone, Debug)]
#[must_use]
pub struct Topics {
    names: Vec<String>,
    workers: usize,
    buffered: usize,
    revoke_within: Duration,
}

impl Topics {
    /// Returns the topics with these names.
    pub fn new<T: Into<String>>(names: impl IntoIterator<Item = T>) -> Self {
        let names = names.into_iter().map(Into::into).collect();
        Self { names, workers: 16, buffered: 100, revoke_within: Duration::from_secs(10) }
    }

    /// Sets how many records are handled at the same time, each of another partition. Default 16.
    pub fn workers(mut self, count: u16) -> Self {
        self.workers = count.max(1).into();
        self
    }

    /// Sets how many records of a partition wait in memory before it is paused. Default 100.
    pub fn buffered(mut self, count: u16) -> Self {
        self.buffered = count.max(1).into();
        self
    }

    /// Sets how long running work may take to end when its partition is revoked. Records of unfinished work stay
    /// uncommitted. Default 10 s.
    pub fn revoke_within(mut self, limit: Duration) -> Self {
        self.revoke_within = limit;
        self
    }

    /// Handles records until `stop` ends, finishes running work, and commits it. The configurations have the address of
    /// the brokers; that of the consumer has its `group.id`. `enable.auto.commit=false` and `acks=all` are set here.
    ///
    /// # Errors
    ///
    /// A configuration has another value for these, or rdkafka refuses it. Or the brokers refused a request, or did not
    /// confirm a copy: uncommitted records are delivered again. Call it again then. A broker that restarts is no error.
    pub async fn consume(
        &self,
        consumer: &ClientConfig,
        producer: &ClientConfig,
        recipe: &Recipe<OwnedMessage>,
        stop: impl Future<Output = ()>,
    ) -> Result<(), BoxError> {
        let copies: FutureProducer = with(producer, "acks", &["all", "-1"])?.create()?;
        let (group, ends) = Group::new(self.revoke_within);
        let consumer: BaseConsumer<Group> =
            with(consumer, "enable.auto.commit", &["false"])?.create_with_context(group)?;
        consumer.subscribe(&self.names.iter().map(String::as_str).collect::<Vec<_>>())?;
        let stopping = Stopping(Arc::default());
        let poll = Poll {
            consumer,
            ends,
            recipe: recipe.clone(),
            copies,
            workers: self.workers,
            buffered: self.buffered,
            runtime: tokio::runtime::Handle::current(),
            stopping: Arc::clone(&stopping.0),
        };
        let (end, mut ended) = oneshot::channel();
        thread::Builder::new().name("oncegate-kafka".to_owned()).spawn(move || drop(end.send(poll.run())))?;
        let (mut stop, mut is_asked) = (pin!(stop), false);
        loop {
            tokio::select! {
                () = &mut stop, if !is_asked => {
                    is_asked = true;
                    stopping.0.store(true, Ordering::Relaxed);
                }
                end = &mut ended => return end.unwrap_or_else(|_| Err("the thread that polls has panicked".into())),
            }
        }
    }
}

/// Stops the thread when it is dropped, after the work that was started.
struct Stopping(Arc<AtomicBool>);

impl Drop for Stopping {
    fn drop(&mut self) {
        self.0.store(true, Ordering::Relaxed);
    }
}

/// Returns a configuration with the first of the values, unless it has one of them.
fn with(config: &ClientConfig, name: &str, values: &[&str]) -> Result<ClientConfig, BoxError> {
    let mut config = config.clone();
    match config.get(name) {
        Some(value) if !values.contains(&value) => {
            Err(format!("{name}={value} can lose records: leave it out, or set it to {}", values[0]).into())
        }
        _ => {
            config.set(name, values[0]);
            Ok(config)
        }
    }
}

/// Runs one record. A parked or dead record is copied before it counts as done.
async fn handle(
    recipe: Recipe<OwnedMessage>,
    copies: FutureProducer,
    record: Arc<OwnedMessage>,
    failures: u32,
) -> Result<Verdict, BoxError> {
    let verdict = recipe.run(&record, failures).await;
    let Some(target) = aside(record.topic(), verdict.action) else { return Ok(verdict) };
    let copy = FutureRecord::<[u8], [u8]> {
        topic: &target,
        partition: None,
        payload: record.payload(),
        key: record.key(),
        timestamp: None,
        headers: Some(headers(&record, &verdict.why)),
    };
    match timeout(COPIED_WITHIN, copies.send(copy, COPIED_WITHIN)).await {
        Ok(Ok(_)) => Ok(verdict),
        Ok(Err((error, _))) => Err(format!("no copy in {target}: {error}").into()),
        Err(_) => Err(format!("no copy in {target} within {} s", COPIED_WITHIN.as_secs()).into()),
    }
}

fn aside(topic: &str, action: Action) -> Option<String> {
    match action {
        Action::Ack | Action::Redeliver => None,
        Action::Park => Some(format!("{topic}.parked")),
        Action::DeadLetter => Some(format!("{topic}.dead")),
    }
}

/// Returns the headers of a copy. A record that is consumed again has its last reason only.
fn headers(record: &OwnedMessage, why: &str) -> OwnedHeaders {
    let mut headers = OwnedHeaders::new();
    if let Some(earlier) = record.headers() {
        for header in earlier.iter().filter(|header| header.key != WHY) {
            headers = headers.insert(header);
        }
    }
    headers.insert(Header { key: WHY, value: Some(why) })
}

/// Returns true for an error that passes: a broker restarts, or the group is being rebalanced.
fn passes(error: &KafkaError) -> bool {
    use rdkafka::types::RDKafkaErrorCode as Code;
    matches!(
        error.rdkafka_error_code(),
        Some(
            Code::AllBrokersDown
                | Code::BrokerTransportFailure
                | Code::CoordinatorLoadInProgress
                | Code::CoordinatorNotAvailable
                | Code::IllegalGeneration
                | Code::NetworkException
                | Code::NotCoordinator
                | Code::OperationTimedOut
                | Code::PollExceeded
                | Code::RebalanceInProgress
                | Code::RequestTimedOut
                | Code::UnknownMemberId
                | Code::WaitingForCoordinator
        )
    )
}

#[cfg(test)]
mod tests {
    use rdkafka::message::Timestamp;

    use super::*;

    #[test]
    fn a_value_that_can_lose_records_is_refused() {
        let mut config = ClientConfig::new();
        assert_eq!(with(&config, "acks", &["all", "-1"]).unwrap().get("acks"), Some("all"));
        config.set("acks", "1");
        let error = with(&config, "acks", &["all", "-1"]).unwrap_err();
        assert_eq!(error.to_string(), "acks=1 can lose records: leave it out, or set it to all");
        config.set("acks", "-1");
        assert!(with(&config, "acks", &["all", "-1"]).is_ok());
    }

    #[test]
    fn what_is_parked_or_dead_is_copied_beside_its_topic() {
        let asides =
            [Action::Ack, Action::Redeliver, Action::Park, Action::DeadLetter].map(|action| aside("orders", action));
        assert_eq!(asides, [None, None, Some("orders.parked".to_owned()), Some("orders.dead".to_owned())]);
    }

    #[test]
    fn a_copy_has_the_headers_of_its_record_and_the_last_reason() {
        let earlier = OwnedHeaders::new()
            .insert(Header { key: "trace", value: Some("1") })
            .insert(Header { key: WHY, value: Some("panic") })
            .insert(Header::<&str> { key: "empty", value: None });
        let record = OwnedMessage::new(None, None, "orders".to_owned(), Timestamp::NotAvailable, 0, 7, Some(earlier));
        let copied = headers(&record, "unknown");
        let texts: Vec<_> = copied.iter().map(|header| (header.key, header.value)).collect();
        assert_eq!(texts, [("trace", Some(&b"1"[..])), ("empty", None), (WHY, Some(&b"unknown"[..]))]);
    }

    #[test]
    fn an_error_of_a_restart_or_a_rebalance_passes() {
        use rdkafka::types::RDKafkaErrorCode as Code;
        assert!(passes(&KafkaError::ConsumerCommit(Code::RebalanceInProgress)));
        assert!(passes(&KafkaError::MessageConsumption(Code::AllBrokersDown)));
        assert!(!passes(&KafkaError::ConsumerCommit(Code::GroupAuthorizationFailed)));
        assert!(!passes(&KafkaError::MessageConsumptionFatal(Code::Fatal)));
    }
}
