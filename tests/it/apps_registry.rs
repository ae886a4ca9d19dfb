//! Apps in a registry in PostgreSQL: a change reaches every gateway, and an outage of the registry affects no call.

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::time::Duration;

use oncegate_core::hex;
use oncegate_testkit::client::{Answer, Client};
use oncegate_testkit::fresh;
use oncegate_testkit::gateway::{Gateway, Setup};
use oncegate_testkit::postgres_server::PostgresServer;
use oncegate_testkit::wait::until;
use serde_json::{Value, json};
use sha2::{Digest, Sha256};

use crate::support::command::oncegate_with;
use crate::support::exposition::Page;
use crate::support::gateway;
use crate::support::table::rows;

/// Longest time until every gateway uses a change.
const SOON: Duration = Duration::from_secs(5);

const TOKEN: &str = "token_of_alice_0123456789abcdef";

fn setup(url: &str) -> Setup {
    let digest = hex::encode(&Sha256::digest(TOKEN));
    gateway::on_memory()
        .config(&format!("[admin.tokens]\nalice = \"sha256:{digest}\"\n"))
        .env("ONCEGATE_REGISTRY__URL", url)
}

/// A gateway that has read its registry.
async fn in_service(url: &str) -> Gateway {
    let gateway = setup(url).start().await;
    until("it is ready", SOON, async || gateway.admin_client().get("/readyz").await.status == 200).await;
    gateway
}

/// The operator alice.
fn alice(gateway: &Gateway) -> Client {
    gateway.admin_client().with_credential(TOKEN)
}

/// Makes an app and gives its secret.
async fn create(gateway: &Gateway, app: &str) -> String {
    let made = alice(gateway).post("/admin/v1/apps", &json!({ "app": app, "reason": "a test" })).await.expect(201);
    secret(&made)
}

fn secret(answer: &Answer) -> String {
    answer.body["secret"].as_str().expect("a new secret").to_owned()
}

async fn rotate(gateway: &Gateway, app: &str, revoke: &str) -> String {
    let body = json!({ "revoke": revoke, "reason": "a test" });
    secret(&alice(gateway).post(&format!("/admin/v1/apps/{app}/rotate"), &body).await.expect(200))
}

fn client(gateway: &Gateway, app: &str, secret: &str) -> Client {
    gateway.client().with_credential(&format!("{app}.{secret}"))
}

async fn status(client: &Client) -> u16 {
    client.post("/v1/global-ids", &json!({ "contents": 1 })).await.status
}

async fn answers(client: &Client, expected: u16) {
    until(&format!("callers get {expected}"), SOON, async || status(client).await == expected).await;
}

async fn gauge(gateway: &Gateway, name: &str) -> String {
    let page = Page::get(&gateway.admin_client()).await;
    page.series(name).map(|(_, value)| value.to_owned()).next().unwrap_or_default()
}

