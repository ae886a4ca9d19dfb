//! Redis Streams with redis-rs: entries that another consumer left pending, then new ones; acknowledged after the report.

use std::future::Future;
use std::pin::pin;
use std::sync::Arc;
use std::time::Duration;

use redis::aio::MultiplexedConnection;
use redis::streams::{StreamAutoClaimReply, StreamId, StreamReadReply};
use redis::{AsyncConnectionConfig, Client, Pipeline};
use tokio::task::JoinSet;

use super::recipe::{Recipe, Verdict};
use crate::consume::Action;
use crate::error::BoxError;

/// Time that a request for new entries waits at the server.
const BLOCK: Duration = Duration::from_secs(1);
const ANSWER_WITHIN: Duration = Duration::from_secs(30);
/// Field with the reason of the move.
const WHY: &str = "oncegate-why";
/// Field with the ID that the entry had.
const ENTRY: &str = "oncegate-entry";

/// The stream to consume, in a group. In addition there are the streams `<name>:parked` and `<name>:dead`, and the hash
/// `<name>:failures`.
#[derive(Clone, Debug)]
#[must_use]
pub struct Stream {
    name: String,
    group: String,
    consumer: String,
    workers: usize,
    claim_idle: Duration,
}

impl Stream {
    /// Returns the stream with this name. Each worker has a different name in the group: `consumer`.
    pub fn new(name: impl Into<String>, group: impl Into<String>, consumer: impl Into<String>) -> Self {
        let (name, group, consumer) = (name.into(), group.into(), consumer.into());
        Self { name, group, consumer, workers: 16, claim_idle: Duration::from_secs(30) }
    }

    /// Sets how many entries are handled at the same time. Default 16.
    pub fn workers(mut self, count: u16) -> Self {
        self.workers = count.max(1).into();
        self
    }

    /// Sets how long an entry is idle before it is claimed from the consumer that has it. Choose it longer than the lease. Default 30 s.
    pub fn claim_idle(mut self, idle: Duration) -> Self {
        self.claim_idle = idle;
        self
    }

    /// Makes stream and group, unless they are there.
    ///
    /// # Errors
    ///
    /// Redis did not answer, or the key is no stream.
    pub async fn declare(&self, client: &Client) -> Result<(), redis::RedisError> {
        let mut connection = connect(client).await?;
        let mut create = redis::cmd("XGROUP");
        create.arg("CREATE").arg(&self.name).arg(&self.group).arg("0").arg("MKSTREAM");
        match create.query_async::<()>(&mut connection).await {
            Err(error) if error.code() != Some("BUSYGROUP") => Err(error),
            _ => Ok(()),
        }
    }

    /// Handles entries until `stop` ends, and finishes fetched ones.
    ///
    /// # Errors
    ///
    /// Redis ended a connection, or refused a command: entries that were not acknowledged stay pending. Call it again then.
    pub async fn consume(
        &self,
        client: &Client,
        recipe: &Recipe<StreamId>,
        stop: impl Future<Output = ()>,
    ) -> Result<(), BoxError> {
        // A request that waits would delay the acknowledgements after it.
        let (mut fetching, connection) = (connect(client).await?, connect(client).await?);
        let (mut running, mut stop, mut stopping) = (JoinSet::new(), pin!(stop), false);
        let mut cursor = "0-0".to_owned();
        let mut end = Ok(());
        while !stopping && end.is_ok() {
            if running.len() >= self.workers {
                tokio::select! {
                    () = &mut stop => stopping = true,
                    Some(handled) = running.join_next() => end = handled.unwrap_or_else(|panic| Err(panic.into())),
                }
                continue;
            }
            let count = self.workers - running.len();
            let fetched = {
                let mut fetch = pin!(self.fetch(&mut fetching, &mut cursor, count));
                loop {
                    tokio::select! {
                        // Fetched entries are pending for this consumer, so it handles them although it stops.
                        () = &mut stop, if !stopping => stopping = true,
                        fetched = &mut fetch => break fetched,
                    }
                }
            };
            match fetched {
                Ok(entries) => {
                    for entry in entries {
                        running.spawn(handle(connection.clone(), self.clone(), recipe.clone(), entry));
                    }
                }
                Err(error) => end = Err(error.into()),
            }
            while let Some(handled) = running.try_join_next() {
                end = end.and(handled.unwrap_or_else(|panic| Err(panic.into())));
            }
        }
        // Started work is finished, so a shutdown leaves no unknown outcomes.
        while let Some(handled) = running.join_next().await {
            end = end.and(handled.unwrap_or_else(|panic| Err(panic.into())));
        }
        end
    }

