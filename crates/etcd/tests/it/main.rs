//! Tests of the etcd engine on real clusters. What happens to members of a cluster is tested with whole gateways, in `tests/it`.

#![expect(clippy::unwrap_used, reason = "a test that cannot continue fails")]

mod auth;
#[path = "../../../coordination/tests/engines/mod.rs"]
mod engines;
mod inspection;
mod layout;
mod measure;
mod members;
mod quorum;
mod room;
mod tls;
mod upkeep;

use std::time::Duration;

use oncegate_core::claim::ClaimRequest;
use oncegate_core::engine::Engine;
use oncegate_etcd::{self as engine, Options};

use oncegate_testkit::calls::{again, granted, is_duplicate, serves_again, settle, success};
use oncegate_testkit::etcd_cluster::EtcdCluster as Cluster;

use self::engines::soon;

/// Options for a machine that other tests share: only a very slow call counts as slow.
fn options() -> Options {
    Options {
        connect_timeout: Duration::from_secs(10),
        response_timeout: Duration::from_secs(10),
        sweep_interval: Duration::from_millis(50),
        ..Options::default()
    }
}

fn open(url: &str) -> impl Engine + use<> {
    oncegate_etcd::open(url, options()).expect("a good URL")
}

/// Returns the key of a claim.
fn key(request: &ClaimRequest) -> String {
    format!("/oncegate/c/{}/{}", request.key.global_id, request.key.app)
}

/// A setting of the URL that ends grants after little data.
const GRANTS_END: &str = "grant_until=6MiB";

/// Deletes everything of the engine.
fn erase(cluster: &Cluster) {
    cluster.ctl(&["del", "--prefix", "/oncegate/"]);
}

/// Deletes the store's clock alone.
fn delete_clock(cluster: &Cluster) {
    cluster.ctl(&["del", "/oncegate/clock"]);
}

/// Sets the value of the store's clock.
fn set_clock(cluster: &Cluster, value: &[u8]) {
    cluster.put("/oncegate/clock", value);
}

/// Deletes all locks, and returns their room.
fn delete_locks(cluster: &Cluster) {
    cluster.ctl(&["del", "--prefix", "/oncegate/l/"]);
    let revision = cluster.ctl(&["get", "/oncegate/clock", "--write-out=fields"]);
    let revision = revision.lines().find_map(|line| line.strip_prefix("\"Revision\" : ")).unwrap();
    cluster.ctl(&["compact", revision, "--physical"]);
}

/// Reports whether the cluster has this key.
fn has_key(cluster: &Cluster, key: &str) -> bool {
    !cluster.ctl(&["get", key, "--keys-only"]).trim().is_empty()
}
