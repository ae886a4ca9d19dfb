//! Apps that change while the gateway runs: in its configuration file, on SIGHUP or without a signal.

use std::fs;
use std::path::Path;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::time::Duration;

use oncegate_core::hex;
use oncegate_testkit::client::Client;
use oncegate_testkit::fresh;
use oncegate_testkit::gateway::Gateway;
use oncegate_testkit::wait::{answered_within, until};
use serde_json::json;
use sha2::{Digest, Sha256};
use tokio::io::AsyncWriteExt as _;
use tokio::net::TcpStream;

use crate::edge;
use crate::support::exposition::Page;
use crate::support::gateway;

const OLD: &str = "old_secret_0123456789abcdef";
const NEW: &str = "new_secret_0123456789abcdef";

/// Longest time until a change takes effect.
const SOON: Duration = Duration::from_secs(5);

/// The table of an app with these secrets.
fn app(name: &str, secrets: &[&str], more: &str) -> String {
    let digests: Vec<_> =
        secrets.iter().map(|secret| format!("\"sha256:{}\"", hex::encode(&Sha256::digest(secret)))).collect();
    format!("[apps.{name}]\nsecrets = [{}]\n{more}\n", digests.join(", "))
}

fn client(gateway: &Gateway, app: &str, secret: &str) -> Client {
    gateway.client().with_credential(&format!("{app}.{secret}"))
}

/// Replaces a file as an editor or a deployment does: whole.
fn replace(file: &Path, text: &str) {
    let beside = file.with_extension("new");
    fs::write(&beside, text).unwrap();
    fs::rename(&beside, file).unwrap();
}

async fn answers(client: &Client, status: u16) {
    until(&format!("callers get {status}"), SOON, async || {
        client.post("/v1/global-ids", &json!({ "contents": 1 })).await.status == status
    })
    .await;
}

/// Returns the number of reloads by result, and whether the gateway uses the last one.
async fn reloads(gateway: &Gateway) -> (u64, u64, u64) {
    let page = Page::get(&gateway.admin_client()).await;
    let reloads = |result| page.sum("oncegate_config_reloads_total", &[("result", result)]);
    (reloads("applied"), reloads("refused"), page.sum("oncegate_config_last_reload_success", &[]))
}

/// Waits until these reloads are counted. A reload takes effect a moment before it is counted.
async fn counted(gateway: &Gateway, expected: (u64, u64, u64)) {
    until(&format!("reloads are {expected:?}"), SOON, async || reloads(gateway).await == expected).await;
}

#[tokio::test]
async fn a_change_of_the_file_takes_effect_by_itself() {
    let gateway = gateway::on_memory().config(&app("shop", &[OLD], "")).start().await;
    let (old, new) = (client(&gateway, "shop", OLD), client(&gateway, "shop", NEW));
    let bank = client(&gateway, "bank", NEW);
    let held = old.claim(json!("before")).await.expect(201);
    assert_eq!((old.claim(json!(1)).await.expect(201).body["lease_ms"].as_u64().unwrap()) / 10_001, 2);
    assert_eq!(reloads(&gateway).await, (0, 0, 1));

    replace(&gateway.config_file(), &(app("shop", &[OLD, NEW], "lease = \"5m\"") + &app("bank", &[NEW], "")));
    answers(&new, 200).await;
    answers(&bank, 200).await;
    old.claim(json!("before")).await.expect(409);
    bank.claim(json!("counted")).await.expect(201);
    let counted_of = Page::get(&gateway.admin_client()).await.sum("oncegate_claims_total", &[("app", "bank")]);
    assert_eq!(counted_of, 1, "a new app is counted as the others are");
    new.settle(&held, "success").await.expect(200);
    assert!(new.claim(json!(2)).await.expect(201).body["lease_ms"].as_u64().unwrap() > 200_000);
    counted(&gateway, (1, 0, 1)).await;

    replace(&gateway.config_file(), &(app("shop", &[NEW], "") + &app("bank", &[NEW], "disabled = true")));
    answers(&old, 401).await;
    answers(&new, 200).await;
    assert_eq!(bank.claim(json!(1)).await.code(), (403, "app_disabled"));
}

#[tokio::test]
async fn a_change_of_the_identities_behind_the_proxy_is_a_warning() {
    let config = |principal: &str| {
        let route = format!(
            "[[proxy.routes]]\nname = \"orders\"\napp = \"shop\"\npath = \"/orders\"\nmethods = [\"POST\"]\nupstream = \"shop\"\n\
             principal = [\"{principal}\"]\n"
        );
        let proxy = "[proxy]\nlisten = \"127.0.0.1:0\"\n[proxy.upstreams.shop]\nurls = [\"http://127.0.0.1:9\"]\n";
        app("shop", &[OLD], "") + proxy + &route
    };
    let gateway = gateway::on_memory().config(&config("authorization")).start().await;
    replace(&gateway.config_file(), &config("x-user"));
    gateway.logged("its principal changes from [\\\"authorization\\\"] to [\\\"x-user\\\"]", 1).await;
    gateway.logged("The next restart changes identities of requests behind the proxy", 1).await;
}

