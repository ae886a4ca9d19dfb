//! A client of Oncegate, the idempotency gateway: each business operation runs once, over crashes, retries and lost replies.
//!
//! Start at [`Client::once`]. Names and rules are the same in every language: `clients/README.md` of the repository lists them.

mod answer;
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
mod report;
mod time;
#[cfg(feature = "tower")]
pub mod tower;
mod transport;

pub use batch::{ClaimItem, Outcome};
pub use claim::{Claimed, Done, Duplicate, Mismatch, Once, State, Terms};
pub use client::{Client, FOREVER, Metrics, OnUnavailable, Options};
pub use consume::{Action, Consumer, Decision};
pub use contents::{Contents, canonical, global_id};
pub use error::{BoxError, Cause, Error, Kind, NotCanonical, OnceError, Reason, Rejected, WorkError};
pub use event::{Event, Level};
pub use grant::Grant;
pub use lock::{Hold, LockHolder, LockRecord, Locker, Mode};
pub use lookup::Record;
pub use report::Settled;
