//! Parts that every engine of a networked store needs: connection workers with queues, reconnecting with backoff,
//! subscriptions, and the known state of a server. An engine on top of them writes its commands and how replies are
//! read; see `docs/adr/0042-driver-and-schemes.md`. `scheme` and `backup` are for all engines. This crate names no
//! engine.

pub mod backup;
mod connection;
mod events;
mod exchanges;
pub mod listener;
mod pool;
mod queue;
mod readiness;
mod reply;
pub mod scheme;
mod server;
#[cfg(test)]
mod tests;
mod worker;

pub use self::connection::{Call, Connection, Connector, Exchange, Fitness, Lost};
pub use self::pool::Pool;
pub use self::queue::Queue;
pub use self::readiness::Readiness;
pub use self::reply::Reply;
pub use self::server::{OnDataLoss, Server};
pub use self::worker::{Intervals, Worker};
