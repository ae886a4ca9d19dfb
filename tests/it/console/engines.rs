//! The members of etcd, as health checks, the admin API and the console show them.

use std::time::Duration;

use oncegate_testkit::etcd_cluster::EtcdCluster;
use oncegate_testkit::wait::until;
use serde_json::Value;

use super::browser::Browser;
use super::{ROLES, operators, token};
use crate::support::gateway;

#[tokio::test]
async fn members_of_etcd_are_in_health_checks_the_admin_api_and_the_console() {
    let Some(cluster) = EtcdCluster::start().await else { return };
    let engines = format!("[engines]\nprimary = \"{}\"\n", cluster.url());
    let gateway = gateway::on_configured().config(&(engines + &operators(&ROLES))).start().await;
    let admin = gateway.admin_client().with_credential(&token("view"));
    let nodes_of = |engine: &Value| engine["nodes"].as_array().cloned().unwrap_or_default();
    let mut nodes = Vec::new();
    until("the members are shown", Duration::from_mins(1), async || {
        nodes = nodes_of(&admin.get("/admin/v1/engines").await.expect(200).body["engines"][0]);
        nodes.len() == 3 && nodes.iter().all(|node| node["up"] == true)
    })
    .await;
    let ready = gateway.admin_client().get("/readyz?verbose").await.expect(200);
    assert_eq!(nodes_of(&ready.body["engines"]["primary"]).len(), 3, "{}", ready.text);
    let count = |role: &str| nodes.iter().filter(|node| node["role"] == role).count();
    assert_eq!((count("leader"), count("follower")), (1, 2), "{nodes:?}");
    let page = Browser::signed_in(&gateway, "view").await.get("/console/engines").await.expect(200);
    for node in &nodes {
        let (address, role) = (node["address"].as_str().unwrap(), node["role"].as_str().unwrap());
        let shown = page.text.split(address).nth(1).unwrap_or_else(|| panic!("no {address}: {}", page.text));
        let shown = shown.split("</div>").next().unwrap();
        assert!(shown.contains(role) && shown.contains(node["version"].as_str().unwrap()), "{address}: {shown}");
    }
}
