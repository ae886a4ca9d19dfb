//! Black-box tests: real gateways, real servers, real sockets. One binary; `support` starts what they talk to.

#![expect(clippy::unwrap_used, reason = "a test that cannot go on fails where it stands")]

mod support;

mod edge;
#[cfg(feature = "redis")]
mod engine_redis;
mod story;
