//! Automatic switches on the page of a chain: what they depend on, and how operators hold them.

use oncegate_testkit::etcd_cluster::EtcdCluster;
use oncegate_testkit::redis_server::RedisServer;
use oncegate_testkit::wait::until;

use super::actions::{bound, newest};
use super::browser::{Browser, OWN, location};
use crate::failover::{SOON, chain_of};

#[tokio::test(flavor = "multi_thread")]
async fn automatic_switches_are_shown_held_and_allowed() {
    let (Some(a), Some(b)) = (RedisServer::start().await, RedisServer::start().await) else { return };
    let Some(witness) = EtcdCluster::start_one().await else { return };
    let gateway = crate::support::gateway::on_configured()
        .config(&super::operators(&["act", "view"]))
        .config(&chain_of("[chains.default]\n", &a.url(), &b.url(), &witness.url()))
        .start()
        .await;
    let (act, view) = (Browser::signed_in(&gateway, "act").await, Browser::signed_in(&gateway, "view").await);
    let (chain, page) = ("/console/chains/default", "/console/chains/default/failover");
    until("a switch is possible", SOON, async || {
        act.get(chain).await.expect(200).text.contains("possible, once most gateways see the active engine out")
    })
    .await;
    let shown = view.get(chain).await.expect(200).text;
    assert!(shown.contains("Witness") && !shown.contains(page), "{shown}");
    assert_eq!(view.get(page).await.status, 403);

    let ask = act.get(page).await.expect(200);
    let form = bound(&ask);
    let refused = act.post(page, &[OWN], &format!("{form}&action=hold&for=8d&reason=CHG-7")).await;
    assert_eq!(refused.status, 400, "{}", refused.text);
    assert!(refused.text.contains("from 1s to 7d"), "{}", refused.text);
    let again = act.get(page).await.expect(200);
    assert!(
        again.text.contains("value=\"8d\"") && again.text.contains("value=\"hold\" required checked"),
        "{}",
        again.text
    );
    let form = bound(&again);
    let held = act.post(page, &[OWN], &format!("{form}&action=hold&for=1d&reason=CHG-7")).await;
    assert_eq!((held.status, location(&held)), (303, "/console/chains/default?done=failover"), "{}", held.text);
    let shown = act.get(location(&held)).await.expect(200).text;
    assert!(shown.contains("Changed, for every gateway."), "{shown}");
    assert!(
        shown.contains("<code>act</code> holds automatic switches until 20") && shown.contains(": CHG-7"),
        "{shown}"
    );
    let entry = newest(&gateway, "chain.failover").await[0].clone();
    assert!(entry["detail"].as_str().unwrap().starts_with("chain: default, hold until 20"), "{entry}");

    // The first form has shown a chain without a hold.
    let late = act.post(page, &[OWN], &format!("{}&action=automatic&reason=late", bound(&ask))).await;
    assert_eq!(late.status, 409, "{}", late.text);
    let form = bound(&act.get(page).await.expect(200));
    // The browser sends the field for the time with each choice.
    let allowed = act.post(page, &[OWN], &format!("{form}&action=automatic&for=30m&reason=done")).await;
    assert_eq!(allowed.status, 303, "{}", allowed.text);
    let shown = act.get(chain).await.expect(200).text;
    assert!(shown.contains("possible, once most gateways"), "{shown}");
}
