//! Rules of outages, as pure functions and values: what a policy answers instead of the store, what is delivered to the store
//! afterwards, and which degraded grants overlap. No I/O: the gateway executes them.

pub mod delivery;
pub mod entry;
pub mod grants;
pub mod policy;
