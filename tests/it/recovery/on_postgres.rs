//! PostgreSQL that is frozen, killed, read-only, locked or cut off.

use oncegate_testkit::postgres_server::PostgresServer;
use oncegate_testkit::tcp_proxy::{Mode, TcpProxy};
use serde_json::json;

use super::outage;
use crate::support::gateway;

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_database_that_is_frozen_comes_back() {
    let Some(server) = PostgresServer::start().await else { return };
    let gateway = gateway::on(server.url()).start().await;
    outage(&gateway, "frozen", async || server.freeze(), async || server.thaw()).await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_database_that_was_killed_comes_back_with_what_it_had() {
    let Some(mut server) = PostgresServer::start().await else { return };
    let gateway = gateway::on(server.url()).start().await;
    let held = gateway.client().granted(&json!({ "contents": "held", "lease": "10m" })).await;
    let server = tokio::sync::Mutex::new(&mut server);
    outage(&gateway, "killed", async || server.lock().await.kill(), async || server.lock().await.restart().await).await;
    assert_eq!(gateway.client().claim(json!("held")).await.code(), (409, "duplicate"));
    gateway.client().settle(&held, "success").await.expect(200);
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn service_returns_after_a_read_only_database_and_after_refused_logins() {
    let Some(server) = PostgresServer::start().await else { return };
    server.execute("CREATE ROLE gateway LOGIN; GRANT ALL ON SCHEMA public TO gateway").await;
    let gateway = gateway::on(server.url().replace("postgres@", "gateway@")).start().await;
    let end = "SELECT pg_terminate_backend(pid) FROM pg_stat_activity WHERE usename = 'gateway'";
    for (what, out, back) in [
        ("read-only", "ALTER ROLE gateway SET default_transaction_read_only = on", "ALTER ROLE gateway RESET ALL"),
        ("revoked", "ALTER ROLE gateway NOLOGIN", "ALTER ROLE gateway LOGIN"),
    ] {
        let out = async || {
            server.execute(out).await;
            server.execute(end).await;
        };
        outage(&gateway, what, out, async || server.execute(back).await).await;
    }
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_network_to_a_database_that_refuses_swallows_or_holds_back_comes_back() {
    let Some(server) = PostgresServer::start().await else { return };
    let proxy = TcpProxy::start_any(server.address()).await;
    let url = format!("postgres://postgres@{}/postgres?sslmode=disable", proxy.address());
    let gateway = gateway::on(url).start().await;
    let proxy = tokio::sync::Mutex::new(proxy);
    let heal = async || proxy.lock().await.heal().await;
    outage(&gateway, "refused", async || proxy.lock().await.refuse().await, heal).await;
    for mode in [Mode::Blackhole, Mode::HalfOpen] {
        outage(&gateway, &format!("{mode:?}"), async || proxy.lock().await.set(mode), heal).await;
    }
}
