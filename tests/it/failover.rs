//! Automatic switches of chains: three gateways, two stores and a witness, all real processes.

mod hold;
mod one_server;

use std::time::Duration;

use oncegate_testkit::client::Answer;
use oncegate_testkit::etcd_cluster::EtcdCluster;
use oncegate_testkit::fresh;
use oncegate_testkit::gateway::{Gateway, Setup};
#[cfg(feature = "postgres")]
use oncegate_testkit::postgres_server::PostgresServer;
use oncegate_testkit::redis_server::RedisServer;
use oncegate_testkit::tcp_proxy::TcpProxy;
use oncegate_testkit::wait::until;
#[cfg(feature = "zookeeper")]
use oncegate_testkit::zookeeper_cluster::ZooKeeperCluster;
use serde_json::{Value, json};

use crate::admin::{TOKEN, alice, operators};
use crate::support::chain::{chain, comes_to, granted_within, switch};
use crate::support::command::oncegate_with;
use crate::support::exposition::Page;
use crate::support::gateway;

/// Upper bound for everything that gateways do without an order, on a busy machine.
pub(crate) const SOON: Duration = Duration::from_mins(1);

/// Longest lease, and so the length of the freeze.
const LEASE: Duration = Duration::from_secs(3);

/// A gateway with the chain `a`, `b` and the witness `w`, which switches after a second.
fn watching(a: &str, b: &str, w: &str) -> Setup {
    watching_with("[chains.default]\n", a, b, w)
}

/// The same, with another beginning of the chain's table.
fn watching_with(table: &str, a: &str, b: &str, w: &str) -> Setup {
    gateway::on_configured().config(&format!(
        "{}{}[defaults]\nlease = \"{}s\"\n",
        operators(),
        chain_of(table, a, b, w),
        LEASE.as_secs()
    ))
}

/// The tables of the engines and the chain.
pub(crate) fn chain_of(table: &str, a: &str, b: &str, w: &str) -> String {
    format!(
        "[engines]\na = {a:?}\nb = {b:?}\nw = {w:?}\n\
         {table}engines = [\"a\", \"b\"]\n[chains.default.failover]\nwitness = \"w\"\nmode = \"automatic\"\n\
         mirror = false\naccept_loss = true\nafter = \"1s\"\n"
    )
}

async fn granted(gateway: &Gateway) -> Answer {
    granted_within(gateway, SOON).await
}

/// Waits until all gateways grant claims and know one another.
async fn know_one_another(gateways: &[&Gateway]) {
    for gateway in gateways {
        until("claims are granted", SOON, async || gateway.client().claim(fresh::contents()).await.status == 201).await;
    }
    for gateway in gateways {
        until("it knows the others", SOON, async || {
            let failover = chain(gateway).await["failover"].clone();
            failover["views"].as_array().unwrap().len() == gateways.len() && failover["next_switch"] == "possible"
        })
        .await;
    }
}

async fn automatic_switches(gateways: &[&Gateway]) -> Vec<Value> {
    let mut found = Vec::new();
    for gateway in gateways {
        let trail = alice(gateway).get("/admin/v1/audit?who=automatic").await.expect(200);
        found.extend(
            trail.body["entries"].as_array().unwrap().iter().filter(|entry| entry["result"] == "switched").cloned(),
        );
    }
    found
}

/// A store that can die and come back.
trait Store {
    fn kill(&mut self);
    async fn restart(&mut self);
}

impl Store for RedisServer {
    fn kill(&mut self) {
        Self::kill(self);
    }

    async fn restart(&mut self) {
        Self::restart(self).await;
    }
}

#[cfg(feature = "postgres")]
impl Store for PostgresServer {
    fn kill(&mut self) {
        Self::kill(self);
    }

    async fn restart(&mut self) {
        Self::restart(self).await;
    }
}

