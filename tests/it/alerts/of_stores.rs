//! Alerts on faults of stores, and on entries that gateways have not delivered yet. Each alert fires on affected
//! gateways.

use oncegate_core::hex;
#[cfg(feature = "etcd")]
use oncegate_testkit::etcd_cluster::EtcdCluster;
use oncegate_testkit::fresh;
use oncegate_testkit::gateway::{Gateway, Setup};
use oncegate_testkit::redis_cluster::RedisCluster;
use oncegate_testkit::redis_server::RedisServer;
use oncegate_testkit::small_disk::SmallDisk;
use oncegate_testkit::tcp_proxy::TcpProxy;
use oncegate_testkit::wait::until;
use serde_json::json;
use sha2::{Digest as _, Sha256};

use super::{SOON, fast_rules, fires, is_firing, watched, watched_by, with};
use crate::support::caller::{self, caller};
#[cfg(feature = "etcd")]
use crate::support::exposition::Page;
use crate::support::gateway;

/// A gateway whose app `shop` obeys these policies.
fn degrading(engine: &str, claim: &str) -> Setup {
    let shop = caller::app("shop");
    let policy = format!("[apps.shop.on_outage]\nclaim = \"{claim}\"\noutcome = \"spool\"\n");
    gateway::on(engine).config(&format!("{shop}{policy}"))
}

/// Waits until a claim call of the shop gets this status.
async fn claims_get(gateway: &Gateway, status: u16) {
    let shop = caller(gateway, "shop");
    until("the gateway knows the state of the store", SOON, async || {
        shop.claim(fresh::contents()).await.status == status
    })
    .await;
}

#[tokio::test]
async fn a_store_that_is_full_or_not_durable_or_empty() {
    let Some(server) = RedisServer::start_with(&["appendonly yes", "appendfsync always"]).await else { return };
    let chain = "[chains.default]\nengines = [\"primary\"]\nrequires = [\"durable\"]\non_data_loss = \"freeze\"\n";
    // Grants are frozen for the longest lease, also after the first start.
    let leases = "[limits]\nlease_max = \"2s\"\n[defaults]\nlease = \"1s\"\n";
    let gateway = gateway::on(server.url()).config(&format!("{chain}{leases}")).start().await;
    let client = gateway.client();
    until("claims are granted", SOON, async || client.claim(fresh::contents()).await.status == 201).await;
    let Some(prometheus) = watched(&[&gateway]).await else { return };
    fires(&prometheus, "OncegateUnsettled", async || {
        for _ in 0..50 {
            drop(client.claim(fresh::contents()).await);
        }
    })
    .await;

    server.query::<String>("CONFIG SET appendfsync everysec");
    fires(&prometheus, "OncegateRequirementsUnmet", async || {}).await;
    server.query::<String>("CONFIG SET appendfsync always");
    until("it takes claims again", SOON, async || client.claim(fresh::contents()).await.status == 201).await;

    server.query::<String>("CONFIG SET maxmemory 1mb");
    fires(&prometheus, "OncegateStoreFull", async || drop(client.claim(fresh::contents()).await)).await;
    server.query::<String>("CONFIG SET maxmemory 0");

    fires(&prometheus, "OncegateGrantsFrozen", async || server.query("FLUSHALL")).await;
    until("OncegateDataLost", SOON, async || is_firing(&prometheus, "OncegateDataLost")).await;
}

#[tokio::test]
async fn an_outage_that_leaves_double_grants_and_late_successes() {
    let Some(server) = RedisServer::start_with(&["appendonly yes", "appendfsync always"]).await else { return };
    let mut proxy = TcpProxy::start(server.address()).await;
    let cut_off = degrading(&format!("redis://{}", proxy.address()), "fail_open").start().await;
    let other = degrading(&server.url(), "fail_open").start().await;
    let rules = with(&fast_rules(), "oncegate_spool_bytes > 33554432", "oncegate_spool_bytes > 0");
    let Some(prometheus) = watched_by(&rules, &[&cut_off, &other]).await else { return };
    let (here, there) = (caller(&cut_off, "shop"), caller(&other, "shop"));
    claims_get(&cut_off, 201).await;

    // A success of an attempt that does not hold its claim.
    let granted = here.granted(&json!({ "contents": fresh::contents(), "lease": "10m" })).await;
    let path = format!("/v1/claims/{}/outcome", granted.body["global_id"].as_str().unwrap());
    let earlier = format!("{}-0123456789abcdef", granted.body["timestamp"].as_u64().unwrap() - 1);
    let late = json!({ "attempt": earlier, "outcome": "success" });
    fires(&prometheus, "OncegateSuspectedDoubleExecution", async || {
        let answer = here.post(&path, &late).await;
        assert!(answer.code() == (409, "superseded") || answer.status == 503, "{}", answer.text);
    })
    .await;

    proxy.refuse().await;
    proxy.drop_connections();
    let contents = fresh::contents();
    until("a policy grants", SOON, async || {
        let claimed = here.claim(contents.clone()).await;
        claimed.status == 201 && claimed.body["degraded"] == "fail_open"
    })
    .await;
    there.granted(&json!({ "contents": contents })).await;
    fires(&prometheus, "OncegateSpoolFilling", async || {}).await;
    assert!(!is_firing(&prometheus, "OncegateSpoolStuck"), "an outage is not a spool that is stuck");
    proxy.heal().await;
    fires(&prometheus, "OncegateOverlap", async || {}).await;
}

