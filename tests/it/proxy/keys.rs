//! Recent requests of the proxy by their key: found, shown by their first characters, and never logged.

use hyper_util::client::legacy::Client;
use hyper_util::rt::TokioExecutor;
use oncegate_testkit::gateway::Gateway;
use oncegate_testkit::wait::until;
use serde_json::{Value, json};

use super::{Caller, SOON, Upstream, address};
use crate::admin::commands::Terminal;
use crate::admin::{alice, operated};

/// A key that only its beginning is shown of.
const KEY: &str = "8e03978e-qz7k-43e8-bc93-6894a57f9324";

async fn started(port: u16) -> (Gateway, Caller) {
    let config = format!(
        "[proxy]\nlisten = \"127.0.0.1:0\"\n[proxy.upstreams.orders]\nurls = [\"http://127.0.0.1:{port}\"]\n\
         [[proxy.routes]]\nname = \"orders.create\"\napp = \"default\"\npath = \"/orders/{{kind}}\"\nmethods = [\"POST\"]\n\
         upstream = \"orders\"\nprincipal = [\"authorization\"]\n\
         [[proxy.routes]]\nname = \"pay\"\napp = \"default\"\npath = \"/pay\"\nmethods = [\"POST\"]\nupstream = \"orders\"\n\
         principal = [\"authorization\"]\n"
    );
    let gateway = operated("memory:").config(&config).start().await;
    let caller = Caller { http: Client::builder(TokioExecutor::new()).build_http(), address: address(&gateway) };
    (gateway, caller)
}

/// Answers and statuses, the newest first.
fn answers(shown: &Value) -> Vec<Value> {
    shown["requests"].as_array().unwrap().iter().map(|request| json!([request["answer"], request["status"]])).collect()
}

