//! The wire: commands that are sent together, and how their replies are known to belong to them.
//!
//! The task of a worker polls all exchanges of its connection. The oldest one reads, straight into its replies: no other task
//! and no channel stand between the worker and the stream.

use std::collections::VecDeque;
use std::io;
use std::mem;
use std::pin::Pin;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::task::{Context, Poll, Waker, ready};
use std::time::Duration;

use bytes::BytesMut;
use redis::{RedisError, Value};
use tokio::io::AsyncWrite as _;
use tokio::time::{Instant, Sleep, sleep};
use tokio_util::io::poll_read_buf;

use super::commands::Commands;
use super::library::failure;
use super::reply::refusal;
use super::resp;
use super::stream::Stream;

/// Room for replies before each read. A full batch of ordinary replies fits.
const ROOM_BYTES: usize = 32 << 10;

/// Largest buffer that is kept once its replies are read.
const KEPT_BYTES: usize = 256 << 10;

/// An open connection. Clones send over the same one.
#[derive(Clone)]
pub(super) struct Wire {
    state: Arc<Mutex<State>>,
    /// Random, so that no value in the store can equal one of our tokens.
    name: Arc<str>,
}

impl Wire {
    pub(super) fn new(stream: Stream, response_timeout: Duration, name: u64) -> Self {
        let state = State {
            stream,
            unsent: Vec::new(),
            written: 0,
            is_flushed: true,
            received: BytesMut::new(),
            awaited: VecDeque::new(),
            started: 0,
            ended: 0,
            lost: None,
            response_timeout,
            timer: Box::pin(sleep(Duration::ZERO)),
            timed: None,
        };
        Self { state: Arc::new(Mutex::new(state)), name: format!("{name:016x}:").into() }
    }

    /// Returns whether replies are awaited.
    pub(super) fn is_busy(&self) -> bool {
        let state = locked(&self.state);
        state.started > state.ended
    }

    /// Sends commands together; returns the reply to each, or why there are none. Does nothing before it is polled. The
    /// call that is polled first is sent first.
    ///
    /// The commands are closed by an ECHO of a token that was never used before. RESP has no request IDs: a reply is
    /// matched to its command by counting. If anything between us and the server drops or adds a reply, the count is
    /// wrong from there on, and a caller could get the grant of another. Then the last reply is not our token, and no
    /// reply of this exchange is used.
    pub(super) fn exchange(&self, mut commands: Commands) -> Exchange {
        let number = {
            let mut state = locked(&self.state);
            state.started += 1;
            state.started
        };
        let token = [&self.name, itoa::Buffer::new().format(number)].concat();
        commands.push(["ECHO", &token].into_iter().map(str::as_bytes));
        let expected = commands.len();
        let commands = commands.into_bytes();
        Exchange {
            state: self.state.clone(),
            number,
            commands,
            token,
            expected,
            replies: Vec::new(),
            stage: Stage::New,
        }
    }
}

/// Commands that are sent together, up to their replies. If it is dropped before they have come, the connection is lost: the
/// next exchange would take them for its own.
pub(super) struct Exchange {
    state: Arc<Mutex<State>>,
    number: u64,
    commands: Vec<u8>,
    token: String,
    /// Number of replies, with that to the ECHO.
    expected: usize,
    replies: Vec<Value>,
    stage: Stage,
}

#[derive(Clone, Copy, PartialEq, Eq)]
enum Stage {
    New,
    Sent,
    Ended,
}

impl Future for Exchange {
    type Output = Result<Vec<Value>, String>;

