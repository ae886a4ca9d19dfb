//! A client of Oncegate, the idempotency gateway: each business operation runs once, over crashes, retries and lost replies.
//!
//! Start at [`Client::once`]. Names and rules are the same in every language: `clients/README.md` of the repository lists them.

mod about;
#[cfg(feature = "actix-web")]
pub mod actix;
mod answer;
#[cfg(feature = "axum")]
mod axum;
mod batch;
mod call;
mod claim;
mod claim_call;
mod client;
mod consume;
#[cfg(any(feature = "async-nats", feature = "lapin", feature = "rdkafka", feature = "redis"))]
pub mod consumers;
mod contents;
mod duplicate;
mod error;
mod event;
mod grant;
mod identity;
mod json_text;
mod lease;
mod lock;
mod lookup;
mod lost;
#[cfg(feature = "middleware")]
pub mod middleware;
mod once;
mod outcome;
mod problem;
mod report;
mod result;
mod runs;
#[cfg(feature = "reqwest")]
pub mod sender;
mod speller;
mod state;
mod terms;
#[cfg(feature = "testing")]
pub mod testing;
mod time;
#[cfg(feature = "tower")]
pub mod tower;
mod traces;
mod transport;

pub use batch::{ClaimItem, OutcomeItem};
pub use claim::Claimed;
pub use client::{Client, FOREVER, Metrics, OnUnavailable, Options};
pub use consume::{Action, Consumer, Decision};
pub use contents::Contents;
pub use duplicate::{Duplicate, Mismatch};
pub use error::{BoxError, Cause, Error, Kind, NotCanonical, OnceError, Reason, Rejected, WorkError};
pub use event::{Event, Level};
pub use grant::Grant;
pub use identity::{canonical, global_id};
pub use lock::{Hold, LockHolder, LockRecord, Locker, Mode};
pub use lookup::Record;
pub use once::Once;
pub use outcome::Outcome;
pub use problem::Problem;
pub use report::{Done, Settled};
pub use state::State;
pub use terms::Terms;