#[tokio::test]
async fn a_change_reaches_every_gateway_within_seconds() {
    let Some(server) = PostgresServer::start().await else { return };
    let gateways = [in_service(&server.url()).await, in_service(&server.url()).await];
    // A registry without apps is not an open gateway.
    for gateway in &gateways {
        assert_eq!(gateway.client().claim(json!(1)).await.code(), (401, "unauthenticated"));
    }
    let (shop, bank) = (create(&gateways[0], "shop").await, create(&gateways[1], "bank.eu").await);
    for gateway in &gateways {
        answers(&client(gateway, "shop", &shop), 200).await;
        answers(&client(gateway, "bank.eu", &bank), 200).await;
        assert_eq!(status(&client(gateway, "shop", &bank)).await, 401);
        // The same contents in two apps are two claims.
        client(gateway, "shop", &shop).claim(json!("A-1")).await.expect(201);
        client(gateway, "bank.eu", &bank).claim(json!("A-1")).await.expect(201);
        let page = Page::get(&gateway.admin_client()).await;
        assert_eq!(page.sum("oncegate_claims_total", &[("app", "bank.eu")]), 1, "a new app is counted");
    }
    let exists = alice(&gateways[1]).post("/admin/v1/apps", &json!({ "app": "shop", "reason": "again" })).await;
    assert_eq!(exists.code(), (409, "app_exists"));

    // In addition to the newest, then instead of all.
    let second = rotate(&gateways[0], "shop", "older").await;
    for gateway in &gateways {
        answers(&client(gateway, "shop", &second), 200).await;
        assert_eq!(status(&client(gateway, "shop", &shop)).await, 200);
    }
    let third = rotate(&gateways[1], "shop", "older").await;
    for gateway in &gateways {
        answers(&client(gateway, "shop", &shop), 401).await;
        answers(&client(gateway, "shop", &third), 200).await;
        assert_eq!(status(&client(gateway, "shop", &second)).await, 200);
    }
    let fourth = rotate(&gateways[0], "shop", "all").await;
    for gateway in &gateways {
        answers(&client(gateway, "shop", &second), 401).await;
        answers(&client(gateway, "shop", &third), 401).await;
        answers(&client(gateway, "shop", &fourth), 200).await;
    }

    alice(&gateways[0]).post("/admin/v1/apps/bank.eu/disable", &json!({ "reason": "a test" })).await.expect(200);
    for gateway in &gateways {
        answers(&client(gateway, "bank.eu", &bank), 403).await;
        assert_eq!(status(&client(gateway, "bank.eu", &shop)).await, 401, "with a wrong secret it is like any other");
    }
    alice(&gateways[1]).post("/admin/v1/apps/bank.eu/enable", &json!({ "reason": "a test" })).await.expect(200);
    for gateway in &gateways {
        answers(&client(gateway, "bank.eu", &bank), 200).await;
        for secret in [&shop, &bank, &second, &third, &fourth] {
            assert!(!gateway.log().contains(secret.as_str()), "a secret in the log");
        }
    }
}

/// All gateways of a registry do the regular work of each second.
#[tokio::test]
async fn an_unchanged_registry_is_asked_for_its_version_only() {
    let Some(server) = PostgresServer::start_with(&["log_statement = 'all'"]).await else { return };
    let gateway = in_service(&server.url()).await;
    let shop = create(&gateway, "shop").await;
    answers(&client(&gateway, "shop", &shop), 200).await;
    let count = |sql: &str| server.log().matches(sql).count();
    let versions = || count("SELECT version, oldest_build FROM oncegate_registry");
    let others = || [count("SELECT r.version, a.app"), count("UPDATE oncegate_app_secrets s SET last_used_at")];
    until("the use of the secret is recorded", SOON, async || others()[1] == 1).await;
    let (asked, before) = (versions(), others());
    until("it asks again", SOON, async || versions() >= asked + 3).await;
    assert_eq!(others(), before, "read, recorded");
}

