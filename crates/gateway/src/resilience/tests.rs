//! A clock, and the metrics, for the tests of several modules.

use std::sync::{Arc, OnceLock};
use std::time::Duration;

use tokio::time::Instant;

use oncegate_core::clock::{Clock, Timestamp};
use oncegate_telemetry::metrics::Metrics;

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

/// Returns a metric of this process, by its name and labels as they are exported. Call it once before the metric is registered.
pub(crate) fn metric(labelled: &str) -> Option<f64> {
    static METRICS: OnceLock<Metrics> = OnceLock::new();
    let text = METRICS.get_or_init(Metrics::install).render();
    text.lines().find_map(|line| line.strip_prefix(labelled)?.trim().parse().ok())
}
