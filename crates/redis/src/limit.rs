//! Time limits of a call's work in the background: it resends a command that was not executed, or waits for replicas.

use std::time::Duration;

use oncegate_core::backoff::Backoff;
use redis::Value;
use tokio::time::{Instant, sleep, sleep_until};

/// Pause before a command that was not executed is sent again.
pub(super) const RESEND: Backoff = Backoff { first: Duration::from_millis(5), max: Duration::from_millis(80) };

/// Deadline of calls that bring none.
pub(super) const DEADLINE: Duration = Duration::from_millis(500);

/// The time of a call, for all its steps together.
#[derive(Clone, Copy)]
pub(super) struct CallTime {
    pub(super) deadline: Duration,
    /// Rule by which its replies wait for replicas, if they do.
    pub(super) wait: Option<Wait>,
}

/// Rule by which replies wait for replicas.
#[derive(Clone, Copy)]
pub(super) struct Wait {
    pub(super) limit: Limit,
    /// True if only the reply to a granted claim waits. A stored record that was found is inspected first.
    pub(super) only_grants: bool,
}

impl CallTime {
    /// Returns the time of a call that starts now. Its replies wait for most of its deadline, but end before the call
    /// guard ends the call: such an end would count as a failure of a store that has answered.
    pub(super) fn start(deadline: Duration, is_acknowledged: bool) -> Self {
        let limit = || Limit::after(deadline * 4 / 5);
        Self { deadline, wait: is_acknowledged.then(|| Wait { limit: limit(), only_grants: false }) }
    }

    /// Returns the shortest deadline of calls that wait for replicas for this long: the wait may take four fifths of it, and
    /// the write comes before.
    pub(super) fn deadline_for(wait: Duration) -> Duration {
        wait * 4 / 3
    }

    /// Returns the time of a step whose replies wait only if they grant a claim.
    pub(super) fn for_grants(self) -> Self {
        Self { wait: self.wait.map(|wait| Wait { only_grants: true, ..wait }), ..self }
    }

    /// Returns the time of a step whose replies do not wait.
    pub(super) fn without_wait(self) -> Self {
        Self { wait: None, ..self }
    }
}

impl Wait {
    /// Returns whether these replies wait. Nothing was stored under the key of a granted claim.
    pub(super) fn holds(self, replies: &[Value]) -> bool {
        let is_grant = |reply: &Value| match reply {
            Value::Array(items) => items.first() == Some(&Value::Nil),
            reply => *reply == Value::Nil,
        };
        !self.only_grants || replies.iter().any(is_grant)
    }
}

/// An end of time.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
pub(super) struct Limit(Instant);

impl Limit {
    /// Returns the end of this time from now on.
    pub(super) fn after(time: Duration) -> Self {
        Self(sleep(time).deadline())
    }

    /// Returns a limit for resending, for a call with this deadline. An answer with a reason is better than none, so it
    /// ends before the caller goes.
    pub(super) fn of_resending(deadline: Duration) -> Self {
        Self::after(deadline * 3 / 4)
    }

    /// Returns whether the time is over.
    pub(super) fn is_over(self) -> bool {
        Self::after(Duration::ZERO) >= self
    }

    /// Waits, and returns whether there is time left.
    pub(super) async fn pause(self, pause: Duration) -> bool {
        sleep_until(Self::after(pause).min(self).0).await;
        !self.is_over()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const SECOND: Duration = Duration::from_secs(1);

    #[tokio::test(start_paused = true)]
    async fn a_call_waits_for_replicas_for_most_of_its_time() {
        assert!(CallTime::start(SECOND, false).wait.is_none());
        let time = CallTime::start(SECOND, true);
        let wait = time.wait.unwrap();
        assert!((time.deadline, wait.only_grants) == (SECOND, false) && wait.limit == Limit::after(SECOND * 4 / 5));
        assert!(time.for_grants().wait.is_some_and(|wait| wait.only_grants));
        assert!(time.without_wait().wait.is_none());
        assert!(Limit::of_resending(SECOND) == Limit::after(SECOND * 3 / 4));
        assert_eq!(CallTime::deadline_for(SECOND * 3), SECOND * 4);
    }

    #[tokio::test(start_paused = true)]
    async fn only_a_grant_waits_where_only_grants_do() {
        let wait = CallTime::start(SECOND, true).wait.unwrap();
        let of_grants = Wait { only_grants: true, ..wait };
        let found = [Value::BulkString(b"found".to_vec())];
        assert!(wait.holds(&found) && !of_grants.holds(&found) && of_grants.holds(&[Value::Nil]));
        let executed = |first| [Value::Okay, Value::Array(vec![first, Value::Int(-2)])];
        assert!(of_grants.holds(&executed(Value::Nil)) && !of_grants.holds(&executed(Value::Int(1))));
    }

    #[tokio::test(start_paused = true)]
    async fn a_pause_ends_with_its_limit() {
        let limit = Limit::after(SECOND);
        assert!(!limit.is_over());
        assert!(limit.pause(SECOND / 2).await);
        assert!(!limit.pause(SECOND * 10).await);
        assert!(limit.is_over() && limit == Limit::after(Duration::ZERO));
    }
}
