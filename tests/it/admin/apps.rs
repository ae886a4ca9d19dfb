//! One app as operators see it: its terms, quotas and their use, as the gateway applies them.

use oncegate_testkit::fresh;
use serde_json::json;

use super::commands::Terminal;
use super::{alice, operated};
use crate::support::caller::{self, caller};

#[tokio::test]
async fn an_app_is_shown_with_its_terms_quotas_and_use() {
    let settings = "lease = \"11s\"\n[apps.shop.quota]\nrequests_per_second = 1\nburst = \"10m\"\n\
                    [apps.shop.operations.\"coupon.redeem\"]\non_lease_end = \"unknown\"\nretention = \"2d\"\n";
    let gateway = operated("memory:").config(&format!("{}{settings}", caller::app("shop"))).start().await;
    let shown = async || alice(&gateway).get("/admin/v1/apps/shop").await.expect(200).body;
    let before = shown().await;
    assert_eq!((&before["changeable"], &before["disabled"]), (&json!(false), &json!(false)));
    let in_force = &before["in_force"];
    assert_eq!((&in_force["terms"]["lease"], &in_force["terms"]["on_lease_end"]), (&json!("11s"), &json!("release")));
    let own = &in_force["operations"][0];
    assert_eq!(
        (&own["operation"], &own["retention"], &own["on_lease_end"]),
        (&json!("coupon.redeem"), &json!("2d"), &json!("unknown"))
    );
    assert_eq!(own["lease"], "11s", "the app's, where the operation has none");
    let (quota, usage) = (&in_force["quota"], &in_force["usage"]);
    assert_eq!((&quota["requests_per_second"], &quota["claim_bytes_per_second"]), (&json!(1), &json!(null)));
    assert_eq!((&usage["requests_left"], &usage["claim_bytes_left"]), (&json!(600), &json!(null)));
    for _ in 0..200 {
        caller(&gateway, "shop").claim(fresh::contents()).await.expect(201);
    }
    let after = shown().await;
    let left = after["in_force"]["usage"]["requests_left"].as_u64().unwrap();
    assert!((400..=550).contains(&left), "200 were used of 600, one a second comes back: {after}");
    let printed = Terminal::at(&gateway).run(&["app", "show", "shop"]).expect(0).out;
    assert!(printed.contains("coupon.redeem") && printed.contains(" left, of 1\n"), "{printed}");
    assert_eq!(alice(&gateway).get("/admin/v1/apps/none").await.status, 404);
}

#[tokio::test]
async fn the_app_of_an_open_gateway_has_terms_too() {
    let gateway = operated("memory:").start().await;
    let shown = alice(&gateway).get("/admin/v1/apps/default").await.expect(200).body;
    assert_eq!((&shown["secrets"], &shown["in_force"]["terms"]["mode"]), (&json!([]), &json!("enforce")));
}
