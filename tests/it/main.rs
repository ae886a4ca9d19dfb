//! Black-box tests: real gateways, real servers, real sockets. One binary; `support` starts what they talk to.

#![expect(clippy::unwrap_used, reason = "a test that cannot go on fails where it stands")]

mod support;

mod admin;
mod apps;
#[cfg(feature = "postgres")]
mod apps_registry;
mod apps_reload;
#[cfg(feature = "redis")]
mod clock_skew;
mod command_line;
mod crash;
mod edge;
#[cfg(feature = "postgres")]
mod engine_postgres;
#[cfg(feature = "redis")]
mod engine_redis;
#[cfg(feature = "redis")]
mod late;
mod lifecycle;
#[cfg(feature = "redis")]
mod observability;
#[cfg(feature = "redis")]
mod races;
#[cfg(feature = "redis")]
mod redis_outage;
mod story;
mod tls;
