//! A cluster whose quota is used up: it raises the alarm `NOSPACE`.

use oncegate_core::claim::OutcomeResponse;
use oncegate_core::engine::conformance::{DEADLINE, fresh_claim};
use oncegate_core::engine::{Claims as _, Determinate, EngineError};
use oncegate_testkit::output::print;

use super::{Cluster, again, granted, is_duplicate, open, serves_again, settle, soon, success};

/// Writes of the engine are nested transactions. Older releases take them beyond the quota, newer ones refuse them.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn grants_end_when_etcd_raises_its_alarm_and_outcomes_are_recorded_or_certainly_refused() {
    let Some(cluster) = Cluster::start_with(1, &["--quota-backend-bytes=4194304"]).await else { return };
    let engine = open(&cluster.url());
    let held = fresh_claim();
    granted(&engine, &held).await;
    let value = "x".repeat(100_000);
    let refused = (0..1000).find(|number| cluster.try_ctl(&["put", &format!("junk{number}"), &value]).is_none());
    assert!(refused.is_some(), "other programs are refused");
    soon("grants end", async || {
        let answer = engine.claim(&fresh_claim(), DEADLINE).await;
        matches!(answer, Err(EngineError::Determinate(Determinate::Full(why))) if why.contains("alarm"))
    })
    .await;
    let settled = engine.settle(&settle(&held, success("done")), DEADLINE).await;
    let is_refused = matches!(settled, Err(EngineError::Determinate(Determinate::Full(_))));
    assert!(is_refused || matches!(settled, Ok(OutcomeResponse::Done { .. })), "{settled:?}");
    print(format_args!("an outcome beyond the quota is {}", if is_refused { "refused" } else { "recorded" }));
    assert!(is_duplicate(&open(&cluster.url()), &again(&held)).await, "a gateway that starts now reads all the same");
    cluster.ctl(&["del", "--prefix", "junk"]);
    cluster.ctl(&["compact", &cluster.revision().to_string(), "--physical"]);
    cluster.ctl(&["defrag"]);
    cluster.ctl(&["alarm", "disarm"]);
    serves_again(&engine).await;
    let settled = engine.settle(&settle(&held, success("done")), DEADLINE).await;
    assert!(matches!(settled, Ok(OutcomeResponse::Done { .. })), "{settled:?}");
}
