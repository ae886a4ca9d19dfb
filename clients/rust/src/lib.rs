//! A client of Oncegate, the idempotency gateway: each business operation runs once, over crashes, retries and lost replies.
//!
//! Start at [`Client::once`]. Names and rules are the same in every language: `clients/README.md` of the repository lists them.

#[cfg(feature = "actix-web")]
pub mod actix;
mod answer;
#[cfg(feature = "axum")]
mod axum;
mod batch;
mod call;
mod claim;
mod client;
mod consume;
#[cfg(any(feature = "async-nats", feature = "lapin", feature = "rdkafka", feature = "redis"))]
pub mod consumers;
mod contents;
mod error;
mod event;
mod grant;
mod json_text;
mod lease;
mod lock;
mod lookup;
#[cfg(feature = "middleware")]
pub mod middleware;
mod outcome;
mod problem;
mod report;
mod runs;
#[cfg(feature = "reqwest")]
pub mod sender;
#[cfg(feature = "testing")]
pub mod testing;
mod time;
#[cfg(feature = "tower")]
pub mod tower;
mod traces;
mod transport;

pub use batch::{ClaimItem, OutcomeItem};
pub use claim::{Claimed, Done, Duplicate, Mismatch, Once, State, Terms};
pub use client::{Client, FOREVER, Metrics, OnUnavailable, Options};
pub use consume::{Action, Consumer, Decision};
pub use contents::{Contents, canonical, global_id};
pub use error::{BoxError, Cause, Error, Kind, NotCanonical, OnceError, Reason, Rejected, WorkError};
pub use event::{Event, Level};
pub use grant::Grant;
pub use lock::{Hold, LockHolder, LockRecord, Locker, Mode};
pub use lookup::Record;
pub use outcome::Outcome;
pub use problem::Problem;
pub use report::Settled;
