//! The domain rules of the gateway, as values and pure functions, and the contract of engines: no I/O, no runtime, no clock reads
//! except in `clock`.

pub mod attempt;
pub mod backoff;
pub mod call;
pub mod caller;
pub mod canonical;
pub mod claim;
pub mod clock;
pub mod engine;
#[cfg(any(test, fuzzing, feature = "test-util"))]
pub mod fuzzing;
pub mod global_id;
pub mod hex;
pub mod limits;
pub mod lock;
pub mod name;
pub mod nearest;
pub mod observed;
pub mod operator;
pub mod outage;
pub mod outage_policy;
pub mod rate_limiter;
pub mod record;
pub mod share;
pub mod spool;
pub mod suspect;
pub mod tenant;
pub mod terms;
mod text;
