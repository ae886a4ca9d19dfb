//! Every route with every role and every method: only the listed ones answer, and only to those who have the role.

use std::collections::BTreeMap;

use serde_json::json;

use super::browser::{Browser, OWN};
use super::pages::{page_of, succeeded};
use super::{ROLES, operated};

const METHODS: [&str; 6] = ["GET", "HEAD", "POST", "PUT", "PATCH", "DELETE"];

/// Least rank of a role for each method, by path.
fn table() -> BTreeMap<&'static str, BTreeMap<&'static str, usize>> {
    let mut table: BTreeMap<_, BTreeMap<_, _>> = BTreeMap::new();
    for line in include_str!("routes.txt").lines().filter(|line| !line.starts_with('#')) {
        let [role, method, path] = line.split(' ').collect::<Vec<_>>().try_into().unwrap();
        let rank = ROLES.iter().position(|known| *known == role).unwrap();
        table.entry(path).or_default().insert(method, rank);
        if method == "GET" {
            table.entry(path).or_default().insert("HEAD", rank);
        }
    }
    table
}

#[tokio::test]
async fn only_listed_methods_answer_and_only_to_those_who_have_the_role() {
    let gateway = operated().start().await;
    let claim = page_of(&succeeded(&gateway, &json!({ "order_id": "A-1" }), &json!(1)).await);
    gateway.client().post("/v1/locks/nightly/holds", &json!({ "lease": "10m" })).await.expect(201);
    super::hostile::suspected(&gateway, "order.submit", &json!({ "order_id": "A-2" })).await;
    let stranger = Browser::at(&gateway);
    for (path, methods) in table() {
        let address = path
            .replace("/console/claims/{app}/{id}", &claim)
            .replace("{id}", "1")
            .replace("{app}", "default")
            .replace("{name}", "nightly")
            .replace("{hash}", "01234567")
            .replace("{chain}", "default")
            .replace("{operation}", "order.submit")
            .replace("{secret}", "01234567")
            .replace("{route}", "orders.create")
            .replace("{*call}", "summary")
            .replace("{*rest}", "nothing");
        assert!(!address.contains('{'), "{address}");
        for method in METHODS {
            let answer = stranger.send(method, &address, &[OWN, super::browser::FORM], "").await;
            let expected = match methods.get(method) {
                None => 405,
                Some(_) if method == "POST" => 401,
                Some(_) => 303,
            };
            assert_eq!(answer.status, expected, "nobody: {method} {address}");
        }
        for (rank, role) in ROLES.iter().enumerate() {
            let browser = Browser::signed_in(&gateway, role).await;
            let form = format!("form_token={}", browser.form_token().await);
            for method in METHODS {
                let body = if method == "GET" || method == "HEAD" { "" } else { &form };
                let answer = browser.send(method, &address, &[OWN, super::browser::FORM], body).await;
                match methods.get(method) {
                    None => assert_eq!(answer.status, 405, "{role}: {method} {address}"),
                    Some(needed) if rank < *needed => assert_eq!(answer.status, 403, "{role}: {method} {address}"),
                    Some(_) => assert!(
                        [200, 303, 400, 404, 409].contains(&answer.status),
                        "{role}: {method} {address}: {} {}",
                        answer.status,
                        answer.text
                    ),
                }
            }
        }
    }
}
