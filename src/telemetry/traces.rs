//! Traces: which requests are traced, and what their spans are. Spans have no contents, attempts or secrets. Nothing is built
//! for a request that is not traced.

#[cfg(feature = "otlp")]
mod export;
#[cfg(feature = "otlp")]
mod sampling;

use std::fmt;

use hyper::Uri;
use serde::de::{Error, Unexpected, Visitor};
use serde::{Deserialize, Deserializer, Serialize, Serializer};
use tracing::Span;
use tracing::level_filters::LevelFilter;
use tracing_subscriber::{Layer, Registry};

/// The target of all spans, and of nothing else.
pub(crate) const TARGET: &str = "oncegate::traces";

/// Passes spans on.
pub type TraceLayer = Box<dyn Layer<Registry> + Send + Sync>;

/// The table `[traces]` of the configuration.
#[derive(Clone, PartialEq, Eq, Debug, Deserialize, Serialize)]
#[serde(deny_unknown_fields)]
pub struct TracesOptions {
    /// Where the collector listens; empty: no traces.
    pub endpoint: String,
    /// The part of requests that is traced, where the caller does not decide.
    pub sample_ratio: SampleRatio,
    /// The name of this service.
    pub service_name: String,
}

/// From 0, nothing, to 1, everything.
#[derive(Clone, Copy, PartialEq, Debug)]
pub struct SampleRatio(f64);

// It is a number.
impl Eq for SampleRatio {}

/// Why traces cannot be exported so.
#[derive(Clone, PartialEq, Eq, Debug, thiserror::Error)]
#[error("{0}; write the collector's address as http://HOST:4318")]
pub struct InvalidEndpoint(&'static str);

impl TracesOptions {
    /// Checks the endpoint, if there is one.
    ///
    /// # Errors
    /// What is wrong with it.
    pub fn check(&self) -> Result<(), InvalidEndpoint> {
        if self.endpoint.is_empty() {
            return Ok(());
        }
        if !cfg!(feature = "otlp") {
            return Err(InvalidEndpoint("this program was built without the feature `otlp`"));
        }
        let uri: Uri = self.endpoint.parse().map_err(|_| InvalidEndpoint("this is no URL"))?;
        match (uri.scheme_str(), uri.authority()) {
            (_, Some(authority)) if authority.as_str().contains('@') => {
                Err(InvalidEndpoint("credentials do not belong into the URL: set OTEL_EXPORTER_OTLP_HEADERS"))
            }
            (Some("http"), Some(_)) => Ok(()),
            (Some("https"), Some(_)) => {
                Err(InvalidEndpoint("traces are sent without TLS: let a collector beside the gateway pass them on"))
            }
            _ => Err(InvalidEndpoint("this is no URL of a collector")),
        }
    }
}

impl SampleRatio {
    /// The ratio, if it is one.
    pub fn new(ratio: f64) -> Option<Self> {
        (0.0..=1.0).contains(&ratio).then_some(Self(ratio))
    }

    /// Whether a request is traced that has drawn this number, which may be any with the same chance.
    pub fn takes(self, drawn: u64) -> bool {
        #[expect(clippy::cast_precision_loss, reason = "53 bits are kept, which is what a double has")]
        let part = (drawn >> 11) as f64 / (1u64 << 53) as f64;
        part < self.0
    }
}

impl Serialize for SampleRatio {
    fn serialize<S: Serializer>(&self, serializer: S) -> Result<S::Ok, S::Error> {
        serializer.serialize_f64(self.0)
    }
}

impl<'de> Deserialize<'de> for SampleRatio {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        deserializer.deserialize_any(Ratio)
    }
}

/// Reads a ratio, also as a text, which is how the environment has it.
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

/// Spans that were exported or lost, since the start of the process.
#[derive(Clone, Copy, Default, PartialEq, Eq, Debug)]
pub struct SpanCounts {
    /// The collector has them.
    pub exported: u64,
    /// They found the queue full.
    pub full: u64,
    /// The collector did not answer, or refused them.
    pub failed: u64,
}

/// A request as its span has it.
pub struct TracedRequest<'a> {
    /// Its headers; they may have a parent for its span.
    pub headers: &'a hyper::HeaderMap,
    /// The HTTP method, if it is a standard one.
    pub method: &'a str,
    /// The route, without what the caller put into its place-holders.
    pub route: &'static str,
    /// Its ID.
    pub id: &'a str,
}