    /// Returns pending entries that are idle, or else new ones.
    async fn fetch(
        &self,
        connection: &mut MultiplexedConnection,
        cursor: &mut String,
        count: usize,
    ) -> Result<Vec<StreamId>, redis::RedisError> {
        let mut claim = redis::cmd("XAUTOCLAIM");
        claim.arg(&self.name).arg(&self.group).arg(&self.consumer).arg(millis(self.claim_idle)).arg(&*cursor);
        let claimed: StreamAutoClaimReply = claim.arg("COUNT").arg(count).query_async(connection).await?;
        cursor.clone_from(&claimed.next_stream_id);
        if !claimed.claimed.is_empty() {
            return Ok(claimed.claimed);
        }
        let mut read = redis::cmd("XREADGROUP");
        read.arg("GROUP").arg(&self.group).arg(&self.consumer).arg("COUNT").arg(count);
        read.arg("BLOCK").arg(millis(BLOCK)).arg("STREAMS").arg(&self.name).arg(">");
        let read: Option<StreamReadReply> = read.query_async(connection).await?;
        Ok(read.into_iter().flat_map(|read| read.keys).flat_map(|key| key.ids).collect())
    }

    fn failures(&self) -> String {
        format!("{}:failures", self.name)
    }

    /// Returns the one transaction that carries a decision out. Nothing for an entry that stays pending.
    fn carry_out(&self, entry: &StreamId, verdict: &Verdict) -> Result<Option<Pipeline>, BoxError> {
        let mut pipe = redis::pipe();
        pipe.atomic();
        let target = match verdict.action {
            Action::Redeliver => return Ok(None),
            Action::Ack => None,
            Action::Park => Some(format!("{}:parked", self.name)),
            Action::DeadLetter => Some(format!("{}:dead", self.name)),
        };
        if let Some(target) = target {
            let copy = pipe.cmd("XADD").arg(target).arg("*");
            for (field, value) in &entry.map {
                // A copy that is consumed again has its last reason only.
                if field != WHY && field != ENTRY {
                    copy.arg(field).arg(redis::from_redis_value_ref::<Vec<u8>>(value)?);
                }
            }
            copy.arg(WHY).arg(&verdict.why).arg(ENTRY).arg(&entry.id).ignore();
        }
        pipe.cmd("XACK").arg(&self.name).arg(&self.group).arg(&entry.id).ignore();
        pipe.cmd("HDEL").arg(self.failures()).arg(&entry.id).ignore();
        Ok(Some(pipe))
    }
}

fn millis(duration: Duration) -> u64 {
    u64::try_from(duration.as_millis()).unwrap_or(u64::MAX)
}

async fn connect(client: &Client) -> Result<MultiplexedConnection, redis::RedisError> {
    let config = AsyncConnectionConfig::new().set_response_timeout(Some(ANSWER_WITHIN));
    client.get_multiplexed_async_connection_with_config(&config).await
}

async fn handle(
    mut connection: MultiplexedConnection,
    stream: Stream,
    recipe: Recipe<StreamId>,
    entry: StreamId,
) -> Result<(), BoxError> {
    let entry = Arc::new(entry);
    let counted: Option<u32> =
        redis::cmd("HGET").arg(stream.failures()).arg(&entry.id).query_async(&mut connection).await?;
    let failures = counted.unwrap_or(0);
    let verdict = recipe.run(&entry, failures).await;
    if let Some(pipe) = stream.carry_out(&entry, &verdict)? {
        pipe.query_async::<()>(&mut connection).await?;
    } else if verdict.failures > failures {
        let mut count = redis::cmd("HSET");
        count.arg(stream.failures()).arg(&entry.id).arg(verdict.failures);
        count.query_async::<()>(&mut connection).await?;
    }
    Ok(())
}

#[cfg(test)]
mod tests {
    use redis::Value;

    use super::*;

    fn commands(action: Action) -> Option<String> {
        let verdict = Verdict { action, delay: Duration::ZERO, failures: 1, why: "unknown".to_owned() };
        let fields = [("order", "A-1"), (WHY, "an earlier one")];
        let map = fields.map(|(field, value)| (field.to_owned(), Value::BulkString(value.into()))).into();
        let entry = StreamId { id: "1-0".to_owned(), map, ..StreamId::default() };
        let pipe = Stream::new("orders", "workers", "one").carry_out(&entry, &verdict).expect("texts")?;
        let packed = String::from_utf8(pipe.get_packed_pipeline()).expect("text");
        let words: Vec<_> = packed.split("\r\n").filter(|word| !word.starts_with(['*', '$'])).collect();
        Some(words.join(" "))
    }

    #[test]
    fn a_copy_and_the_acknowledgement_are_one_transaction() {
        let aside = |name| {
            format!(
                "MULTI XADD orders:{name} order A-1 oncegate-why unknown oncegate-entry 1-0 XACK orders workers 1-0 \
                 HDEL orders:failures 1-0 EXEC "
            )
        };
        assert_eq!(commands(Action::Park), Some(aside("parked")));
        assert_eq!(commands(Action::DeadLetter), Some(aside("dead")));
        assert_eq!(
            commands(Action::Ack).as_deref(),
            Some("MULTI XACK orders workers 1-0 HDEL orders:failures 1-0 EXEC ")
        );
    }

    #[test]
    fn an_entry_that_comes_again_stays_pending() {
        assert_eq!(commands(Action::Redeliver), None);
    }
}
