//! Export of spans to a collector. A bounded queue separates the requests from the task that sends spans: a collector
//! that hangs or is unavailable costs spans, and delays no request.

use std::pin::pin;
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, Mutex, PoisonError};
use std::time::Duration;

use anyhow::Context as _;
use async_trait::async_trait;
use bytes::Bytes;
use http_body_util::{BodyExt as _, Full, Limited};
use hyper::client::conn::http1;
use hyper::header::{HOST, HeaderValue};
use hyper::{Request, Response, Uri};
use hyper_util::rt::TokioIo;
use opentelemetry::trace::TracerProvider as _;
use opentelemetry::{Context, KeyValue};
use opentelemetry_http::{HttpClient, HttpError};
use opentelemetry_otlp::{Protocol, RetryPolicy, SpanExporter, WithExportConfig as _, WithHttpConfig as _};
use opentelemetry_sdk::Resource;
use opentelemetry_sdk::error::OTelSdkResult;
use opentelemetry_sdk::trace::{Sampler, SdkTracerProvider, Span, SpanData, SpanExporter as _, SpanProcessor};
use tokio::net::TcpStream;
use tokio::sync::mpsc;
use tokio::task::JoinHandle;
use tokio::time::{sleep, timeout};
use tokio_util::sync::CancellationToken;
use tokio_util::task::AbortOnDropHandle;
use tracing::subscriber::Interest;
use tracing_subscriber::Layer as _;
use tracing_subscriber::filter::{LevelFilter, dynamic_filter_fn};

use super::{SampleRatio, SpanCounts, TARGET, TraceLayer, TracesOptions};

/// Spans that may wait to be sent.
const QUEUE: usize = 2048;

/// Largest batch of spans.
const BATCH: usize = 512;

/// Longest wait for a batch to fill.
const BATCH_WAIT: Duration = Duration::from_secs(1);

/// Longest wait for the collector.
const EXPORT_TIMEOUT: Duration = Duration::from_secs(5);

/// Longest wait for the last spans to be sent.
const CLOSE_TIMEOUT: Duration = Duration::from_secs(2);

/// Longest response of a collector.
const RESPONSE_BYTES: usize = 64 << 10;

/// Export of a process's spans.
pub(super) struct Export {
    pub(super) ratio: SampleRatio,
    counts: Arc<Counts>,
    sending: Mutex<Option<Sending>>,
    task: Mutex<Option<JoinHandle<()>>>,
    stop: CancellationToken,
    /// Spans are recorded as long as it lives.
    _provider: SdkTracerProvider,
}

#[derive(Debug, Default)]
struct Counts {
    exported: AtomicU64,
    full: AtomicU64,
    failed: AtomicU64,
}

impl Export {
    pub(super) fn new(options: &TracesOptions) -> anyhow::Result<(Self, TraceLayer)> {
        let uri: Uri = options.endpoint.parse().context("traces.endpoint")?;
        // Default path of the protocol.
        let path = if uri.path() == "/" { "/v1/traces" } else { "" };
        let endpoint = format!("{}{path}", options.endpoint.trim_end_matches('/'));
        let mut exporter = SpanExporter::builder()
            .with_http()
            .with_http_client(Client)
            .with_protocol(Protocol::HttpBinary)
            .with_endpoint(&endpoint)
            .with_timeout(EXPORT_TIMEOUT)
            .with_retry_policy(RetryPolicy::disabled())
            .build()
            .context("traces.endpoint")?;
        let resource = Resource::builder()
            .with_service_name(options.service_name.clone())
            .with_attribute(KeyValue::new("service.version", env!("CARGO_PKG_VERSION")))
            .build();
        exporter.set_resource(&resource);
        let (queue, spans) = mpsc::channel(QUEUE);
        let counts = Arc::<Counts>::default();
        let provider = SdkTracerProvider::builder()
            .with_resource(resource)
            // Sampling is decided before a span is created.
            .with_sampler(Sampler::AlwaysOn)
            .with_span_processor(Queue { spans: queue, counts: counts.clone() })
            .build();
        // Events pass, although they are not used: see `logging::subscriber` for the cost of a refusal.
        let ours = dynamic_filter_fn(|metadata, _| metadata.is_event() || metadata.target() == TARGET)
            .with_callsite_filter(|metadata| {
                let is_ours = metadata.is_span() && metadata.target() == TARGET;
                if is_ours { Interest::always() } else { Interest::never() }
            });
        let layer = tracing_opentelemetry::layer()
            .with_tracer(provider.tracer("oncegate"))
            .with_location(false)
            .with_threads(false)
            .with_target(false)
            .with_level(false)
            .with_tracked_inactivity(false)
            .with_context_activation(false)
            .with_filter(ours.with_max_level_hint(LevelFilter::DEBUG))
            .boxed();
        let export = Self {
            ratio: options.sample_ratio,
            counts: counts.clone(),
            sending: Mutex::new(Some(Sending { spans, exporter, endpoint, counts, failed: false })),
            task: Mutex::default(),
            stop: CancellationToken::new(),
            _provider: provider,
        };
        Ok((export, layer))
    }

