//! Subject of the events of a call, and how a client passes its events on.

use std::sync::Arc;

use http::HeaderValue;
use serde_json::Value;

use crate::client::Client;
use crate::event::{Event, Level};
use crate::traces;

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

/// Returns true for `00-<32 hex>-<16 hex>-<2 hex>`.
fn is_traceparent(text: &str) -> bool {
    let lengths = [2, 32, 16, 2];
    let parts: Vec<&str> = text.split('-').collect();
    parts.len() == lengths.len()
        && parts.iter().zip(lengths).all(|(part, length)| {
            part.len() == length && part.bytes().all(|byte| matches!(byte, b'0'..=b'9' | b'a'..=b'f'))
        })
}
