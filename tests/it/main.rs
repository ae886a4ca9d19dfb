//! Black-box tests: real gateways, real servers, real sockets. One binary; `support` starts what they talk to.

#![expect(clippy::unwrap_used, reason = "a test that cannot go on fails where it stands")]

mod support;

mod admin;
mod apps;
#[cfg(feature = "postgres")]
mod apps_registry;
mod apps_reload;
#[cfg(feature = "redis")]
mod canary;
#[cfg(feature = "redis")]
mod chains;
#[cfg(feature = "redis")]
mod clock_skew;
#[cfg(feature = "redis")]
mod collisions;
mod command_line;
mod crash;
mod edge;
#[cfg(feature = "postgres")]
mod engine_postgres;
#[cfg(feature = "redis")]
mod engine_redis;
mod isolation;
#[cfg(feature = "redis")]
mod late;
mod lifecycle;
#[cfg(feature = "redis")]
mod observability;
mod observe;
mod quotas;
#[cfg(feature = "redis")]
mod races;
#[cfg(feature = "redis")]
mod redis_outage;
#[cfg(feature = "redis")]
mod requirements;
mod story;
mod tls;
