//! RabbitMQ with lapin: delayed retries by queues with a time to live, and confirmed publishing before an acknowledgement.

use std::future::Future;
use std::pin::pin;
use std::sync::Arc;
use std::time::Duration;

use futures_util::StreamExt;
use lapin::message::Delivery;
use lapin::options::{
    BasicAckOptions, BasicCancelOptions, BasicConsumeOptions, BasicPublishOptions, BasicQosOptions,
    ConfirmSelectOptions, QueueDeclareOptions,
};
use lapin::types::{AMQPValue, FieldTable, ShortString};
use lapin::{BasicProperties, Channel, Confirmation};
use tokio::task::JoinSet;

use super::recipe::{Recipe, Verdict};
use crate::consume::Action;
use crate::error::BoxError;

/// Delays of the retry queues in seconds. One queue per delay: RabbitMQ expires messages at the head of a queue only.
const DELAYS: [u32; 4] = [1, 5, 30, 300];
const KEPT_UNTIL_BACK: [(&str, &str); 3] =
    [("x-queue-type", "quorum"), ("x-dead-letter-strategy", "at-least-once"), ("x-overflow", "reject-publish")];
/// Header that counts the runs that ended with [`crate::WorkError::nothing_happened`].
const FAILURES: &str = "x-oncegate-failures";
/// Header with the reason of the last move.
const WHY: &str = "x-oncegate-why";
const CONFIRM_WITHIN: Duration = Duration::from_secs(30);
/// Delivery mode of a message that is written to disk.
const PERSISTENT: u8 = 2;

type SetText = fn(BasicProperties, ShortString) -> BasicProperties;

/// The queue to consume. Additional queues are `<name>.retry.<delay>s`, `<name>.parked` and `<name>.dead`.
#[derive(Clone, Debug)]
#[must_use]
pub struct Queue {
    name: String,
    workers: u16,
}

impl Queue {
    /// Returns the queue with this name. It is yours to declare.
    pub fn new(name: impl Into<String>) -> Self {
        Self { name: name.into(), workers: 16 }
    }

    /// Sets how many messages are handled at the same time. Default 16.
    pub fn workers(mut self, count: u16) -> Self {
        self.workers = count.max(1);
        self
    }

    /// Declares the additional queues, all durable.
    ///
    /// # Errors
    ///
    /// The broker refused a queue, for example because it exists with other arguments.
    pub async fn declare(&self, channel: &Channel) -> Result<(), lapin::Error> {
        for name in [self.parked(), self.dead()] {
            channel.queue_declare(name.into(), QueueDeclareOptions::durable(), FieldTable::default()).await?;
        }
        for delay in DELAYS {
            let mut arguments = FieldTable::default();
            arguments.insert("x-message-ttl".into(), AMQPValue::LongUInt(delay * 1000));
            // A classic queue removes a message before the queue has stored it: a kill of the broker loses it.
            for (name, value) in KEPT_UNTIL_BACK {
                arguments.insert(name.into(), AMQPValue::LongString(value.into()));
            }
            // Back to the queue when the time is over.
            arguments.insert("x-dead-letter-exchange".into(), AMQPValue::LongString("".into()));
            arguments.insert("x-dead-letter-routing-key".into(), AMQPValue::LongString(self.name.clone().into()));
            channel.queue_declare(self.retry(delay).into(), QueueDeclareOptions::durable(), arguments).await?;
        }
        Ok(())
    }

    /// Handles messages until `stop` ends, and finishes running work. Close the channel then: messages that it had
    /// fetched go back to the queue. The consumer needs a separate channel.
    ///
    /// # Errors
    ///
    /// The broker ended the channel, or did not confirm a message that is delayed, parked or put aside: the original stays in the queue.
    /// Connect again then.
    pub async fn consume(
        &self,
        channel: &Channel,
        recipe: &Recipe<Delivery>,
        stop: impl Future<Output = ()>,
    ) -> Result<(), BoxError> {
        channel.confirm_select(ConfirmSelectOptions::default()).await?;
        channel.basic_qos(self.workers, BasicQosOptions::default()).await?;
        let options = BasicConsumeOptions::default();
        let mut deliveries =
            channel.basic_consume(self.name.clone().into(), "".into(), options, FieldTable::default()).await?;
        let mut running = JoinSet::new();
        let mut stop = pin!(stop);
        let mut end = loop {
            tokio::select! {
                () = &mut stop => break Ok(()),
                Some(handled) = running.join_next() => match handled {
                    Ok(Ok(())) => {}
                    Ok(Err(error)) => break Err(error),
                    Err(panic) => break Err(panic.into()),
                },
                delivery = deliveries.next() => match delivery {
                    Some(Ok(delivery)) => {
                        running.spawn(handle(channel.clone(), self.clone(), recipe.clone(), delivery));
                    }
                    Some(Err(error)) => break Err(error.into()),
                    None => break Err("the broker ended the consumer; does its queue still exist?".into()),
                },
            }
        };
        if end.is_ok() {
            end = channel.basic_cancel(deliveries.tag(), BasicCancelOptions::default()).await.map_err(Into::into);
        }
        // Started work is finished, so a shutdown leaves no unknown outcomes.
        while let Some(handled) = running.join_next().await {
            end = end.and(handled.unwrap_or_else(|panic| Err(panic.into())));
        }
        end
    }

    fn parked(&self) -> String {
        format!("{}.parked", self.name)
    }

    fn dead(&self) -> String {
        format!("{}.dead", self.name)
    }

    fn retry(&self, delay: u32) -> String {
        format!("{}.retry.{delay}s", self.name)
    }

