//! Tools for these tests only; the rest is in `oncegate-testkit`.

pub(crate) mod caller;
#[cfg(feature = "otlp")]
pub(crate) mod collector;
pub(crate) mod command;
pub(crate) mod exposition;
pub(crate) mod gateway;
#[cfg(feature = "redis")]
pub(crate) mod prometheus;
#[cfg(any(feature = "postgres", feature = "redis"))]
pub(crate) mod table;

/// Whether times of answers and of recovery are checked: by `make faults-times`, on a machine that does nothing else. The other
/// tests print them.
pub(crate) fn times_count() -> bool {
    std::env::var_os("ONCEGATE_TIMES").is_some()
}
