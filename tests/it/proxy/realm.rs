//! The realm of the proxy: no call of the API reads, changes, plants or waits for its records, and operators reach them.

use std::sync::Arc;

use oncegate_core::clock::{Clock as _, SystemClock};
use oncegate_testkit::client::{Answer, Client};
use oncegate_testkit::gateway::{Gateway, Setup};
#[cfg(feature = "postgres")]
use oncegate_testkit::postgres_server::PostgresServer;
use oncegate_testkit::redis_server::RedisServer;
use oncegate_testkit::wait::until;
use serde_json::{Value, json};

use super::{Caller, SOON, Upstream, at, config};
use crate::admin::{TOKEN, alice, operated, operators};
use crate::support::command::{Ended, oncegate, oncegate_with};
use crate::support::gateway;

/// Operation of the route's records.
const OPERATION: &str = "proxy:orders.create";

/// A stored response as the proxy writes it.
fn forged() -> Value {
    let fields = json!([["content-type", "text/html"], ["set-cookie", "sid=attacker"], ["x-evil", "1"]]);
    json!({ "v": 1, "status": 200, "at": 1_792_488_615, "fields": fields, "body": "PHNjcmlwdD4=" })
}

/// Returns what `oncegate proxy check` prints of the record of a key: its contents and its global ID.
fn record_of(gateway: &Gateway, path: &str, key: &str) -> (String, String) {
    let (file, url, key) = (gateway.config_file(), format!("http://shop{path}"), format!("Idempotency-Key: {key}"));
    let file = file.to_str().unwrap();
    let folder = tempfile::tempdir().unwrap();
    let words = ["proxy", "check", "--config", file, &url, "--header", &key, "--header", "Authorization: alice"];
    let Ended { code, out, err } = oncegate(folder.path(), &words);
    assert_eq!(code, Some(0), "{err}");
    let of = |name: &str| out.lines().find_map(|line| line.strip_prefix(name)).unwrap().trim().to_owned();
    (of("Contents:"), of("Global ID:"))
}

/// Tries to plant, read, extend, settle and end the record of this name with every call of the API.
async fn attack(client: &Client, contents: &Value, global_id: &str) {
    let attempt = format!("{}-5f0c9a7be2d14836", SystemClock::new().wall().as_micros());
    let of = |call: &str| format!("/v1/claims/{global_id}{call}");
    let planted = json!({ "attempt": attempt, "outcome": "success", "result": forged() });
    let with = |more: Value| {
        let mut body = planted.as_object().unwrap().clone();
        body.extend(more.as_object().unwrap().clone());
        Value::from(body)
    };
    let refused = |answer: Answer| assert!([400, 422].contains(&answer.status), "{}", answer.text);
    for more in [
        json!({ "operation": OPERATION }),
        json!({ "operation": OPERATION, "contents": contents }),
        json!({ "contents": contents }),
    ] {
        refused(client.post(&of("/outcome"), &with(more)).await);
    }
    refused(client.post("/v1/claims", &json!({ "operation": OPERATION, "contents": contents })).await);
    let waits = json!({ "operation": OPERATION, "contents": contents, "wait": "1s" });
    refused(client.post("/v1/claims", &waits).await);
    refused(client.post("/v1/global-ids", &json!({ "operation": OPERATION, "contents": contents })).await);
    client.get(&of("")).await.code_is("not_found");
    client.post(&of("/renewal"), &json!({ "attempt": attempt })).await.code_is("lease_lost");
    for outcome in ["failure", "unknown"] {
        client.post(&of("/outcome"), &json!({ "attempt": attempt, "outcome": outcome })).await;
    }
    // A claim of the API may have the same ID, and has no effect on the proxy's record.
    let item = with(json!({ "global_id": global_id }));
    let batch = client.post("/v1/outcomes/batch", &json!({ "items": [item] })).await.expect(200);
    assert_eq!(batch.body["items"][0]["status"], 200, "{}", batch.text);
    client.post(&of("/outcome"), &planted).await.expect(200);
    let found = client.get(&of("")).await.expect(200);
    assert_eq!(found.body["result"], forged());
}

trait CodeIs {
    fn code_is(&self, code: &str);
}

