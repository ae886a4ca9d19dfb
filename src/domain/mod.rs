//! The rules of the gateway, as plain values and functions: no clock reads, no I/O, no runtime.

pub mod canonical;
pub mod global_id;
pub mod tenant;
