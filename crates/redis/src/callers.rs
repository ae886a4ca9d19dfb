//! Calls that were sent over a connection, and how they are answered.

use oncegate_core::engine::EngineError;
use oncegate_driver::{Fitness, Lost, Reply};
use redis::{ServerErrorKind, Value};

use super::limit::Wait;

/// A call that was sent, and how many of the replies are its own.
pub(super) struct Caller {
    pub(super) count: usize,
    pub(super) wait: Option<Wait>,
    /// Nothing once it was answered.
    pub(super) reply: Option<Reply<Vec<Value>>>,
}

impl Caller {
    /// Answers the call, unless it was answered already.
    pub(super) fn answer(&mut self, answer: Result<Vec<Value>, EngineError>) {
        if let Some(reply) = self.reply.take() {
            reply.send(answer);
        }
    }

    /// Returns whether it has waited for replicas for long enough.
    pub(super) fn is_late(&self) -> bool {
        self.wait.is_some_and(|wait| wait.limit.is_over())
    }
}

/// Gives each caller its replies.
pub(super) fn answer(mut callers: Vec<Caller>, values: Vec<Value>) {
    if let [caller] = &mut *callers {
        return caller.answer(Ok(values));
    }
    let mut values = values.into_iter();
    for mut caller in callers {
        let count = caller.count;
        caller.answer(Ok(values.by_ref().take(count).collect()));
    }
}

/// Answers that the effect of the calls is unknown.
pub(super) fn lose(callers: Vec<Caller>, why: String) -> Lost {
    for mut caller in callers {
        caller.answer(Err(EngineError::indeterminate(&*why)));
    }
    why.into()
}

/// A demoted server keeps refusing writes over this connection; the next one may lead to its successor.
pub(super) fn fitness(replies: &[Value]) -> Fitness {
    let demoted =
        |reply: &Value| matches!(reply, Value::ServerError(error) if error.kind() == Some(ServerErrorKind::ReadOnly));
    if replies.iter().any(demoted) {
        Fitness::Retire("READONLY: the Redis server has become a replica")
    } else {
        Fitness::Good
    }
}
