//! The middleware before axum and tower services, beyond the shared cases, with the gateway in memory: `cargo test --features
//! axum,testing --test middleware`. `scripts/with-gateway` before it runs them with a real one.
#![cfg(all(feature = "axum", feature = "testing"))]

#[path = "middleware/options.rs"]
mod options;
#[path = "middleware/requests.rs"]
mod requests;
#[path = "middleware/runs.rs"]
mod runs;
#[path = "middleware/shop.rs"]
mod shop;
