//! Context of a call in addition to its request, and of an answer in addition to its contents.

use std::time::Duration;

use super::outage_policy::OutagePolicy;

/// Parameters of a call: when it must be answered, and what happens while the store is unavailable.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct CallContext<OnOutage> {
    /// Time that the caller waits for the answer, from the start of the call.
    pub deadline: Duration,
    /// Choice of outage policy.
    pub on_outage: OnOutage,
}

/// An answer, and the outage policy that gave it if the store did not.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct Answered<Answer> {
    /// The answer.
    pub answer: Answer,
    /// The policy; nothing for the store's own answer.
    pub policy: Option<OutagePolicy>,
}

impl<Answer> Answered<Answer> {
    /// Wraps an answer of the store.
    pub fn by_store(answer: Answer) -> Self {
        Self { answer, policy: None }
    }

    /// Wraps an answer of a policy.
    pub fn by_policy(policy: OutagePolicy, answer: Answer) -> Self {
        Self { answer, policy: Some(policy) }
    }

    /// Changes the answer, and keeps who gave it.
    pub fn map<Other>(self, change: impl FnOnce(Answer) -> Other) -> Answered<Other> {
        Answered { answer: change(self.answer), policy: self.policy }
    }
}