impl CodeIs for Answer {
    #[track_caller]
    fn code_is(&self, code: &str) {
        assert_eq!(self.body["code"], code, "{}", self.text);
    }
}

async fn keeps_its_realm(setup: Setup) {
    let (upstream, port) = Upstream::start().await;
    let gateway = setup.config(&config("", &at(port), "")).start().await;
    let caller = Arc::new(Caller::of(&gateway));
    until("the store serves", SOON, async || caller.post("/orders/a", "k-0", "one").await.status == 201).await;
    let client = gateway.client();
    // Before the first request, while it runs, and when its response is stored.
    for (path, key) in [("/orders/b", "before"), ("/orders/slow", "running"), ("/orders/c", "stored")] {
        let (contents, global_id) = record_of(&gateway, path, key);
        let contents = serde_json::from_str(&contents).unwrap();
        let effects = upstream.effects();
        let first = match key {
            "before" => {
                attack(&client, &contents, &global_id).await;
                caller.post(path, key, "one").await
            }
            "running" => {
                let running = tokio::spawn({
                    let caller = caller.clone();
                    async move { caller.post(path, key, "one").await }
                });
                until("the upstream has it", SOON, async || upstream.effects() == effects + 1).await;
                attack(&client, &contents, &global_id).await;
                let conflict = caller.post(path, key, "one").await;
                assert_eq!((conflict.status, &conflict.json()["state"]), (409, &Value::from("in_progress")));
                upstream.gate.add_permits(1);
                running.await.unwrap()
            }
            _ => {
                let first = caller.post(path, key, "one").await;
                attack(&client, &contents, &global_id).await;
                first
            }
        };
        assert!(first.status == 201 && !first.is_replay() && !first.headers.contains_key("x-evil"), "{key}");
        let repeat = caller.post(path, key, "one").await;
        assert!(repeat.is_replay() && repeat.body == first.body && !repeat.headers.contains_key("x-evil"), "{key}");
        assert_eq!(upstream.effects(), effects + 1, "{key}");
    }
}

#[tokio::test]
async fn no_call_of_the_api_reaches_a_record_of_the_proxy_on_memory_and_disk() {
    keeps_its_realm(operated("memory:")).await;
    let folder = tempfile::tempdir().unwrap();
    keeps_its_realm(operated(&format!("disk:{}", folder.path().display()))).await;
}

#[tokio::test]
async fn no_call_of_the_api_reaches_a_record_of_the_proxy_on_redis() {
    let Some(server) = RedisServer::start().await else { return };
    keeps_its_realm(operated(&server.url())).await;
}

#[cfg(feature = "postgres")]
#[tokio::test]
async fn no_call_of_the_api_reaches_a_record_of_the_proxy_on_postgresql() {
    let Some(server) = PostgresServer::start().await else { return };
    keeps_its_realm(operated(&server.url())).await;
}

