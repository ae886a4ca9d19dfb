//! Wrappers around engines: the call guard (deadline, breaker, one retry, metrics), and the chain over several engines. Each is an
//! engine itself, and none names one. The outage policies above them are the crate `oncegate-outage`.

pub mod batch_part;
pub mod breaker;
pub mod call_guard;
pub mod chain;
pub mod deadline_budget;
pub mod meter;
pub mod per_shard;
pub mod refusal;
pub mod requirement;
pub mod retry;
pub mod retry_budget;
#[cfg(test)]
pub(crate) mod tests;
