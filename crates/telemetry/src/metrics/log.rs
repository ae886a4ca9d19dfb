//! Metrics of the log itself.

use metrics::{Counter, counter, describe_counter};

use crate::logging::Dropped;

const LOG_LINES_DROPPED: &str = "oncegate_log_lines_dropped_total";

pub(super) fn describe() {
    describe_counter!(LOG_LINES_DROPPED, "Log lines that were not written, by reason");
}

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