    pub(super) fn counts(&self) -> SpanCounts {
        let Counts { exported, full, failed } = &*self.counts;
        let [exported, full, failed] = [exported, full, failed].map(|count| count.load(Ordering::Relaxed));
        SpanCounts { exported, full, failed }
    }

    pub(super) fn start(&self) {
        if let Some(sending) = self.sending.lock().unwrap_or_else(PoisonError::into_inner).take() {
            let task = tokio::spawn(sending.run(self.stop.clone()));
            *self.task.lock().unwrap_or_else(PoisonError::into_inner) = Some(task);
        }
    }

    pub(super) async fn close(&self) {
        self.stop.cancel();
        let task = self.task.lock().unwrap_or_else(PoisonError::into_inner).take();
        if let Some(task) = task {
            // Remaining spans are lost.
            let _ = timeout(CLOSE_TIMEOUT, task).await;
        }
    }
}

/// Receives spans that have ended.
#[derive(Debug)]
struct Queue {
    spans: mpsc::Sender<SpanData>,
    counts: Arc<Counts>,
}

impl SpanProcessor for Queue {
    fn on_start(&self, _: &mut Span, _: &Context) {}

    fn on_end(&self, span: SpanData) {
        if self.spans.try_send(span).is_err() {
            self.counts.full.fetch_add(1, Ordering::Relaxed);
        }
    }

    fn force_flush(&self) -> OTelSdkResult {
        Ok(())
    }

    fn shutdown_with_timeout(&self, _: Duration) -> OTelSdkResult {
        Ok(())
    }
}

/// Task that sends spans.
struct Sending {
    spans: mpsc::Receiver<SpanData>,
    exporter: SpanExporter,
    endpoint: String,
    counts: Arc<Counts>,
    /// True if the last batch was lost.
    failed: bool,
}

impl Sending {
    async fn run(mut self, stop: CancellationToken) {
        let mut batch = Vec::with_capacity(BATCH);
        while !stop.is_cancelled() {
            self.fill(&mut batch, &stop).await;
            self.send(&mut batch).await;
        }
        while let Ok(span) = self.spans.try_recv() {
            batch.push(span);
            if batch.len() == BATCH {
                self.send(&mut batch).await;
            }
        }
        self.send(&mut batch).await;
    }

    /// Waits for a first span, and then for more until the batch is full or [`BATCH_WAIT`] has passed.
    async fn fill(&mut self, batch: &mut Vec<SpanData>, stop: &CancellationToken) {
        tokio::select! {
            _ = self.spans.recv_many(batch, BATCH) => {}
            () = stop.cancelled() => return,
        }
        let mut end = pin!(sleep(BATCH_WAIT));
        while batch.len() < BATCH {
            let free = BATCH - batch.len();
            tokio::select! {
                _ = self.spans.recv_many(batch, free) => {}
                () = &mut end => return,
                () = stop.cancelled() => return,
            }
        }
    }

    async fn send(&mut self, batch: &mut Vec<SpanData>) {
        if batch.is_empty() {
            return;
        }
        let spans = std::mem::replace(batch, Vec::with_capacity(BATCH));
        let count = spans.len() as u64;
        let sent = timeout(EXPORT_TIMEOUT, self.exporter.export(spans)).await;
        let failure = match sent {
            Ok(Ok(())) => None,
            Ok(Err(failure)) => Some(failure.to_string()),
            Err(_late) => Some("no response in time".to_owned()),
        };
        let counter = if failure.is_none() { &self.counts.exported } else { &self.counts.failed };
        counter.fetch_add(count, Ordering::Relaxed);
        // Log changes only.
        if std::mem::replace(&mut self.failed, failure.is_some()) != failure.is_some() {
            if let Some(error) = failure {
                let endpoint = &self.endpoint;
                tracing::warn!(traces.endpoint = endpoint, error, "Spans lost: the collector does not accept them");
            } else {
                tracing::info!(traces.endpoint = self.endpoint, "The collector accepts spans again");
            }
        }
    }
}

/// HTTP client that opens a connection per batch: batches are at least a second apart, unless there are many spans.
#[derive(Debug)]
struct Client;

#[async_trait]
impl HttpClient for Client {
    async fn send_bytes(&self, request: Request<Bytes>) -> Result<Response<Bytes>, HttpError> {
        let uri = request.uri().clone();
        let authority = uri.authority().ok_or("the endpoint has no host")?;
        let host = authority.host().trim_start_matches('[').trim_end_matches(']');
        let stream = TcpStream::connect((host, authority.port_u16().unwrap_or(80))).await?;
        let (mut sender, connection) = http1::handshake(TokioIo::new(stream)).await?;
        let _connection = AbortOnDropHandle::new(tokio::spawn(connection));
        let mut request = request.map(Full::new);
        request.headers_mut().insert(HOST, HeaderValue::from_str(authority.as_str())?);
        *request.uri_mut() = uri.path_and_query().map_or("/", |path| path.as_str()).parse()?;
        let (head, body) = sender.send_request(request).await?.into_parts();
        let body = Limited::new(body, RESPONSE_BYTES).collect().await?.to_bytes();
        Ok(Response::from_parts(head, body))
    }
}
