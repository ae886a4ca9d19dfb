//! Black-box tests: real gateways, real servers, real sockets. One binary; `oncegate-testkit` starts the servers.

#![expect(clippy::unwrap_used, reason = "a test that cannot continue fails at that line")]

mod support;

mod admin;
mod alerts;
mod apps;
#[cfg(feature = "postgres")]
mod apps_registry;
mod apps_reload;
#[cfg(all(feature = "disk", target_os = "linux"))]
mod backup;
#[cfg(all(feature = "disk", target_os = "linux"))]
mod backup_drill;
#[cfg(target_os = "linux")]
mod batch_memory;
#[cfg(feature = "redis")]
mod canary;
#[cfg(feature = "redis")]
mod chains;
mod claim_lifecycle;
#[cfg(any(feature = "postgres", feature = "redis"))]
mod clients;
#[cfg(feature = "redis")]
mod clock_skew;
#[cfg(feature = "redis")]
mod collisions;
mod command_line;
mod console;
mod crash;
#[cfg(feature = "fault-points")]
mod crash_points;
#[cfg(feature = "redis")]
mod dashboard;
#[cfg(feature = "redis")]
mod degraded;
mod deploy;
mod documents;
#[cfg(target_os = "linux")]
mod durability;
mod edge;
#[cfg(feature = "postgres")]
mod engine_postgres;
mod example_proxy;
#[cfg(all(feature = "redis", feature = "etcd"))]
mod failover;
#[cfg(feature = "redis")]
mod grants;
mod isolation;
#[cfg(feature = "redis")]
mod late;
mod lifecycle;
#[cfg(feature = "redis")]
mod locks;
mod logging;
mod messages;
#[cfg(feature = "redis")]
mod observability;
mod observe;
mod outage;
mod proxy;
mod quotas;
#[cfg(feature = "redis")]
mod races;
mod readme;
#[cfg(feature = "redis")]
mod recovery;
#[cfg(feature = "redis")]
mod redis_outage;
#[cfg(feature = "redis")]
mod requirements;
mod results;
mod revoked_waits;
mod run_command;

mod tls;
#[cfg(feature = "otlp")]
mod traces;
#[cfg(any(feature = "postgres", feature = "redis"))]
mod upgrade;
#[cfg(feature = "redis")]
mod waiting;
