//! The reference: a no-op handler, called at the same time as a gateway and in the same way. The waiting times of its
//! callers are the delays of this machine.

use std::ops::Range;
use std::sync::Arc;
use std::time::Duration;

use axum::Router;
use axum::http::{HeaderName, StatusCode, header::CONTENT_TYPE};
use oncegate_core::attempt::Nonce;
use oncegate_core::clock::Clock;
use oncegate_core::engine::conformance::fresh_claim;
use oncegate_testkit::client::Client;
use oncegate_testkit::history::Call;
use oncegate_testkit::history::http_service::HttpService;
use oncegate_testkit::history::workload::Service;
use tokio::net::TcpListener;
use tokio::task::JoinSet;
use tokio_util::sync::CancellationToken;

/// Number of its callers.
const CALLERS: u64 = 16;

/// A response that matches the document and needs no work.
const ANSWER: &str = r#"{"type":"urn:oncegate:problem:store_unavailable","title":"Store unavailable","status":503,
    "detail":"It does nothing.","code":"store_unavailable","request_id":"noop","retry_after_ms":1000}"#;

/// The handler, and its working callers.
pub(super) struct Noop {
    callers: JoinSet<Vec<(Duration, Duration)>>,
}

impl Noop {
    /// Serves, and starts callers at this pace until `stop`.
    pub(super) async fn start(clock: Arc<dyn Clock>, pace: Duration, stop: CancellationToken) -> Self {
        let listener = TcpListener::bind("127.0.0.1:0").await.expect("a free port");
        let address = listener.local_addr().expect("its address");
        let answer = || async {
            let headers =
                [(CONTENT_TYPE, "application/problem+json"), (HeaderName::from_static("x-request-id"), "noop")];
            let retry = [(HeaderName::from_static("retry-after"), "1")];
            (StatusCode::SERVICE_UNAVAILABLE, headers, retry, ANSWER)
        };
        tokio::spawn(async move { axum::serve(listener, Router::new().fallback(answer)).await });
        let service = Arc::new(HttpService(Client::new(address)));
        let mut callers = JoinSet::new();
        for caller in 0..CALLERS {
            let (service, clock, stop) = (service.clone(), clock.clone(), stop.clone());
            let call = Call::Claim { nonce: Nonce::from_bits(caller), terms: fresh_claim().terms, take_over: false };
            callers.spawn(async move {
                let mut took = Vec::new();
                while !stop.is_cancelled() {
                    tokio::time::sleep(pace).await;
                    let started = clock.monotonic();
                    service.call("noop", &call).await;
                    took.push((started, clock.monotonic().saturating_sub(started)));
                }
                took
            });
        }
        Self { callers }
    }

    /// Stops all callers and waits for their end.
    pub(super) async fn stopped(self) -> Waits {
        Waits(self.callers.join_all().await.into_iter().flatten().collect())
    }
}

/// Times of the calls, and how long each caller waited.
pub(super) struct Waits(Vec<(Duration, Duration)>);

impl Waits {
    /// Returns the 99th percentile of the waiting times of calls within this time.
    pub(super) fn p99(&self, during: Range<Duration>) -> Duration {
        let within = self.0.iter().filter(|(started, _)| during.contains(started));
        let mut took: Vec<Duration> = within.map(|(_, took)| *took).collect();
        took.sort_unstable();
        super::percentile(&took, 99)
    }
}