#[tokio::test]
async fn a_request_is_found_by_its_key_and_the_key_is_nowhere() {
    let (_upstream, port) = Upstream::start().await;
    let (gateway, caller) = started(port).await;
    let alice = alice(&gateway);
    let fields = [("idempotency-key", KEY), ("authorization", "alice"), ("x-request-id", "r-1")];
    assert_eq!(caller.send("POST", "/orders/a", &fields, "one").await.status, 201);
    assert_eq!(caller.post("/orders/a", KEY, "one").await.status, 201);
    assert_eq!(caller.post("/orders/a", KEY, "two").await.status, 422);
    assert_eq!(caller.post("/orders/broken", "another-key", "one").await.status, 500);
    assert_eq!(caller.post("/orders/broken", "another-key", "one").await.status, 409);
    assert_eq!(caller.send("POST", "/orders/a", &[("authorization", "alice")], "one").await.status, 400);

    let find = async |body: Value| alice.post("/admin/v1/proxy/find", &body).await;
    let found = find(json!({ "route": "orders.create", "key": format!("\"{KEY}\"") })).await.expect(200);
    let expected = [json!(["mismatch", null]), json!(["replayed", 201]), json!(["forwarded", 201])];
    assert_eq!(answers(&found.body), expected, "{}", found.text);
    let first = &found.body["requests"][2];
    assert_eq!((&first["key_start"], &first["request_id"]), (&json!("8e03978e"), &json!("r-1")));
    assert_eq!((&first["app"], &found.body["claim"]), (&json!("default"), &Value::Null));
    assert!(!found.text.contains("qz7k"), "{}", found.text);
    let named = json!({ "app": "default", "realm": "proxy", "global_id": first["global_id"] });
    let claim = alice.post("/admin/v1/claims/show", &named).await.expect(200).body;
    let principal = &claim["contents"]["principal"];
    let with_caller = json!({ "route": "orders.create", "key": KEY, "principal": principal });
    assert_eq!(find(with_caller).await.expect(200).body["claim"]["global_id"], first["global_id"]);
    let of_nobody = json!({ "route": "orders.create", "key": KEY, "principal": "0".repeat(64) });
    assert_eq!(find(of_nobody).await.expect(200).body["claim"], Value::Null);
    assert_eq!(answers(&find(json!({ "route": "pay", "key": KEY })).await.expect(200).body), [] as [Value; 0]);
    assert_eq!(answers(&find(json!({ "route": "orders.create", "key": "8e03978e" })).await.body), [] as [Value; 0]);
    assert_eq!(find(json!({ "route": "none", "key": KEY })).await.code(), (404, "not_found"));
    let long = "k".repeat(256);
    for (key, principal) in
        [("", None), ("a b", None), ("\"a", None), (&*long, None), (KEY, Some("0f")), (KEY, Some("G"))]
    {
        let wrong = find(json!({ "route": "orders.create", "key": key, "principal": principal })).await;
        assert_eq!(wrong.code(), (400, "invalid_request"), "{key:?} {principal:?}");
        assert!(!wrong.text.contains("8e03978e"), "an error does not repeat a key: {}", wrong.text);
    }

    let recent = async |query: &str| alice.get(&format!("/admin/v1/proxy/recent{query}")).await;
    let all = recent("").await.expect(200);
    assert_eq!(answers(&all.body)[..2], [json!(["unknown", null]), json!(["forwarded", 500])], "{}", all.text);
    assert_eq!(answers(&recent("?answer=replayed").await.body), [json!(["replayed", 201])]);
    assert_eq!(answers(&recent("?route=pay").await.body), [] as [Value; 0]);
    let page = recent("?route=orders.create&limit=2").await.body;
    let older = recent(&format!("?limit=2&after={}", page["next"])).await.body;
    assert_eq!(answers(&older), expected[..2]);
    for wrong in ["?answer=grant", "?limit=0", "?limit=1001", "?app=-", "?global_id=x", "?after=0", "?key=k"] {
        assert_eq!(recent(wrong).await.status, 400, "{wrong}");
    }
    assert_eq!(recent("?route=none").await.status, 404);
    assert!(!all.text.contains("qz7k") && !all.text.contains("another-key"), "{}", all.text);
    assert!(!gateway.log().contains("qz7k"), "{}", gateway.log());

    let terminal = Terminal::at(&gateway);
    let printed = terminal.run(&["proxy", "recent", "--answer", "replayed"]).expect(0).out;
    assert!(printed.contains("8e03978e…") && printed.contains("replayed") && printed.lines().count() == 2, "{printed}");
    let principal = principal.as_str().unwrap();
    let printed =
        terminal.run(&["proxy", "find", "--route", "orders.create", "--principal", principal, KEY]).expect(0).out;
    assert!(printed.contains("is succeeded: oncegate claim show --app default --global-id"), "{printed}");
    let none = terminal.run(&["proxy", "find", "--route", "orders.create", "other"]).expect(0).out;
    assert_eq!(none, "This gateway has answered no such request lately.\n");
    let wrong = terminal.run(&["proxy", "find", "--route", "orders.create", "a b"]).expect(2).err;
    assert!(wrong.contains("KEY is the key"), "{wrong}");
}

#[tokio::test]
async fn a_request_whose_caller_has_hung_up_is_listed_with_its_answer() {
    let (upstream, port) = Upstream::start().await;
    let (gateway, caller) = started(port).await;
    let recent = async || alice(&gateway).get("/admin/v1/proxy/recent").await.expect(200).body;
    let waiting = tokio::spawn(async move { caller.post("/orders/slow", KEY, "one").await });
    until("the upstream has it", SOON, async || upstream.requests() == 1).await;
    assert_eq!(answers(&recent().await), [] as [Value; 0], "it has no answer yet");
    waiting.abort();
    assert!(waiting.await.is_err());
    upstream.gate.add_permits(1);
    until("it is listed", SOON, async || !answers(&recent().await).is_empty()).await;
    assert_eq!(answers(&recent().await), [json!(["forwarded", 201])]);
}
