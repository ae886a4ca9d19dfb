//! Pages of an app: its terms and secrets, and a change of one in a registry.

use std::time::Duration;

use oncegate_testkit::wait::until;
use serde_json::json;

use super::actions::{bound, newest};
use super::browser::{Browser, OWN, location};
use super::{ROLES, operated, token};
use crate::support::caller;

#[tokio::test]
async fn an_app_of_the_file_shows_its_terms_and_is_changed_in_the_file() {
    let gateway = operated().config(&format!("{}lease = \"11s\"\n", caller::app("shop"))).start().await;
    for role in ROLES {
        let browser = Browser::signed_in(&gateway, role).await;
        let list = browser.get("/console/apps").await.expect(200);
        assert!(list.text.contains("href=\"/console/apps/shop\""), "{}", list.text);
        let page = browser.get("/console/apps/shop").await.expect(200);
        assert!(page.text.contains("11s") && page.text.contains("unlimited"), "{}", page.text);
        assert_eq!(page.text.contains("oncegate app rotate shop"), role == "act", "{}", page.text);
        assert!(!page.text.contains("/apps/shop/rotate"), "{}", page.text);
        assert_eq!(browser.get("/console/apps/none").await.status, 404);
    }
    let browser = Browser::signed_in(&gateway, "act").await;
    let ask = browser.get("/console/apps/shop/disable").await.expect(200);
    assert!(ask.text.contains("configuration file") && !ask.text.contains("class=\"action\""), "{}", ask.text);
}

#[cfg(feature = "postgres")]
#[tokio::test]
async fn a_new_secret_is_shown_once_and_an_app_is_disabled_by_its_name() {
    const SOON: Duration = Duration::from_secs(30);
    let Some(server) = oncegate_testkit::postgres_server::PostgresServer::start().await else { return };
    let gateway = operated().env("ONCEGATE_REGISTRY__URL", server.url()).start().await;
    until("it is ready", SOON, async || gateway.admin_client().get("/readyz").await.status == 200).await;
    let operator = gateway.admin_client().with_credential(&token("act"));
    let made = operator.post("/admin/v1/apps", &json!({ "app": "shop", "reason": "a test" })).await.expect(201);
    let browser = Browser::signed_in(&gateway, "act").await;
    let page = "/console/apps/shop";
    let form = bound(&browser.get(&format!("{page}/rotate")).await.expect(200));
    let stale = bound(&browser.get(&format!("{page}/rotate")).await.expect(200));
    let body = format!("{form}&revoke=older&reason=INC-42");
    let shown = browser.post(&format!("{page}/rotate"), &[OWN], &body).await.expect(200);
    assert_eq!(shown.headers["cache-control"], "no-store");
    let (_, rest) = shown.text.split_once("<pre>shop.").expect("the new credential");
    let secret = rest.split('<').next().unwrap();
    assert_ne!(made.body["secret"], secret);
    let again = browser.post(&format!("{page}/rotate"), &[OWN], &body).await;
    assert_eq!((again.status, location(&again)), (303, "/console/apps/shop?done=rotated"), "a reload");
    let after = browser.get(location(&again)).await.expect(200);
    assert!(after.text.contains("It was shown once") && !after.text.contains(secret), "{}", after.text);
    assert_eq!(newest(&gateway, "app.rotate").await.as_array().unwrap().len(), 1);
    let refused = browser.post(&format!("{page}/rotate"), &[OWN], &format!("{stale}&revoke=older&reason=x")).await;
    assert!(refused.status == 409 && refused.text.contains("has changed since"), "{}", refused.text);
    // The caller uses the new secret, so it is the one whose revocation needs the name.
    let client = gateway.client().with_credential(&format!("shop.{secret}"));
    let call = async || client.post("/v1/global-ids", &json!({ "contents": 1 })).await.status;
    until("the new secret is in effect", SOON, async || call().await == 200).await;
    let listed = operator.get("/admin/v1/apps/shop").await.expect(200).body;
    let old = listed["secrets"][0]["secret_id"].as_str().unwrap().to_owned();
    let form = bound(&browser.get(&format!("{page}/revoke/{old}")).await.expect(200));
    let done = browser.post(&format!("{page}/revoke/{old}"), &[OWN], &format!("{form}&reason=INC-42")).await;
    assert_eq!((done.status, location(&done)), (303, "/console/apps/shop?done=revoked"), "{}", done.text);
    let form = bound(&browser.get(&format!("{page}/disable")).await.expect(200));
    for typed in ["", "&typed=bank"] {
        let refused = browser.post(&format!("{page}/disable"), &[OWN], &format!("{form}{typed}&reason=x")).await;
        assert!(refused.status == 400 && refused.text.contains("Type exactly"), "{}", refused.text);
    }
    let form = bound(&browser.get(&format!("{page}/disable")).await.expect(200));
    let done = browser.post(&format!("{page}/disable"), &[OWN], &format!("{form}&typed=shop&reason=INC-7")).await;
    assert_eq!((done.status, location(&done)), (303, "/console/apps/shop?done=disabled"), "{}", done.text);
    until("its callers are refused", SOON, async || call().await == 403).await;
    let form = bound(&browser.get(&format!("{page}/enable")).await.expect(200));
    browser.post(&format!("{page}/enable"), &[OWN], &format!("{form}&reason=INC-7")).await.expect(303);
    until("its callers are accepted", SOON, async || call().await == 200).await;
    let (log, trail) = (gateway.log(), std::fs::read_to_string(gateway.data_dir().join("audit.jsonl")).unwrap());
    assert!(!log.contains(secret) && !trail.contains(secret));
}