/// Later requests of a connection are not hashed again, so the connection itself must notice the change.
#[tokio::test]
async fn a_disabled_app_is_refused_on_a_connection_that_is_open() {
    let gateway = gateway::on_memory().config(&app("shop", &[OLD], "")).start().await;
    let mut connection = TcpStream::connect(gateway.api()).await.unwrap();
    let head = format!("POST /v1/global-ids HTTP/1.1\r\nhost: localhost\r\nauthorization: Bearer shop.{OLD}\r\n");
    let request = head + "content-type: application/json\r\ncontent-length: 14\r\n\r\n{\"contents\":1}";
    let mut status = async || {
        connection.write_all(request.as_bytes()).await.unwrap();
        edge::answer(&mut connection).await.0.split(' ').nth(1).unwrap().to_owned()
    };
    for _ in 0..2 {
        assert_eq!(status().await, "200");
    }
    replace(&gateway.config_file(), &app("shop", &[OLD], "disabled = true"));
    answers(&client(&gateway, "shop", OLD), 403).await;
    for _ in 0..3 {
        assert_eq!(status().await, "403");
    }
    replace(&gateway.config_file(), &app("shop", &[OLD], ""));
    answers(&client(&gateway, "shop", OLD), 200).await;
    assert_eq!(status().await, "200");
}

/// A secret in a separate file changes with that file.
#[tokio::test]
async fn a_change_of_a_file_that_holds_secrets_takes_effect_by_itself() {
    let folder = tempfile::tempdir().unwrap();
    let file = folder.path().join("secrets");
    let digest = |secret: &str| format!("sha256:{}\n", hex::encode(&Sha256::digest(secret)));
    fs::write(&file, digest(OLD)).unwrap();
    let setup = gateway::on_memory().config(&format!("[apps.shop]\nsecrets_file = \"{}\"\n", file.display()));
    let gateway = setup.start().await;
    client(&gateway, "shop", OLD).claim(json!(1)).await.expect(201);
    replace(&file, &(digest(OLD) + &digest(NEW)));
    answers(&client(&gateway, "shop", NEW), 200).await;
    replace(&file, &digest(NEW));
    answers(&client(&gateway, "shop", OLD), 401).await;
    answers(&client(&gateway, "shop", NEW), 200).await;
}

#[tokio::test]
async fn a_hangup_takes_effect_at_once() {
    let gateway = gateway::on_memory().config(&app("shop", &[OLD], "")).start().await;
    replace(&gateway.config_file(), &app("shop", &[NEW], ""));
    gateway.signal("HUP");
    answers(&client(&gateway, "shop", NEW), 200).await;
    answers(&client(&gateway, "shop", OLD), 401).await;
    assert_eq!(reloads(&gateway).await.1, 0);
}

#[tokio::test]
async fn a_bad_edit_keeps_the_apps_and_is_shouted_about_once() {
    let good = app("shop", &[OLD], "");
    let gateway = gateway::on_memory().config(&good).start().await;
    let shop = client(&gateway, "shop", OLD);
    let bad = [
        (good.clone() + "[apps.shop.operations", "oncegate.toml"),
        (app("shop", &[OLD], "retentoin = \"1d\""), "did you mean `retention`"),
        (app("shop", &[OLD], "chain = \"nowhere\""), "there is no chain `nowhere`"),
        (app("shop", &[], ""), "the app has no secret"),
        // In itself it is right, but this gateway does not run on it.
        (
            app("shop", &[OLD], "chain = \"new\"")
                + "[engines]\nnew = \"memory:\"\n[chains.new]\nengines = [\"new\"]\n",
            "there is no chain `new`",
        ),
        // Taken literally it would open the gateway.
        (String::new(), "no app is left"),
    ];
    for (number, (text, word)) in bad.iter().enumerate() {
        let refused = u64::try_from(number).unwrap() + 1;
        replace(&gateway.config_file(), text);
        counted(&gateway, (0, refused, 0)).await;
        gateway.logged("\"ERROR\"", number + 1).await;
        let log = gateway.log();
        let said: Vec<_> = log.lines().filter(|line| line.contains("\"ERROR\"")).collect();
        assert!(said[number].contains(word), "no {word:?} in {}", said[number]);
        shop.claim(fresh::contents()).await.expect(201);
        gateway.client().claim(json!(1)).await.expect(401);
    }
    fs::remove_file(gateway.config_file()).unwrap();
    counted(&gateway, (0, 7, 0)).await;
    shop.claim(fresh::contents()).await.expect(201);
    replace(&gateway.config_file(), &app("shop", &[OLD, NEW], ""));
    answers(&client(&gateway, "shop", NEW), 200).await;
    counted(&gateway, (1, 7, 1)).await;
}