#[tokio::test]
async fn operators_name_records_of_the_proxy_by_their_operation_and_contents() {
    let (upstream, port) = Upstream::start().await;
    let gateway = operated("memory:").config(&config("", &at(port), "")).start().await;
    let caller = Caller::of(&gateway);
    let folder = tempfile::tempdir().unwrap();
    let admin = format!("http://{}", gateway.admin());
    let run = |words: &[&str]| {
        let words = [words, &["--admin", &admin]].concat();
        oncegate_with(folder.path(), &words, &[("ONCEGATE_ADMIN_TOKEN", TOKEN)])
    };
    let on = |action: &[&str], contents: &str, more: &[&str]| {
        run(&[action, &["--app", "default", "--operation", OPERATION, contents], more].concat())
    };
    let reason = ["--reason", "INC-1"];

    caller.post("/orders/a", "k-1", "one").await;
    let (contents, global_id) = record_of(&gateway, "/orders/a", "k-1");
    let shown = on(&["claim", "show"], &contents, &[]);
    assert!(shown.out.contains(&global_id) && shown.out.contains("succeeded"), "{}{}", shown.out, shown.err);
    let of_other = on(&["proxy", "forget"], &contents, &[&reason[..], &["--attempt-hash", "00000000"]].concat());
    assert!(of_other.code != Some(0) && of_other.err.contains("Another attempt"), "{}", of_other.err);
    assert_eq!(on(&["proxy", "forget"], &contents, &reason).code, Some(0));
    assert_eq!(caller.post("/orders/a", "k-1", "one").await.json()["code"], "response_not_stored");
    assert_eq!(on(&["claim", "release"], &contents, &[&reason[..], &["--even-succeeded"]].concat()).code, Some(0));
    assert!(!caller.post("/orders/a", "k-1", "one").await.is_replay());
    assert_eq!(upstream.effects(), 2);
    // An unknown claim is settled: the key stays blocked, without a response.
    caller.post("/orders/broken", "k-2", "one").await;
    let (unknown, _) = record_of(&gateway, "/orders/broken", "k-2");
    assert_eq!(on(&["claim", "settle"], &unknown, &[&reason[..], &["--outcome", "success"]].concat()).code, Some(0));
    assert_eq!(caller.post("/orders/broken", "k-2", "one").await.json()["code"], "response_not_stored");

    // By global ID, in one realm.
    let by_id =
        |more: &[&str]| run(&[&["claim", "show", "--app", "default", "--global-id", &global_id], more].concat());
    assert_ne!(by_id(&[]).code, Some(0), "the API has no such claim");
    assert_eq!(by_id(&["--realm", "proxy"]).code, Some(0));
    let listed = |more: &[&str]| run(&[&["claim", "list", "--app", "default"], more].concat()).out;
    assert!(!listed(&[]).contains(&global_id));
    assert!(listed(&["--realm", "proxy"]).contains(&global_id));
    let both = json!({ "app": "default", "operation": OPERATION, "contents": 1, "realm": "proxy" });
    assert_eq!(alice(&gateway).post("/admin/v1/claims/show", &both).await.code(), (400, "invalid_request"));
    assert_eq!(alice(&gateway).get("/admin/v1/claims?app=default&realm=x").await.code(), (400, "invalid_request"));
}

async fn unknown_records_are_listed(engine: &str) {
    let (_upstream, port) = Upstream::start().await;
    let gateway = operated(engine).config(&config("", &at(port), "")).start().await;
    let caller = Caller::of(&gateway);
    until("the store serves", SOON, async || caller.post("/orders/broken", "k-1", "one").await.status == 500).await;
    let own = gateway.client().claim(json!("A-1")).await.expect(201);
    gateway.client().report(&own, json!({ "outcome": "unknown" })).await.expect(200);
    let (_, global_id) = record_of(&gateway, "/orders/broken", "k-1");
    until("both are listed, each in its realm", SOON, async || {
        let found = alice(&gateway).get("/admin/v1/unknowns").await.expect(200).body["unknowns"].clone();
        let mut found: Vec<_> = found.as_array().unwrap().iter().map(|it| (&it["realm"], &it["global_id"])).collect();
        found.sort_by_key(|(realm, _)| realm.as_str());
        found == [(&json!("api"), &own.body["global_id"]), (&json!("proxy"), &json!(global_id))]
    })
    .await;
}

#[tokio::test]
async fn unknown_records_of_the_proxy_are_listed_with_claims_on_memory() {
    unknown_records_are_listed("memory:").await;
}

#[tokio::test]
async fn unknown_records_of_the_proxy_are_listed_with_claims_on_redis() {
    let Some(server) = RedisServer::start().await else { return };
    unknown_records_are_listed(&server.url()).await;
}

#[tokio::test]
async fn a_switch_that_would_lose_records_of_the_proxy_counts_them_with_claims() {
    let (_upstream, port) = Upstream::start().await;
    let engines = format!(
        "{}[engines]\nprimary = \"memory:\"\nspare = \"memory:\"\n[chains.default]\nengines = [\"primary\", \"spare\"]\n",
        operators()
    );
    let gateway = gateway::on_configured().config(&config("", &at(port), &engines)).start().await;
    gateway.client().claim(json!("A-1")).await.expect(201);
    for key in ["k-1", "k-2"] {
        assert_eq!(Caller::of(&gateway).post("/orders/a", key, "one").await.status, 201);
    }
    let order = json!({ "to": "spare", "reason": "INC-1" });
    let refused = alice(&gateway).post("/admin/v1/chains/default/switch", &order).await;
    assert!(refused.text.contains("3 claims are stored on `primary`"), "{}", refused.text);
}
