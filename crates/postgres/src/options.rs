//! Options that have no place in a URL.

use std::time::Duration;

use tokio::runtime::Handle;

use oncegate_driver::OnDataLoss;

/// Timeouts and intervals of a PostgreSQL engine.
#[derive(Clone)]
pub struct Options {
    /// Limit of each step of connecting.
    pub connect_timeout: Duration,
    /// Limit of a statement. After it the statement is left running, and another connection is opened.
    pub response_timeout: Duration,
    /// Interval of sweeps, which delete claims that have ended.
    pub sweep_interval: Duration,
    /// Interval of heartbeats, which find broken connections before a call needs them, and notice a loss of data.
    pub heartbeat_interval: Duration,
    /// The runtimes of connections, used round-robin; if empty, the one that opens the engine.
    pub cores: Vec<Handle>,
    /// Called when the server came back without its data.
    pub on_data_loss: Option<OnDataLoss>,
}

impl Default for Options {
    fn default() -> Self {
        Self {
            connect_timeout: Duration::from_secs(1),
            response_timeout: Duration::from_millis(500),
            sweep_interval: Duration::from_secs(1),
            heartbeat_interval: Duration::from_millis(500),
            cores: Vec::new(),
            on_data_loss: None,
        }
    }
}
