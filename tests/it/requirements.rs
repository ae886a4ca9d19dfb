//! Chains with requirements that their store must meet while it runs.

use std::time::Duration;

use oncegate_testkit::fresh;
use oncegate_testkit::redis_server::RedisServer;
use oncegate_testkit::wait::until;
use serde_json::json;

use crate::support::exposition::Page;
use crate::support::gateway;

/// Interval of the engine's checks of the server, and a margin.
const HEALTH: Duration = Duration::from_secs(15);

#[tokio::test]
async fn a_store_that_stops_being_durable_gets_no_claims_until_it_is_again() {
    let Some(mut server) = RedisServer::start_with(&["appendonly yes", "appendfsync always"]).await else { return };
    let setup =
        gateway::on(server.url()).config("[chains.default]\nengines = [\"primary\"]\nrequires = [\"durable\"]\n");
    let gateway = setup.patient().start().await;
    let (client, admin) = (gateway.client(), gateway.admin_client());
    let met = async || Page::get(&admin).await.sum("oncegate_chain_requirements_met", &[("chain", "default")]);
    // From the first request on, though the gateway may not have reached the server yet.
    let first = client.claim(json!("first")).await.expect(201);
    let second = client.claim(json!("second")).await.expect(201);
    assert_eq!(met().await, 1);

    server.query::<String>("CONFIG SET appendfsync everysec");
    until("it is detected without claims", HEALTH, async || met().await == 0).await;
    let refused = client.claim(json!("third")).await;
    assert_eq!(refused.code(), (503, "store_incompatible"));
    gateway.logged("chain `default` requires `durable`", 1).await;
    let batch = client.post("/v1/claims/batch", &json!({ "items": [{ "contents": 1 }] })).await.expect(200);
    assert_eq!(batch.body["items"][0]["code"], "store_incompatible");
    // Granted claims continue.
    client.renew(&first, None).await.expect(200);
    client.settle(&first, "success").await.expect(200);
    client.get(&second.path("")).await.expect(200);
    gateway.logged("Grants are refused: chain", 1).await;

    server.query::<String>("CONFIG SET appendfsync always");
    until("it takes claims again", HEALTH, async || client.claim(fresh::contents()).await.status == 201).await;
    assert_eq!(met().await, 1);
    gateway.logged("Grants are made again", 1).await;
    client.claim(json!("first")).await.expect(409);

    // An unavailable store is reported as unavailable, and as nothing else.
    server.kill();
    until("it is missed", Duration::from_secs(10), async || {
        client.claim(json!("gone")).await.code() == (503, "store_unavailable")
    })
    .await;
    assert_eq!(met().await, 1);
}

#[tokio::test]
async fn a_store_that_never_was_durable_gets_no_claim_at_all() {
    let Some(server) = RedisServer::start().await else { return };
    let setup =
        gateway::on(server.url()).config("[chains.default]\nengines = [\"primary\"]\nrequires = [\"durable\"]\n");
    let gateway = setup.patient().start().await;
    for number in 0..5 {
        assert_eq!(gateway.client().claim(json!(number)).await.code(), (503, "store_incompatible"));
    }
    let keys: Vec<String> = server.query("KEYS og:{*");
    assert!(keys.is_empty(), "{keys:?}");
}

#[tokio::test]
async fn options_that_a_url_excludes_are_refused_at_the_start() {
    let setup = gateway::on_memory().config("[chains.default]\nengines = [\"primary\"]\nrequires = [\"durable\"]\n");
    let (status, log) = setup.try_start().await.err().expect("refused");
    assert_eq!(status.code(), Some(2));
    assert!(
        log.contains("chains.default.requires: engine `primary` (memory:) keeps nothing across a restart"),
        "{log}"
    );
}
