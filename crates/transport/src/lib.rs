//! From bytes to requests and back: listeners, TLS, connection timeouts, bounds on unread responses, and the HTTP fast path.
//! Knows nothing of claims, apps or engines: a [`HttpService`] answers.

mod caller_watch;
mod connection;
mod fast_path;
#[cfg(any(test, fuzzing))]
pub mod fuzzing;
mod head_guard;
mod http2;
pub mod incoming;
mod length;
mod library;
mod limits;
pub mod listener;
mod reset;
mod service;
mod socket;
mod stop;
mod streaming;
pub mod tls;
mod unread;

pub use self::caller_watch::CallerWatch;
pub use self::incoming::Incoming;
pub use self::length::length;
pub use self::limits::Limits;
pub use self::service::{ConnectionState, HttpService, Peer, Rejection};
pub use self::streaming::{Buffered, SwitchedProtocol};
