//! The JSON that each page links: the answer of the admin API, for the role of the operator, with masks.

use serde_json::{Value, json};

use super::browser::Browser;
use super::pages::{page_of, succeeded};
use super::{ROLES, operated};
use crate::support::caller::{self, caller};

#[tokio::test]
async fn each_page_links_the_answers_that_it_is_drawn_from() {
    let gateway = operated().start().await;
    let claim = page_of(&succeeded(&gateway, &json!({ "order_id": "secret-order" }), &json!("secret-result")).await);
    for role in ROLES {
        let browser = Browser::signed_in(&gateway, role).await;
        for page in [
            "/console/",
            "/console/attention",
            "/console/engines",
            "/console/apps",
            "/console/spool",
            "/console/audit",
            &*claim,
        ] {
            let shown = browser.get(page).await.expect(200);
            let links = shown.text.split("href=\"/console/json/").skip(1);
            let links: Vec<_> = links.map(|rest| rest.split('"').next().unwrap().replace("&amp;", "&")).collect();
            assert!(!links.is_empty(), "{page}: {}", shown.text);
            for link in links {
                let answer = browser.get(&format!("/console/json/{link}")).await.expect(200);
                assert_eq!(answer.headers["content-type"], "application/json", "{link}");
                assert_eq!(answer.headers["cache-control"], "no-store", "{link}");
                let body: Value = serde_json::from_str(&answer.text).unwrap();
                assert!(body.is_object(), "{link}");
                let has_contents = answer.text.contains("secret-order") && answer.text.contains("secret-result");
                assert_eq!(has_contents, page == claim && role != "view", "{role}: {link}: {}", answer.text);
            }
        }
        for wrong in ["nothing", "claims/release", "apps/none", "../metrics", "claims/show"] {
            let answer = browser.get(&format!("/console/json/{wrong}")).await;
            assert!([400, 404, 405].contains(&answer.status), "{wrong}: {}", answer.status);
        }
    }
    gateway.logged("JSON of claims/show", 2).await;
}

#[tokio::test]
async fn a_linked_answer_comes_after_the_page_has_loaded_itself_again() {
    let gateway = operated().start().await;
    let browser = Browser::signed_in(&gateway, "read").await;
    for path in ["summary?reloaded=1", "recent?limit=1&reloaded=1"] {
        browser.get(&format!("/console/json/{path}")).await.expect(200);
    }
}

#[tokio::test]
async fn masked_values_are_in_no_json() {
    let masks = "console_mask = [\"/email\"]\n";
    let gateway = operated().config(&format!("{}{masks}", caller::app("shop"))).start().await;
    let shop = caller(&gateway, "shop");
    let contents = json!({ "email": "ann@shop.example" });
    let granted = shop.claim(contents.clone()).await.expect(201);
    let id = granted.body["global_id"].as_str().unwrap();
    let browser = Browser::signed_in(&gateway, "read").await;
    for call in [format!("claims/show?app=shop&global_id={id}"), "claims?app=shop".to_owned()] {
        let answer = browser.get(&format!("/console/json/{call}")).await.expect(200);
        assert!(answer.text.contains("•••") && !answer.text.contains("ann@"), "{call}: {}", answer.text);
    }
    shop.settle(&granted, "unknown").await.expect(200);
    for path in ["/console/json/unknowns", "/console/attention"] {
        let answer = browser.get(path).await.expect(200);
        assert!(answer.text.contains("•••") && !answer.text.contains("ann@"), "{path}: {}", answer.text);
    }
}