#[tokio::test]
async fn changes_that_need_a_restart_are_named_and_higher_layers_still_win() {
    let good = app("shop", &[OLD], "");
    let gateway = gateway::on_memory().config(&good).env("ONCEGATE_DEFAULTS__LEASE", "2m").start().await;
    replace(
        &gateway.config_file(),
        &("[defaults]\nlease = \"9s\"\n[limits]\nbatch_items = 7\n".to_owned() + &app("shop", &[NEW], "")),
    );
    let shop = client(&gateway, "shop", NEW);
    answers(&shop, 200).await;
    assert!(shop.claim(json!(1)).await.expect(201).body["lease_ms"].as_u64().unwrap() > 100_000);
    let items = json!({ "items": vec![json!({ "contents": 1 }); 8] });
    shop.post("/v1/claims/batch", &items).await.expect(200);
    gateway.logged("need a restart", 1).await;
    assert!(gateway.log().contains("\"config.tables\":\"limits\""), "{}", gateway.log());
}

#[tokio::test]
async fn an_open_gateway_is_closed_by_its_first_app() {
    let gateway = gateway::on_memory().start().await;
    gateway.client().claim(json!(1)).await.expect(201);
    replace(&gateway.config_file(), &app("shop", &[OLD], ""));
    answers(&gateway.client(), 401).await;
    client(&gateway, "shop", OLD).claim(json!(1)).await.expect(201);
}

/// Callers who move from the old secret to the new one while both are valid never meet a refusal.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_rotation_under_load_fails_no_request() {
    let gateway = gateway::on_memory().config(&app("shop", &[OLD], "")).start().await;
    let (moved, stop, done) = (Arc::new(AtomicBool::new(false)), Arc::new(AtomicBool::new(false)), Arc::default());
    let callers: Vec<_> = (0..8)
        .map(|_| {
            let (old, new) = (client(&gateway, "shop", OLD), client(&gateway, "shop", NEW));
            let (moved, stop, done) = (moved.clone(), stop.clone(), Arc::<AtomicU64>::clone(&done));
            tokio::spawn(async move {
                while !stop.load(Ordering::SeqCst) {
                    let caller = if moved.load(Ordering::SeqCst) { &new } else { &old };
                    let granted = caller.claim(fresh::contents()).await.expect(201);
                    caller.settle(&granted, "success").await.expect(200);
                    done.fetch_add(1, Ordering::SeqCst);
                }
            })
        })
        .collect();
    let more = async || {
        let before = done.load(Ordering::SeqCst);
        until("requests go on", SOON, async || done.load(Ordering::SeqCst) > before + 100).await;
    };
    more().await;
    replace(&gateway.config_file(), &app("shop", &[OLD, NEW], ""));
    answers(&client(&gateway, "shop", NEW), 200).await;
    more().await;
    moved.store(true, Ordering::SeqCst);
    more().await;
    replace(&gateway.config_file(), &app("shop", &[NEW], ""));
    answers(&client(&gateway, "shop", OLD), 401).await;
    more().await;
    stop.store(true, Ordering::SeqCst);
    for caller in callers {
        caller.await.expect("no request failed");
    }
}

/// Failed logins slow down only their own client. Holders of secrets and requests in flight are not affected.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_flood_of_guesses_is_held_back_and_no_valid_credential_is() {
    let setup = gateway::on_memory().config(&app("shop", &[OLD], "")).env("ONCEGATE_LIMITS__REQUESTS_IN_FLIGHT", 32);
    let gateway = setup.start().await;
    let (guesser, shop) = (client(&gateway, "shop", NEW), client(&gateway, "shop", OLD));
    let done = Arc::new(AtomicBool::new(false));
    let flood: Vec<_> = (0..64)
        .map(|_| {
            let (guesser, done) = (guesser.clone(), done.clone());
            tokio::spawn(async move {
                let mut closed = 0_u64;
                while !done.load(Ordering::SeqCst) {
                    let response = guesser.get("/v1/claims/x").await;
                    // 503: as many in flight as the test allows, for a moment.
                    assert!(response.status == 401 || response.status == 503, "{}", response.text);
                    closed += u64::from(response.headers.get("connection").is_some_and(|value| value == "close"));
                }
                closed
            })
        })
        .collect();
    let throttled = async || {
        let page = Page::get(&gateway.admin_client()).await;
        page.sum("oncegate_authentication_failures_total", &[("throttled", "true")])
    };
    until("guesses are throttled", Duration::from_secs(30), async || throttled().await > 64).await;
    // With 64 throttled requests and 32 permits, each of these found a permit.
    for _ in 0..50 {
        // Shorter than the delay of a throttled answer.
        answered_within(Duration::from_millis(900), shop.claim(fresh::contents())).await.expect(201);
    }
    done.store(true, Ordering::SeqCst);
    let mut closed = 0;
    for guesser in flood {
        closed += guesser.await.unwrap();
    }
    assert!(closed > 0, "connections of throttled callers are closed");
    let refusals = || gateway.log().matches("Requests without a valid credential").count();
    until("the refusals are logged", SOON, async || refusals() > 0).await;
    let response = refusals();
    assert!((1..=6).contains(&response), "reported {response} times:\n{}", gateway.log());
}
