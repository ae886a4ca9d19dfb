//! Oncegate: an idempotency gateway that lets every business operation pass once.
//!
//! The modules from the ground up; none imports one above its own. Start with `ARCHITECTURE.md`.

pub mod admin;
pub mod api;
pub mod cli;
pub mod config;
pub mod crash;
#[cfg(feature = "postgres")]
pub mod database;
pub mod driver;
pub mod engine;
pub mod folder;
pub mod gateway;
pub mod resilience;
pub mod server;
pub mod tenants;
pub mod transport;
pub mod web;

pub use oncegate_core as domain;
pub use oncegate_telemetry as telemetry;