/// The traces of a process.
#[derive(Clone, Default)]
pub struct Traces(#[cfg(feature = "otlp")] Option<std::sync::Arc<export::Export>>);

impl Traces {
    /// No traces.
    pub fn off() -> Self {
        Self::default()
    }

    /// The traces that these options ask for, and the layer that spans come from.
    ///
    /// # Errors
    /// What is wrong with the options.
    pub fn new(options: &TracesOptions) -> anyhow::Result<(Self, Option<TraceLayer>)> {
        options.check()?;
        #[cfg(feature = "otlp")]
        if !options.endpoint.is_empty() {
            let (export, layer) = export::Export::new(options)?;
            return Ok((Self(Some(std::sync::Arc::new(export))), Some(layer)));
        }
        Ok((Self::off(), None))
    }

    /// Starts to send spans to the collector; to be called within a runtime.
    pub fn start(&self) {
        #[cfg(feature = "otlp")]
        if let Some(export) = &self.0 {
            export.start();
        }
    }

    /// Sends what is left, for two seconds at most.
    #[cfg_attr(not(feature = "otlp"), expect(clippy::unused_async, reason = "only an exporter has something to send"))]
    pub async fn close(&self) {
        #[cfg(feature = "otlp")]
        if let Some(export) = &self.0 {
            export.close().await;
        }
    }

    /// The span of a request; none if the request is not traced. `random` is any number with the same chance.
    pub fn request<'a>(&self, request: impl FnOnce() -> TracedRequest<'a>, random: impl FnOnce() -> u64) -> Span {
        #[cfg(feature = "otlp")]
        if let Some(export) = &self.0 {
            return sampling::span(&request(), export.ratio(), random);
        }
        let _ = (request, random);
        Span::none()
    }

    /// Spans that were exported or lost; nothing where there are no traces.
    pub fn counts(&self) -> Option<SpanCounts> {
        #[cfg(feature = "otlp")]
        return self.0.as_ref().map(|export| export.counts());
        #[cfg(not(feature = "otlp"))]
        return None;
    }
}

/// Whether what is done now belongs to a request that is traced.
#[inline]
pub(crate) fn is_traced() -> bool {
    LevelFilter::current() >= LevelFilter::DEBUG && !Span::current().is_none()
}

/// A span below the current one; none where the request is not traced.
macro_rules! child {
    ($name:literal, $($fields:tt)*) => {
        if $crate::telemetry::traces::is_traced() {
            tracing::debug_span!(target: $crate::telemetry::traces::TARGET, $name, $($fields)*)
        } else {
            tracing::Span::none()
        }
    };
}
pub(crate) use child;

/// What a future comes to, whose steps are within a span. Where there is none, the future is not moved around for it.
macro_rules! in_span {
    ($span:expr, $future:expr) => {
        if $span.is_none() { $future.await } else { tracing::Instrument::instrument($future, $span.clone()).await }
    };
}
pub(crate) use in_span;

#[cfg(test)]
mod tests {
    use super::*;

    fn options(endpoint: &str) -> TracesOptions {
        let sample_ratio = SampleRatio(0.5);
        TracesOptions { endpoint: endpoint.into(), sample_ratio, service_name: "oncegate".into() }
    }

    #[cfg(feature = "otlp")]
    #[test]
    fn endpoints_of_collectors_are_taken_and_others_refused() {
        for endpoint in ["", "http://127.0.0.1:4318", "http://collector", "http://[::1]:4318/v1/traces"] {
            assert_eq!(options(endpoint).check(), Ok(()), "{endpoint}");
        }
        for endpoint in ["collector", "/v1/traces", "https://collector", "http://me:secret@collector", "ftp://x", " "] {
            let message = options(endpoint).check().unwrap_err().to_string();
            assert!(message.ends_with("http://HOST:4318") && !message.contains("secret"), "{endpoint}: {message}");
        }
    }

    #[test]
    fn a_ratio_takes_its_part() {
        let taken = |ratio: f64| {
            let ratio = SampleRatio::new(ratio).unwrap();
            (0..1000u64).filter(|number| ratio.takes(number * (u64::MAX / 1000))).count()
        };
        assert_eq!((taken(0.0), taken(1.0), taken(0.2505)), (0, 1000, 251));
        assert!(SampleRatio::new(1.1).is_none() && SampleRatio::new(f64::NAN).is_none());
    }

    #[test]
    fn ratios_are_read_as_numbers_and_as_texts() {
        for (text, ratio) in [("0.25", 0.25), ("1", 1.0), ("0", 0.0), ("\"0.5\"", 0.5)] {
            assert_eq!(serde_json::from_str::<SampleRatio>(text).unwrap().0.to_bits(), f64::to_bits(ratio), "{text}");
        }
        for text in ["2", "-0.1", "\"much\"", "true"] {
            assert!(serde_json::from_str::<SampleRatio>(text).is_err(), "{text}");
        }
    }

    #[test]
    fn where_there_are_no_traces_nothing_is_looked_at() {
        let span = Traces::off().request(|| panic!("the request is looked at"), || panic!("a number is drawn"));
        assert!(span.is_none());
        assert!(child!("call", number = 1).is_none());
    }
}
