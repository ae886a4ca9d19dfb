//! What stands around an engine: deadline, breaker, one repeat, measuring. Wrappers are engines themselves and name none.

pub mod breaker;
pub mod budget;
pub mod guarded;
pub mod meter;