    fn poll(self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<Self::Output> {
        let Self { state, number, commands, token, expected, replies, stage } = self.get_mut();
        let mut state = locked(state);
        if *stage == Stage::New {
            state.send(*number, mem::take(commands));
            replies.reserve_exact(*expected);
            *stage = Stage::Sent;
        }
        let result = ready!(state.poll(*number, *expected, replies, cx));
        *stage = Stage::Ended;
        Poll::Ready(result.and_then(|()| without_token(mem::take(replies), *expected, token.as_bytes())))
    }
}

impl Drop for Exchange {
    fn drop(&mut self) {
        if self.stage == Stage::Sent {
            locked(&self.state).lose("an exchange was given up".into());
        }
    }
}

/// What the exchanges of a connection share.
struct State {
    stream: Stream,
    /// Commands; the stream has taken those before `written`.
    unsent: Vec<u8>,
    written: usize,
    is_flushed: bool,
    /// Replies that no exchange has taken.
    received: BytesMut,
    /// Exchanges that were sent and have not ended, oldest first.
    awaited: VecDeque<Awaited>,
    started: u64,
    ended: u64,
    /// Why no more replies are read.
    lost: Option<String>,
    response_timeout: Duration,
    /// Ends when the oldest exchange is late, or before that.
    timer: Pin<Box<Sleep>>,
    /// Waker that the timer wakes.
    timed: Option<Waker>,
}

/// An exchange that waits for its replies.
struct Awaited {
    number: u64,
    /// End of its time.
    deadline: Instant,
    /// Waker of its future, unless it is the oldest one.
    waker: Option<Waker>,
}

impl State {
    fn send(&mut self, number: u64, commands: Vec<u8>) {
        if self.unsent.is_empty() {
            self.unsent = commands;
        } else {
            self.unsent.extend_from_slice(&commands);
        }
        self.is_flushed = false;
        let deadline = sleep(self.response_timeout).deadline();
        self.awaited.push_back(Awaited { number, deadline, waker: None });
    }

    /// Writes what is unsent. Reads replies if the exchange is the oldest one.
    fn poll(
        &mut self,
        number: u64,
        expected: usize,
        replies: &mut Vec<Value>,
        cx: &mut Context<'_>,
    ) -> Poll<Result<(), String>> {
        if let Some(why) = &self.lost {
            return Poll::Ready(Err(why.clone()));
        }
        let result = match self.poll_flush(cx) {
            Poll::Ready(Err(error)) => Err(failed(error)),
            // Also while the server takes no more: it may wait until its replies are read.
            Poll::Ready(Ok(())) | Poll::Pending if self.is_oldest(number, cx) => {
                ready!(self.poll_replies(expected, replies, cx))
            }
            Poll::Ready(Ok(())) | Poll::Pending => return Poll::Pending,
        };
        match &result {
            Ok(()) => self.end_oldest(),
            Err(why) => self.lose(why.clone()),
        }
        Poll::Ready(result)
    }

    fn poll_flush(&mut self, cx: &mut Context<'_>) -> Poll<io::Result<()>> {
        while self.written < self.unsent.len() {
            let written = ready!(Pin::new(&mut self.stream).poll_write(cx, &self.unsent[self.written..]))?;
            if written == 0 {
                return Poll::Ready(Err(io::ErrorKind::WriteZero.into()));
            }
            self.written += written;
        }
        if !self.is_flushed {
            ready!(Pin::new(&mut self.stream).poll_flush(cx))?;
            (self.unsent, self.written, self.is_flushed) = (Vec::new(), 0, true);
        }
        Poll::Ready(Ok(()))
    }

    /// Returns whether this exchange is the oldest one. Another one is woken when it becomes that.
    fn is_oldest(&mut self, number: u64, cx: &Context<'_>) -> bool {
        match self.awaited.iter_mut().position(|awaited| awaited.number == number) {
            Some(0) => true,
            Some(place) => {
                let waker = &mut self.awaited[place].waker;
                if !waker.as_ref().is_some_and(|waker| waker.will_wake(cx.waker())) {
                    *waker = Some(cx.waker().clone());
                }
                false
            }
            None => false,
        }
    }

