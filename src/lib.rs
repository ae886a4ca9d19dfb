//! Oncegate: an idempotency gateway that lets every business operation pass once.
//!
//! `config` reads the settings, `server` starts what they ask for, `cli` has the commands. All else is in the crates of the
//! workspace. Start with `ARCHITECTURE.md`.

pub mod cli;
pub mod config;
pub mod engines;
pub mod server;