/// A store dies: all gateways move once, grants wait for the longest lease, and only an operator goes back.
async fn moves_all_once(setup: &Setup, a: &mut impl Store) {
    let gateways = [setup.start().await, setup.start().await, setup.start().await];
    let [one, two, three] = [&gateways[0], &gateways[1], &gateways[2]];
    know_one_another(&[one, two, three]).await;
    let old = granted(one).await;
    a.kill();
    // For some seconds only, so it comes before all else.
    let frozen = until_frozen(two).await;
    for gateway in [one, two, three] {
        comes_to(gateway, "b", SOON).await;
    }
    assert!(frozen.text.contains("chain `default` was switched automatically"), "{}", frozen.text);
    let contents = fresh::contents();
    until("claims are granted on the new store", SOON, async || {
        two.client().claim(contents.clone()).await.status == 201
    })
    .await;
    for gateway in [one, three] {
        until("the new store is asked", SOON, async || gateway.client().claim(contents.clone()).await.status == 409)
            .await;
    }
    assert_eq!(
        one.client().settle(&old, "success").await.expect(200).body["late"],
        true,
        "what is lost is reported as late"
    );
    let switches = automatic_switches(&[one, two, three]).await;
    assert_eq!(switches.len(), 1, "{switches:?}");
    assert_eq!((&switches[0]["action"], &switches[0]["via"]), (&json!("chain.switch"), &json!("gateway")));
    assert_eq!(switches[0]["detail"], "chain: default, from: a, to: b, epoch: 1, automatic");
    let last = chain(three).await["failover"]["last_switch"].clone();
    assert_eq!((&last["from"], &last["to"], &last["cause"]), (&json!("a"), &json!("b"), &json!("automatic")));
    assert_eq!(last["reason"], switches[0]["reason"]);
    let mut counted = 0;
    for gateway in [one, two, three] {
        let page = Page::get(&gateway.admin_client()).await;
        counted += page.sum("oncegate_chain_switches_total", &[("to", "b"), ("cause", "automatic")]);
        assert_eq!((page.sum("oncegate_chain_epoch", &[]), page.sum("oncegate_chain_witness_up", &[])), (1, 1));
    }
    assert_eq!(counted, 1);
    shown_by_the_command(three).await;

    a.restart().await;
    until("the old store is seen again", SOON, async || chain(one).await["health"][0]["up"] == true).await;
    let refusal = |failover: Value| failover["next_switch"].as_str().unwrap().contains("only an operator returns");
    for gateway in [one, two, three] {
        until("it stays", SOON, async || refusal(chain(gateway).await["failover"].clone())).await;
        assert_eq!(chain(gateway).await["active"], "b");
    }
    // Each gateway connects to the old store separately.
    let mut back = None;
    until("an operator goes back", SOON, async || {
        let answer = switch(two, "a").await;
        let is_done = answer.status == 200;
        back = Some(answer);
        is_done
    })
    .await;
    assert_eq!(back.unwrap().body["epoch"], 2);
    for gateway in [one, two, three] {
        comes_to(gateway, "a", SOON).await;
        assert_eq!(chain(gateway).await["failover"]["last_switch"]["cause"], "operator");
    }
    granted(three).await;
}

async fn until_frozen(gateway: &Gateway) -> Answer {
    let mut frozen = None;
    until("grants are frozen, or were", SOON, async || {
        let claimed = gateway.client().claim(fresh::contents()).await;
        let is_frozen = claimed.code() == (503, "store_unavailable") && claimed.text.contains("automatically");
        frozen = Some(claimed);
        is_frozen
    })
    .await;
    frozen.unwrap()
}

