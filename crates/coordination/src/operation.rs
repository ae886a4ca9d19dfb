//! Calls for a connection. Each is an operation on one key, which shares its transactions with operations on other
//! keys, or a single call with its own requests.

use bytes::Bytes;
use futures_util::future::BoxFuture;
use oncegate_core::engine::{Determinate, EngineError};
use oncegate_driver::Reply;

use super::seen::Seen;
use super::step::Write;
use super::time::Time;
use super::value::Found;

/// A call in the queue of a connection.
pub enum Call<S> {
    /// On one key.
    Keyed(Box<dyn Operation>),
    /// With its own requests.
    Single(Box<dyn SingleCall<S>>),
}

impl<S: 'static> oncegate_driver::Call for Call<S> {
    fn refuse(self, why: &Determinate) {
        match self {
            Self::Keyed(operation) => operation.fail(why.clone().into()),
            Self::Single(call) => call.refuse(why),
        }
    }
}

/// A call on one key. It decides from the record of the key, again and again, until its write is done or there is
/// nothing to write.
pub trait Operation: Send + Sync {
    /// Returns the key of the store.
    fn key(&self) -> &Bytes;

    /// Returns whether the caller has dropped the call.
    fn is_abandoned(&self) -> bool;

    /// Returns about how many bytes its write has.
    fn bytes(&self) -> usize;

    /// Returns whether the key is probably absent.
    fn expects_absence(&self) -> bool {
        false
    }

    /// Returns whether its write grants something. Such a write is refused while the gate is closed.
    fn is_grant(&self) -> bool {
        false
    }

    /// Returns the probable record of the key, so that a write can be sent without a read before it. Its guards find
    /// out.
    fn assumed(&self, seen: &Seen) -> Option<Found> {
        seen.get(self.key())
    }

    /// Decides from the record of the key. Returns the write, or nothing if the call has its answer.
    ///
    /// # Errors
    /// The value cannot be read.
    fn decide(&mut self, found: Option<&Found>, time: Time) -> Result<Option<Write>, EngineError>;

    /// Sends the answer of the last decision. `revision` is that of its write, if there was one.
    fn answer(self: Box<Self>, revision: Option<i64>, time: Time);

    /// Answers that it has failed.
    fn fail(self: Box<Self>, why: EngineError);
}

/// A single call, with any answer.
pub trait SingleCall<S>: Send {
    /// Runs and answers it. An error is the reason to leave the member.
    fn run(self: Box<Self>, session: S) -> BoxFuture<'static, Result<(), String>>;

    /// Answers that it was not sent.
    fn refuse(self: Box<Self>, why: &Determinate);
}

/// What to do with a session, and the reply channel.
pub struct Single<F, Answer> {
    pub(super) run: F,
    pub(super) reply: Reply<Answer>,
}

impl<S, F, Running, Answer> SingleCall<S> for Single<F, Answer>
where
    S: Send + 'static,
    F: FnOnce(S) -> Running + Send + 'static,
    Running: Future<Output = Result<Answer, EngineError>> + Send,
    Answer: Send + 'static,
{
    fn run(self: Box<Self>, session: S) -> BoxFuture<'static, Result<(), String>> {
        Box::pin(async move {
            let Self { run, mut reply } = *self;
            // A list may read the whole store. It ends when its caller has given up.
            let answer = tokio::select! {
                answer = run(session) => answer,
                () = reply.abandoned() => return Ok(()),
            };
            let lost = answer.as_ref().err().filter(|why| why.is_unavailable()).map(ToString::to_string);
            reply.send(answer);
            lost.map_or(Ok(()), Err)
        })
    }

    fn refuse(self: Box<Self>, why: &Determinate) {
        self.reply.refuse(why);
    }
}

#[cfg(test)]
mod tests {
    use std::sync::Arc;
    use std::sync::atomic::{AtomicU32, Ordering};
    use std::time::Duration;

    use tokio::time::{sleep, timeout};

    use super::*;

    #[tokio::test(start_paused = true)]
    async fn a_single_call_ends_when_its_caller_has_given_up() {
        let steps = Arc::new(AtomicU32::new(0));
        let counted = steps.clone();
        let endless = async move |(): ()| -> Result<(), EngineError> {
            loop {
                counted.fetch_add(1, Ordering::Relaxed);
                sleep(Duration::from_secs(1)).await;
            }
        };
        let (reply, pending) = Reply::new();
        let call = Box::new(Single { run: endless, reply });
        let run = tokio::spawn(call.run(()));
        assert!(timeout(Duration::from_secs(10), pending).await.is_err(), "it has no answer");
        assert_eq!(run.await.unwrap(), Ok(()), "the member is not left for it");
        assert!(steps.load(Ordering::Relaxed) <= 12);
    }
}
