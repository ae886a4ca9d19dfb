//! Events of calls, for logs and metrics. They never hold contents, attempts or secrets.

use std::fmt::Write as _;
use std::sync::Arc;

use serde_json::{Value, json};

use crate::error::Cause;

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

    pub(crate) fn is_logged(level: Level) -> bool {
        match level {
            Level::Debug => tracing::enabled!(tracing::Level::DEBUG),
            Level::Info => tracing::enabled!(tracing::Level::INFO),
            Level::Warn => tracing::enabled!(tracing::Level::WARN),
            Level::Error => tracing::enabled!(tracing::Level::ERROR),
        }
    }
}

pub(crate) fn cause_field(cause: &Cause) -> Value {
    json!({
        "url": cause.url, "kind": cause.kind.name(), "detail": cause.detail,
        "status": cause.status, "code": cause.code, "request_id": cause.request_id,
    })
}
