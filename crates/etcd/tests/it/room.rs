//! A cluster whose quota is used up: it raises the alarm `NOSPACE`.

use oncegate_core::claim::OutcomeResponse;
use oncegate_core::engine::conformance::{DEADLINE, fresh_claim};
use oncegate_core::engine::{Claims as _, Determinate, EngineError};

use super::{Cluster, granted, open, serves_again, settle, soon, success};

/// Writes of the engine are nested transactions, which etcd takes beyond its quota.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn grants_end_when_etcd_raises_its_alarm_and_outcomes_are_recorded() {
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
    assert!(matches!(settled, Ok(OutcomeResponse::Done { .. })), "{settled:?}");
    cluster.ctl(&["del", "--prefix", "junk"]);
    cluster.ctl(&["compact", &cluster.revision().to_string(), "--physical"]);
    cluster.ctl(&["defrag"]);
    cluster.ctl(&["alarm", "disarm"]);
    serves_again(&engine).await;
}
