//! Engines as health checks, the admin API and the console show them: the members of etcd, and the past of a breaker.

use std::time::Duration;

use oncegate_testkit::etcd_cluster::EtcdCluster;
use oncegate_testkit::fresh;
use oncegate_testkit::redis_server::RedisServer;
use oncegate_testkit::wait::until;
use serde_json::{Value, json};

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

/// An outage is two changes, in the admin API and on the page.
#[tokio::test]
async fn a_breaker_that_opened_and_closed_is_shown_with_times_and_reason() {
    let Some(mut server) = RedisServer::start_with(&["appendonly yes", "appendfsync always"]).await else { return };
    let engines = format!("[engines]\nprimary = \"{}\"\n", server.url());
    let gateway = gateway::on_configured().config(&(engines + &operators(&ROLES))).start().await;
    let admin = gateway.admin_client().with_credential(&token("view"));
    let changes =
        async || admin.get("/admin/v1/engines").await.expect(200).body["engines"][0]["breaker_changes"].clone();
    let is_now = async |state: &str| {
        gateway.client().claim(fresh::contents()).await;
        changes().await[0]["state"] == state
    };
    gateway.client().claim(fresh::contents()).await.expect(201);
    assert_eq!(changes().await, json!([]), "closed since the start");
    server.kill();
    until("the breaker is open", Duration::from_mins(1), async || is_now("open").await).await;
    server.restart().await;
    until("the breaker is closed", Duration::from_mins(1), async || is_now("closed").await).await;
    let seen = changes().await;
    let (closed, opened) = (&seen[0], &seen[1]);
    assert_eq!(
        (seen.as_array().map(Vec::len), &closed["reason"], &opened["shard"]),
        (Some(2), &Value::Null, &Value::Null)
    );
    assert!(opened["reason"].as_str().is_some_and(|reason| !reason.is_empty()), "{seen}");
    assert!(opened["at"].as_str() < closed["at"].as_str(), "{seen}");
    let page = Browser::signed_in(&gateway, "view").await.get("/console/engines").await.expect(200).text;
    for words in
        ["Changes of breakers since the start: 2", "open since", "closed since", "survives a crash of the store"]
    {
        assert!(page.contains(words), "{words}: {page}");
    }
    assert!(!page.contains("lists claims"), "Redis lists none: {page}");
}
