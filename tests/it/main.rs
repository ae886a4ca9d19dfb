//! Black-box tests: real gateways, real servers, real sockets. One binary; `support` starts what they talk to.

mod support;

mod edge;
#[cfg(feature = "redis")]
mod engine_redis;
mod story;
