//! Metrics of the trace export; present only if traces are exported.

use metrics::{Counter, counter};

use super::{SPANS_DROPPED, SPANS_EXPORTED};
use crate::traces::SpanCounts;

/// Metrics of a process's trace export.
pub struct TraceMetrics {
    exported: Counter,
    full: Counter,
    failed: Counter,
}

impl Default for TraceMetrics {
    fn default() -> Self {
        let dropped = |reason: &'static str| counter!(SPANS_DROPPED, "reason" => reason);
        Self { exported: counter!(SPANS_EXPORTED), full: dropped("full"), failed: dropped("failed") }
    }
}

impl TraceMetrics {
    /// Sets the counts since the process started.
    pub fn set(&self, counts: SpanCounts) {
        self.exported.absolute(counts.exported);
        self.full.absolute(counts.full);
        self.failed.absolute(counts.failed);
    }
}
