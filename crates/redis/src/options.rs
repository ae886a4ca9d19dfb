//! Options that have no place in a URL.

use std::time::Duration;

use oncegate_driver::OnDataLoss;
use tokio::runtime::Handle;

use super::seen::KEYS;
use super::url::RESPONSE_TIMEOUT;

/// Timeouts and intervals of a Redis engine.
#[derive(Clone)]
pub struct Options {
    /// Limit of opening a connection, from the first packet until the server has passed the health check.
    pub connect_timeout: Duration,
    /// Limit of waiting for replies, unless the URL names another one. After it the outcome of the calls is uncertain, and the connection is replaced.
    pub response_timeout: Duration,
    /// Interval of health checks, which read the configuration of the server.
    pub health_check_interval: Duration,
    /// Interval of heartbeats, which find broken connections before a call needs them, and notice a loss of data.
    pub heartbeat_interval: Duration,
    /// Number of keys that are remembered as taken. A repeat takes one round trip with a remembered key, and two with
    /// another key.
    pub remembered_keys: usize,
    /// The runtimes of connections, used round-robin; if empty, the one that opens the engine.
    pub cores: Vec<Handle>,
    /// Called when the server came back without its data.
    pub on_data_loss: Option<OnDataLoss>,
}

impl Default for Options {
    fn default() -> Self {
        Self {
            connect_timeout: Duration::from_secs(1),
            response_timeout: RESPONSE_TIMEOUT,
            health_check_interval: Duration::from_secs(5),
            heartbeat_interval: Duration::from_millis(500),
            remembered_keys: KEYS,
            cores: Vec::new(),
            on_data_loss: None,
        }
    }
}
