//! Tools of the tests: real servers, a TCP proxy that breaks and recovers, a client that checks responses against the
//! OpenAPI documents, and a checker of histories. It does not depend on the program: a test passes the path of the
//! binary to start.

#![expect(missing_docs, reason = "most fields and variants are the contract's, and documented there")]

pub mod calls;
pub mod certificates;
#[cfg(feature = "gateway")]
pub mod client;
#[cfg(feature = "gateway")]
pub mod connector;
#[cfg(feature = "etcd")]
pub mod etcd_cluster;
#[cfg(any(feature = "etcd", feature = "gateway", feature = "postgres", feature = "redis", feature = "zookeeper"))]
mod folder;
pub mod fresh;
#[cfg(feature = "gateway")]
pub mod gateway;
pub mod history;
pub mod missing;
#[cfg(feature = "gateway")]
pub mod openapi;
pub mod output;
#[cfg(feature = "postgres")]
pub mod pgbouncer;
#[cfg(feature = "postgres")]
pub mod postgres_server;
#[cfg(any(feature = "etcd", feature = "redis", feature = "zookeeper"))]
mod process;
#[cfg(feature = "redis")]
pub mod redis_cluster;
#[cfg(feature = "redis")]
pub mod redis_sentinels;
#[cfg(feature = "redis")]
pub mod redis_server;
pub mod shared;
pub mod small_disk;
pub mod strace;
pub mod tcp_proxy;
pub mod wait;
#[cfg(feature = "zookeeper")]
pub mod zookeeper_cluster;
#[cfg(feature = "zookeeper")]
pub mod zookeeper_nodes;