async fn shown_by_the_command(gateway: &Gateway) {
    let admin = format!("http://{}", gateway.admin());
    let run = tokio::task::spawn_blocking(move || {
        let folder = tempfile::tempdir().unwrap();
        let words = ["chain", "show", "default", "--admin", &admin];
        oncegate_with(folder.path(), &words, &[("ONCEGATE_ADMIN_TOKEN", TOKEN)])
    });
    let ended = run.await.unwrap();
    assert_eq!(ended.code, Some(0), "{}", ended.err);
    for part in ["Witness", "w (up)", "automatic, from a to b", "`a` is out for", "Next switch"] {
        assert!(ended.out.contains(part), "{part}: {}", ended.out);
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn a_redis_that_dies_moves_all_gateways_once_by_the_witness_etcd() {
    let (Some(mut a), Some(b)) = (RedisServer::start().await, RedisServer::start().await) else { return };
    let Some(witness) = EtcdCluster::start_one().await else { return };
    let setup = watching(&a.url(), &b.url(), &witness.url());
    moves_all_once(&setup, &mut a).await;
}

#[cfg(feature = "postgres")]
#[tokio::test(flavor = "multi_thread")]
async fn a_postgres_that_dies_moves_all_gateways_once_by_the_witness_postgres() {
    let (Some(mut a), Some(b)) = (PostgresServer::start().await, EtcdCluster::start_one().await) else { return };
    let Some(witness) = PostgresServer::start().await else { return };
    let setup = watching(&a.database("chain").await, &b.url(), &witness.database("witness").await);
    moves_all_once(&setup, &mut a).await;
}

#[cfg(feature = "zookeeper")]
#[tokio::test(flavor = "multi_thread")]
async fn a_redis_that_dies_moves_all_gateways_once_by_the_witness_zookeeper() {
    let (Some(mut a), Some(b)) = (RedisServer::start().await, RedisServer::start().await) else { return };
    let Some(witness) = ZooKeeperCluster::start_one().await else { return };
    let setup = watching(&a.url(), &b.url(), &witness.patient_url());
    moves_all_once(&setup, &mut a).await;
}

/// A switch that it acknowledged could be lost with its machine, and another gateway could then make another one.
#[cfg(feature = "postgres")]
#[tokio::test(flavor = "multi_thread")]
async fn a_witness_that_may_lose_what_it_acknowledged_counts_as_out() {
    let (Some(a), Some(b)) = (RedisServer::start().await, RedisServer::start().await) else { return };
    let Some(witness) = PostgresServer::start_with(&["fsync = off"]).await else { return };
    let setup = watching(&a.url(), &b.url(), &witness.url());
    let gateway = setup.start().await;
    until("it says so", SOON, async || {
        let failover = chain(&gateway).await["failover"].clone();
        let next = failover["next_switch"].as_str().unwrap().to_owned();
        failover["witness"]["up"] == false && next.contains("`w` is not `durable`")
    })
    .await;
    // Both engines answer.
    granted(&gateway).await;
    let refused = switch(&gateway, "b").await;
    assert_eq!(refused.code(), (503, "store_unavailable"), "{}", refused.text);
    assert_eq!(chain(&gateway).await["epoch"], 0);
}

/// Three gateways; two of them reach the store through a proxy that can be cut.
#[tokio::test(flavor = "multi_thread")]
async fn one_gateway_that_is_cut_off_moves_nobody_and_two_of_three_move_all() {
    let (Some(a), Some(b)) = (RedisServer::start().await, RedisServer::start().await) else { return };
    let Some(witness) = EtcdCluster::start_one().await else { return };
    let mut ways = [TcpProxy::start(a.address()).await, TcpProxy::start(a.address()).await];
    let [through, other] = [0, 1].map(|at: usize| format!("redis://{}", ways[at].address()));
    let start = async |url: &str| watching(url, &b.url(), &witness.url()).start().await;
    let (one, two, three) = (start(&through).await, start(&other).await, start(&a.url()).await);
    know_one_another(&[&one, &two, &three]).await;
    ways[0].refuse().await;
    ways[0].drop_connections();
    let alone = |failover: &Value| failover["next_switch"].as_str().unwrap().starts_with("only 1 of 3 gateways");
    until("it sees the store out", SOON, async || alone(&chain(&one).await["failover"])).await;
    one.logged("The active engine is out, and the chain is not switched automatically", 1).await;
    for _ in 0..10 {
        let shown = chain(&one).await;
        assert_eq!((&shown["active"], &shown["epoch"]), (&json!("a"), &json!(0)));
        for gateway in [&two, &three] {
            granted(gateway).await;
        }
        tokio::time::sleep(Duration::from_millis(300)).await;
    }
    assert_eq!(automatic_switches(&[&one, &two, &three]).await, Vec::<Value>::new());
    ways[1].refuse().await;
    ways[1].drop_connections();
    for gateway in [&one, &two, &three] {
        comes_to(gateway, "b", SOON).await;
    }
    granted(&three).await;
    assert_eq!(automatic_switches(&[&one, &two, &three]).await.len(), 1);
}

#[tokio::test(flavor = "multi_thread")]
async fn while_the_witness_is_out_nobody_moves_and_everybody_says_so() {
    let (Some(mut a), Some(b)) = (RedisServer::start().await, RedisServer::start().await) else { return };
    let Some(mut witness) = EtcdCluster::start_one().await else { return };
    let setup = watching(&a.url(), &b.url(), &witness.url());
    let (one, two) = (setup.start().await, setup.start().await);
    know_one_another(&[&one, &two]).await;
    witness.kill(0);
    for gateway in [&one, &two] {
        until("it says so", SOON, async || {
            let failover = chain(gateway).await["failover"].clone();
            let next = failover["next_switch"].as_str().unwrap().to_owned();
            failover["witness"]["up"] == false && next.starts_with("the witness is out: ")
        })
        .await;
        gateway.logged("The witness is out: the chain is not switched automatically", 1).await;
        let summary = alice(gateway).get("/admin/v1/summary").await.expect(200);
        let found = summary.body["attention"].as_array().unwrap().iter().find(|found| found["kind"] == "witness_down");
        assert_eq!(found.expect(&summary.text)["subject"], "default");
        granted(gateway).await;
    }
    a.kill();
    until("the store is out", SOON, async || chain(&one).await["health"][0]["up"] == false).await;
    // Longer than `after`.
    for _ in 0..10 {
        assert_eq!(two.client().claim(fresh::contents()).await.status, 503);
        assert_eq!(chain(&two).await["epoch"], 0);
        tokio::time::sleep(Duration::from_millis(300)).await;
    }
    let refused = switch(&one, "b").await;
    assert_eq!(refused.code(), (503, "store_unavailable"));
    assert!(refused.text.contains("the witness `w` does not answer"), "{}", refused.text);
    witness.restart(0);
    for gateway in [&one, &two] {
        comes_to(gateway, "b", SOON).await;
    }
    granted(&two).await;
}

/// The spare answers all along. It would grant nothing.
#[tokio::test(flavor = "multi_thread")]
async fn gateways_move_to_a_store_only_once_it_has_what_the_chain_requires() {
    let durable = ["appendonly yes", "appendfsync always"];
    let Some(mut a) = RedisServer::start_with(&durable).await else { return };
    let Some(b) = RedisServer::start_with(&["appendonly yes", "appendfsync everysec"]).await else { return };
    let Some(witness) = EtcdCluster::start_one().await else { return };
    let requires = "[chains.default]\nrequires = [\"durable\"]\n";
    let setup = watching_with(requires, &a.url(), &b.url(), &witness.url());
    let gateway = setup.start().await;
    granted(&gateway).await;
    let next = async |part: &str| {
        until(part, SOON, async || chain(&gateway).await["failover"]["next_switch"].as_str().unwrap().contains(part))
            .await;
    };
    next("the other engine would grant nothing: chain `default` requires `durable`").await;
    gateway.logged("The chain would not be switched automatically", 1).await;
    a.kill();
    until("the store is out", SOON, async || chain(&gateway).await["health"][0]["up"] == false).await;
    // Longer than `after`.
    for _ in 0..10 {
        assert_eq!(chain(&gateway).await["epoch"], 0);
        tokio::time::sleep(Duration::from_millis(300)).await;
    }
    next("the other engine would grant nothing: chain `default` requires `durable`").await;
    b.query::<String>("CONFIG SET appendfsync always");
    comes_to(&gateway, "b", SOON).await;
    granted(&gateway).await;
}

#[tokio::test]
async fn a_caller_cannot_ask_a_chain_that_forgets_to_remember() {
    let (Some(a), Some(b)) = (RedisServer::start().await, RedisServer::start().await) else { return };
    let Some(witness) = EtcdCluster::start_one().await else { return };
    let cautious = |contents: Value| json!({ "contents": contents, "on_lease_end": "unknown" });
    let gateway = watching(&a.url(), &b.url(), &witness.url()).start().await;
    granted(&gateway).await;
    let refused = gateway.client().post("/v1/claims", &cautious(fresh::contents())).await;
    assert_eq!(refused.code(), (400, "invalid_request"));
    assert!(refused.text.contains("accept_loss = true"), "{}", refused.text);
    let accepting = watching(&a.url(), &b.url(), &witness.url()).config("accept_loss = true\n").start().await;
    granted(&accepting).await;
    accepting.client().post("/v1/claims", &cautious(fresh::contents())).await.expect(201);
}
