//! Metrics of the export of traces; they are there only if there are traces.

use metrics::{Counter, counter, describe_counter};

use crate::telemetry::traces::SpanCounts;

const SPANS_EXPORTED: &str = "oncegate_trace_spans_exported_total";
const SPANS_DROPPED: &str = "oncegate_trace_spans_dropped_total";

pub(super) fn describe() {
    describe_counter!(SPANS_EXPORTED, "Spans that the collector has taken");
    describe_counter!(SPANS_DROPPED, "Spans that were lost on their way to the collector, by reason");
}

/// The handles of a process.
pub struct TraceMetrics {
    exported: Counter,
    full: Counter,
    failed: Counter,
}

impl TraceMetrics {
    /// The handles.
    pub fn new() -> Self {
        let dropped = |reason: &'static str| counter!(SPANS_DROPPED, "reason" => reason);
        Self { exported: counter!(SPANS_EXPORTED), full: dropped("full"), failed: dropped("failed") }
    }

    /// Sets the counts since the start of the process.
    pub fn set(&self, counts: SpanCounts) {
        self.exported.absolute(counts.exported);
        self.full.absolute(counts.full);
        self.failed.absolute(counts.failed);
    }
}

impl Default for TraceMetrics {
    fn default() -> Self {
        Self::new()
    }
}
