//! Consumers at real brokers, whose processes are killed with -9 in the middle of the work: each effect once, and none lost. Run by
//! `clients/rust/brokers`; `ONCEGATE_BIN` names the gateway.
#![cfg(any(feature = "async-nats", feature = "lapin", feature = "rdkafka", feature = "redis"))]

#[cfg(feature = "rdkafka")]
#[path = "brokers/kafka.rs"]
mod kafka;
#[cfg(feature = "async-nats")]
#[path = "brokers/nats.rs"]
mod nats;
#[cfg(feature = "lapin")]
#[path = "brokers/rabbitmq.rs"]
mod rabbitmq;
#[cfg(feature = "redis")]
#[path = "brokers/redis_streams.rs"]
mod redis_streams;
#[path = "brokers/run.rs"]
mod run;
#[path = "brokers/servers.rs"]
mod servers;
