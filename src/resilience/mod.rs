//! What stands around an engine: deadline, breaker, one repeat, measuring; and above a chain of them what answers in a store's
//! place. Wrappers are engines themselves and name none.

pub mod breaker;
pub mod budget;
pub mod degrade;
pub mod guarded;
pub mod journal;
pub mod meter;
