//! Histories: what callers asked, what they were told and when, and whether any order of events explains it. The fault
//! tests record one for each key and hold it against the contract's tables.

pub mod check;
pub mod doubles;
pub mod explain;
mod model;
#[cfg(feature = "gateway")]
pub mod over_http;
pub mod planted;
pub mod record;
pub mod workload;

#[cfg(test)]
mod tests;

pub use self::check::{SKEW, assert_explained};
pub use self::record::{Answer, Call, Event, Reply, Story};
