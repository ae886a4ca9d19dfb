//! Tests of the ZooKeeper engine on real servers. What happens to servers is tested with whole gateways, in `tests/it`.

#![expect(clippy::unwrap_used, reason = "a test that cannot continue fails")]

mod auth;
#[path = "../../../coordination/tests/engines/mod.rs"]
mod engines;
mod inspection;
mod late_clock;
mod layout;
mod limits;
mod members;
mod quorum;
mod recovery;
mod sweeping;
mod tls;
mod wall_clock;

use std::time::Duration;

use oncegate_core::claim::ClaimRequest;
use oncegate_core::engine::Engine;
use oncegate_zookeeper::{self as engine, Options};

use oncegate_testkit::calls::{again, granted, is_duplicate, serves_again, settle, success};
use oncegate_testkit::zookeeper_cluster::ZooKeeperCluster as Cluster;
use oncegate_testkit::zookeeper_nodes::Nodes;

use self::engines::{leased, soon};

/// Options for a machine that other tests share: only a very slow call counts as slow.
fn options() -> Options {
    Options {
        connect_timeout: Duration::from_secs(10),
        response_timeout: Duration::from_secs(10),
        sweep_interval: Duration::from_millis(50),
        linger: Duration::from_secs(1),
        ..Options::default()
    }
}

/// Returns a session of the test at the first server.
fn nodes(cluster: &Cluster) -> Nodes {
    Nodes::connect(&cluster.addresses()[0], None)
}

fn open(url: &str) -> impl Engine + use<> {
    oncegate_zookeeper::open(url, options()).expect("a good URL")
}

/// Returns the key of a claim.
fn key(request: &ClaimRequest) -> String {
    let id = request.key.global_id.to_string();
    format!("/oncegate/c/{}/{id}.{}", &id[..3], request.key.app)
}

/// A setting of the URL that ends grants after little data.
const GRANTS_END: &str = "heap=24MiB";

/// Deletes everything of the engine.
fn erase(cluster: &Cluster) {
    let mut nodes = nodes(cluster);
    // One after the other, they could be more than one loss.
    nodes.delete_together(&["/oncegate/clock", "/oncegate/clock5", "/oncegate/marker"]);
    nodes.delete("/oncegate");
}

/// Deletes the store's clock alone.
fn delete_clock(cluster: &Cluster) {
    nodes(cluster).delete("/oncegate/clock");
}

/// Sets the value of the store's clock.
fn set_clock(cluster: &Cluster, value: &[u8]) {
    nodes(cluster).set("/oncegate/clock", value);
}

/// Deletes all locks.
fn delete_locks(cluster: &Cluster) {
    nodes(cluster).delete("/oncegate/l/shop");
}

/// Reports whether the cluster has this key.
fn has_key(cluster: &Cluster, key: &str) -> bool {
    nodes(cluster).get(key).is_some()
}
