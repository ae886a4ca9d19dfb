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

/// Reports whether times of answers and of recovery are checked: by `make faults-times`, on a machine that does nothing else. Other
/// runs print them.
#[expect(clippy::disallowed_methods, reason = "a test has no configuration that could pass the variable on")]
pub(crate) fn times_count() -> bool {
    std::env::var_os("ONCEGATE_TIMES").is_some()
}
