//! Metrics of the log itself.

use metrics::{Counter, counter};

use super::LOG_LINES_DROPPED;
use crate::logging::Dropped;

/// Metrics of the process's log.
pub struct LogMetrics {
    full: Counter,
    suppressed: Counter,
}

impl Default for LogMetrics {
    fn default() -> Self {
        let dropped = |reason: &'static str| counter!(LOG_LINES_DROPPED, "reason" => reason);
        Self { full: dropped("full"), suppressed: dropped("suppressed") }
    }
}

impl LogMetrics {
    /// Sets the number of lines that were not written since the start of the process.
    pub fn set_dropped(&self, dropped: Dropped) {
        self.full.absolute(dropped.full);
        self.suppressed.absolute(dropped.suppressed);
    }
}
