//! Oncegate: an idempotency gateway that lets every business operation pass once.

pub mod domain;
