//! What a PostgreSQL engine is told beyond its URL.

use std::fmt;
use std::sync::Arc;
use std::time::Duration;

use tokio::runtime::Handle;

/// How a PostgreSQL engine goes about its connections.
#[derive(Clone)]
pub struct Options {
    /// How long each step of connecting may take.
    pub connect_timeout: Duration,
    /// How long a statement may take; then it is left to itself, and another connection is made.
    pub response_timeout: Duration,
    /// How often claims that have ended are looked for.
    pub sweep_interval: Duration,
    /// How often a connection that nobody uses is made to answer, so that one that broke or went silent is replaced before
    /// somebody needs it.
    pub heartbeat_interval: Duration,
    /// The runtimes that connections live on, in turn; without any, the one in which the engine is opened.
    pub cores: Vec<Handle>,
    /// Called when the store came back without its data.
    pub on_data_loss: Option<Arc<dyn Fn() + Send + Sync>>,
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

impl fmt::Debug for Options {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Options")
            .field("connect_timeout", &self.connect_timeout)
            .field("response_timeout", &self.response_timeout)
            .field("sweep_interval", &self.sweep_interval)
            .field("heartbeat_interval", &self.heartbeat_interval)
            .finish_non_exhaustive()
    }
}
