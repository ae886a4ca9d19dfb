//! How long a call goes on by itself: resends a command that was not executed, or waits for replicas.

use std::pin::Pin;
use std::time::Duration;

use futures_util::FutureExt;
use tokio::time::{Sleep, sleep};

use oncegate_core::backoff::Backoff;

/// Pause before a command that was not executed is sent again.
pub(super) const RESEND: Backoff = Backoff { first: Duration::from_millis(5), max: Duration::from_millis(80) };

/// Deadline of calls that bring none.
pub(super) const DEADLINE: Duration = Duration::from_millis(500);

/// The end of a call's time.
pub(super) struct Limit(Pin<Box<Sleep>>);

impl Limit {
    /// Returns a limit for resending, for a call with this deadline. An answer that says why is worth more than none, so it
    /// ends before the caller goes.
    pub(super) fn of_resending(deadline: Duration) -> Self {
        Self(Box::pin(sleep(deadline * 3 / 4)))
    }

    /// Returns a limit for waiting for replicas. It ends before the call guard takes the call for late: that would count
    /// against a store that has answered.
    pub(super) fn of_waiting(deadline: Duration) -> Self {
        Self(Box::pin(sleep(deadline * 2 / 5)))
    }

    /// Returns whether the time is over.
    pub(super) fn is_over(&mut self) -> bool {
        self.0.as_mut().now_or_never().is_some() || self.0.is_elapsed()
    }

    /// Waits, and returns whether there is time left.
    pub(super) async fn pause(&mut self, pause: Duration) -> bool {
        tokio::select! {
            biased;
            () = self.0.as_mut(), if !self.0.is_elapsed() => false,
            () = sleep(pause) => !self.0.is_elapsed(),
        }
    }
}
