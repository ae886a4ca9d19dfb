//! Stores that fail and recover in every way while callers work: the breaker opens and answers at once, and service is
//! back within a second of the store, without a manual action.

#[cfg(feature = "postgres")]
mod on_postgres;
mod on_redis;
mod overload;

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::Duration;

use oncegate_core::clock::{Clock, SystemClock};
use oncegate_testkit::fresh;
use oncegate_testkit::gateway::Gateway;
use oncegate_testkit::wait::{in_time, until};
use tokio::task::JoinHandle;

use crate::support::exposition::Page;

/// Longest time until service is back: a second, and a margin for a busy machine.
const BACK: Duration = Duration::from_millis(1500);
/// Longest time until the gateway detects an outage: some calls must fail by their deadlines.
const NOTICED: Duration = Duration::from_secs(5);

/// Callers that claim something new as soon as they are answered.
struct Load {
    stop: Arc<AtomicBool>,
    callers: Vec<JoinHandle<Vec<(u16, Duration)>>>,
}

impl Load {
    fn on(gateway: &Gateway, callers: usize) -> Self {
        let stop = Arc::new(AtomicBool::new(false));
        let caller = |_| {
            let (client, stop) = (gateway.client(), stop.clone());
            let clock = SystemClock::new();
            tokio::spawn(async move {
                let mut response = Vec::new();
                while !stop.load(Ordering::Relaxed) {
                    let started = clock.monotonic();
                    let body = serde_json::json!({ "contents": fresh::contents() }).to_string();
                    let status = client.post_status("/v1/claims", body).await.expect("the gateway answers");
                    response.push((status, clock.monotonic().saturating_sub(started)));
                    tokio::time::sleep(Duration::from_millis(5)).await;
                }
                response
            })
        };
        let callers = (0..callers).map(caller).collect();
        Self { stop, callers }
    }

    /// Responses to the callers, and their times.
    async fn end(self) -> Vec<(u16, Duration)> {
        self.stop.store(true, Ordering::Relaxed);
        let response = futures_util::future::join_all(self.callers).await;
        response.into_iter().flat_map(|response| response.expect("a caller continues")).collect()
    }
}

/// 0 closed, 1 half open, 2 open.
async fn breaker(gateway: &Gateway) -> u64 {
    Page::get(&gateway.admin_client()).await.sum("oncegate_breaker_state", &[("engine", "primary")])
}

/// Waits until all callers are served: a row of claims succeeds over all connections.
async fn served(gateway: &Gateway, timeout: Duration) {
    let client = gateway.client();
    until("service", timeout, async || {
        for _ in 0..20 {
            if client.claim(fresh::contents()).await.status != 201 {
                return false;
            }
        }
        true
    })
    .await;
}

/// A store fails and recovers while callers work.
async fn outage(gateway: &Gateway, what: &str, out: impl AsyncFnOnce(), back: impl AsyncFnOnce()) {
    served(gateway, NOTICED).await;
    let load = Load::on(gateway, 8);
    out().await;
    until(&format!("{what}: the breaker opens"), NOTICED, async || breaker(gateway).await == 2).await;
    // While it is open, every call fails at once.
    let open = Load::on(gateway, 8);
    tokio::time::sleep(Duration::from_millis(300)).await;
    let mut response = open.end().await;
    assert!(response.iter().all(|(status, _)| *status == 503), "{what}: nothing is granted");
    response.sort_unstable_by_key(|(_, took)| *took);
    let median = response[response.len() / 2].1;
    in_time(&format!("{what}: half of the answers while the breaker is open"), median, Duration::from_millis(50));
    back().await;
    let clock = SystemClock::new();
    served(gateway, BACK).await;
    in_time(&format!("{what}: back"), clock.monotonic(), BACK);
    until(&format!("{what}: the breaker closes"), BACK, async || breaker(gateway).await == 0).await;
    let response = load.end().await;
    let slowest = response.iter().map(|(_, took)| *took).max().expect("some calls");
    in_time(&format!("{what}: the slowest answer, by the deadline of a second"), slowest, Duration::from_millis(1500));
}