    /// Returns the destination of an unfinished message.
    fn target(&self, verdict: &Verdict) -> Option<String> {
        match verdict.action {
            Action::Ack => None,
            Action::Redeliver => Some(self.retry(shortest(verdict.delay))),
            Action::Park => Some(self.parked()),
            Action::DeadLetter => Some(self.dead()),
        }
    }
}

/// Returns the shortest delay that is long enough, or the longest.
fn shortest(delay: Duration) -> u32 {
    let long_enough = |seconds: &u32| Duration::from_secs((*seconds).into()) >= delay;
    DELAYS.into_iter().find(long_enough).unwrap_or(DELAYS[DELAYS.len() - 1])
}

async fn handle(channel: Channel, queue: Queue, recipe: Recipe<Delivery>, delivery: Delivery) -> Result<(), BoxError> {
    let delivery = Arc::new(delivery);
    let verdict = recipe.run(&delivery, failures_of(&delivery.properties)).await;
    if let Some(target) = queue.target(&verdict) {
        // First confirmed there, then acknowledged here: a crash between the two leaves two messages, one a duplicate.
        tokio::time::timeout(CONFIRM_WITHIN, publish(&channel, &target, &delivery, &verdict)).await??;
    }
    delivery.ack(BasicAckOptions::default()).await?;
    Ok(())
}

async fn publish(channel: &Channel, target: &str, delivery: &Delivery, verdict: &Verdict) -> Result<(), BoxError> {
    let options = BasicPublishOptions { mandatory: true, ..BasicPublishOptions::default() };
    let properties = moved(&delivery.properties, verdict);
    let published = channel.basic_publish("".into(), target.into(), options, &delivery.data, properties).await?;
    match published.await? {
        Confirmation::Ack(None) => Ok(()),
        Confirmation::Ack(Some(_)) | Confirmation::Nack(Some(_)) => {
            Err(format!("there is no queue {target}; make it with Queue::declare").into())
        }
        _ => Err(format!("the broker refused a message for {target}").into()),
    }
}

/// Returns the properties of the copy. An expiry of the first message is not one of the copy.
fn moved(first: &BasicProperties, verdict: &Verdict) -> BasicProperties {
    let mut headers = first.headers().as_ref().map(FieldTable::inner).cloned().unwrap_or_default();
    // The broker's own, for each queue that a message has passed.
    headers.remove("x-death");
    let mut headers = FieldTable::from(headers);
    headers.insert(FAILURES.into(), AMQPValue::LongInt(i32::try_from(verdict.failures).unwrap_or(i32::MAX)));
    headers.insert(WHY.into(), AMQPValue::LongString(verdict.why.as_str().into()));
    let mut properties = BasicProperties::default().with_headers(headers).with_delivery_mode(PERSISTENT);
    let texts: [(&Option<ShortString>, SetText); 6] = [
        (first.content_type(), BasicProperties::with_content_type),
        (first.content_encoding(), BasicProperties::with_content_encoding),
        (first.correlation_id(), BasicProperties::with_correlation_id),
        (first.message_id(), BasicProperties::with_message_id),
        (first.kind(), BasicProperties::with_type),
        (first.app_id(), BasicProperties::with_app_id),
    ];
    for (value, set) in texts {
        if let Some(value) = value {
            properties = set(properties, value.clone());
        }
    }
    match first.timestamp() {
        Some(timestamp) => properties.with_timestamp(*timestamp),
        None => properties,
    }
}

/// Returns the failures of a message, which a client of another language may have counted in another width.
fn failures_of(properties: &BasicProperties) -> u32 {
    let headers = properties.headers().as_ref().map(FieldTable::inner);
    let count = match headers.and_then(|headers| headers.get(FAILURES)) {
        Some(AMQPValue::ShortShortInt(count)) => i64::from(*count),
        Some(AMQPValue::ShortShortUInt(count)) => i64::from(*count),
        Some(AMQPValue::ShortInt(count)) => i64::from(*count),
        Some(AMQPValue::ShortUInt(count)) => i64::from(*count),
        Some(AMQPValue::LongInt(count)) => i64::from(*count),
        Some(AMQPValue::LongUInt(count)) => i64::from(*count),
        Some(AMQPValue::LongLongInt(count)) => *count,
        _ => 0,
    };
    u32::try_from(count).unwrap_or(0)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_delay_is_never_shorter_than_asked_up_to_the_longest() {
        let delays = [0, 1000, 1001, 30_000, 300_001].map(|millis| shortest(Duration::from_millis(millis)));
        assert_eq!(delays, [1, 1, 5, 30, 300]);
    }

    #[test]
    fn a_copy_keeps_what_describes_the_message_and_drops_its_expiry() {
        let verdict = Verdict { action: Action::Park, delay: Duration::ZERO, failures: 2, why: "unknown".to_owned() };
        let first = BasicProperties::default().with_message_id("m-1".into()).with_expiration("1000".into());
        let copy = moved(&first, &verdict);
        assert_eq!((copy.message_id(), copy.expiration()), (&Some("m-1".into()), &None));
        assert_eq!((failures_of(&copy), *copy.delivery_mode()), (2, Some(PERSISTENT)));
    }

    #[test]
    fn a_queue_stands_for_each_decision() {
        let queue = Queue::new("orders");
        let target =
            |action| queue.target(&Verdict { action, delay: Duration::from_secs(3), failures: 0, why: String::new() });
        assert_eq!(target(Action::Ack), None);
        assert_eq!(target(Action::Redeliver).as_deref(), Some("orders.retry.5s"));
        assert_eq!(target(Action::Park).as_deref(), Some("orders.parked"));
        assert_eq!(target(Action::DeadLetter).as_deref(), Some("orders.dead"));
    }
}
