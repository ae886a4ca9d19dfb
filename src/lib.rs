//! Oncegate: an idempotency gateway that lets every business operation pass once.
//!
//! The modules from the ground up; none imports one above its own. Start with `ARCHITECTURE.md`.

pub mod cli;
pub mod config;
pub mod engines;
pub mod server;

pub use oncegate_core as domain;
#[cfg(any(test, feature = "test-util"))]
pub use oncegate_core::conformance;
pub use oncegate_core::engine;
#[cfg(feature = "postgres")]
pub use oncegate_database as database;
pub use oncegate_driver as driver;
pub use oncegate_folder as folder;
pub use oncegate_gateway as gateway;
pub use oncegate_gateway::crash;
pub use oncegate_gateway::resilience;
pub use oncegate_gateway::tenants;
pub use oncegate_telemetry as telemetry;
pub use oncegate_transport as transport;
pub use oncegate_web as web;
