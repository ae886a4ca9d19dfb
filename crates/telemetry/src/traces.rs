//! Traces: sampling of requests, and their spans. Spans have no contents, attempts or secrets. A request that is not
//! sampled costs nothing.

#[cfg(feature = "otlp")]
mod export;
#[cfg(feature = "otlp")]
mod sampling;

use std::fmt;

use hyper::Uri;
use serde::de::{Error, Unexpected, Visitor};
use serde::{Deserialize, Deserializer, Serialize};
use tracing::Span;
use tracing::level_filters::LevelFilter;
use tracing_subscriber::{Layer, Registry};

/// Target of all spans.
pub const TARGET: &str = "oncegate::traces";

/// Layer that exports spans.
pub type TraceLayer = Box<dyn Layer<Registry> + Send + Sync>;

/// Table `[traces]` of the configuration.
#[derive(Clone, PartialEq, Eq, Debug, Deserialize, Serialize)]
#[serde(deny_unknown_fields)]
pub struct TracesOptions {
    /// URL of the collector; empty for no traces.
    pub endpoint: String,
    /// Share of requests to trace where the caller does not decide.
    pub sample_ratio: SampleRatio,
    /// Name of this service.
    pub service_name: String,
}

/// Share of requests, from 0 (none) to 1 (all).
#[derive(Clone, Copy, PartialEq, Debug, Serialize)]
pub struct SampleRatio(f64);

// Never NaN.
impl Eq for SampleRatio {}

/// Invalid collector endpoint.
#[derive(Clone, PartialEq, Eq, Debug, thiserror::Error)]
#[error("{0}; write the collector's address as http://HOST:4318")]
pub struct InvalidEndpoint(&'static str);

impl TracesOptions {
    /// Checks the endpoint, if one is set.
    pub fn check(&self) -> Result<(), InvalidEndpoint> {
        if self.endpoint.is_empty() {
            return Ok(());
        }
        if !cfg!(feature = "otlp") {
            return Err(InvalidEndpoint("this program was built without the feature `otlp`"));
        }
        let uri: Uri = self.endpoint.parse().map_err(|_| InvalidEndpoint("not a URL"))?;
        match (uri.scheme_str(), uri.authority()) {
            (_, Some(authority)) if authority.as_str().contains('@') => {
                Err(InvalidEndpoint("the URL must not contain credentials: set OTEL_EXPORTER_OTLP_HEADERS"))
            }
            (Some("http"), Some(_)) => Ok(()),
            (Some("https"), Some(_)) => {
                Err(InvalidEndpoint("TLS is not supported: send traces to a local collector, which forwards them"))
            }
            _ => Err(InvalidEndpoint("not the URL of a collector")),
        }
    }
}

impl SampleRatio {
    /// Returns the ratio, or nothing if it is out of range.
    pub fn new(ratio: f64) -> Option<Self> {
        (0.0..=1.0).contains(&ratio).then_some(Self(ratio))
    }

    /// Decides whether to trace a request, given a uniformly distributed number.
    pub fn includes(self, random: u64) -> bool {
        #[expect(clippy::cast_precision_loss, reason = "53 bits are kept, which is what a double has")]
        let part = (random >> 11) as f64 / (1u64 << 53) as f64;
        part < self.0
    }
}

impl<'de> Deserialize<'de> for SampleRatio {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        deserializer.deserialize_any(Ratio)
    }
}

/// Parses a ratio from a number, or from text as in environment variables.
struct Ratio;

impl Visitor<'_> for Ratio {
    type Value = SampleRatio;

    fn expecting(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("a number from 0.0 to 1.0, such as 0.01")
    }

    fn visit_f64<E: Error>(self, ratio: f64) -> Result<SampleRatio, E> {
        SampleRatio::new(ratio).ok_or_else(|| E::invalid_value(Unexpected::Float(ratio), &self))
    }

    fn visit_i64<E: Error>(self, ratio: i64) -> Result<SampleRatio, E> {
        match u64::try_from(ratio) {
            Ok(ratio) => self.visit_u64(ratio),
            Err(_) => Err(E::invalid_value(Unexpected::Signed(ratio), &self)),
        }
    }

    fn visit_u64<E: Error>(self, ratio: u64) -> Result<SampleRatio, E> {
        match ratio {
            0 => Ok(SampleRatio(0.0)),
            1 => Ok(SampleRatio(1.0)),
            _ => Err(E::invalid_value(Unexpected::Unsigned(ratio), &self)),
        }
    }

    fn visit_str<E: Error>(self, text: &str) -> Result<SampleRatio, E> {
        let ratio = text.parse().ok().and_then(SampleRatio::new);
        ratio.ok_or_else(|| E::invalid_value(Unexpected::Str(text), &self))
    }
}

/// Spans exported or lost since the process started.
#[derive(Clone, Copy, Default, PartialEq, Eq, Debug)]
pub struct SpanCounts {
    /// Accepted by the collector.
    pub exported: u64,
    /// Lost because the queue was full.
    pub full: u64,
    /// Lost because the collector did not answer or refused them.
    pub failed: u64,
}

