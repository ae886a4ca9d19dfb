//! The page of the configuration: for those who may read it, with the origin of each setting and the last reload.

use std::time::Duration;

use oncegate_testkit::wait::until;

use super::browser::Browser;
use super::{ROLES, operated, operators};

#[tokio::test]
async fn settings_are_shown_to_those_who_may_read_them_with_the_last_reload() {
    let gateway = operated().config("[defaults]\nlease = \"17s\"\n").start().await;
    for role in ROLES {
        let browser = Browser::signed_in(&gateway, role).await;
        let page = browser.get("/console/config").await;
        let overview = browser.get("/console/").await.expect(200);
        assert_eq!(overview.text.contains("href=\"/console/config\""), role != "view", "{}", overview.text);
        if role == "view" {
            assert!(page.status == 403 && !page.text.contains("17s"), "{}", page.text);
            continue;
        }
        assert!(page.text.contains("defaults.lease") && page.text.contains("17s"), "{}", page.text);
        assert!(page.text.contains("oncegate.toml, line ") && !page.text.contains("defaults.retention"));
        let all = browser.get("/console/config?show=all").await.expect(200);
        assert!(all.text.contains("defaults.retention"), "{}", all.text);
    }
    gateway.configure(&format!("{}no_such_key = \"<b>\"\n", operators(&ROLES)));
    gateway.signal("HUP");
    let browser = Browser::signed_in(&gateway, "read").await;
    let page = async || browser.get("/console/config").await.expect(200).text;
    until("the failure is shown", Duration::from_secs(30), async || page().await.contains("failed, so nothing")).await;
    let shown = page().await;
    assert!(shown.contains("no_such_key") && !shown.contains("<b>"), "{shown}");
    assert!(browser.get("/console/").await.expect(200).text.contains("▲ Configuration"));
}