#[tokio::test]
async fn a_secret_is_revoked_once_it_is_unused() {
    let Some(server) = PostgresServer::start().await else { return };
    let gateway = in_service(&server.url()).await;
    let alice = alice(&gateway);
    let old = create(&gateway, "shop").await;
    answers(&client(&gateway, "shop", &old), 200).await;
    let new = rotate(&gateway, "shop", "older").await;
    let app = async || alice.get("/admin/v1/apps/shop").await.expect(200).body;
    let used = |app: &Value, place: usize| app["secrets"][place]["last_used_at"].is_string();
    let before = app().await;
    assert_eq!(before["secrets"].as_array().unwrap().len(), 2);
    assert!(used(&before, 0) && !used(&before, 1), "{before}");
    // Every gateway's uses come together in the registry.
    let response = "SELECT count(*)::text FROM oncegate_app_secrets WHERE last_used_at > now() - interval '2 minutes'";
    until("the use is written down", SOON, async || server.query(response).await == "1").await;
    assert_eq!(server.query("SELECT version::text FROM oncegate_registry").await, "5", "a use is no change");

    let secret_id = before["secrets"][0]["secret_id"].as_str().unwrap().to_owned();
    let revoke = async |secret_id: &str| {
        let body = json!({ "secret_id": secret_id, "reason": "all have moved" });
        alice.post("/admin/v1/apps/shop/revoke", &body).await
    };
    for wrong in ["", "00000000", &old] {
        assert_eq!(revoke(wrong).await.code(), (400, "invalid_request"));
    }
    revoke(&secret_id).await.expect(200);
    answers(&client(&gateway, "shop", &old), 401).await;
    answers(&client(&gateway, "shop", &new), 200).await;
    let after = app().await;
    assert!(used(&after, 0), "known before it is written down: {after}");
    let last = after["secrets"][0]["secret_id"].as_str().unwrap().to_owned();
    let refused = revoke(&last).await;
    assert_eq!(refused.code(), (400, "invalid_request"));
    assert!(refused.text.contains("last secret"), "{}", refused.text);

    // Every change is in the trail, with who and why, and without a secret.
    let trail = alice.get("/admin/v1/audit").await.expect(200);
    let done: Vec<_> = trail.body["entries"].as_array().unwrap().iter().map(|entry| &entry["action"]).collect();
    for action in ["app.create", "app.rotate", "app.revoke"] {
        assert!(done.iter().any(|done| *done == action), "no {action} in {}", trail.text);
    }
    assert!(!trail.text.contains(&old) && !trail.text.contains(&new), "a secret in the trail");
    let nowhere = alice.post("/admin/v1/apps/shpo/rotate", &json!({ "reason": "a test" })).await;
    assert_eq!(nowhere.code(), (404, "not_found"));
    assert_eq!(alice.get("/admin/v1/apps/shpo").await.code(), (404, "not_found"));
    assert_eq!(alice.get("/admin/v1/apps/Shop").await.code(), (400, "invalid_request"));
    let reasonless = alice.post("/admin/v1/apps/shop/disable", &json!({})).await;
    assert_eq!(reasonless.code(), (400, "invalid_request"));
    gateway.admin_client().post("/admin/v1/apps/shop/disable", &json!({ "reason": "nobody" })).await.expect(401);
}

/// Callers who move from the old secret to the new one while both are valid never meet a refusal, at either gateway.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_rotation_under_load_fails_no_request() {
    let Some(server) = PostgresServer::start().await else { return };
    let gateways = [in_service(&server.url()).await, in_service(&server.url()).await];
    let old = create(&gateways[0], "shop").await;
    for gateway in &gateways {
        answers(&client(gateway, "shop", &old), 200).await;
    }
    let (credential, _) = tokio::sync::watch::channel(old.clone());
    let (stop, done) = (Arc::new(AtomicBool::new(false)), Arc::new(AtomicU64::new(0)));
    let callers: Vec<_> = (0..8)
        .map(|caller| {
            let address = gateways[caller % 2].api();
            let (current, stop, done) = (credential.subscribe(), stop.clone(), done.clone());
            tokio::spawn(async move {
                while !stop.load(Ordering::SeqCst) {
                    let secret = current.borrow().clone();
                    let caller = Client::new(address).with_credential(&format!("shop.{secret}"));
                    for _ in 0..20 {
                        let granted = caller.claim(fresh::contents()).await.expect(201);
                        caller.settle(&granted, "success").await.expect(200);
                        done.fetch_add(1, Ordering::SeqCst);
                    }
                }
            })
        })
        .collect();
    let more = async || {
        let before = done.load(Ordering::SeqCst);
        until("requests go on", Duration::from_secs(20), async || done.load(Ordering::SeqCst) > before + 400).await;
    };
    more().await;
    let new = rotate(&gateways[0], "shop", "older").await;
    for gateway in &gateways {
        answers(&client(gateway, "shop", &new), 200).await;
    }
    credential.send_replace(new.clone());
    // Each caller makes its next twenty calls with the new one, so after two rounds no caller uses the old one.
    more().await;
    more().await;
    let listed = alice(&gateways[1]).get("/admin/v1/apps/shop").await.expect(200);
    let body = json!({ "secret_id": listed.body["secrets"][0]["secret_id"], "reason": "all have moved" });
    alice(&gateways[1]).post("/admin/v1/apps/shop/revoke", &body).await.expect(200);
    for gateway in &gateways {
        answers(&client(gateway, "shop", &old), 401).await;
    }
    more().await;
    stop.store(true, Ordering::SeqCst);
    for caller in callers {
        caller.await.expect("no request failed");
    }
}

