//! The middleware before axum and tower services, beyond the shared cases: `scripts/with-gateway cargo test --features axum --test
//! middleware`. Without a gateway what needs one is skipped.
#![cfg(feature = "axum")]

#[path = "middleware/options.rs"]
mod options;
#[path = "middleware/requests.rs"]
mod requests;
#[path = "middleware/runs.rs"]
mod runs;
#[path = "middleware/shop.rs"]
mod shop;
