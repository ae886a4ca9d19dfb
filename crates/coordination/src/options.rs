//! Options that have no place in a URL.

use std::sync::Arc;
use std::time::Duration;

use oncegate_core::clock::{Clock, SystemClock};
use oncegate_driver::OnDataLoss;
use tokio::runtime::Handle;

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
