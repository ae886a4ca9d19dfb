//! Sampling of requests: those whose `traceparent` has the sampled flag, and a share of those without a `traceparent`.

use hyper::HeaderMap;
use opentelemetry::Context;
use opentelemetry::propagation::TextMapPropagator as _;
use opentelemetry::trace::{SpanContext, TraceContextExt as _, TraceFlags, TraceState};
use opentelemetry_http::HeaderExtractor;
use opentelemetry_sdk::propagation::TraceContextPropagator;
use tracing::Span;
use tracing::field::Empty;
use tracing_opentelemetry::OpenTelemetrySpanExt as _;

use super::{SampleRatio, TARGET, TracedRequest};

/// Returns the span of a request, or none if it is not sampled.
pub(super) fn span(request: &TracedRequest<'_>, ratio: SampleRatio, random: impl FnOnce() -> u64) -> Span {
    let parent = parent(request.headers);
    if !parent.as_ref().map_or_else(|| ratio.includes(random()), SpanContext::is_sampled) {
        return Span::none();
    }
    let span = tracing::debug_span!(
        target: TARGET,
        parent: None,
        "request",
        otel.name = format!("{} {}", request.method, request.route),
        otel.kind = "server",
        otel.status_code = Empty,
        http.request.method = request.method,
        http.route = request.route,
        http.response.status_code = Empty,
        oncegate.app = Empty,
        oncegate.request_id = request.id,
    );
    if let Some(parent) = parent {
        // Fails only if the span is not recorded.
        let _ = span.set_parent(Context::new().with_remote_span_context(parent));
    }
    span
}

/// Returns the caller's span, without its `tracestate`.
fn parent(headers: &HeaderMap) -> Option<SpanContext> {
    let context = TraceContextPropagator::new().extract_with_context(&Context::new(), &HeaderExtractor(headers));
    let (span, is_remote) = (context.span().span_context().clone(), true);
    let flags = if span.is_sampled() { TraceFlags::SAMPLED } else { TraceFlags::NOT_SAMPLED };
    span.is_valid().then(|| SpanContext::new(span.trace_id(), span.span_id(), flags, is_remote, TraceState::NONE))
}

#[cfg(test)]
mod tests {
    use hyper::header::HeaderValue;

    use super::*;

    #[test]
    fn invalid_parents_are_ignored() {
        let of = |text: &'static str| {
            let mut headers = HeaderMap::from_iter([("traceparent".parse().unwrap(), HeaderValue::from_static(text))]);
            headers.insert("tracestate", HeaderValue::from_static("vendor=private"));
            parent(&headers)
        };
        let sampled = of("00-0af7651916cd43dd8448eb211c80319c-b7ad6b7169203331-01").unwrap();
        assert_eq!(sampled.trace_id().to_string(), "0af7651916cd43dd8448eb211c80319c");
        assert_eq!(sampled.span_id().to_string(), "b7ad6b7169203331");
        assert!(sampled.is_sampled() && sampled.is_remote() && sampled.trace_state().header().is_empty());
        assert!(!of("00-0af7651916cd43dd8448eb211c80319c-b7ad6b7169203331-00").unwrap().is_sampled());
        for wrong in [
            "",
            "00",
            "00-00000000000000000000000000000000-b7ad6b7169203331-01",
            "00-0af7651916cd43dd8448eb211c80319c-0000000000000000-01",
            "ff-0af7651916cd43dd8448eb211c80319c-b7ad6b7169203331-01",
            "00-0af7651916cd43dd8448eb211c80319c-b7ad6b7169203331",
        ] {
            assert!(of(wrong).is_none(), "{wrong}");
        }
        assert!(parent(&HeaderMap::new()).is_none());
    }
}
