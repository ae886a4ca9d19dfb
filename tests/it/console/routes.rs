//! Every route with every role and every method: only the listed ones answer, and only to those who have the role.

use std::collections::BTreeMap;

use serde_json::json;

use super::browser::{Browser, FORM, OWN};
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
            let answer = stranger.send(method, &address, &[OWN, FORM], "").await;
            let expected = match methods.get(method) {
                None => 405,
                Some(_) if method == "POST" => 401,
                Some(_) => 303,
            };
            assert_eq!(answer.status, expected, "no session: {method} {address}");
        }
        for (rank, role) in ROLES.iter().enumerate() {
            let browser = Browser::signed_in(&gateway, role).await;
            let form = format!("form_token={}", browser.form_token().await);
            for method in METHODS {
                let body = if method == "GET" || method == "HEAD" { "" } else { &form };
                let answer = browser.send(method, &address, &[OWN, FORM], body).await;
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

/// Routes that need no session, or are no page, with their methods.
const OTHERS: [(&str, &[&str]); 3] = [
    ("/console/sign-in", &["GET", "HEAD", "POST"]),
    ("/console/sign-out", &["POST"]),
    ("/console/live", &["GET", "HEAD"]),
];

#[tokio::test]
async fn the_sign_in_the_streams_and_the_files_take_their_methods_only() {
    let gateway = operated().start().await;
    let stranger = Browser::at(&gateway);
    let signed_in = Browser::signed_in(&gateway, "act").await;
    let page = signed_in.get("/console/").await.expect(200).text;
    let files = page.split("\"/console/assets/").skip(1).map(|rest| rest.split('"').next().unwrap());
    let files: Vec<_> = files.map(|file| format!("/console/assets/{file}")).collect();
    assert_eq!(files.len(), 2, "{page}");
    let of_files = files.iter().map(|file| (&**file, &["GET", "HEAD"][..]));
    for (path, methods) in OTHERS.into_iter().chain(of_files) {
        for method in METHODS {
            let answer = stranger.send(method, path, &[OWN, FORM], "").await;
            let expected: &[u16] = match (path, method) {
                _ if !methods.contains(&method) => &[405],
                ("/console/sign-in", "POST") => &[400, 401],
                ("/console/sign-out", _) => &[303, 401, 403],
                _ => &[200],
            };
            assert!(expected.contains(&answer.status), "no session: {method} {path}: {}", answer.status);
            if (path, method) == ("/console/live", "GET") {
                assert_eq!(answer.text, "data: ended\n\n", "a stream of no session");
            }
            if !methods.contains(&method) {
                let answer = signed_in.send(method, path, &[OWN, FORM], "").await;
                assert_eq!(answer.status, 405, "{method} {path}");
            }
        }
    }
    // Only a form with the token of its session ends it.
    for form in ["", "form_token=00"] {
        signed_in.post("/console/sign-out", &[OWN], form).await;
        assert_eq!(signed_in.get("/console/").await.status, 200, "{form}");
    }
    let form = format!("form_token={}", signed_in.form_token().await);
    signed_in.post("/console/sign-out", &[OWN], &form).await;
    assert_eq!(signed_in.get("/console/").await.status, 303);
}
