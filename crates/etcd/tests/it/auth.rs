//! Users, roles and tokens.

use std::time::Duration;

use oncegate_core::engine::conformance::{DEADLINE, fresh_claim};
use oncegate_core::engine::{Determinate, Engine, EngineError};
use oncegate_etcd::Options;
use oncegate_testkit::etcd_cluster::EtcdCluster;

use super::{granted, open, options, serves_again, soon};

/// Starts a cluster whose user `gateway` may use only the prefix of gateways.
pub(super) async fn with_users() -> Option<EtcdCluster> {
    let cluster = EtcdCluster::start_one().await?;
    add_users(&cluster);
    Some(cluster)
}

pub(super) fn add_users(cluster: &EtcdCluster) {
    for arguments in [
        &["user", "add", "root:secret"][..],
        &["user", "grant-role", "root", "root"],
        &["role", "add", "gateway"],
        &["role", "grant-permission", "--prefix=true", "gateway", "readwrite", "/oncegate/"],
        &["user", "add", "gateway:hunter2"],
        &["user", "grant-role", "gateway", "gateway"],
        &["auth", "enable"],
    ] {
        cluster.ctl(arguments);
    }
}

pub(super) fn with_user(cluster: &EtcdCluster, user: &str) -> String {
    cluster.url().replace("etcd://", &format!("etcd://{user}@"))
}

/// Waits until the engine says why it does not serve.
async fn refusal(engine: &impl Engine) -> String {
    let mut why = String::new();
    soon("a refusal", async || {
        match engine.claim(&fresh_claim(), DEADLINE).await {
            Err(EngineError::Determinate(Determinate::Incompatible(text))) => why = text,
            other => assert!(other.is_err(), "{other:?}"),
        }
        !why.is_empty()
    })
    .await;
    assert!(!why.contains("hunter"), "{why}");
    why
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_user_with_the_prefix_is_served_also_after_its_token_is_gone() {
    let Some(mut cluster) = with_users().await else { return };
    let engine = open(&with_user(&cluster, "gateway:hunter2"));
    granted(&engine, &fresh_claim()).await;
    // Tokens are known to a member until it ends.
    cluster.restart(0);
    serves_again(&engine).await;
    // Any change of users or roles makes the tokens old.
    cluster.ctl(&["--user", "root:secret", "role", "add", "other"]);
    granted(&engine, &fresh_claim()).await;
}

/// As on a member that is busy: connections that each asked for a token, and gave up, would never get one.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_token_may_take_longer_than_a_connection_to_its_member() {
    let Some(mut cluster) = EtcdCluster::start_with(1, &["--bcrypt-cost=13"]).await else { return };
    add_users(&cluster);
    let url = with_user(&cluster, "gateway:hunter2");
    let options = || Options { connect_timeout: Duration::from_millis(500), ..options() };
    let engines = [(); 3].map(|()| oncegate_etcd::open(&url, options()).unwrap());
    for engine in &engines {
        serves_again(engine).await;
    }
    cluster.restart(0);
    for engine in &engines {
        serves_again(engine).await;
    }
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn what_is_wrong_with_a_user_is_said() {
    let Some(cluster) = with_users().await else { return };
    for (user, prefix, part) in [
        ("", "", "wants a user"),
        ("gateway:hunter3", "", "invalid user ID or password"),
        ("gateway:hunter2", "/other", "permission denied"),
    ] {
        let url = if user.is_empty() { cluster.url() } else { with_user(&cluster, user) };
        let why = refusal(&open(&format!("{url}{prefix}"))).await;
        assert!(why.contains(part), "{user}: {why}");
    }
}
