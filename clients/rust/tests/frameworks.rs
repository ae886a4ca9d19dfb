//! Rules of the middleware that both frameworks share, over HTTP: `cargo test --features actix-web,axum,testing --test frameworks`.
#![cfg(all(feature = "actix-web", feature = "axum", feature = "testing"))]

#[path = "frameworks/compressed.rs"]
mod compressed;
#[path = "frameworks/gateway.rs"]
mod gateway;
#[path = "frameworks/grants.rs"]
mod grants;
#[path = "frameworks/held.rs"]
mod held;
#[path = "frameworks/services.rs"]
mod services;
