//! Consumers at brokers: each carries out the decisions of a [`Consumer`], and acknowledges a message only after its outcome was accepted.

#[cfg(feature = "rdkafka")]
pub mod kafka;
#[cfg(feature = "async-nats")]
pub mod nats;
#[cfg(feature = "lapin")]
pub mod rabbitmq;
mod recipe;
#[cfg(feature = "redis")]
pub mod redis_streams;

pub use recipe::Recipe;

#[cfg(doc)]
use crate::Consumer;
