//! What operators see: metrics and logs. A leaf: it knows nothing of the rest.

pub mod logging;
pub mod metrics;
