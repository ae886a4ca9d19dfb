//! A clock for the tests of several modules.

use std::sync::Arc;
use std::time::Duration;

use tokio::time::Instant;

use oncegate_core::clock::{Clock, Timestamp};

/// The clock of a test's runtime, which advances by itself while all tasks wait.
pub(crate) struct PausedClock(Instant);

impl PausedClock {
    #[expect(clippy::disallowed_methods, reason = "it is the test's own clock")]
    pub(crate) fn start() -> Arc<Self> {
        Arc::new(Self(Instant::now()))
    }
}

impl Clock for PausedClock {
    fn wall(&self) -> Timestamp {
        Timestamp::from_micros(1_700_000_000_000_000).plus(self.monotonic())
    }

    fn monotonic(&self) -> Duration {
        self.0.elapsed()
    }
}
