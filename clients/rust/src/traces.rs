//! Spans of calls and runs, and the trace context that calls pass on. The spans are those of `tracing`; `tracing-opentelemetry` exports them.

use tracing::{Span, field, info_span};

/// Returns the span of a claim call. `oncegate.state` and `oncegate.degraded` are recorded with its answer.
pub(crate) fn claim(operation: &str) -> Span {
    info_span!(
        "oncegate claim",
        otel.kind = "client",
        oncegate.operation = operation,
        oncegate.state = field::Empty,
        oncegate.degraded = field::Empty
    )
}

/// Returns the span of a report.
pub(crate) fn outcome(operation: &str, outcome: &str) -> Span {
    info_span!(
        "oncegate outcome",
        otel.kind = "client",
        oncegate.operation = operation,
        oncegate.outcome = outcome,
        oncegate.state = field::Empty,
        oncegate.degraded = field::Empty
    )
}

/// Returns the span of work under a grant.
pub(crate) fn run(operation: &str, degraded: Option<&str>) -> Span {
    info_span!(
        "oncegate run",
        otel.kind = "internal",
        oncegate.operation = operation,
        oncegate.replayed = false,
        oncegate.degraded = degraded
    )
}

/// Records the answer of a call in its span.
pub(crate) fn record(span: &Span, state: Option<&str>, degraded: Option<&str>) {
    if let Some(state) = state {
        span.record("oncegate.state", state);
    }
    if let Some(degraded) = degraded {
        span.record("oncegate.degraded", degraded);
    }
}

/// Returns the `traceparent` of the current span (W3C Trace Context), if OpenTelemetry follows it.
pub(crate) fn traceparent() -> Option<String> {
    #[cfg(feature = "opentelemetry")]
    {
        use opentelemetry::trace::TraceContextExt as _;
        use tracing_opentelemetry::OpenTelemetrySpanExt as _;

        let of_tracing = Span::current().context();
        let of_thread = opentelemetry::Context::current();
        let contexts = [of_tracing.span().span_context().clone(), of_thread.span().span_context().clone()];
        contexts.into_iter().find(opentelemetry::trace::SpanContext::is_valid).map(|context| {
            format!("00-{}-{}-{:02x}", context.trace_id(), context.span_id(), context.trace_flags().to_u8())
        })
    }
    #[cfg(not(feature = "opentelemetry"))]
    None
}
