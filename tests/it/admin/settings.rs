//! The settings in effect: each with its origin, without secrets, also after reloads.

use std::time::Duration;

use oncegate_testkit::gateway::Gateway;
use oncegate_testkit::wait::until;
use serde_json::{Value, json};

use super::commands::Terminal;
use super::{TOKEN, alice, operated, operators};
use crate::support::caller;

const SOON: Duration = Duration::from_secs(30);

async fn answer(gateway: &Gateway) -> Value {
    alice(gateway).get("/admin/v1/config").await.expect(200).body
}

/// Value, origin and whether a change needs a restart.
fn setting(answer: &Value, key: &str) -> (Value, String, bool) {
    let found = answer["settings"].as_array().unwrap().iter().find(|setting| setting["key"] == key);
    let found = found.unwrap_or_else(|| panic!("no {key} in {answer}"));
    (found["value"].clone(), found["origin"].as_str().unwrap().to_owned(), found["needs_restart"] == true)
}

#[tokio::test]
async fn each_setting_has_its_origin_and_secrets_have_their_id() {
    let config = format!("{}{}[defaults]\nlease = \"10s\"\n", operators(), caller::app("shop"));
    let setup = crate::support::gateway::on("memory:").config(&config).env("ONCEGATE_LIMITS__CONNECTIONS", "77");
    let gateway = setup.start().await;
    let shown = answer(&gateway).await;
    let (lease, origin, needs_restart) = setting(&shown, "defaults.lease");
    assert_eq!((lease, needs_restart), (json!("10s"), false));
    assert!(origin.contains("oncegate.toml, line "), "{origin}");
    let (connections, origin, needs_restart) = setting(&shown, "limits.connections");
    assert_eq!((connections, needs_restart), (json!(77), true));
    assert!(origin.contains("ONCEGATE_LIMITS__CONNECTIONS"), "{origin}");
    assert_eq!(setting(&shown, "engines.primary"), (json!("memory:"), "flag --engine".to_owned(), true));
    assert_eq!(setting(&shown, "defaults.retention"), (json!("1d"), "default".to_owned(), false));
    let (secrets, _, _) = setting(&shown, "apps.shop.secrets");
    let id = secrets[0].as_str().unwrap();
    assert!(id.len() == 8 && config.contains(id), "{secrets}");
    let digest = config.lines().find_map(|line| line.split("sha256:").nth(1)).unwrap();
    for secret in [TOKEN, &digest[..64]] {
        assert!(!shown.to_string().contains(secret), "{secret}");
    }
    assert_eq!(shown["last_reload"], Value::Null);
    let printed = Terminal::at(&gateway).run(&["config", "show", "--changed"]).expect(0).out;
    assert!(printed.contains("\nlimits.connections ") && !printed.contains("defaults.retention"), "{printed}");
}

#[tokio::test]
async fn a_reload_changes_what_it_may_and_says_what_needs_a_restart() {
    let gateway = operated("memory:").start().await;
    gateway.configure(&format!("{}[defaults]\nlease = \"11s\"\n[limits]\nconnections = 78\n", operators()));
    gateway.signal("HUP");
    until("it is reloaded", SOON, async || answer(&gateway).await["last_reload"].is_object()).await;
    let shown = answer(&gateway).await;
    let (lease, origin, _) = setting(&shown, "defaults.lease");
    assert!(lease == json!("11s") && origin.contains("line "), "{lease} {origin}");
    let (connections, origin, _) = setting(&shown, "limits.connections");
    assert!(connections != json!(78) && origin == "default", "{connections} {origin}");
    assert_eq!(shown["last_reload"]["restart_needed"], json!(["limits"]));
    gateway.configure(&format!("{}no_such_key = 1\n", operators()));
    gateway.signal("HUP");
    until("it is refused", SOON, async || !answer(&gateway).await["last_reload"]["error"].is_null()).await;
    let shown = answer(&gateway).await;
    let error = shown["last_reload"]["error"].as_str().unwrap();
    assert!(error.contains("no_such_key"), "{error}");
    assert_eq!(setting(&shown, "defaults.lease").0, json!("11s"), "nothing changes");
}