    fn poll_replies(
        &mut self,
        expected: usize,
        replies: &mut Vec<Value>,
        cx: &mut Context<'_>,
    ) -> Poll<Result<(), String>> {
        loop {
            while let Some(reply) =
                resp::take(&mut self.received).map_err(|malformed| failed(io::Error::other(malformed)))?
            {
                replies.push(reply);
                if replies.len() == expected {
                    return Poll::Ready(Ok(()));
                }
            }
            self.received.reserve(ROOM_BYTES);
            match poll_read_buf(Pin::new(&mut *self.stream), cx, &mut self.received).map_err(failed)? {
                Poll::Ready(0) => return Poll::Ready(Err(failed(io::ErrorKind::BrokenPipe.into()))),
                Poll::Ready(_) => {}
                Poll::Pending => return self.poll_lateness(cx).map(Err),
            }
        }
    }

    /// Ends with the reason once the oldest exchange is late.
    fn poll_lateness(&mut self, cx: &mut Context<'_>) -> Poll<String> {
        // To set it for each exchange, or to poll it each time, would cost more than the exchange.
        let is_set = self.timed.as_ref().is_some_and(|timed| timed.will_wake(cx.waker())) && !self.timer.is_elapsed();
        if is_set {
            return Poll::Pending;
        }
        let deadline = self.awaited.front().map(|oldest| oldest.deadline);
        while self.timer.as_mut().poll(cx).is_ready() {
            match deadline {
                // It was set for an earlier exchange.
                Some(deadline) if self.timer.deadline() < deadline => self.timer.as_mut().reset(deadline),
                _ => {
                    let limit = self.response_timeout;
                    return Poll::Ready(format!("the Redis server did not answer within {limit:?}"));
                }
            }
        }
        self.timed = Some(cx.waker().clone());
        Poll::Pending
    }

    fn end_oldest(&mut self) {
        self.ended += 1;
        self.awaited.pop_front();
        if self.received.is_empty() && self.received.capacity() > KEPT_BYTES {
            self.received = BytesMut::new();
        }
        self.wake_oldest();
    }

    fn lose(&mut self, why: String) {
        self.lost = Some(why);
        for awaited in mem::take(&mut self.awaited) {
            awaited.waker.iter().for_each(Waker::wake_by_ref);
        }
    }

    fn wake_oldest(&mut self) {
        if let Some(waker) = self.awaited.front_mut().and_then(|oldest| oldest.waker.take()) {
            waker.wake();
        }
    }
}

fn failed(error: io::Error) -> String {
    failure(&RedisError::from(error))
}

fn locked(state: &Mutex<State>) -> MutexGuard<'_, State> {
    state.lock().unwrap_or_else(PoisonError::into_inner)
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
    use futures_util::FutureExt as _;
    use futures_util::StreamExt as _;
    use futures_util::stream::FuturesOrdered;
    use tokio::io::{AsyncReadExt as _, AsyncWriteExt as _};

    use super::*;
    use crate::fake;

    const SECOND: Duration = Duration::from_secs(1);

    fn wire(takes: Duration) -> Wire {
        Wire::new(fake::stream(move |_| (takes, "+PONG\r\n".into())), SECOND, 7)
    }

    fn ping(wire: &Wire) -> Exchange {
        wire.exchange(redis::cmd("PING").into())
    }

