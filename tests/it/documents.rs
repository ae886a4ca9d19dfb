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

#[test]
fn each_problem_code_has_a_page() {
    let table = include_str!("../../crates/web/src/problem.rs").split("\ncodes! {").nth(1).expect("the table of codes");
    let table = table.split("\n}").next().expect("its end");
    let codes: Vec<&str> = table.lines().filter_map(|line| line.split_once(" = \"")?.1.split('"').next()).collect();
    assert!(codes.len() > 40, "{codes:?}");
    let index = include_str!("../../docs/reference/problems/README.md");
    for code in codes {
        assert!(index.contains(&format!("[`{code}`]({code}.md)")), "docs/reference/problems/README.md has no {code}");
    }
}
