//! Histories: calls, answers and their times, and the check that some order of events explains them. The fault tests
//! record a history for each key and check it against the contract's tables. `locks` is the same for locks.

pub mod check;
pub mod double_grants;
pub mod explain;
#[cfg(feature = "gateway")]
pub mod http_service;
pub mod locks;
mod model;
pub mod planted;
pub mod record;
mod search;
pub mod workload;

#[cfg(test)]
mod tests;

pub use self::check::SKEW;
pub use self::record::{Answer, Call, Event, History, Reply};