#[tokio::test]
async fn while_the_registry_is_out_the_last_copy_serves() {
    let Some(mut server) = PostgresServer::start().await else { return };
    let gateway = in_service(&server.url()).await;
    let secret = create(&gateway, "shop").await;
    let shop = client(&gateway, "shop", &secret);
    answers(&shop, 200).await;
    assert_eq!(gauge(&gateway, "oncegate_registry_up").await, "1");
    for frozen in [true, false] {
        if frozen {
            server.freeze();
        } else {
            server.kill();
        }
        until("it is noticed", Duration::from_secs(10), async || gauge(&gateway, "oncegate_registry_up").await == "0")
            .await;
        shop.claim(fresh::contents()).await.expect(201);
        gateway.client().claim(json!(1)).await.expect(401);
        gateway.admin_client().get("/readyz").await.expect(200);
        let age: f64 = gauge(&gateway, "oncegate_registry_copy_age_seconds").await.parse().unwrap();
        assert!(age > 0.0, "{age}");
        if !frozen {
            let refused = alice(&gateway).post("/admin/v1/apps/shop/disable", &json!({ "reason": "out" })).await;
            assert_eq!(refused.code(), (503, "store_unavailable"), "{}", refused.text);
        }
        if frozen {
            server.thaw();
        } else {
            server.restart().await;
        }
        until("it is back", Duration::from_secs(10), async || gauge(&gateway, "oncegate_registry_up").await == "1")
            .await;
        assert_eq!(gauge(&gateway, "oncegate_registry_copy_age_seconds").await, "0");
    }
    // Changes by any program count.
    server.execute("UPDATE oncegate_apps SET disabled = true").await;
    answers(&shop, 403).await;
    // A backup may bring an older number back.
    let restore = "BEGIN; UPDATE oncegate_apps SET disabled = false; UPDATE oncegate_registry SET version = 1; COMMIT";
    server.execute(restore).await;
    answers(&shop, 200).await;
    let is_logged = async || gateway.log().contains("Registry of apps answers again");
    until("the end of the outage is logged", SOON, is_logged).await;
    let log = gateway.log();
    assert!(log.contains("using the last copy"), "{log}");
    assert!(
        log.lines().filter(|line| line.contains("does not answer")).count() <= 2,
        "reported once per outage: {log}"
    );
}

#[tokio::test]
async fn a_gateway_whose_registry_is_out_at_the_start_waits_for_it() {
    let Some(mut server) = PostgresServer::start().await else { return };
    let first = in_service(&server.url()).await;
    let secret = create(&first, "shop").await;
    server.kill();
    let mut gateway = setup(&server.url()).start().await;
    let admin = gateway.admin_client();
    let shop = client(&gateway, "shop", &secret);
    assert_eq!(admin.get("/readyz").await.expect(503).body["title"], "Starting");
    for caller in [&shop, &gateway.client()] {
        let answer = caller.claim(json!(1)).await;
        // Neither accepted nor rejected: it is unknown.
        assert_eq!(answer.code(), (503, "draining"), "{}", answer.text);
        assert_eq!(answer.headers["retry-after"], "1");
    }
    until("it is reported", SOON, async || gateway.log().contains("not in service until it does")).await;
    server.restart().await;
    answers(&shop, 200).await;
    admin.get("/readyz").await.expect(200);
    gateway.client().claim(json!(1)).await.expect(401);
    gateway.signal("TERM");
    assert!(gateway.ended().await.success());
}