/// Request attributes of a span.
pub struct TracedRequest<'a> {
    /// Headers, which may name a parent span.
    pub headers: &'a hyper::HeaderMap,
    /// The HTTP method, if it is a standard one.
    pub method: &'a str,
    /// Route with placeholders instead of the caller's values.
    pub route: &'static str,
    /// Request ID.
    pub id: &'a str,
}

/// Traces of a process. The default ones are disabled.
#[derive(Clone, Default)]
pub struct Traces(#[cfg(feature = "otlp")] Option<std::sync::Arc<export::Export>>);

impl Traces {
    /// Returns the traces for these options, and the layer that exports spans.
    pub fn new(options: &TracesOptions) -> anyhow::Result<(Self, Option<TraceLayer>)> {
        options.check()?;
        #[cfg(feature = "otlp")]
        if !options.endpoint.is_empty() {
            let (export, layer) = export::Export::new(options)?;
            return Ok((Self(Some(std::sync::Arc::new(export))), Some(layer)));
        }
        Ok((Self::default(), None))
    }

    /// Starts to send spans to the collector. Call it within a runtime.
    pub fn start(&self) {
        #[cfg(feature = "otlp")]
        if let Some(export) = &self.0 {
            export.start();
        }
    }

    /// Sends the remaining spans, for two seconds at most.
    #[cfg_attr(not(feature = "otlp"), expect(clippy::unused_async, reason = "only an exporter has something to send"))]
    pub async fn close(&self) {
        #[cfg(feature = "otlp")]
        if let Some(export) = &self.0 {
            export.close().await;
        }
    }

    /// Returns the span of a request, or none if it is not sampled. `random` returns a uniformly distributed number.
    pub fn request<'a>(&self, request: impl FnOnce() -> TracedRequest<'a>, random: impl FnOnce() -> u64) -> Span {
        #[cfg(feature = "otlp")]
        if let Some(export) = &self.0 {
            return sampling::span(&request(), export.ratio, random);
        }
        let _ = (request, random);
        Span::none()
    }

    /// Returns the number of spans exported or lost; nothing if traces are disabled.
    pub fn counts(&self) -> Option<SpanCounts> {
        #[cfg(feature = "otlp")]
        return self.0.as_ref().map(|export| export.counts());
        #[cfg(not(feature = "otlp"))]
        return None;
    }
}

/// Reports whether the current request is traced.
#[inline]
pub fn is_traced() -> bool {
    LevelFilter::current() >= LevelFilter::DEBUG && !Span::current().is_none()
}

/// Creates a child of the current span; none if the request is not traced.
#[macro_export]
macro_rules! child {
    ($name:literal, $($fields:tt)*) => {
        if $crate::traces::is_traced() {
            $crate::tracing::debug_span!(target: $crate::traces::TARGET, $name, $($fields)*)
        } else {
            $crate::tracing::Span::none()
        }
    };
}
pub use crate::child;

/// Awaits a future within a span. Without a span the future is not moved.
#[macro_export]
macro_rules! in_span {
    ($span:expr, $future:expr) => {
        if $span.is_none() {
            $future.await
        } else {
            $crate::tracing::Instrument::instrument($future, $span.clone()).await
        }
    };
}
pub use crate::in_span;

#[cfg(test)]
mod tests {
    use super::*;

    fn options(endpoint: &str) -> TracesOptions {
        let sample_ratio = SampleRatio(0.5);
        TracesOptions { endpoint: endpoint.into(), sample_ratio, service_name: "oncegate".into() }
    }

    #[cfg(feature = "otlp")]
    #[test]
    fn collector_endpoints_are_validated() {
        for endpoint in ["", "http://127.0.0.1:4318", "http://collector", "http://[::1]:4318/v1/traces"] {
            assert_eq!(options(endpoint).check(), Ok(()), "{endpoint}");
        }
        for endpoint in ["collector", "/v1/traces", "https://collector", "http://me:secret@collector", "ftp://x", " "] {
            let message = options(endpoint).check().unwrap_err().to_string();
            assert!(message.ends_with("http://HOST:4318") && !message.contains("secret"), "{endpoint}: {message}");
        }
    }

    #[test]
    fn a_ratio_samples_its_share() {
        let taken = |ratio: f64| {
            let ratio = SampleRatio::new(ratio).unwrap();
            (0..1000u64).filter(|number| ratio.includes(number * (u64::MAX / 1000))).count()
        };
        assert_eq!((taken(0.0), taken(1.0), taken(0.2505)), (0, 1000, 251));
        assert!(SampleRatio::new(1.1).is_none() && SampleRatio::new(f64::NAN).is_none());
    }

    #[test]
    fn ratios_are_parsed_from_numbers_and_text() {
        for (text, ratio) in [("0.25", 0.25), ("1", 1.0), ("0", 0.0), ("\"0.5\"", 0.5)] {
            assert_eq!(serde_json::from_str::<SampleRatio>(text).unwrap().0.to_bits(), f64::to_bits(ratio), "{text}");
        }
        for text in ["2", "-0.1", "\"much\"", "true"] {
            assert!(serde_json::from_str::<SampleRatio>(text).is_err(), "{text}");
        }
    }

    #[test]
    fn disabled_traces_evaluate_nothing() {
        let span = Traces::default().request(|| panic!("the request is looked at"), || panic!("a number is generated"));
        assert!(span.is_none());
        assert!(child!("call", number = 1).is_none());
    }
}
