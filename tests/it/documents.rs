//! `GET /openapi.yaml` on both listeners.

use oncegate_testkit::openapi::Spec;

use crate::support::gateway;

/// A secret and its SHA-256 in a configuration file: with it the gateway is not open.
const APPS: &str = r#"
[apps.shop]
secrets = ["sha256:0000000000000000000000000000000000000000000000000000000000000001"]
"#;

#[tokio::test]
async fn each_listener_serves_its_document_without_credentials() {
    let gateway = gateway::on_memory().config(APPS).start().await;
    let api = gateway.client().get("/openapi.yaml").await;
    let admin = gateway.admin_client().get("/openapi.yaml").await;
    assert_eq!((api.status, admin.status), (200, 200));
    assert!(api.text == Spec::load().api.text(), "another document");
    assert!(admin.text == Spec::load().admin.text(), "another document");
    let denied = gateway.client().get(&format!("/v1/claims/{}", "0".repeat(32))).await;
    assert_eq!(denied.status, 401);
}
