//! `oncegate config check --connect`: the answer for each kind of mistake.

use std::path::Path;

use oncegate_testkit::certificates::Authority;
use oncegate_testkit::etcd_cluster::EtcdCluster;

use super::auth::{with_user, with_users};
use super::engines::inspected::{assert_problem, assert_usable, inspect_until};

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn every_named_member_is_reported_and_nothing_is_written() {
    let Some(mut cluster) = EtcdCluster::start().await else { return };
    let before = cluster.revision();
    let found = assert_usable(&cluster.url()).await;
    assert_eq!(cluster.revision(), before, "nothing is written");
    assert!(found.warnings.is_empty(), "{found:?}");
    for address in cluster.addresses() {
        let fact = found.facts.iter().find(|fact| fact.starts_with(&address)).expect("a line for each");
        for part in ["etcd 3.", "cluster ", "of 2048 MiB", "the quorum answers", "history never compacted"] {
            assert!(fact.contains(part), "{part}: {fact}");
        }
    }
    let roles = |role: &str| found.facts.iter().filter(|fact| fact.contains(role)).count();
    assert_eq!((roles(": leader, "), roles(": follower, ")), (1, 2), "{found:?}");
    let leader = cluster.leader().expect("a leader");
    let (one, other) = ((leader + 1) % 3, (leader + 2) % 3);
    // The URL does not name the frozen member, but gateways will learn of it.
    cluster.freeze(one);
    let part_of = |members: &[usize]| {
        let addresses = cluster.addresses();
        format!("etcd://{}", members.iter().map(|member| addresses[*member].clone()).collect::<Vec<_>>().join(","))
    };
    assert_usable(&part_of(&[leader])).await;
    assert_problem(&part_of(&[leader, one]), "does not answer").await;
    cluster.freeze(other);
    assert_problem(&part_of(&[leader]), "has no quorum").await;
    assert_problem(&part_of(&[leader]), "Start a majority").await;
    cluster.thaw(one);
    cluster.thaw(other);
    cluster.kill(other);
    let url = cluster.url();
    assert!(cluster.addresses().len() == 3);
    let gone = format!("{} does not answer", cluster.addresses().swap_remove(other));
    inspect_until(&url, &gone, |found| found.problems.iter().any(|problem| problem.starts_with(&gone))).await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn members_of_two_clusters_a_learner_and_a_proxy_are_named() {
    let Some(mut cluster) = EtcdCluster::start_one().await else { return };
    let Some(other) = EtcdCluster::start_one().await else { return };
    let both = format!("{},{}", cluster.url(), other.addresses()[0]);
    // A cluster's ID follows from the addresses of its members.
    assert_problem(&both, "name the members of one cluster").await;
    let found = assert_usable(&cluster.url()).await;
    assert!(found.warnings[0].contains("the only member"), "{found:?}");
    let proxy = cluster.add_proxy().await;
    let found = assert_usable(&format!("etcd://{proxy}")).await;
    assert!(found.warnings[0].contains("grpc-proxy"), "{found:?}");
    let learner = cluster.add_learner().await;
    assert_problem(&format!("{},{learner}", cluster.url()), "is a learner").await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn what_is_wrong_with_a_user_is_said_with_what_to_write() {
    let Some(cluster) = with_users().await else { return };
    for (user, prefix, part) in [
        ("", "", "write etcd://USER:PASSWORD@HOST"),
        ("gateway:hunter3", "", "correct USER:PASSWORD@"),
        ("gateway:hunter2", "/other", "--prefix=true readwrite /other/"),
    ] {
        let url = if user.is_empty() { cluster.url() } else { with_user(&cluster, user) };
        assert_problem(&format!("{url}{prefix}"), part).await;
    }
    assert_usable(&with_user(&cluster, "gateway:hunter2")).await;
    // A user that may only read.
    for arguments in [
        &["role", "add", "reader"][..],
        &["role", "grant-permission", "--prefix=true", "reader", "read", "/oncegate/"],
        &["user", "add", "reader:hunter4"],
        &["user", "grant-role", "reader", "reader"],
    ] {
        cluster.ctl(&[&["--user", "root:secret"], arguments].concat());
    }
    assert_problem(&with_user(&cluster, "reader:hunter4"), "may not read and write /oncegate/").await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn tls_on_one_side_only_and_a_user_that_etcd_does_not_want_are_named() {
    let (folder, authority) = (tempfile::tempdir().unwrap(), Authority::generate());
    let Some(cluster) = super::tls::cluster(folder.path(), &authority).await else { return };
    let keys = |folder: &Path| super::tls::keys(folder, "ca.pem", true);
    assert_usable(&(cluster.url() + &keys(folder.path()))).await;
    assert_problem(&cluster.url().replace("etcds://", "etcd://"), "write etcds:// in place of etcd://").await;
    let Some(plain) = EtcdCluster::start_one().await else { return };
    let tls = plain.url().replace("etcd://", "etcds://") + &keys(folder.path());
    assert_problem(&tls, "write etcd:// in place of etcds://").await;
    assert_problem(&with_user(&plain, "gateway:hunter2"), "leave USER:PASSWORD@ out").await;
}
