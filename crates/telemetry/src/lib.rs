//! Metrics, logs and traces. A leaf: it knows nothing of the other modules.

mod exposition;
pub mod history;
pub mod logging;
pub mod metrics;
pub mod operations;
pub mod proxy_routes;
pub mod quotas;
pub mod traces;

#[doc(hidden)]
pub use tracing;

use self::logging::Log;
use self::traces::Traces;

/// The log and the traces of a process.
#[derive(Clone)]
pub struct Telemetry {
    /// The log.
    pub log: Log,
    /// The traces.
    pub traces: Traces,
}
