//! The page of the gateways that share a chain. Their lines come from a store: they are shown, and never trusted.

use std::time::Duration;

use oncegate_testkit::redis_server::RedisServer;
use oncegate_testkit::wait::until;

use super::browser::Browser;
use super::{ROLES, operators};
use crate::support::gateway;

const SOON: Duration = Duration::from_mins(1);

#[tokio::test]
async fn each_gateway_shows_all_of_them_and_links_only_to_origins() {
    let Some(server) = RedisServer::start().await else { return };
    let setup = || gateway::on(server.url()).config(&operators(&ROLES));
    let linked = setup().config("[console]\norigin = \"https://og-a.ops.example\"\n").start().await;
    let here = setup().start().await;
    let record = r#"{"format":1,"gateways":[{"g":"0badc0de","n":1,"h":"<b>evil","v":"1","s":1,"t":"ready","e":7,"c":"00000000","a":2,"o":"javascript:alert(1)"}]}"#;
    server.query_words::<String>(&["SET", "og:metadata:gateways.default", record]);
    for role in ROLES {
        let browser = Browser::signed_in(&here, role).await;
        let page = async || browser.get("/console/gateways").await.expect(200).text;
        until("all three are shown", SOON, async || page().await.matches("<tr").count() == 4).await;
        let shown = page().await;
        assert!(shown.contains("href=\"https://og-a.ops.example/console/attention\" rel=\"noreferrer\""), "{shown}");
        assert!(
            shown.contains("&lt;b&gt;evil") && !shown.contains("javascript:") && !shown.contains("<b>evil"),
            "{shown}"
        );
        assert!(shown.contains("other epoch") && shown.contains("other settings"), "{shown}");
        assert!(shown.contains("fleet · "), "whose data it is: {shown}");
        let overview = browser.get("/console/").await.expect(200).text;
        assert!(overview.contains("2 things") && overview.contains("fleet · "), "{overview}");
        let mark = browser.cookie.split(['-', '=']).nth(1).unwrap();
        assert!(
            overview.matches(&format!(">{mark}<")).count() >= 2,
            "the header and the list of gateways name it: {overview}"
        );
    }
    drop(linked);
}
