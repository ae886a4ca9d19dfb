//! Access to the admin API.

use std::time::Duration;

use oncegate_testkit::gateway::Gateway;
use oncegate_testkit::wait::until;
use serde_json::json;
use tokio::io::{AsyncReadExt as _, AsyncWriteExt as _};
use tokio::net::TcpStream;

use super::{TOKEN, TOKEN_OF_BOB, alice, operated, operators};
use crate::support::gateway;

const AUDIT: &str = "/admin/v1/audit";

#[tokio::test]
async fn only_a_configured_token_is_let_in() {
    let gateway = operated("memory:").start().await;
    let anybody = gateway.admin_client();
    alice(&gateway).get(AUDIT).await.expect(200);
    anybody.clone().with_credential(TOKEN_OF_BOB).get(AUDIT).await.expect(200);
    let nameless = anybody.get(AUDIT).await;
    assert_eq!(nameless.code(), (401, "unauthenticated"));
    assert_eq!(nameless.headers["www-authenticate"], "Bearer");
    for wrong in ["", "token", &TOKEN[1..], &format!("{TOKEN}x"), &format!("alice.{TOKEN}"), "alice"] {
        let refused = anybody.clone().with_credential(wrong).get(AUDIT).await;
        assert_eq!(refused.code(), (401, "unauthenticated"), "{wrong}");
        assert_eq!(refused.body["detail"], nameless.body["detail"], "the reason is not disclosed");
    }
    // Neither an app's credential nor an operator's token is worth anything on the other listener.
    for open in ["/metrics", "/livez", "/readyz"] {
        anybody.get(open).await.expect(200);
    }
    gateway.logged("Admin API calls without a valid token", 1).await;
    assert!(!gateway.log().contains(TOKEN) && !gateway.log().contains(TOKEN_OF_BOB));
}

#[tokio::test]
async fn without_tokens_the_admin_api_says_how_to_configure_one() {
    let gateway = gateway::on_memory().start().await;
    let refused = alice(&gateway).get(AUDIT).await;
    assert_eq!(refused.code(), (403, "admin_disabled"));
    assert!(refused.body["detail"].as_str().unwrap().contains("[admin.tokens]"), "{}", refused.text);
}

#[tokio::test]
async fn the_admin_api_keeps_its_own_bounds() {
    let gateway = operated("memory:").start().await;
    let alice = alice(&gateway);
    for wrong in ["limit=0", "limit=201", "limit=many", "limt=1", "limit=1&limit=2"] {
        let refused = alice.get(&format!("{AUDIT}?{wrong}")).await;
        assert_eq!(refused.code(), (400, "invalid_request"), "{wrong}");
    }
    let long = "x".repeat(20_000);
    let refused = alice.send("GET", AUDIT, &[("x-long", &long)], "").await;
    assert_eq!(refused.code(), (400, "invalid_request"));
    assert_eq!(alice.get("/admin/v1/nothing").await.code(), (404, "not_found"));
    assert_eq!(alice.send("DELETE", AUDIT, &[], "").await.code(), (405, "method_not_allowed"));
    assert_eq!(alice.get(AUDIT).await.expect(200).body, json!({ "entries": [], "next": null }));
}

/// Begins a call of the admin API, which waits for its body.
async fn unfinished(gateway: &Gateway) -> TcpStream {
    let head = format!(
        "POST /admin/v1/claims/show HTTP/1.1\r\nhost: localhost\r\nauthorization: Bearer {TOKEN}\r\n\
         content-type: application/json\r\ncontent-length: 14\r\nexpect: 100-continue\r\n\r\n"
    );
    let mut stream = TcpStream::connect(gateway.admin()).await.unwrap();
    stream.write_all(head.as_bytes()).await.unwrap();
    let mut answer = [0; 12];
    stream.read_exact(&mut answer).await.unwrap();
    assert_eq!(&answer, b"HTTP/1.1 100");
    stream
}

#[tokio::test]
async fn calls_of_the_admin_api_have_permits_and_metrics_and_health_need_none() {
    let gateway = operated("memory:").start().await;
    let alice = alice(&gateway);
    let mut calls = Vec::new();
    for _ in 0..16 {
        calls.push(unfinished(&gateway).await);
    }
    let refused = alice.get(AUDIT).await;
    assert_eq!(refused.code(), (503, "overloaded"), "{}", refused.text);
    for open in ["/metrics", "/livez", "/readyz"] {
        gateway.admin_client().get(open).await.expect(200);
    }
    drop(calls);
    until("the permits are free", Duration::from_secs(10), async || alice.get(AUDIT).await.status == 200).await;
}

#[tokio::test]
async fn a_token_that_is_taken_out_of_the_configuration_is_refused_without_a_restart() {
    let gateway = operated("memory:").start().await;
    let (alice, bob) = (alice(&gateway), gateway.admin_client().with_credential(TOKEN_OF_BOB));
    alice.get(AUDIT).await.expect(200);
    let without_alice: Vec<_> =
        operators().lines().filter(|line| !line.starts_with("alice")).map(str::to_owned).collect();
    gateway.configure(&without_alice.join("\n"));
    gateway.signal("HUP");
    let refused = async || alice.get(AUDIT).await.status == 401;
    until("alice is refused", Duration::from_secs(10), refused).await;
    bob.get(AUDIT).await.expect(200);
}
