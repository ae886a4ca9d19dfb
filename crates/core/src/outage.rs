//! Rules of outages, as pure functions and values. No I/O: the gateway executes them.

pub mod grants;
