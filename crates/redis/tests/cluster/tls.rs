//! TLS to every node of a cluster, and to Sentinels and the servers that they name.

use std::path::Path;

use oncegate_core::engine::Claims as _;
use oncegate_core::engine::conformance::fresh_claim;
use oncegate_testkit::certificates::Authority;
use oncegate_testkit::redis_cluster::{RedisCluster, slot_of};
use oncegate_testkit::redis_sentinels::RedisSentinels;

use super::{DEADLINE, again, answered, claim_on, granted, is_duplicate, many, name, open, soon};

/// Configuration of servers with a certificate of this authority, which want one of their callers.
fn config(folder: &Path, authority: &Authority) -> Vec<String> {
    authority.write(&folder.join("ca.pem"));
    authority.issue().write(folder);
    let file = |key: &str, name: &str| format!("tls-{key} {}", folder.join(name).display());
    vec![
        file("cert-file", "tls.crt"),
        file("key-file", "tls.key"),
        file("ca-cert-file", "ca.pem"),
        "tls-port 0".to_owned(),
        "tls-replication yes".to_owned(),
    ]
}

/// Keys of the URL: the authorities that the gateway trusts, and the certificate that it shows.
fn keys(folder: &Path) -> String {
    let file = |name: &str| folder.join(name).display().to_string();
    format!("?ca={}&client_certificate={}&client_key={}", file("ca.pem"), file("tls.crt"), file("tls.key"))
}

#[tokio::test(flavor = "multi_thread")]
async fn every_node_of_a_cluster_is_reached_over_tls_and_followed() {
    let (folder, authority) = (tempfile::tempdir().unwrap(), Authority::generate());
    let mut lines = config(folder.path(), &authority);
    lines.push("tls-cluster yes".to_owned());
    let lines: Vec<_> = lines.iter().map(String::as_str).collect();
    let Some(mut cluster) = RedisCluster::start_with(3, 1, &lines).await else { return };
    let redis = open(&(cluster.tls_url() + &keys(folder.path())));
    for ask in many() {
        granted(&redis, &ask).await;
        assert!(is_duplicate(&redis, &again(&ask)).await);
    }
    let held = claim_on(&cluster, 0);
    granted(&redis, &held).await;
    cluster.nodes[0].kill();
    cluster.taken_over(slot_of(&name(&held)), 0).await;
    soon("the promoted node is reached", async || redis.claim(&again(&held), DEADLINE).await.is_ok()).await;

    let stranger = Authority::generate().write(&folder.path().join("stranger.pem"));
    let redis = open(&format!("{}?ca={}", cluster.tls_url(), stranger.display()));
    // The killed node may be asked first: it refuses connections.
    soon("the certificates are refused", async || {
        let why = redis.claim(&fresh_claim(), DEADLINE).await.unwrap_err().to_string();
        assert!(why.contains("certificate") || why.contains("refuses connections"), "{why}");
        why.contains("certificate")
    })
    .await;
}

#[tokio::test(flavor = "multi_thread")]
async fn sentinels_and_the_servers_that_they_name_are_reached_over_tls() {
    let (folder, authority) = (tempfile::tempdir().unwrap(), Authority::generate());
    let lines = config(folder.path(), &authority);
    let lines: Vec<_> = lines.iter().map(String::as_str).collect();
    let Some(mut group) = RedisSentinels::start_with(1, &lines).await else { return };
    let redis = open(&(group.url() + &keys(folder.path())));
    granted(&redis, &fresh_claim()).await;
    group.servers[0].kill();
    group.taken_over(0).await;
    answered(&redis, &fresh_claim()).await;

    let stranger = Authority::generate().write(&folder.path().join("stranger.pem"));
    let redis = open(&format!("{}?ca={}", group.url(), stranger.display()));
    let why = redis.claim(&fresh_claim(), DEADLINE).await.unwrap_err().to_string();
    assert!(why.contains("certificate"), "{why}");
}