#[tokio::test]
async fn a_row_that_cannot_be_used_takes_no_other_down() {
    let Some(server) = PostgresServer::start().await else { return };
    let gateway = in_service(&server.url()).await;
    let (bad, good) = (create(&gateway, "bad").await, create(&gateway, "good").await);
    let second = rotate(&gateway, "bad", "older").await;
    let revoked = client(&gateway, "bad", &bad);
    answers(&client(&gateway, "bad", &second), 200).await;
    answers(&client(&gateway, "good", &good), 200).await;
    // The admin API lets no such thing in.
    for (settings, chain, word) in [
        (json!({ "retentoin": "1d" }), None, "did you mean `retention`"),
        (json!({ "lease": "48h" }), None, "limits.lease_max"),
        (json!({ "secrets": [] }), None, "its own column"),
        (json!({}), Some("nowhere"), "there is no chain `nowhere`"),
    ] {
        let mut body = json!({ "app": "worse", "settings": settings, "reason": "a test" });
        if let Some(chain) = chain {
            body["chain"] = chain.into();
        }
        let refused = alice(&gateway).post("/admin/v1/apps", &body).await;
        assert_eq!(refused.code(), (400, "invalid_request"));
        assert!(refused.text.contains(word), "no {word} in {}", refused.text);
    }
    // By hand it can be done.
    server.execute("UPDATE oncegate_apps SET chain = 'nowhere' WHERE app = 'bad'").await;
    server.execute("UPDATE oncegate_app_secrets SET revoked_at = now() WHERE app = 'bad' AND created_at = (SELECT min(created_at) FROM oncegate_app_secrets WHERE app = 'bad')").await;
    until("it is counted", SOON, async || gauge(&gateway, "oncegate_registry_apps_refused").await == "1").await;
    // It does not change, except for changes that remove access.
    answers(&revoked, 401).await;
    client(&gateway, "bad", &second).claim(fresh::contents()).await.expect(201);
    client(&gateway, "good", &good).claim(fresh::contents()).await.expect(201);
    let listed = alice(&gateway).get("/admin/v1/apps/bad").await.expect(200);
    assert!(listed.body["problem"].as_str().unwrap().contains("there is no chain `nowhere`"), "{}", listed.text);
    server.execute("UPDATE oncegate_apps SET disabled = true WHERE app = 'bad'").await;
    answers(&client(&gateway, "bad", &second), 403).await;
    server.execute("UPDATE oncegate_apps SET disabled = false WHERE app = 'bad'").await;
    answers(&client(&gateway, "bad", &second), 200).await;
    server.execute("UPDATE oncegate_apps SET settings = settings").await;
    // A gateway that never had the valid settings runs without the app.
    let another = in_service(&server.url()).await;
    assert_eq!(status(&client(&another, "bad", &second)).await, 401);
    answers(&client(&another, "good", &good), 200).await;
    gateway.logged("has invalid settings", 1).await;
    server.execute("UPDATE oncegate_apps SET chain = NULL").await;
    answers(&client(&another, "bad", &second), 200).await;
    until("it is right again", SOON, async || gauge(&gateway, "oncegate_registry_apps_refused").await == "0").await;
}

#[tokio::test]
async fn a_use_that_could_not_be_written_down_is_written_down_later() {
    let Some(server) = PostgresServer::start().await else { return };
    let gateway = in_service(&server.url()).await;
    let secret = create(&gateway, "shop").await;
    for sql in [
        "CREATE FUNCTION refuse() RETURNS trigger LANGUAGE plpgsql AS 'BEGIN RAISE EXCEPTION ''a planted failure''; END'",
        "CREATE TRIGGER refuse BEFORE UPDATE ON oncegate_app_secrets FOR EACH ROW EXECUTE FUNCTION refuse()",
    ] {
        server.execute(sql).await;
    }
    answers(&client(&gateway, "shop", &secret), 200).await;
    gateway.logged("answered with the error P0001", 1).await;
    server.execute("DROP TRIGGER refuse ON oncegate_app_secrets").await;
    let used = "SELECT count(*)::text FROM oncegate_app_secrets WHERE last_used_at IS NOT NULL";
    until("the use is written down", SOON, async || server.query(used).await == "1").await;
}

