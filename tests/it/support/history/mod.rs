//! Histories: what callers asked, what they were told and when, and whether any order of events explains it. The fault
//! tests record one for each key and hold it against the contract's tables.

pub(crate) mod check;
pub(crate) mod doubles;
pub(crate) mod explain;
pub(crate) mod model;
pub(crate) mod over_http;
pub(crate) mod planted;
pub(crate) mod record;
pub(crate) mod workload;

#[cfg(test)]
mod tests;

pub(crate) use self::check::{SKEW, assert_explained};
pub(crate) use self::record::{Answer, Call, Event, Reply, Story};
