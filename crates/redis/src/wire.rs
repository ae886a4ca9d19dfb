//! The wire: commands that are sent together, and how their replies are known to belong to them.

use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::Duration;

use redis::aio::MultiplexedConnection;
use redis::{Cmd, Pipeline, Value};
use tokio::time::timeout;

use super::connection::failure;
use super::reply::refusal;

/// An open connection. Clones send over the same one.
#[derive(Clone)]
pub(super) struct Wire {
    client: MultiplexedConnection,
    response_timeout: Duration,
    /// Random, so that no value in the store can equal one of our tokens.
    name: u64,
    counts: Arc<Counts>,
}

#[derive(Default)]
struct Counts {
    started: AtomicU64,
    ended: AtomicU64,
}

impl Wire {
    pub(super) fn new(client: MultiplexedConnection, response_timeout: Duration, name: u64) -> Self {
        Self { client, response_timeout, name, counts: Arc::default() }
    }

    /// Returns whether replies are awaited.
    pub(super) fn is_busy(&self) -> bool {
        self.counts.started.load(Ordering::Relaxed) > self.counts.ended.load(Ordering::Relaxed)
    }

    /// Sends commands together; returns the reply to each, or why there are none. Does nothing before it is polled. The
    /// call that is polled first is sent first.
    ///
    /// The commands are closed by an ECHO of a token that was never used before. RESP has no request IDs: a reply is
    /// matched to its command by counting. If anything between us and the server drops or adds a reply, the count is
    /// wrong from there on, and a caller could get the grant of another. Then the last reply is not our token, and no
    /// reply of this exchange is used.
    pub(super) fn exchange(
        &self,
        commands: Vec<Cmd>,
    ) -> impl Future<Output = Result<Vec<Value>, String>> + Send + 'static + use<> {
        let (pipeline, token) = self.closed(commands);
        let (mut client, limit, counts) = (self.client.clone(), self.response_timeout, self.counts.clone());
        async move {
            let expected = pipeline.len();
            let replies = match timeout(limit, client.send_packed_commands(&pipeline, 0, expected)).await {
                Err(_elapsed) => return Err(format!("the Redis server did not answer within {limit:?}")),
                Ok(Err(error)) => return Err(failure(&error)),
                Ok(Ok(replies)) => replies,
            };
            // A connection whose exchange has failed is not used again.
            counts.ended.fetch_add(1, Ordering::Relaxed);
            without_token(replies, expected, token.as_bytes())
        }
    }

    /// Returns the commands of the next exchange, and the token that closes them.
    fn closed(&self, commands: Vec<Cmd>) -> (Pipeline, String) {
        let number = self.counts.started.fetch_add(1, Ordering::Relaxed) + 1;
        let token = format!("{:016x}:{number}", self.name);
        let mut pipeline = Pipeline::with_capacity(commands.len() + 1);
        for command in commands {
            pipeline.add_command(command);
        }
        pipeline.cmd("ECHO").arg(&token);
        (pipeline, token)
    }
}

/// Returns the replies without the token that closes them; an error if it does not.
fn without_token(mut replies: Vec<Value>, expected: usize, token: &[u8]) -> Result<Vec<Value>, String> {
    let complete = replies.len() == expected;
    match replies.pop() {
        Some(Value::BulkString(echo)) if complete && echo == token => Ok(replies),
        // A server that refuses ECHO refuses every command. Still, the replies before it are not known to be complete.
        Some(Value::ServerError(error)) => Err(refusal(&error).reason().to_owned()),
        _ => Err("replies were lost or added on the way from the Redis server".into()),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn replies_are_used_only_if_their_token_closes_them() {
        let bulk = |text: &str| Value::BulkString(text.as_bytes().to_vec());
        let refused = redis::parse_redis_value(b"-BUSY Redis is busy\r\n").unwrap();
        assert_eq!(without_token(vec![Value::Okay, bulk("t1")], 2, b"t1"), Ok(vec![Value::Okay]));
        for wrong in [
            vec![],
            vec![bulk("t1")],
            vec![Value::Okay, bulk("t2")],
            vec![Value::Okay, Value::Nil],
            vec![bulk("t1"), Value::Okay],
            vec![Value::Okay, Value::Okay, bulk("t1")],
            vec![Value::Okay, refused],
        ] {
            assert!(without_token(wrong.clone(), 2, b"t1").is_err(), "{wrong:?}");
        }
    }

    #[tokio::test(start_paused = true)]
    async fn exchanges_are_numbered_and_the_connection_is_busy_until_the_last_has_ended() {
        let client = crate::fake::client(|_| (Duration::from_millis(10), "+PONG\r\n".into())).await;
        let wire = Wire::new(client, Duration::from_secs(1), 7);
        assert!(!wire.is_busy());
        let exchange = || wire.exchange(vec![redis::cmd("PING")]);
        let (first, second) = (exchange(), exchange());
        assert!(wire.is_busy());
        let pong = Ok(vec![Value::SimpleString("PONG".into())]);
        assert_eq!(first.await, pong);
        assert!(wire.is_busy(), "of two exchanges one is under way");
        assert_eq!(second.await, pong);
        assert!(!wire.is_busy());
    }

    #[tokio::test(start_paused = true)]
    async fn a_server_that_does_not_answer_is_waited_for_until_the_limit() {
        let client = crate::fake::client(|_| (Duration::from_secs(5), "+PONG\r\n".into())).await;
        let wire = Wire::new(client, Duration::from_secs(1), 7);
        let late = wire.exchange(vec![redis::cmd("PING")]).await.unwrap_err();
        assert!(late.contains("did not answer within 1s"), "{late}");
        assert!(wire.is_busy(), "it is not used again");
    }

    #[tokio::test(start_paused = true)]
    async fn each_exchange_has_a_token_of_its_connection_and_its_number() {
        let tokens = |exchanges: [Pipeline; 2]| exchanges.map(|pipeline| pipeline.get_packed_pipeline());
        let client = crate::fake::client(|_| (Duration::ZERO, "+OK\r\n".into())).await;
        let wire = Wire::new(client, Duration::from_secs(1), 0xabc);
        let expected = [1, 2].map(|number| {
            let mut pipeline = Pipeline::new();
            pipeline.cmd("ECHO").arg(format!("0000000000000abc:{number}"));
            pipeline
        });
        assert_eq!(tokens([wire.closed(Vec::new()).0, wire.closed(Vec::new()).0]), tokens(expected));
    }
}
