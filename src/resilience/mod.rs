//! What stands around an engine: patience, one retry, measuring. Wrappers are engines themselves and name none.

pub mod degrade;
pub mod journal;
pub mod measured;
pub mod patience;
pub mod retry;
