//! What the tests talk to and with: gateways, servers, a proxy that breaks and heals, a caller that knows the document.

pub(crate) mod caller;
#[cfg(any(feature = "postgres", feature = "redis"))]
pub(crate) mod calls;
pub(crate) mod certificates;
pub(crate) mod client;
#[cfg(feature = "otlp")]
pub(crate) mod collector;
pub(crate) mod command;
pub(crate) mod connector;
pub(crate) mod exposition;
pub(crate) mod fresh;
pub(crate) mod gateway;
pub(crate) mod history;
pub(crate) mod missing;
pub(crate) mod openapi;
#[cfg(feature = "postgres")]
pub(crate) mod pgbouncer;
#[cfg(feature = "postgres")]
pub(crate) mod postgres_server;
#[cfg(feature = "redis")]
pub(crate) mod prometheus;
#[cfg(feature = "redis")]
pub(crate) mod redis_server;
pub(crate) mod say;
pub(crate) mod strace;
#[cfg(any(feature = "postgres", feature = "redis"))]
pub(crate) mod table;
pub(crate) mod tcp_proxy;
pub(crate) mod wait;
