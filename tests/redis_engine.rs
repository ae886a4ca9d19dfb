//! Runs the Redis engine's tests by themselves, until there is one binary for all black-box tests.
#![cfg(feature = "redis")]

#[path = "it/engine_redis/mod.rs"]
mod engine_redis;
#[path = "it/support/mod.rs"]
mod support;
