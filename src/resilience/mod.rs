//! What stands around an engine: deadline, breaker, one repeat, measuring, and the chain over several. Wrappers are engines
//! themselves and name none.

pub mod breaker;
pub mod budget;
pub mod chain;
pub mod guarded;
pub mod meter;
