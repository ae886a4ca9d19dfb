//! A collector of traces: receives OTLP over HTTP, and keeps the spans.

use std::net::SocketAddr;
use std::sync::{Arc, Mutex};

use axum::Router;
use axum::body::Bytes;
use axum::extract::State;
use axum::http::{HeaderMap, StatusCode};
use axum::routing::post;
use opentelemetry_proto::tonic::collector::trace::v1::{ExportTraceServiceRequest, ExportTraceServiceResponse};
use opentelemetry_proto::tonic::common::v1::KeyValue;
use opentelemetry_proto::tonic::common::v1::any_value::Value;
use opentelemetry_proto::tonic::trace::v1::Span;
use prost::Message as _;
use tokio::net::TcpListener;

/// A running collector; it ends with the test's runtime.
pub(crate) struct Collector {
    address: SocketAddr,
    taken: Taken,
}

type Taken = Arc<Mutex<Vec<TakenSpan>>>;

/// A span, and the service that sent it.
#[derive(Clone, Debug)]
pub(crate) struct TakenSpan {
    pub(crate) service: String,
    pub(crate) span: Span,
}

impl Collector {
    pub(crate) async fn start() -> Self {
        let taken = Taken::default();
        let listener = TcpListener::bind("127.0.0.1:0").await.expect("a free port");
        let address = listener.local_addr().expect("its address");
        let router = Router::new().route("/v1/traces", post(take)).with_state(taken.clone());
        tokio::spawn(async move { axum::serve(listener, router).await });
        Self { address, taken }
    }

    /// The endpoint to configure.
    pub(crate) fn endpoint(&self) -> String {
        format!("http://{}", self.address)
    }

    /// The spans of a trace, by its ID in hex.
    pub(crate) fn trace(&self, id: &str) -> Vec<TakenSpan> {
        let taken = self.taken.lock().expect("the spans");
        taken.iter().filter(|taken| hex(&taken.span.trace_id) == id).cloned().collect()
    }

    /// All spans so far.
    pub(crate) fn spans(&self) -> Vec<TakenSpan> {
        self.taken.lock().expect("the spans").clone()
    }
}

impl TakenSpan {
    /// An attribute as text.
    pub(crate) fn attribute(&self, key: &str) -> Option<String> {
        text(&self.span.attributes, key)
    }

    pub(crate) fn id(&self) -> String {
        hex(&self.span.span_id)
    }

    pub(crate) fn parent_id(&self) -> String {
        hex(&self.span.parent_span_id)
    }
}

async fn take(State(taken): State<Taken>, headers: HeaderMap, body: Bytes) -> (StatusCode, Vec<u8>) {
    assert_eq!(headers["content-type"], "application/x-protobuf");
    let Ok(request) = ExportTraceServiceRequest::decode(body) else { return (StatusCode::BAD_REQUEST, Vec::new()) };
    for of_service in request.resource_spans {
        let attributes = of_service.resource.map(|resource| resource.attributes).unwrap_or_default();
        let service = text(&attributes, "service.name").unwrap_or_default();
        let spans = of_service.scope_spans.into_iter().flat_map(|scope| scope.spans);
        let spans = spans.map(|span| TakenSpan { service: service.clone(), span });
        taken.lock().expect("the spans").extend(spans);
    }
    (StatusCode::OK, ExportTraceServiceResponse::default().encode_to_vec())
}

fn text(attributes: &[KeyValue], key: &str) -> Option<String> {
    let value = attributes.iter().find(|attribute| attribute.key == key)?.value.as_ref()?.value.as_ref()?;
    Some(match value {
        Value::StringValue(text) => text.clone(),
        Value::IntValue(number) => number.to_string(),
        other => format!("{other:?}"),
    })
}

fn hex(bytes: &[u8]) -> String {
    oncegate_core::hex::encode(bytes)
}
