//! Connections to servers over TLS: the trusted servers, and the errors for others.

use std::path::Path;

use oncegate_core::engine::Claims as _;
use oncegate_core::engine::conformance::{DEADLINE, fresh_claim};
use oncegate_testkit::certificates::Authority;
use oncegate_testkit::zookeeper_cluster::ZooKeeperCluster;

use super::engines::refusal;
use super::{again, granted, is_duplicate, open, soon};

pub(super) async fn cluster(folder: &Path, authority: &Authority) -> Option<ZooKeeperCluster> {
    let ca = authority.write(&folder.join("ca.pem"));
    let pair = authority.issue().write(folder);
    let both = folder.join("server.pem");
    let text = |path: &Path| std::fs::read_to_string(path).unwrap();
    std::fs::write(&both, text(&pair.certificate) + &text(&pair.key)).unwrap();
    let settings = vec![
        format!("ssl.keyStore.location={}", both.display()),
        format!("ssl.trustStore.location={}", ca.display()),
        "ssl.clientAuth=need".into(),
        "authProvider.x509=org.apache.zookeeper.server.auth.X509AuthenticationProvider".into(),
    ];
    ZooKeeperCluster::start_tls(settings).await
}

/// Returns the keys of a URL that name these files.
pub(super) fn keys(folder: &Path, ca: &str) -> String {
    let file = |name: &str| folder.join(name).display().to_string();
    format!("?ca={}&client_certificate={}&client_key={}", file(ca), file("tls.crt"), file("tls.key"))
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn servers_of_a_trusted_authority_are_used_with_a_certificate_that_they_trust() {
    let (folder, authority) = (tempfile::tempdir().unwrap(), Authority::generate());
    let Some(cluster) = cluster(folder.path(), &authority).await else { return };
    let engine = open(&(cluster.url() + &keys(folder.path(), "ca.pem")));
    let request = fresh_claim();
    soon("a grant", async || engine.claim(&request, DEADLINE).await.is_ok()).await;
    assert!(is_duplicate(&engine, &again(&request)).await);
    // The server has other names than this one.
    let why = refusal(&open(&(cluster.url() + &keys(folder.path(), "ca.pem") + "&server_name=z.internal"))).await;
    assert!(why.contains("certificate"), "{why}");
    granted(&engine, &fresh_claim()).await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn servers_of_another_authority_and_a_port_with_tls_are_refused() {
    let (folder, authority) = (tempfile::tempdir().unwrap(), Authority::generate());
    Authority::generate().write(&folder.path().join("stranger.pem"));
    let Some(cluster) = cluster(folder.path(), &authority).await else { return };
    let why = refusal(&open(&(cluster.url() + &keys(folder.path(), "stranger.pem")))).await;
    assert!(why.contains("certificate"), "{why}");
    let why = refusal(&open(&cluster.url().replace("zookeepers://", "zookeeper://"))).await;
    assert!(why.contains("zookeepers://"), "it says what to write: {why}");
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_port_without_tls_is_refused_and_it_is_said_what_to_write() {
    let Some(cluster) = ZooKeeperCluster::start_one().await else { return };
    let why = refusal(&open(&cluster.url().replace("zookeeper://", "zookeepers://"))).await;
    assert!(why.contains("write zookeeper://"), "{why}");
}
