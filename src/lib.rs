//! Oncegate: an idempotency gateway that lets every business operation pass once.
//!
//! The modules in reading order, from the ground up; nothing imports a floor above its own. `ARCHITECTURE.md` is the
//! way in.

pub mod admin;
pub mod cli;
pub mod config;
pub mod crash;
#[cfg(feature = "postgres")]
pub mod database;
pub mod domain;
pub mod engine;
pub mod folder;
pub mod gateway;
pub mod http;
pub mod resilience;
pub mod server;
pub mod telemetry;
pub mod tenants;