    fn pong() -> Vec<Value> {
        vec![Value::SimpleString("PONG".into())]
    }

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
        let wire = wire(Duration::from_millis(10));
        assert!(!wire.is_busy());
        let (first, second) = (ping(&wire), ping(&wire));
        assert!(wire.is_busy());
        assert_eq!(first.await, Ok(pong()));
        assert!(wire.is_busy(), "of two exchanges one is under way");
        assert_eq!(second.await, Ok(pong()));
        assert!(!wire.is_busy());
    }

    #[tokio::test(start_paused = true)]
    async fn a_server_that_does_not_answer_is_waited_for_until_the_limit() {
        let wire = wire(5 * SECOND);
        let started = sleep(Duration::ZERO).deadline();
        let late = ping(&wire).await.unwrap_err();
        assert!(late.contains("did not answer within 1s"), "{late}");
        let waited = sleep(Duration::ZERO).deadline() - started;
        assert!(SECOND <= waited && waited < 2 * SECOND, "{waited:?}");
        assert!(wire.is_busy(), "it is not used again");
        assert_eq!(ping(&wire).await, Err(late), "for the same reason");
    }

    /// The timer was set for an earlier exchange.
    #[tokio::test(start_paused = true)]
    async fn each_exchange_has_the_whole_time() {
        let wire = wire(Duration::from_millis(700));
        for _ in 0..4 {
            assert_eq!(ping(&wire).await, Ok(pong()));
        }
    }

    #[tokio::test]
    async fn each_exchange_has_a_token_of_its_connection_and_its_number() {
        let wire = Wire::new(fake::stream(|_| (Duration::ZERO, "+OK\r\n".into())), SECOND, 0xabc);
        for number in 1..3 {
            let exchange = wire.exchange(Commands::default());
            let mut echo = redis::cmd("ECHO");
            echo.arg(format!("0000000000000abc:{number}"));
            assert_eq!(exchange.commands, echo.get_packed_command());
            assert_eq!(exchange.await, Ok(vec![]));
        }
    }

    /// Each future has a separate waker, so one that is not woken would never end.
    #[tokio::test(start_paused = true)]
    async fn exchanges_at_the_same_time_get_their_replies_in_order() {
        let mut numbers = 0..;
        let answer = move |_: &[String]| (Duration::from_millis(1), format!(":{}\r\n", numbers.next().unwrap()));
        let wire = Wire::new(fake::stream(answer), SECOND, 7);
        let exchange = |_| wire.exchange(["A", "B"].into_iter().map(redis::cmd).collect());
        let mut exchanges: FuturesOrdered<_> = (0..4).map(exchange).collect();
        for number in 0..4 {
            let replies = exchanges.next().await.unwrap();
            assert_eq!(replies, Ok(vec![Value::Int(2 * number), Value::Int(2 * number + 1)]));
        }
    }

    #[tokio::test]
    async fn replies_may_come_in_any_pieces_and_commands_be_taken_in_any() {
        // The stream holds one byte.
        let (near, mut far) = tokio::io::duplex(1);
        let wire = Wire::new(Box::new(near), 10 * SECOND, 7);
        let commands = ping(&wire).commands.clone();
        let exchange = ping(&wire);
        let server = async {
            let mut seen = vec![0; commands.len()];
            far.read_exact(&mut seen).await.unwrap();
            far.write_all(b"$4\r\nP\r\nG\r\n$18\r\n0000000000000007:2\r\n").await.unwrap();
        };
        let (replies, ()) = tokio::join!(exchange, server);
        assert_eq!(replies, Ok(vec![Value::BulkString(b"P\r\nG".to_vec())]));
    }

    #[tokio::test]
    async fn a_connection_with_an_exchange_that_was_given_up_is_lost() {
        let wire = wire(Duration::ZERO);
        let mut first = ping(&wire);
        assert!((&mut first).now_or_never().is_none());
        let second = tokio::spawn(ping(&wire));
        tokio::task::yield_now().await;
        drop(first);
        assert!(second.await.unwrap().unwrap_err().contains("given up"));
    }

    #[tokio::test]
    async fn a_server_that_hangs_up_or_sends_anything_else_loses_the_connection() {
        for (sent, expected) in [("", "broken pipe"), ("+PONG\r\n", "broken pipe"), ("HTTP/1.1 400\r\n", "no reply")] {
            let (near, mut far) = tokio::io::duplex(1 << 10);
            let wire = Wire::new(Box::new(near), 10 * SECOND, 7);
            far.write_all(sent.as_bytes()).await.unwrap();
            let exchange = tokio::spawn(ping(&wire));
            far.read_u8().await.unwrap();
            drop(far);
            let why = exchange.await.unwrap().unwrap_err();
            assert!(why.contains(expected), "{why}");
            assert_eq!(ping(&wire).await, Err(why));
        }
    }
}
