//! Holds of automatic switches: by the command line, over two gateways, on real stores.

use oncegate_testkit::etcd_cluster::EtcdCluster;
use oncegate_testkit::redis_server::RedisServer;
use oncegate_testkit::wait::until;
use serde_json::{Value, json};

use super::{SOON, granted, know_one_another, watching};
use crate::admin::commands::Terminal;
use crate::admin::{alice, operated};
use crate::support::chain::{chain, comes_to};

#[tokio::test(flavor = "multi_thread")]
async fn a_planned_restart_moves_nobody_while_an_operator_holds_the_chain() {
    let (Some(mut a), Some(b)) = (RedisServer::start().await, RedisServer::start().await) else { return };
    let Some(witness) = EtcdCluster::start_one().await else { return };
    let setup = watching(&a.url(), &b.url(), &witness.url());
    let gateways = [setup.start().await, setup.start().await];
    let [one, two] = &gateways;
    know_one_another(&[one, two]).await;
    let command = async |words: &[&'static str]| {
        let (terminal, words) = (Terminal::at(one), [&["chain", "failover", "default"], words].concat());
        tokio::task::spawn_blocking(move || terminal.run(&words)).await.unwrap()
    };
    let refused = command(&["hold", "--reason", "CHG-7"]).await.expect(2);
    assert!(refused.err.contains("--for <TIME>"), "{}", refused.err);
    let held = command(&["hold", "--for", "1d", "--reason", "CHG-7: a new kernel"]).await.expect(0).out;
    assert!(held.starts_with("Chain `default` is not switched automatically: `alice` holds"), "{held}");
    assert!(held.ends_with(": CHG-7: a new kernel.\n"), "{held}");

    a.kill();
    for gateway in &gateways {
        until("it sees the store out, and stays", SOON, async || {
            let chain = chain(gateway).await;
            let failover = &chain["failover"];
            let is_held =
                failover["next_switch"].as_str().unwrap().starts_with("`alice` holds automatic switches until 20");
            let is_out = failover["views"].as_array().unwrap().iter().all(|view| view["out"] == json!(["a"]));
            assert_eq!(chain["active"], "a");
            is_held && is_out && failover["hold"]["who"] == "alice"
        })
        .await;
        gateway.logged("The active engine is out, and the chain is not switched automatically", 1).await;
    }
    let trail = alice(one).get("/admin/v1/audit").await.expect(200);
    let entry = &trail.body["entries"][0];
    assert_eq!((&entry["action"], &entry["result"]), (&json!("chain.failover"), &json!("changed")));
    assert!(entry["detail"].as_str().unwrap().starts_with("chain: default, hold until 20"), "{entry}");

    let allowed = command(&["automatic", "--reason", "CHG-7: it does not come back"]).await.expect(0).out;
    assert!(allowed.starts_with("Chain `default` is switched automatically."), "{allowed}");
    for gateway in &gateways {
        comes_to(gateway, "b", SOON).await;
    }
    granted(two).await;
}

#[tokio::test]
async fn a_hold_that_is_not_possible_is_refused_with_advice() {
    let gateway = operated("memory:").start().await;
    let alice = alice(&gateway);
    let set = async |chain: &str, body: Value| alice.post(&format!("/admin/v1/chains/{chain}/failover"), &body).await;
    for (body, advice) in [
        (json!({ "action": "hold", "reason": "r" }), "`for`: a hold takes from 1s to 7d"),
        (json!({ "action": "hold", "for": "8d", "reason": "r" }), "send the action `manual`"),
        (json!({ "action": "hold", "for": "soon", "reason": "r" }), "`for`"),
        (json!({ "action": "manual", "for": "1h", "reason": "r" }), "only the action `hold` has a time"),
        (json!({ "action": "auto", "reason": "r" }), "expected `hold` or `manual` or `automatic`"),
        (json!({ "action": "automatic" }), "reason"),
        (json!({ "action": "manual", "reason": "r" }), "gateways never switch this chain"),
    ] {
        let refused = set("default", body.clone()).await;
        assert_eq!(refused.code(), (400, "invalid_request"), "{body}");
        assert!(refused.text.contains(advice), "{body}: {}", refused.text);
    }
    let unknown = set("other", json!({ "action": "manual", "reason": "r" })).await;
    assert_eq!(unknown.code(), (404, "not_found"));
    assert!(unknown.text.contains("there are: default"), "{}", unknown.text);
}
