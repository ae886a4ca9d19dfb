//! What stands around an engine: deadline, breaker, one repeat, measuring; the chain over several; and above it what answers
//! in a store's place. Wrappers are engines themselves and name none.

pub mod breaker;
pub mod budget;
pub mod chain;
pub mod deadline_budget;
pub mod degrade;
pub mod guarded;
pub mod journal;
pub mod meter;
