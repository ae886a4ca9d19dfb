//! Alerts about the host of a gateway, its files and its callers: each fires on an affected gateway.

use oncegate_testkit::certificates::Authority;
use oncegate_testkit::postgres_server::PostgresServer;
use oncegate_testkit::wait::until;
use oncegate_testkit::{fresh, missing};
use serde_json::json;
use tokio::io::{AsyncReadExt as _, AsyncWriteExt as _};
use tokio::net::TcpStream;

use super::{SOON, fast_rules, fires, is_firing, watched, watched_by, with};
use crate::proxy::{self, Caller, Upstream};
use crate::support::caller;
use crate::support::gateway;

/// The year of the end of a gateway's certificate.
const ENDED: i32 = 2020;

#[tokio::test]
async fn files_that_cannot_be_used_and_a_disk_that_fills() {
    let folder = tempfile::tempdir().unwrap();
    Authority::generate().issue_for(&["localhost"], ENDED).write(folder.path());
    let tls = format!("[server.tls]\ncertificate = \"{0}/tls.crt\"\nkey = \"{0}/tls.key\"\n", folder.path().display());
    let config = format!("{tls}{}", caller::app("shop"));
    let gateway = gateway::on_memory().config(&config).start().await;
    let rules = with(&fast_rules(), "oncegate_data_dir_free_bytes < 1073741824", "oncegate_data_dir_free_bytes < 1e18");
    let Some(prometheus) = watched_by(&rules, &[&gateway]).await else { return };
    for alert in ["OncegateCertificateEnds", "OncegateDiskFilling"] {
        until(alert, SOON, async || is_firing(&prometheus, alert)).await;
    }
    std::fs::write(folder.path().join("tls.crt"), "no certificate").unwrap();
    fires(&prometheus, "OncegateCertificateReloadFailed", async || {}).await;
    std::fs::write(gateway.config_file(), format!("{config}lease = 1\n")).unwrap();
    fires(&prometheus, "OncegateReloadFailed", async || {}).await;
}

#[tokio::test]
async fn a_log_that_nobody_reads() {
    let setup = gateway::on_memory().env("ONCEGATE_LOG__LEVEL", "trace").env("ONCEGATE_LOG__BUFFER_BYTES", 16384);
    let gateway = setup.log_unread().start().await;
    let Some(prometheus) = watched(&[&gateway]).await else { return };
    fires(&prometheus, "OncegateLogLinesDropped", async || {
        for _ in 0..100 {
            gateway.client().claim(fresh::contents()).await.expect(201);
        }
    })
    .await;
}

#[tokio::test]
async fn a_clock_that_is_set() {
    let Some(library) = missing::faketime() else { return };
    let folder = tempfile::tempdir().unwrap();
    let clock = folder.path().join("clock");
    std::fs::write(&clock, "+0").unwrap();
    let setup = gateway::on_memory().env("LD_PRELOAD", library.display()).env("FAKETIME_NO_CACHE", 1);
    let setup = setup.env("DONT_FAKE_MONOTONIC", 1).env("FAKETIME_TIMESTAMP_FILE", clock.display());
    let gateway = setup.start().await;
    let Some(prometheus) = watched(&[&gateway]).await else { return };
    fires(&prometheus, "OncegateClockStepped", async || std::fs::write(&clock, "+1h").unwrap()).await;
}

#[tokio::test]
async fn a_registry_with_settings_of_no_use_which_then_stops() {
    let Some(mut server) = PostgresServer::start().await else { return };
    let gateway = gateway::on_memory().env("ONCEGATE_REGISTRY__URL", server.url()).start().await;
    let Some(prometheus) = watched(&[&gateway]).await else { return };
    until("the gateway is ready", SOON, async || gateway.admin_client().get("/readyz").await.status == 200).await;
    server.execute("INSERT INTO oncegate_apps (app, chain) VALUES ('bad', 'nowhere')").await;
    fires(&prometheus, "OncegateAppsRefused", async || {}).await;
    server.kill();
    fires(&prometheus, "OncegateRegistryDown", async || {}).await;
}

#[tokio::test]
async fn suspects_that_nobody_checks() {
    // The list keeps this many of an app.
    const KEPT: u64 = 10_000;
    let gateway = gateway::on_memory().start().await;
    let Some(prometheus) = watched(&[&gateway]).await else { return };
    let client = gateway.client();
    let granted = client.granted(&json!({ "contents": fresh::contents(), "lease": "1h" })).await;
    let newest = granted.body["timestamp"].as_u64().unwrap();
    let late = |number: u64| {
        let attempt = format!("{}-0123456789abcdef", newest - 1 - number);
        json!({ "global_id": granted.body["global_id"], "attempt": attempt, "outcome": "success" })
    };
    let mut numbers = 0..;
    fires(&prometheus, "OncegateSuspectsDropped", async || {
        for _ in 0..KEPT / 400 {
            let items: Vec<_> = numbers.by_ref().take(100).map(late).collect();
            client.post("/v1/outcomes/batch", &json!({ "items": items })).await.expect(200);
        }
    })
    .await;
}

#[tokio::test(flavor = "multi_thread")]
async fn a_proxy_at_its_bounds_and_keys_that_are_unknown() {
    let (upstream, port) = Upstream::start().await;
    let of_upstream = format!("{}exchanges = 2\n", proxy::at(port));
    let gateway = gateway::on_memory().config(&proxy::config("", &of_upstream, "")).start().await;
    let caller = Caller::of(&gateway);
    let Some(prometheus) = watched(&[&gateway]).await else { return };
    fires(&prometheus, "OncegateUnknownProxyKeys", async || {
        drop(caller.post("/orders/broken", "k-1", "one").await);
    })
    .await;
    let slow =
        async { tokio::join!(caller.post("/orders/slow", "k-2", "one"), caller.post("/orders/slow", "k-3", "one")) };
    let bound = fires(&prometheus, "OncegateProxyBoundReached", async || {
        drop(caller.post("/orders/a", &format!("k-{}", fresh::number()), "one").await);
    });
    tokio::select! {
        () = bound => upstream.gate.add_permits(2),
        _ = slow => panic!("the upstream has answered"),
    }
}

#[tokio::test]
async fn a_gateway_that_is_overloaded() {
    let gateway = gateway::on_memory().env("ONCEGATE_LIMITS__REQUESTS_IN_FLIGHT", 2).start().await;
    let Some(prometheus) = watched(&[&gateway]).await else { return };
    let head =
        b"POST /v1/claims HTTP/1.1\r\nhost: localhost\r\ncontent-type: application/json\r\ncontent-length: 14\r\n\
        expect: 100-continue\r\n\r\n";
    fires(&prometheus, "OncegateOverloaded", async || {
        // Two requests whose bodies do not come take all places.
        let begin = async || {
            let mut stream = TcpStream::connect(gateway.api()).await.unwrap();
            stream.write_all(head).await.unwrap();
            // Being asked for its body, the request has its place.
            stream.read_exact(&mut [0; 12]).await.unwrap();
            stream
        };
        let _held = [begin().await, begin().await];
        for _ in 0..20 {
            drop(gateway.client().claim(fresh::contents()).await);
        }
    })
    .await;
}
