//! The Grafana dashboard in `deploy/grafana`: each of its queries returns data from a Prometheus that scraped real gateways
//! under load, through an outage and after it.

use std::path::Path;
use std::time::Duration;

use oncegate_testkit::client::Client;
use oncegate_testkit::fresh;
use oncegate_testkit::gateway::{Gateway, Setup};
use oncegate_testkit::redis_server::RedisServer;
use oncegate_testkit::tcp_proxy::TcpProxy;
use oncegate_testkit::wait::until;
use serde_json::{Value, json};

use crate::support::caller::{self, caller};
use crate::support::gateway;
use crate::support::prometheus::Prometheus;

const DASHBOARD: &str = include_str!("../../deploy/grafana/oncegate.json");

/// Metrics of what this test does not make happen: a query for one of them may be empty.
const WITHOUT_DATA: [&str; 2] = ["oncegate_journal_errors_total", "oncegate_log_lines_dropped_total"];

/// Range of the queries in seconds: the whole test, also on a busy machine.
const WINDOW: f64 = 600.0;

fn config() -> String {
    let shop = "[apps.shop.operations.\"order.submit\"]\n[apps.shop.operations.\"coupon.redeem\"]\n";
    let lenient = "[apps.mails.on_outage]\nclaim = \"fail_open\"\noutcome = \"spool\"\n";
    [
        "[chains.default]\nengines = [\"primary\"]\non_data_loss = \"freeze\"\n[limits]\nlease_max = \"6s\"\n",
        "[defaults]\nlease = \"3s\"\n",
        &caller::app("shop"),
        shop,
        &caller::app("mails"),
        lenient,
        &caller::app("watched"),
        "mode = \"observe\"\n",
        &caller::app("nightly"),
        "[apps.nightly.quota]\nrequests_per_second = 1\n",
    ]
    .concat()
}

fn setup(redis: &str) -> Setup {
    let setup = gateway::on_configured().config(&format!("[engines]\nprimary = \"{redis}\"\n{}", config()));
    // The usual second may be too short on a busy machine.
    setup.env("ONCEGATE_DEFAULTS__DEADLINE", "5s")
}

/// The queries of the dashboard, each with the title of its panel and the variables filled in.
fn queries() -> Vec<(String, String)> {
    let dashboard: Value = serde_json::from_str(DASHBOARD).expect("JSON");
    let mut queries = Vec::new();
    for panel in dashboard["panels"].as_array().expect("panels") {
        for target in panel["targets"].as_array().into_iter().flatten() {
            let expression = target["expr"].as_str().expect("a query");
            let filled =
                ["$instance", "$app"].iter().fold(expression.to_owned(), |text, name| text.replace(name, ".*"));
            let filled = filled.replace("$__rate_interval", &format!("{WINDOW}s"));
            assert!(!filled.contains('$'), "an unknown variable: {expression}");
            queries.push((panel["title"].as_str().expect("a title").to_owned(), filled));
        }
    }
    assert!(queries.len() > 30, "the dashboard has queries");
    queries
}

#[tokio::test]
async fn every_query_of_the_dashboard_returns_data() {
    let Some(server) = RedisServer::start_with(&["appendonly yes", "appendfsync always"]).await else { return };
    let mut proxy = TcpProxy::start(server.address()).await;
    let cut_off = setup(&format!("redis://{}", proxy.address())).start().await;
    let other = setup(&server.url()).start().await;
    let Some(prometheus) = Prometheus::start(&[cut_off.admin(), other.admin()]).await else { return };
    until("all gateways are scraped", Duration::from_secs(10), async || {
        prometheus.query("oncegate_build_info").is_ok_and(|series| series.len() == 2)
    })
    .await;
    until("grants are given", Duration::from_secs(10), async || {
        caller(&cut_off, "shop").claim(fresh::contents()).await.status == 201
    })
    .await;
    scraped(&prometheus, &cut_off).await;

    // An ordinary minute, in short.
    for gateway in [&cut_off, &other] {
        for _ in 0..20 {
            ordinary(gateway).await;
        }
    }
    // A counter begins with its first event, which a rate does not see: so twice.
    for _ in 0..2 {
        report_too_late(&other).await;
        scraped(&prometheus, &other).await;
    }

    // The store is out for one gateway, which answers by its policies; the other one grants the same.
    scraped(&prometheus, &cut_off).await;
    let mails = caller(&cut_off, "mails");
    let before = mails.claim(fresh::contents()).await.expect(201);
    proxy.refuse().await;
    proxy.drop_connections();
    let shop = caller(&cut_off, "shop");
    until("the store is missed", Duration::from_secs(10), async || {
        shop.claim(fresh::contents()).await.code() == (503, "store_unavailable")
    })
    .await;
    for _ in 0..5 {
        let contents = fresh::contents();
        mails.claim(contents.clone()).await.expect(201);
        let mails = caller(&other, "mails");
        let granted = mails.claim(contents).await.expect(201);
        // A claim in progress ends after three seconds, and a later delivery cannot find it.
        mails.settle(&granted, "success").await.expect(200);
    }
    mails.settle(&before, "success").await.expect(202);
    scraped(&prometheus, &cut_off).await;
    proxy.heal().await;
    until("overlaps are counted", Duration::from_secs(15), async || {
        prometheus.query("sum(oncegate_overlaps_total) > 0").is_ok_and(|found| !found.is_empty())
    })
    .await;
    for _ in 0..10 {
        ordinary(&other).await;
    }
    // A store that lost its data: counted, and nothing is granted for a while.
    server.query::<()>("FLUSHALL");
    until("the loss is counted", Duration::from_secs(15), async || {
        prometheus.query("sum(oncegate_engine_data_lost_total) > 0").is_ok_and(|found| !found.is_empty())
    })
    .await;

    let mut empty = Vec::new();
    for (panel, query) in queries() {
        let found = prometheus.query(&query).unwrap_or_else(|why| panic!("{panel}: {query}: {why}"));
        let has_data = found.iter().any(|series| series["value"][1].as_str().is_some_and(|value| value != "NaN"));
        if !has_data && !WITHOUT_DATA.iter().any(|metric| query.contains(metric)) {
            empty.push(format!("{panel}: {query}: {found:?}"));
        }
    }
    assert!(empty.is_empty(), "queries without data:\n{}", empty.join("\n"));
    keep_for_the_docs(&prometheus);
}

