//! What stands around an engine: patience, one retry, measuring. Wrappers are engines themselves and name none.

pub mod chain;
pub mod measured;
pub mod patience;
pub mod retry;
