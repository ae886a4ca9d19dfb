//! The history: rates that the workload had, also over a restart.

use std::time::Duration;

use oncegate_core::clock::{Clock as _, SystemClock};
use oncegate_testkit::fresh;
use oncegate_testkit::gateway::Gateway;
use oncegate_testkit::wait::until;
use serde_json::{Value, json};

use super::commands::Terminal;
use super::{alice, operated};

/// Two points take up to 30 s on a busy machine, often more.
const SOON: Duration = Duration::from_mins(2);

async fn history(gateway: &Gateway, query: &str) -> Value {
    alice(gateway).get(&format!("/admin/v1/history{query}")).await.expect(200).body
}

/// The values of the only series of an answer, without gaps.
fn values(answer: &Value) -> Vec<f64> {
    answer["series"][0]["values"].as_array().unwrap().iter().filter_map(Value::as_f64).collect()
}

#[tokio::test]
async fn the_rates_are_those_of_the_workload_and_survive_a_restart() {
    let folder = tempfile::tempdir().unwrap();
    let setup = operated("memory:").data_dir(folder.path());
    let mut gateway = setup.start().await;
    let claim = json!({ "operation": "order.submit", "contents": fresh::contents() });
    let usual = history(&gateway, "").await;
    assert_eq!((&usual["step_ms"], usual["series"].as_array().unwrap().len()), (&json!(10_000), 8));
    // The first reading is the base of the rates.
    let is_read =
        async || history(&gateway, "").await["names"].as_array().unwrap().iter().any(|name| name == "granted");
    let mut grants = 0;
    until("the second reading", SOON, async || {
        gateway.client().claim(fresh::contents()).await.expect(201);
        grants += 1;
        is_read().await
    })
    .await;
    gateway.client().post("/v1/claims", &claim).await.expect(201);
    for _ in 0..5 {
        gateway.client().post("/v1/claims", &claim).await.expect(409);
    }
    let of_operation = "?series=default/order.submit/duplicate";
    let is_known = async || !values(&history(&gateway, of_operation).await).is_empty();
    until("the repeats are in a point", SOON, is_known).await;
    let summary = alice(&gateway).get("/admin/v1/summary").await.expect(200).body;
    assert!(summary["rates"]["duplicate"].as_f64() > Some(0.0), "{summary}");
    let latencies = ["p50_ms", "p99_ms"].map(|name| summary["latencies"][name].as_f64().expect("a time"));
    assert!(latencies[0] > 0.0 && latencies[0] <= latencies[1], "{latencies:?}");
    let printed = Terminal::at(&gateway).run(&["summary"]).expect(0).out;
    assert!(printed.contains("Claim calls") && printed.contains("p99 at most"), "{printed}");
    // A rate times its seconds is a count; an interval of a busy machine may be some seconds longer or shorter than ten.
    let duplicates: f64 = values(&history(&gateway, of_operation).await).iter().map(|rate| rate * 10.0).sum();
    assert!((2.0..=8.0).contains(&duplicates), "5 repeats: {duplicates}");
    let granted: f64 = values(&history(&gateway, "?series=granted").await).iter().map(|rate| rate * 10.0).sum();
    assert!(granted >= 1.0 && granted <= f64::from(grants + 1) * 1.6, "{grants}: {granted}");
    let p99 = values(&history(&gateway, "?series=p99").await);
    assert!(p99.iter().all(|value| *value > 0.0 && *value <= 5.0), "{p99:?}");
    let printed = Terminal::at(&gateway).run(&["history", "--series", "granted,p99"]).expect(0).out;
    assert!(printed.contains("per_second") && printed.contains("a point for each 10 s."), "{printed}");
    let names = Terminal::at(&gateway).run(&["history", "--names"]).expect(0).out;
    assert!(names.contains("default/order.submit/duplicate\n"), "{names}");
    gateway.signal("TERM");
    assert!(gateway.ended().await.success(), "{}", gateway.log());
    assert!(folder.path().join("history").is_file(), "{}", gateway.log());
    let again = setup.start().await;
    let kept = values(&history(&again, of_operation).await);
    assert!(!kept.is_empty(), "a restart is a gap");
}

#[tokio::test]
async fn wrong_times_and_names_are_refused_and_longer_times_have_longer_points() {
    let gateway = operated("memory:").start().await;
    let many = vec!["granted"; 17].join(",");
    for wrong in [
        "?from=now",
        "?from=2026-10-20T09:00:00Z&to=2026-10-20T08:00:00Z",
        "?from=2999-01-01T00:00:00Z",
        "?series=",
        "?series=a,,b",
        "?series=a%20b",
        &format!("?series={many}"),
        "?step=1",
    ] {
        assert_eq!(alice(&gateway).get(&format!("/admin/v1/history{wrong}")).await.status, 400, "{wrong}");
    }
    let ago = |seconds: u64| {
        let at = SystemClock::new().wall().as_micros() / 1_000_000 - seconds;
        jiff::Timestamp::from_second(at.try_into().unwrap()).unwrap().to_string()
    };
    for (seconds, step) in [(600, 10_000), (7200, 60_000), (200_000, 900_000), (9_000_000, 900_000)] {
        let answer = history(&gateway, &format!("?series=granted&from={}", ago(seconds))).await;
        assert_eq!(answer["step_ms"], step, "{seconds}");
        assert!(answer["series"][0]["values"].as_array().unwrap().len() <= 1441);
    }
}
