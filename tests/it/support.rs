//! Tools for these tests only; the rest is in `oncegate-testkit`.

pub(crate) mod caller;
#[cfg(feature = "redis")]
pub(crate) mod chain;
#[cfg(feature = "otlp")]
pub(crate) mod collector;
pub(crate) mod command;
pub(crate) mod exposition;
pub(crate) mod gateway;
#[cfg(feature = "redis")]
pub(crate) mod prometheus;
#[cfg(any(feature = "postgres", feature = "redis"))]
pub(crate) mod table;

pub(crate) use oncegate_testkit::wait::times_count;