#[tokio::test]
async fn a_journal_that_cannot_be_delivered() {
    let Some(server) = RedisServer::start().await else { return };
    let mut proxy = TcpProxy::start(server.address()).await;
    let gateway = degrading(&format!("redis://{}", proxy.address()), "local").start().await;
    let Some(prometheus) = watched(&[&gateway]).await else { return };
    claims_get(&gateway, 201).await;
    proxy.refuse().await;
    proxy.drop_connections();
    let shop = caller(&gateway, "shop");
    until("a policy grants", SOON, async || shop.claim(fresh::contents()).await.body["degraded"] == "local").await;
    // It is back, and takes nothing.
    server.query::<String>("CONFIG SET maxmemory 1mb");
    proxy.heal().await;
    fires(&prometheus, "OncegateSpoolStuck", async || {}).await;
}

#[tokio::test]
async fn a_journal_on_a_full_disk() {
    let Some(small) = SmallDisk::mount() else { return };
    let Some(server) = RedisServer::start().await else { return };
    let mut proxy = TcpProxy::start(server.address()).await;
    let setup = degrading(&format!("redis://{}", proxy.address()), "local");
    let gateway = setup.data_dir(small.path()).start().await;
    let Some(prometheus) = watched(&[&gateway]).await else { return };
    claims_get(&gateway, 201).await;
    proxy.refuse().await;
    proxy.drop_connections();
    small.fill();
    let shop = caller(&gateway, "shop");
    fires(&prometheus, "OncegateJournalFails", async || drop(shop.claim(fresh::contents()).await)).await;
}

#[tokio::test]
async fn a_gateway_that_does_not_follow_a_switch() {
    const TOKEN: &str = "token_of_alice_0123456789abcdef";
    let (Some(a), Some(b)) = (RedisServer::start().await, RedisServer::start().await) else { return };
    let (mut to_a, mut to_b) = (TcpProxy::start(a.address()).await, TcpProxy::start(b.address()).await);
    let setup = |a: String, b: String| {
        gateway::on_configured().config(&format!(
            "[admin.tokens]\nalice = \"sha256:{}\"\n[engines]\na = \"{a}\"\nb = \"{b}\"\n[chains.default]\nengines = [\"a\", \"b\"]\n",
            hex::encode(&Sha256::digest(TOKEN))
        ))
    };
    let one = setup(a.url(), b.url()).start().await;
    let cut_off = setup(format!("redis://{}", to_a.address()), format!("redis://{}", to_b.address())).start().await;
    let Some(prometheus) = watched(&[&one, &cut_off]).await else { return };
    for gateway in [&one, &cut_off] {
        until("claims are granted", SOON, async || gateway.client().claim(fresh::contents()).await.status == 201).await;
    }
    for way in [&mut to_a, &mut to_b] {
        way.refuse().await;
        way.drop_connections();
    }
    let order = json!({ "to": "b", "accept_loss": true, "reason": "INC-42" });
    let alice = one.admin_client().with_credential(TOKEN);
    fires(&prometheus, "OncegateChainDiffers", async || {
        drop(alice.post("/admin/v1/chains/default/switch", &order).await);
    })
    .await;
}

#[cfg(feature = "etcd")]
#[tokio::test]
async fn a_witness_that_is_out_and_a_chain_that_switches_by_itself() {
    let (Some(mut a), Some(b)) = (RedisServer::start().await, RedisServer::start().await) else { return };
    let Some(mut witness) = EtcdCluster::start_one().await else { return };
    let setup = gateway::on_configured().config(&format!(
        "[engines]\na = \"{}\"\nb = \"{}\"\nw = \"{}\"\n[chains.default]\nengines = [\"a\", \"b\"]\n\
         [chains.default.failover]\nwitness = \"w\"\nmode = \"automatic\"\nmirror = false\naccept_loss = true\nafter = \"1s\"\n",
        a.url(),
        b.url(),
        witness.url()
    ));
    let gateway = setup.start().await;
    let Some(prometheus) = watched(&[&gateway]).await else { return };
    until("claims are granted", SOON, async || gateway.client().claim(fresh::contents()).await.status == 201).await;
    let page = async || Page::get(&gateway.admin_client()).await.sum("oncegate_chain_witness_up", &[]);
    until("the witness has its record", SOON, async || page().await == 1).await;
    until("its alert is over", SOON, async || !is_firing(&prometheus, "OncegateWitnessOut")).await;
    witness.kill(0);
    fires(&prometheus, "OncegateWitnessOut", async || {}).await;
    witness.restart(0);
    until("the witness is back", SOON, async || page().await == 1).await;
    a.kill();
    fires(&prometheus, "OncegateChainSwitched", async || {}).await;
}

#[tokio::test(flavor = "multi_thread")]
async fn a_shard_that_stands_still_ends_or_lacks_replicas() {
    let Some(mut cluster) = RedisCluster::start(3, 0).await else { return };
    let asks = |more: &str| gateway::on(format!("{}{more}", cluster.url()));
    let (gateway, demanding) = (asks("").start().await, asks("?replicas=1").start().await);
    let Some(prometheus) = watched(&[&gateway, &demanding]).await else { return };
    until("OncegateShardWarning", SOON, async || is_firing(&prometheus, "OncegateShardWarning")).await;
    let client = gateway.client();
    until("claims are granted", SOON, async || client.claim(fresh::contents()).await.status == 201).await;
    cluster.nodes[0].freeze();
    fires(&prometheus, "OncegateShardBreakerOpen", async || drop(client.claim(fresh::contents()).await)).await;
    cluster.nodes[0].thaw();
    cluster.kill(1);
    until("OncegateShardDown", SOON, async || is_firing(&prometheus, "OncegateShardDown")).await;
}