/// A claim with this contents, of an operation that has a label.
fn order(contents: &Value) -> Value {
    json!({"operation": "order.submit", "contents": contents})
}

/// A little of everything that happens while all is well.
async fn ordinary(gateway: &Gateway) {
    let shop = caller(gateway, "shop");
    let contents = fresh::contents();
    let granted = shop.post("/v1/claims", &order(&contents)).await;
    shop.post("/v1/claims", &order(&contents)).await;
    shop.settle(&granted.expect(201), "success").await.expect(200);
    shop.post("/v1/claims", &order(&contents)).await.expect(409);
    let mut with_fingerprint = order(&contents);
    with_fingerprint["fingerprint"] = json!(1);
    shop.post("/v1/claims", &with_fingerprint).await.expect(422);
    let watched = caller(gateway, "watched");
    let contents = fresh::contents();
    for _ in 0..2 {
        watched.claim(contents.clone()).await.expect(201);
    }
    for _ in 0..2 {
        caller(gateway, "nightly").claim(fresh::contents()).await;
    }
    Client::new(gateway.api()).claim(json!(1)).await.expect(401);
}

/// A report after the end of its lease, when another attempt was granted the operation.
async fn report_too_late(gateway: &Gateway) {
    let shop = caller(gateway, "shop");
    let order = order(&fresh::contents());
    let first = shop.post("/v1/claims", &order).await.expect(201);
    let second = async || shop.post("/v1/claims", &order).await.status == 201;
    until("the lease ends", Duration::from_secs(10), second).await;
    shop.settle(&first, "success").await.expect(409);
}

/// Waits until a gateway has been scraped again, so that counters have a value before the next step.
async fn scraped(prometheus: &Prometheus, gateway: &Gateway) {
    let query = format!("count_over_time(oncegate_build_info{{instance=\"{}\"}}[1h])", gateway.admin());
    let scrapes = || -> Option<u32> { prometheus.query(&query).ok()?.first()?["value"][1].as_str()?.parse().ok() };
    let seen = scrapes().unwrap_or(0);
    until("it is scraped again", Duration::from_secs(10), async || scrapes().is_some_and(|now| now >= seen + 2)).await;
}

/// Writes the data of the panels to the file that `ONCEGATE_DASHBOARD_DATA` names, for `scripts/draw-dashboard`.
#[expect(clippy::disallowed_methods, reason = "only who draws the pictures of the docs names a file")]
fn keep_for_the_docs(prometheus: &Prometheus) {
    let Ok(file) = std::env::var("ONCEGATE_DASHBOARD_DATA") else { return };
    let now = last_scrape(prometheus);
    let results: Vec<Value> = queries()
        .iter()
        .map(|(_, query)| {
            let query = query.replace(&format!("[{WINDOW}s]"), "[4s]");
            json!(prometheus.query_range(&query, now, 15.0).unwrap_or_default())
        })
        .collect();
    std::fs::write(Path::new(&file), json!(results).to_string()).expect("the data is written");
}

fn last_scrape(prometheus: &Prometheus) -> f64 {
    let newest = prometheus.query("max(timestamp(oncegate_build_info))").expect("an answer");
    newest[0]["value"][1].as_str().and_then(|text| text.parse().ok()).expect("a time")
}