#[tokio::test]
async fn new_defaults_hold_for_the_apps_of_a_registry_too() {
    let Some(server) = PostgresServer::start().await else { return };
    let gateway = in_service(&server.url()).await;
    let secret = create(&gateway, "shop").await;
    let shop = client(&gateway, "shop", &secret);
    answers(&shop, 200).await;
    let digest = hex::encode(&Sha256::digest(TOKEN));
    let file = format!("[admin.tokens]\nalice = \"sha256:{digest}\"\n[defaults]\nlease = \"7m\"\n");
    std::fs::write(gateway.config_file(), file).unwrap();
    gateway.signal("HUP");
    until("the new lease holds", SOON, async || {
        shop.claim(fresh::contents()).await.expect(201).body["lease_ms"].as_u64().unwrap() > 400_000
    })
    .await;
}

/// The commands, as an operator types them: an app from its first secret to its last.
#[tokio::test]
async fn the_life_of_an_app_on_the_command_line() {
    let Some(server) = PostgresServer::start().await else { return };
    let gateway = in_service(&server.url()).await;
    let folder = tempfile::tempdir().unwrap();
    let admin = format!("http://{}", gateway.admin());
    let app = |words: &[&str]| {
        let words = [&["app"], words, &["--admin", &admin]].concat();
        oncegate_with(folder.path(), &words, &[("ONCEGATE_ADMIN_TOKEN", TOKEN)])
    };
    let credential = |out: &str| out.lines().next().unwrap().to_owned();
    let unsaid = app(&["new", "shop"]);
    assert_eq!(unsaid.code, Some(2));
    assert!(unsaid.err.contains("Add --reason, such as"), "{}", unsaid.err);
    let why = ["--reason", "OPS-7: a test"];
    let made = app(&[&["new", "shop", "--settings", r#"{"lease":"7m"}"#][..], &why].concat());
    assert_eq!(made.code, Some(0), "{}", made.err);
    let old = gateway.client().with_credential(&credential(&made.out));
    answers(&old, 200).await;
    assert!(old.claim(json!(1)).await.expect(201).body["lease_ms"].as_u64().unwrap() > 400_000);
    let again = app(&[&["new", "shop"][..], &why].concat());
    assert_eq!(again.code, Some(3), "another state is required");
    assert!(again.err.contains("there is an app `shop` already"), "{}", again.err);
    let rotated = app(&[&["rotate", "shop"][..], &why].concat());
    assert_eq!(rotated.code, Some(0), "{}", rotated.err);
    let new = gateway.client().with_credential(&credential(&rotated.out));
    answers(&new, 200).await;
    let listed = app(&["list", "--output", "json"]);
    let listed: Value = serde_json::from_str(&listed.out).unwrap();
    let secret_id = listed["apps"][0]["secrets"][0]["secret_id"].as_str().unwrap();
    let shown = &rows(&app(&["list"]).out)[0];
    assert_eq!((&*shown["APP"], &*shown["CHAIN"], &*shown["STATUS"]), ("shop", "default", "enabled"));
    assert!(shown["SECRETS"].contains(secret_id), "{shown:?}");
    let shown = app(&["show", "shop"]);
    assert!(shown.out.starts_with("App     shop\n") && shown.out.contains(secret_id), "{}{}", shown.out, shown.err);
    let revoked = app(&[&["revoke", "shop", secret_id][..], &why].concat());
    assert_eq!(revoked.code, Some(0), "{}", revoked.err);
    answers(&old, 401).await;
    assert_eq!(app(&[&["disable", "shop"][..], &why].concat()).code, Some(0));
    answers(&new, 403).await;
    assert_eq!(app(&[&["enable", "shop"][..], &why].concat()).code, Some(0));
    answers(&new, 200).await;
}
