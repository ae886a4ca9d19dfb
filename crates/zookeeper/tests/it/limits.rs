//! Limits that operators of ZooKeeper have set: each is named in the reason of a call that fails for it.

use oncegate_core::claim::OutcomeResponse;
use oncegate_core::engine::conformance::{DEADLINE, fresh_claim};
use oncegate_core::engine::{Claims as _, Determinate, EngineError};

use super::{Cluster, granted, nodes, open, serves_again, settle, soon, success};

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_quota_that_is_used_up_is_a_full_store_and_outcomes_go_on() {
    let Some(cluster) = Cluster::start_with(1, &["enforceQuota=true"]).await else { return };
    let engine = open(&cluster.url());
    let held = fresh_claim();
    granted(&engine, &held).await;
    let mut nodes = nodes(&cluster);
    for (node, value) in [
        ("", ""),
        ("/zookeeper_limits", "count=-1,bytes=-1=;byteHardLimit=-1;countHardLimit=3"),
        ("/zookeeper_stats", "count=20,bytes=2000"),
    ] {
        nodes.create(&format!("/zookeeper/quota/oncegate{node}"), value.as_bytes(), false);
    }
    soon("the quota is used up", async || {
        let answer = engine.claim(&fresh_claim(), DEADLINE).await;
        matches!(answer, Err(EngineError::Determinate(Determinate::Full(why))) if why.contains("setquota"))
    })
    .await;
    let settled = engine.settle(&settle(&held, success("done")), DEADLINE).await;
    assert!(matches!(settled, Ok(OutcomeResponse::Done { .. })), "{settled:?}");
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_request_that_is_larger_than_the_buffer_of_the_server_is_named_as_the_reason() {
    let Some(mut cluster) = Cluster::start_one().await else { return };
    cluster.restart_with(0, &[("JAVA_TOOL_OPTIONS", "-Djute.maxbuffer=20000")]);
    assert!(cluster.is_ready().await);
    let engine = open(&cluster.url());
    serves_again(&engine).await;
    let held = fresh_claim();
    granted(&engine, &held).await;
    let large = settle(&held, success(&format!("\"{}\"", "x".repeat(60_000))));
    let failed = engine.settle(&large, DEADLINE).await.unwrap_err();
    assert!(failed.is_uncertain(), "{failed:?}");
    assert!(failed.reason().contains("jute.maxbuffer"), "{failed:?}");
    serves_again(&engine).await;
    granted(&engine, &fresh_claim()).await;
}
