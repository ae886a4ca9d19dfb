//! The answer of a worker to a caller.

use tokio::sync::oneshot;

use oncegate_core::engine::{Determinate, EngineError};

/// Sends the answer of one call to its caller. Dropped without an answer, it makes the outcome of the call uncertain.
#[derive(Debug)]
pub struct Reply<Answer>(oneshot::Sender<Result<Answer, EngineError>>);

/// The caller's end of a [`Reply`].
pub(super) type Pending<Answer> = oneshot::Receiver<Result<Answer, EngineError>>;

impl<Answer> Reply<Answer> {
    /// Returns a reply, and where its answer arrives.
    pub fn new() -> (Self, Pending<Answer>) {
        let (sender, pending) = oneshot::channel();
        (Self(sender), pending)
    }

    /// Sends the answer. Does nothing if no caller waits.
    pub fn send(self, answer: Result<Answer, EngineError>) {
        let _ = self.0.send(answer);
    }

    /// Answers that the call was not sent.
    pub fn refuse(self, why: &Determinate) {
        self.send(Err(why.clone().into()));
    }

    /// Waits until the caller has stopped waiting.
    pub async fn abandoned(&mut self) {
        self.0.closed().await;
    }

    /// Returns whether the caller has stopped waiting.
    pub fn is_abandoned(&self) -> bool {
        self.0.is_closed()
    }
}
