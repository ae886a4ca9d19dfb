//! Roles of operators: each call of the admin API, by each role.

use std::fmt::Write as _;

use oncegate_core::hex;
use oncegate_testkit::client::Client;
use oncegate_testkit::gateway::Gateway;
use oncegate_testkit::openapi::Spec;
use serde_json::{Value, json};
use sha2::{Digest, Sha256};

use crate::support::gateway;

const ROLES: [&str; 3] = ["view", "read", "act"];

fn token(role: &str) -> String {
    format!("token_of_{role}_0123456789abcdef")
}

/// A gateway whose operators are named after their roles.
async fn started() -> Gateway {
    let operators = ROLES.iter().fold("[admin.tokens]\n".to_owned(), |mut lines, role| {
        let digest = hex::encode(&Sha256::digest(token(role)));
        writeln!(lines, "{role} = {{ digest = \"sha256:{digest}\", role = \"{role}\" }}").unwrap();
        lines
    });
    gateway::on_memory().config(&operators).start().await
}

fn operator(gateway: &Gateway, role: &str) -> Client {
    gateway.admin_client().with_credential(&token(role))
}

#[tokio::test]
async fn each_call_is_allowed_to_the_roles_that_its_document_names() {
    let gateway = started().await;
    let document = &Spec::load().admin;
    let mut calls = 0;
    for (method, path) in document.operations().into_iter().filter(|(_, path)| path.starts_with("/admin/v1/")) {
        let needed = document.value()["paths"][&path][method.to_lowercase()]["x-role"].as_str().expect("x-role");
        let needed = ROLES.iter().position(|role| *role == needed).expect("a role");
        let concrete = path.replace("{app}", "none").replace("{name}", "none").replace("{id}", "1");
        for (rank, role) in ROLES.iter().enumerate() {
            let answer = operator(&gateway, role).send(&method, &concrete, &[], "").await;
            let is_forbidden = answer.status == 403;
            assert_eq!(is_forbidden, rank < needed, "{role}: {method} {path}: {}", answer.text);
            if is_forbidden {
                assert_eq!(answer.body["code"], "forbidden");
                assert!(answer.body["detail"].as_str().unwrap().contains(role), "{}", answer.text);
            }
            calls += 1;
        }
        let other = if method == "GET" { "DELETE" } else { "PUT" };
        assert_eq!(operator(&gateway, "view").send(other, &concrete, &[], "").await.status, 405, "{other} {path}");
        assert_eq!(gateway.admin_client().send(&method, &concrete, &[], "").await.status, 401, "{method} {path}");
    }
    assert!(calls >= 60, "only {calls} calls");
    let trail = operator(&gateway, "act").get("/admin/v1/audit").await.expect(200);
    assert_eq!(trail.body["entries"], json!([]), "nothing was changed");
}

#[tokio::test]
async fn view_sees_no_contents_no_results_and_no_configuration() {
    let gateway = started().await;
    let caller = gateway.client();
    let contents = json!({ "order_id": "secret-order" });
    let granted =
        caller.post("/v1/claims", &json!({ "operation": "order.submit", "contents": contents })).await.expect(201);
    let path = format!("/v1/claims/{}/outcome", granted.body["global_id"].as_str().unwrap());
    let outcome = json!({
        "attempt": granted.body["attempt"], "operation": "order.submit", "outcome": "success",
        "result": { "number": "secret-result" },
    });
    caller.post(&path, &outcome).await.expect(200);
    let unknown = caller.claim(json!("secret-coupon")).await.expect(201);
    caller.report(&unknown, json!({ "outcome": "unknown" })).await.expect(200);
    let named = json!({ "app": "default", "operation": "order.submit", "contents": contents });
    for role in ROLES {
        let operator = operator(&gateway, role);
        let shown = operator.post("/admin/v1/claims/show", &named).await.expect(200);
        let listed = operator.get("/admin/v1/claims?app=default").await.expect(200);
        let engines = operator.get("/admin/v1/engines").await.expect(200);
        let unknowns = operator.get("/admin/v1/unknowns").await.expect(200);
        let sees = role != "view";
        for (answer, secret) in [
            (&shown, "secret-order"),
            (&shown, "secret-result"),
            (&listed, "secret-order"),
            (&engines, "memory:"),
            (&unknowns, "secret-coupon"),
        ] {
            assert_eq!(answer.text.contains(secret), sees, "{role}: {secret} in {}", answer.text);
        }
        assert!(!listed.text.contains("secret-result"), "lists have no results: {}", listed.text);
        assert_eq!(shown.body["state"], Value::from("succeeded"), "{role}");
    }
}
