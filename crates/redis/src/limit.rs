//! How long a call goes on by itself: resends a command that was not executed, or waits for replicas.

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
    /// How its replies wait for replicas, if they do.
    pub(super) wait: Option<Wait>,
}

/// How replies wait for replicas.
#[derive(Clone, Copy)]
pub(super) struct Wait {
    pub(super) limit: Limit,
    /// Whether only the reply to a claim that was granted waits: nothing. What was found is looked at first.
    pub(super) only_grants: bool,
}

impl CallTime {
    /// Returns the time of a call that starts now. Its replies wait for most of its deadline, but end before the call guard gives
    /// the call up: that would count against a store that has answered.
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
    /// Returns whether these replies wait.
    pub(super) fn holds(self, replies: &[Value]) -> bool {
        !self.only_grants || replies.contains(&Value::Nil)
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

    /// Returns a limit for resending, for a call with this deadline. An answer that says why is worth more than none, so it
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
