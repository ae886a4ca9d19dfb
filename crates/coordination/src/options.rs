//! Options that have no place in a URL.

use std::sync::Arc;
use std::time::Duration;

use oncegate_core::clock::{Clock, SystemClock};
use oncegate_driver::OnDataLoss;
use tokio::runtime::Handle;
use tokio::time::timeout;

/// Timeouts and intervals of an engine on a coordination service.
#[derive(Clone)]
pub struct Options {
    /// Limit of opening and checking a connection.
    pub connect_timeout: Duration,
    /// Limit of a request. After it the member is left.
    pub response_timeout: Duration,
    /// Interval of heartbeats, which find broken connections before a call needs them, and notice a loss of data.
    pub heartbeat_interval: Duration,
    /// Pause between two sweeps over all records. A sweep deletes ended records.
    pub sweep_interval: Duration,
    /// Time for which ended records are kept in a store that may use marks again. No mark is used after 20 s.
    pub linger: Duration,
    /// Measures elapsed time. The store's clock is advanced by it.
    pub clock: Arc<dyn Clock>,
    /// Runtimes for connections; if empty, the current one is used.
    pub cores: Vec<Handle>,
    /// Called when the store came back without its data.
    pub on_data_loss: Option<OnDataLoss>,
}

impl Options {
    /// Returns the options for a store that may take so long to answer a request. Opening a connection needs several answers.
    #[must_use]
    pub fn with_response_timeout(self, limit: Duration) -> Self {
        Self { response_timeout: limit, connect_timeout: self.connect_timeout.max(limit * 2), ..self }
    }

    /// Waits for a member's answer, no longer than it may take. `lost` makes the failure of a member that is late.
    ///
    /// # Errors
    /// The member refuses, or is late.
    pub async fn limited<T, F>(
        &self,
        engine: &str,
        call: impl Future<Output = Result<T, F>>,
        lost: impl FnOnce(String) -> F,
    ) -> Result<T, F> {
        let limit = self.response_timeout;
        let late = |_elapsed| Err(lost(format!("{engine} did not answer within {limit:?}")));
        timeout(limit, call).await.unwrap_or_else(late)
    }
}

impl Default for Options {
    fn default() -> Self {
        Self {
            connect_timeout: Duration::from_millis(500),
            response_timeout: Duration::from_millis(330),
            heartbeat_interval: Duration::from_millis(500),
            sweep_interval: Duration::from_secs(10),
            linger: Duration::from_mins(2),
            clock: Arc::new(SystemClock::new()),
            cores: Vec::new(),
            on_data_loss: None,
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_longer_limit_of_requests_lengthens_that_of_opening_and_a_shorter_one_leaves_it() {
        for (response, connect) in [(100, 500), (250, 500), (330, 660), (2000, 4000), (10_000, 20_000)] {
            let options = Options::default().with_response_timeout(Duration::from_millis(response));
            assert_eq!(options.response_timeout, Duration::from_millis(response));
            assert_eq!(options.connect_timeout, Duration::from_millis(connect));
        }
    }
}
