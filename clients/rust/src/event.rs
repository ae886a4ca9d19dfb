//! Events of calls, for logs and metrics. They never hold contents, attempts or secrets.

use std::fmt::Write as _;
use std::sync::Arc;

use http::HeaderValue;
use serde_json::{Value, json};

use crate::client::Client;
use crate::error::Cause;
use crate::traces;

/// An event of a call.
#[derive(Clone, Debug)]
#[non_exhaustive]
pub struct Event {
    /// Name, the same in every language.
    pub name: &'static str,
    /// Operation, or name of the lock.
    pub operation: Arc<str>,
    /// Global ID, if there is one.
    pub global_id: Option<Arc<str>>,
    /// Fields of this kind of event.
    pub fields: Vec<(&'static str, Value)>,
    /// Level for a log.
    pub level: Level,
}

/// Level of an [`Event`].
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
#[expect(missing_docs, reason = "the usual levels")]
pub enum Level {
    Debug,
    Info,
    Warn,
    Error,
}

impl Event {
    /// Writes the event with `tracing`.
    pub fn log(&self) {
        let global_id = self.global_id.as_deref();
        let mut fields = String::new();
        for (name, value) in &self.fields {
            let _ = write!(fields, " {name}={value}");
        }
        let operation = &*self.operation;
        match self.level {
            Level::Debug => tracing::debug!(operation, global_id, "{}{fields}", self.name),
            Level::Info => tracing::info!(operation, global_id, "{}{fields}", self.name),
            Level::Warn => tracing::warn!(operation, global_id, "{}{fields}", self.name),
            Level::Error => tracing::error!(operation, global_id, "{}{fields}", self.name),
        }
    }

    fn is_logged(level: Level) -> bool {
        match level {
            Level::Debug => tracing::enabled!(tracing::Level::DEBUG),
            Level::Info => tracing::enabled!(tracing::Level::INFO),
            Level::Warn => tracing::enabled!(tracing::Level::WARN),
            Level::Error => tracing::enabled!(tracing::Level::ERROR),
        }
    }
}

/// Subject of the events of a call, and the trace of the call.
#[derive(Clone)]
pub(crate) struct About {
    pub(crate) operation: Arc<str>,
    pub(crate) global_id: Option<Arc<str>>,
    pub(crate) traceparent: Option<HeaderValue>,
}

impl Client {
    pub(crate) fn about(&self, operation: &str, global_id: Option<&str>) -> About {
        let current = self.0.traceparent.as_ref().map_or_else(traces::traceparent, |current| current());
        // Proxies in between may refuse a value of another form.
        let traceparent = current.filter(|text| is_traceparent(text)).and_then(|text| HeaderValue::try_from(text).ok());
        About { operation: operation.into(), global_id: global_id.map(Into::into), traceparent }
    }

    pub(crate) fn event(
        &self,
        about: &About,
        name: &'static str,
        level: Level,
        fields: impl FnOnce() -> Vec<(&'static str, Value)>,
    ) {
        if let Some(metrics) = &self.0.metrics {
            metrics.event(name, &about.operation);
        }
        if self.0.on_event.is_none() && !Event::is_logged(level) {
            return;
        }
        let (operation, global_id) = (about.operation.clone(), about.global_id.clone());
        let event = Event { name, operation, global_id, fields: fields(), level };
        match &self.0.on_event {
            Some(receive) => receive(event),
            None => event.log(),
        }
    }
}

pub(crate) fn cause_field(cause: &Cause) -> Value {
    json!({
        "url": cause.url, "kind": cause.kind.name(), "detail": cause.detail,
        "status": cause.status, "code": cause.code, "request_id": cause.request_id,
    })
}

/// Returns true for `00-<32 hex>-<16 hex>-<2 hex>`.
fn is_traceparent(text: &str) -> bool {
    let lengths = [2, 32, 16, 2];
    let parts: Vec<&str> = text.split('-').collect();
    parts.len() == lengths.len()
        && parts.iter().zip(lengths).all(|(part, length)| {
            part.len() == length && part.bytes().all(|byte| matches!(byte, b'0'..=b'9' | b'a'..=b'f'))
        })
}
