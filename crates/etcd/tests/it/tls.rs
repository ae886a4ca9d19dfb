//! Connections to members over TLS: the trusted members, and the errors for others.

use std::path::Path;

use oncegate_core::engine::conformance::fresh_claim;
use oncegate_testkit::certificates::Authority;
use oncegate_testkit::etcd_cluster::{EtcdCluster, Tls};

use super::engines::refusal;
use super::{again, granted, is_duplicate, open};

pub(super) async fn cluster(folder: &Path, authority: &Authority) -> Option<EtcdCluster> {
    let ca = authority.write(&folder.join("ca.pem"));
    EtcdCluster::start_tls(Tls { ca, pair: authority.issue().write(folder) }).await
}

/// Returns the keys of a URL that name these files.
pub(super) fn keys(folder: &Path, ca: &str, is_client_known: bool) -> String {
    let file = |name: &str| folder.join(name).display().to_string();
    let client = format!("&client_certificate={}&client_key={}", file("tls.crt"), file("tls.key"));
    format!("?ca={}{}", file(ca), if is_client_known { &client } else { "" })
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn members_of_a_trusted_authority_are_used_with_a_certificate_that_they_trust() {
    let (folder, authority) = (tempfile::tempdir().unwrap(), Authority::generate());
    let Some(cluster) = cluster(folder.path(), &authority).await else { return };
    let engine = open(&(cluster.url() + &keys(folder.path(), "ca.pem", true)));
    let request = fresh_claim();
    granted(&engine, &request).await;
    assert!(is_duplicate(&engine, &again(&request)).await);
    // The member has other names than this one.
    let why =
        refusal(&open(&(cluster.url() + &keys(folder.path(), "ca.pem", true) + "&server_name=etcd.internal"))).await;
    assert!(why.contains("certificate"), "{why}");
    refusal(&open(&(cluster.url() + &keys(folder.path(), "ca.pem", false)))).await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn members_of_another_authority_and_a_port_without_tls_are_refused() {
    let (folder, authority) = (tempfile::tempdir().unwrap(), Authority::generate());
    Authority::generate().write(&folder.path().join("stranger.pem"));
    let Some(cluster) = cluster(folder.path(), &authority).await else { return };
    let why = refusal(&open(&(cluster.url() + &keys(folder.path(), "stranger.pem", true)))).await;
    assert!(why.contains("certificate"), "{why}");
    let why = refusal(&open(&cluster.url().replace("etcds://", "etcd://"))).await;
    assert!(why.contains("etcds://"), "it says what to write: {why}");
}
