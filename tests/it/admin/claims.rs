//! On call: operators look up, release and settle claims, and the holders get the answers that follow.

use std::time::Duration;

use oncegate_testkit::client::{Answer, Client};
use oncegate_testkit::fresh;
use oncegate_testkit::gateway::Setup;
use oncegate_testkit::wait::until;
use serde_json::{Value, json};

use super::{alice, operated};

const SHOW: &str = "/admin/v1/claims/show";
const RELEASE: &str = "/admin/v1/claims/release";
const SETTLE: &str = "/admin/v1/claims/settle";

#[tokio::test]
async fn on_call_on_memory() {
    on_call(operated("memory:")).await;
}

#[tokio::test]
async fn on_call_on_disk() {
    let folder = tempfile::tempdir().unwrap();
    on_call(operated(&format!("disk:{}", folder.path().join("claims").display()))).await;
}

#[cfg(feature = "redis")]
#[tokio::test]
async fn on_call_on_redis() {
    let Some(server) = oncegate_testkit::redis_server::RedisServer::start().await else { return };
    on_call(operated(&server.url())).await;
}

#[cfg(feature = "postgres")]
#[tokio::test]
async fn on_call_on_postgres() {
    let Some(server) = oncegate_testkit::postgres_server::PostgresServer::start().await else { return };
    on_call(operated(&server.url())).await;
}

/// All of an operator's days on one gateway, each with its own contents.
async fn on_call(setup: Setup) {
    let setup = setup.config("[defaults]\non_lease_end = \"unknown\"\n");
    let gateway = setup.start().await;
    let (caller, alice) = (gateway.client(), alice(&gateway));
    a_crashed_holder(&caller, &alice).await;
    a_holder_that_runs_on(&caller, &alice).await;
    a_success(&caller, &alice).await;
    a_failure_and_an_unknown(&caller, &alice).await;
    an_operator_changes_only_the_claim_that_was_shown(&caller, &alice).await;
}

/// The body of a change of the claim of these contents.
fn about(contents: &Value, fields: Value) -> Value {
    let mut body = fields;
    body["app"] = "default".into();
    body["contents"] = contents.clone();
    body
}

async fn show(alice: &Client, contents: &Value) -> Answer {
    let shown = alice.post(SHOW, &about(contents, json!({}))).await;
    assert!(shown.body.get("attempt").is_none());
    shown
}

/// Claims for a very short lease and lets it end, as a crashed holder does.
async fn crashed(caller: &Client, alice: &Client) -> (Value, Answer) {
    let contents = fresh::contents();
    let granted = caller.post("/v1/claims", &json!({ "contents": contents, "lease": "3s" })).await.expect(201);
    let is_unknown = async || show(alice, &contents).await.expect(200).body["state"] == "unknown";
    until("the lease has ended", Duration::from_secs(10), is_unknown).await;
    (contents, granted)
}

/// Its lease has ended with an unknown outcome: the operator looks up the effect and settles it.
async fn a_crashed_holder(caller: &Client, alice: &Client) {
    let (contents, granted) = crashed(caller, alice).await;
    assert_eq!(caller.claim(contents.clone()).await.code(), (409, "duplicate"));
    let shown = show(alice, &contents).await.expect(200);
    assert_eq!(shown.body["app"], "default");
    assert_eq!((&shown.body["engine"], &shown.body["chain"]), (&json!("primary"), &json!("default")));
    assert_eq!(shown.body["contents"], contents);
    for (member, of_grant) in [("global_id", "global_id"), ("timestamp", "timestamp"), ("fence", "fence")] {
        assert_eq!(shown.body[member], granted.body[of_grant], "{member}");
    }
    let attempt = granted.body["attempt"].as_str().unwrap();
    assert!(!shown.text.contains(attempt.split_once('-').unwrap().1), "an attempt is never shown");
    let by_id = alice.post(SHOW, &json!({ "app": "default", "global_id": granted.body["global_id"] })).await;
    assert_eq!(by_id.expect(200).body, shown.body);

    let settlement =
        json!({ "outcome": "success", "result": { "found": true }, "retention": "1h", "reason": "INC-1: seen" });
    let settled = alice.post(SETTLE, &about(&contents, settlement)).await.expect(200);
    assert_eq!((&settled.body["state"], &settled.body["global_id"]), (&json!("succeeded"), &granted.body["global_id"]));
    let duplicate = caller.claim(contents.clone()).await;
    assert_eq!((duplicate.code(), &duplicate.body["result"]), ((409, "duplicate"), &json!({ "found": true })));
    // The holder was only slow. It learns the state, and the first result remains.
    let holders = caller.report(&granted, json!({ "outcome": "success", "result": 2 })).await.expect(200);
    assert_eq!(holders.body["state"], "succeeded");
    assert_eq!(show(alice, &contents).await.body["result"], json!({ "found": true }));
}

/// Released while it runs: its next renewal is refused, and its outcome is recorded late, or superseded by another attempt.
async fn a_holder_that_runs_on(caller: &Client, alice: &Client) {
    for claimed_again in [false, true] {
        let contents = fresh::contents();
        let granted = caller.claim(contents.clone()).await.expect(201);
        let released = alice.post(RELEASE, &about(&contents, json!({ "reason": "INC-2" }))).await.expect(200);
        assert_eq!(released.body["state"], "released");
        assert_eq!(show(alice, &contents).await.code(), (404, "not_found"));
        let again = alice.post(RELEASE, &about(&contents, json!({ "reason": "INC-2" }))).await;
        assert_eq!(again.code(), (404, "not_found"));
        if claimed_again {
            let second = caller.claim(contents.clone()).await.expect(201);
            assert!(granted.body["fence"].is_null() || second.body["fence"].as_u64() > granted.body["fence"].as_u64());
            assert_eq!(caller.renew(&granted, None).await.code(), (409, "superseded"));
            assert_eq!(caller.settle(&granted, "success").await.code(), (409, "superseded"));
            assert_eq!(show(alice, &contents).await.expect(200).body["timestamp"], second.body["timestamp"]);
        } else {
            assert_eq!(caller.renew(&granted, None).await.code(), (409, "lease_lost"));
            let late = caller.settle(&granted, "success").await.expect(200);
            assert_eq!((&late.body["state"], &late.body["late"]), (&json!("succeeded"), &json!(true)));
        }
    }
}

/// A success is released only with an explicit confirmation.
async fn a_success(caller: &Client, alice: &Client) {
    let contents = fresh::contents();
    let granted = caller.claim(contents.clone()).await.expect(201);
    caller.settle(&granted, "success").await.expect(200);
    let reason = json!({ "reason": "INC-3: it was undone by hand" });
    for refused in [
        alice.post(RELEASE, &about(&contents, reason.clone())).await,
        alice.post(SETTLE, &about(&contents, json!({ "outcome": "failure", "reason": "INC-3" }))).await,
        alice.post(SETTLE, &about(&contents, json!({ "outcome": "success", "reason": "INC-3" }))).await,
    ] {
        assert_eq!(refused.code(), (409, "already_succeeded"));
    }
    assert_eq!(show(alice, &contents).await.expect(200).body["state"], "succeeded");
    let meant = json!({ "even_succeeded": true, "reason": "INC-3" });
    alice.post(RELEASE, &about(&contents, meant)).await.expect(200);
    let trail = alice.get("/admin/v1/audit?limit=1").await.expect(200);
    let entry = &trail.body["entries"][0];
    assert_eq!((&entry["action"], &entry["detail"]), (&json!("claim.release"), &json!("even_succeeded")));
    caller.claim(contents).await.expect(201);
}

async fn a_failure_and_an_unknown(caller: &Client, alice: &Client) {
    let (contents, granted) = crashed(caller, alice).await;
    let failure = json!({ "outcome": "failure", "reason": "INC-4: nothing in the ledger" });
    let settled = alice.post(SETTLE, &about(&contents, failure)).await.expect(200);
    assert_eq!((&settled.body["state"], &settled.body["expires_at"]), (&json!("released"), &Value::Null));
    caller.claim(contents).await.expect(201);
    assert_eq!(caller.settle(&granted, "success").await.code(), (409, "superseded"));

    let contents = fresh::contents();
    let granted = caller.claim(contents.clone()).await.expect(201);
    let unknown = json!({ "outcome": "unknown", "reason": "INC-4: the machine has failed" });
    let settled = alice.post(SETTLE, &about(&contents, unknown)).await.expect(200);
    assert_eq!(settled.body["state"], "unknown");
    assert_eq!(caller.renew(&granted, None).await.code(), (409, "lease_lost"));
    assert_eq!(caller.settle(&granted, "failure").await.expect(200).body["state"], "released");
}

/// The operator was shown one attempt; by the time of the change another holds the claim.
async fn an_operator_changes_only_the_claim_that_was_shown(caller: &Client, alice: &Client) {
    let contents = fresh::contents();
    let granted = caller.claim(contents.clone()).await.expect(201);
    let hash = show(alice, &contents).await.body["attempt_hash"].clone();
    caller.settle(&granted, "failure").await.expect(200);
    let second = caller.claim(contents.clone()).await.expect(201);
    let (release, failure) = (
        json!({ "attempt_hash": hash, "reason": "INC-5" }),
        json!({ "attempt_hash": hash, "outcome": "failure", "reason": "INC-5" }),
    );
    for refused in
        [alice.post(RELEASE, &about(&contents, release)).await, alice.post(SETTLE, &about(&contents, failure)).await]
    {
        assert_eq!((refused.code(), &refused.body["state"]), ((409, "superseded"), &json!("in_progress")));
    }
    let shown = show(alice, &contents).await.expect(200);
    assert_eq!(shown.body["timestamp"], second.body["timestamp"]);
    let right = json!({ "attempt_hash": shown.body["attempt_hash"], "reason": "INC-5" });
    alice.post(RELEASE, &about(&contents, right)).await.expect(200);
}

/// S3: an operator looks, the holder reports success, the operator releases: the success stays.
#[tokio::test]
async fn a_success_beside_a_release_is_never_lost() {
    let gateway = operated("memory:").start().await;
    let (caller, alice) = (gateway.client(), alice(&gateway));
    let (mut released, mut kept) = (0, 0);
    for round in 0..400 {
        let contents = fresh::contents();
        let granted = caller.claim(contents.clone()).await.expect(201);
        let body = about(&contents, json!({ "reason": "INC-6" }));
        // The success comes at another point of the release each time.
        let success = async {
            tokio::time::sleep(Duration::from_micros(round * 10)).await;
            caller.settle(&granted, "success").await.expect(200)
        };
        let (success, release) = tokio::join!(success, alice.post(RELEASE, &body));
        match release.code() {
            (200, _) => {
                assert_eq!(success.body["late"], true, "a success that was not late has been released");
                released += 1;
            }
            refused => {
                assert_eq!(refused, (409, "already_succeeded"));
                kept += 1;
            }
        }
        assert_eq!(show(&alice, &contents).await.expect(200).body["state"], "succeeded");
    }
    println!("{released} released, {kept} kept");
}

/// The error of an invalid request says what to do; nothing changes.
#[tokio::test]
async fn errors_of_invalid_requests_say_what_to_do() {
    let limits = "[limits]\nbody_bytes = 4096\ncontents_bytes = 1024\nresult_bytes = 1024\n";
    let gateway = operated("memory:").config(limits).start().await;
    let alice = alice(&gateway);
    let granted = gateway.client().claim(json!("order-1")).await.expect(201);
    let global_id = granted.body["global_id"].as_str().unwrap();
    let long = "x".repeat(501);
    for (path, body, words) in [
        (SHOW, json!({ "contents": "order-1" }), "app"),
        (SHOW, json!({ "app": "default" }), "`contents`"),
        (SHOW, json!({ "app": "default", "contents": "order-1", "global_id": global_id }), "`global_id` alone"),
        (SHOW, json!({ "app": "default", "operation": "o", "global_id": global_id }), "`global_id` alone"),
        (SHOW, json!({ "app": "default", "global_id": "XYZ" }), "32 lowercase hex digits"),
        (SHOW, json!({ "app": "default", "contents": "order-1", "reason": "unasked" }), "reason"),
        (RELEASE, json!({ "app": "default", "contents": "order-1" }), "reason"),
        (RELEASE, json!({ "app": "default", "contents": "order-1", "reason": " " }), "one line of 1 to 500"),
        (RELEASE, json!({ "app": "default", "contents": "order-1", "reason": long }), "one line of 1 to 500"),
        (RELEASE, json!({ "app": "default", "contents": "order-1", "reason": "a\nb" }), "one line of 1 to 500"),
        (RELEASE, json!({ "app": "default", "contents": "order-1", "reason": "a\u{9b}b" }), "one line of 1 to 500"),
        ("/admin/v1/chains/default/switch", json!({ "to": "", "reason": "r" }), "`to`: a name is 1 to 64"),
        ("/admin/v1/apps", json!({ "app": "new", "chain": "a\nb", "reason": "r" }), "`chain`: a name is 1 to 64"),
        (
            RELEASE,
            json!({ "app": "default", "contents": "order-1", "reason": "r", "even_suceeded": true }),
            "even_suceeded",
        ),
        (SETTLE, json!({ "app": "default", "contents": "order-1", "reason": "r" }), "outcome"),
        (SETTLE, json!({ "app": "default", "contents": "order-1", "reason": "r", "outcome": "done" }), "outcome"),
        (
            SETTLE,
            json!({ "app": "default", "contents": "order-1", "reason": "r", "outcome": "failure", "result": 1 }),
            "`result`",
        ),
        (
            SETTLE,
            json!({ "app": "default", "contents": "order-1", "reason": "r", "outcome": "success", "retention": "1ms" }),
            "`retention`",
        ),
    ] {
        let refused = alice.post(path, &body).await;
        assert_eq!(refused.code(), (400, "invalid_request"), "{body}");
        assert!(refused.body["detail"].as_str().unwrap().contains(words), "{body}: {}", refused.text);
    }
    let unknown_app = alice.post(SHOW, &json!({ "app": "shop", "contents": "order-1" })).await;
    assert_eq!(unknown_app.code(), (404, "not_found"));
    assert!(unknown_app.text.contains("knows no app `shop`; it knows: default"), "{}", unknown_app.text);
    assert_eq!(alice.post_raw(SHOW, "{").await.code(), (400, "malformed_json"));
    assert_eq!(alice.send("POST", SHOW, &[], "{}").await.code(), (415, "unsupported_media_type"));
    assert_eq!(alice.post_raw(SHOW, vec![b' '; 5000]).await.code(), (413, "body_too_large"));
    let twice = r#"{"app":"default","contents":{"a":1,"a":2}}"#;
    assert_eq!(alice.post_raw(SHOW, twice).await.code(), (422, "contents_not_canonical"));
    gateway.client().renew(&granted, None).await.expect(200);
    assert_eq!(alice.get("/admin/v1/audit").await.expect(200).body["entries"], json!([]), "nothing was changed");
}

#[tokio::test]
async fn an_app_that_is_disabled_has_claims_all_the_same() {
    let secret = "secret_0123456789abcdef_0123";
    let digest = oncegate_core::hex::encode(&<sha2::Sha256 as sha2::Digest>::digest(secret));
    let folder = tempfile::tempdir().unwrap();
    let engine = format!("disk:{}", folder.path().join("claims").display());
    let app = |disabled| {
        operated(&engine).config(&format!("[apps.shop]\nsecrets = [\"sha256:{digest}\"]\ndisabled = {disabled}\n"))
    };
    let mut gateway = app(false).start().await;
    gateway.client().with_credential(&format!("shop.{secret}")).claim(json!(1)).await.expect(201);
    gateway.signal("TERM");
    gateway.ended().await;
    let gateway = app(true).start().await;
    let alice = alice(&gateway);
    let body = json!({ "app": "shop", "contents": 1 });
    assert_eq!(alice.post(SHOW, &body).await.expect(200).body["app"], "shop");
    let unknown = alice.post(SHOW, &json!({ "app": "default", "contents": 1 })).await;
    assert!(unknown.text.contains("it knows: shop"), "{}", unknown.text);
    let release = json!({ "app": "shop", "contents": 1, "reason": "the app was removed" });
    alice.post(RELEASE, &release).await.expect(200);
}

#[tokio::test]
async fn pages_hold_every_claim_once() {
    let folder = tempfile::tempdir().unwrap();
    let mut engines = vec!["memory:".to_owned(), format!("disk:{}", folder.path().join("claims").display())];
    #[cfg(feature = "postgres")]
    let server = oncegate_testkit::postgres_server::PostgresServer::start().await;
    #[cfg(feature = "postgres")]
    engines.extend(server.as_ref().map(oncegate_testkit::postgres_server::PostgresServer::url));
    for engine in engines {
        let gateway = operated(&engine).start().await;
        let (caller, alice) = (gateway.client(), alice(&gateway));
        // More than one look of the disk engine, and only some of them in the state that is asked for.
        let mut unknown = Vec::new();
        for number in 0..600 {
            let granted = caller.claim(json!(number)).await.expect(201);
            if number % 100 < 3 {
                caller.report(&granted, json!({ "outcome": "unknown" })).await.expect(200);
                unknown.push(granted.body["global_id"].as_str().unwrap().to_owned());
            }
        }
        unknown.sort();
        let (all, pages) = all_pages(&alice, "app=default&limit=100").await;
        assert_eq!((all.len(), pages), (600, 6), "{engine}");
        assert!(all.is_sorted());
        assert_eq!(all_pages(&alice, "app=default&state=unknown&limit=5").await, (unknown.clone(), 4));
        assert_eq!(all_pages(&alice, "app=default&state=unknown").await, (unknown, 1));
        assert_eq!(all_pages(&alice, "app=default&state=succeeded").await, (vec![], 1));
    }
}

/// The IDs on all pages, and how many pages there are.
async fn all_pages(alice: &Client, query: &str) -> (Vec<String>, usize) {
    let (mut ids, mut pages, mut after) = (Vec::new(), 0, String::new());
    loop {
        let page = alice.get(&format!("/admin/v1/claims?{query}{after}")).await.expect(200);
        let claims = page.body["claims"].as_array().unwrap();
        ids.extend(claims.iter().map(|claim| claim["global_id"].as_str().unwrap().to_owned()));
        pages += 1;
        match page.body["next"].as_str() {
            Some(next) => after = format!("&after={next}"),
            None => return (ids, pages),
        }
    }
}

#[tokio::test]
async fn claims_are_found_by_operation_and_time() {
    let folder = tempfile::tempdir().unwrap();
    let mut engines = vec!["memory:".to_owned(), format!("disk:{}", folder.path().join("claims").display())];
    #[cfg(feature = "postgres")]
    let server = oncegate_testkit::postgres_server::PostgresServer::start().await;
    #[cfg(feature = "postgres")]
    engines.extend(server.as_ref().map(oncegate_testkit::postgres_server::PostgresServer::url));
    for engine in engines {
        let gateway = operated(&engine).start().await;
        let (caller, alice) = (gateway.client(), alice(&gateway));
        let mut of_coupons = Vec::new();
        for number in 0..40 {
            let operation = if number % 10 == 3 { "coupon.redeem" } else { "order:submit" };
            let claim = json!({ "operation": operation, "contents": number });
            let granted = caller.post("/v1/claims", &claim).await.expect(201).body;
            if number % 10 == 3 {
                of_coupons.push(["global_id", "claimed_at"].map(|name| granted[name].as_str().unwrap().to_owned()));
            }
        }
        let sorted = |from: usize, to: usize| {
            let mut ids: Vec<_> = of_coupons[from..to].iter().map(|[id, _]| id.clone()).collect();
            ids.sort();
            ids
        };
        let [second, fourth] = [1, 3].map(|at| of_coupons[at][1].as_str());
        for (query, expected) in [
            ("operation=coupon.redeem".to_owned(), sorted(0, 4)),
            ("operation=coupon.redeem&limit=1".to_owned(), sorted(0, 4)),
            (format!("operation=coupon.redeem&claimed_after={second}"), sorted(2, 4)),
            (format!("operation=coupon.redeem&claimed_before={fourth}&limit=2"), sorted(0, 3)),
            (format!("operation=coupon.redeem&claimed_after={second}&claimed_before={fourth}"), sorted(2, 3)),
            ("operation=coupon.redeem&state=succeeded".to_owned(), Vec::new()),
            ("operation=coupon".to_owned(), Vec::new()),
        ] {
            assert_eq!(all_pages(&alice, &format!("app=default&{query}")).await.0, expected, "{engine} {query}");
        }
        let after_all = format!("app=default&claimed_after={fourth}&limit=100");
        assert_eq!(all_pages(&alice, &after_all).await.0.len(), 6, "{engine}");
        for wrong in ["operation=-", "claimed_after=now", "claimed_before=2026-10-20", "claimed_after="] {
            let refused = alice.get(&format!("/admin/v1/claims?app=default&{wrong}")).await;
            assert_eq!(refused.code(), (400, "invalid_request"), "{wrong}");
        }
        let terminal = super::commands::Terminal::at(&gateway);
        let listed = |words: &[&str]| terminal.run(&[&["claim", "list", "--app", "default"], words].concat());
        let printed = listed(&["--operation", "order:submit", "--claimed-after", fourth]).expect(0).out;
        assert_eq!(crate::support::table::rows(&printed).len(), 6, "{printed}");
        let wrong = listed(&["--claimed-before", "now"]).expect(2).err;
        assert!(wrong.contains("--claimed-before is an instant"), "{wrong}");
    }
}

#[tokio::test]
async fn a_list_is_of_an_app_that_there_is() {
    let gateway = operated("memory:").start().await;
    let alice = alice(&gateway);
    for (query, code) in [
        ("", (400, "invalid_request")),
        ("app=Shop!", (400, "invalid_request")),
        ("app=default&state=done", (400, "invalid_request")),
        ("app=default&after=1", (400, "invalid_request")),
        ("app=default&limit=101", (400, "invalid_request")),
        ("app=shop", (404, "not_found")),
    ] {
        assert_eq!(alice.get(&format!("/admin/v1/claims?{query}")).await.code(), code, "{query}");
    }
}

#[cfg(feature = "redis")]
#[tokio::test]
async fn an_engine_without_lists_names_those_that_list() {
    let Some(server) = oncegate_testkit::redis_server::RedisServer::start().await else { return };
    let gateway = operated(&server.url()).config("[engines]\nspare = \"memory:\"\n").start().await;
    let alice = alice(&gateway);
    let refused = alice.get("/admin/v1/claims?app=default").await;
    assert_eq!(refused.code(), (501, "not_supported"));
    assert!(refused.text.contains("engines that can: spare"), "{}", refused.text);

    let engines = alice.get("/admin/v1/engines").await.expect(200);
    let engine = |place: usize| &engines.body["engines"][place];
    assert_eq!(
        (&engine(0)["name"], &engine(0)["up"], &engine(0)["chains"]),
        (&json!("primary"), &json!(true), &json!(["default"]))
    );
    assert_eq!(
        (&engine(0)["capabilities"]["shared"], &engine(0)["capabilities"]["strict_fence"]),
        (&json!(true), &json!(false))
    );
    assert_eq!(
        (&engine(1)["name"], &engine(1)["url"], &engine(1)["chains"]),
        (&json!("spare"), &json!("memory:"), &json!([]))
    );
    let chains = alice.get("/admin/v1/chains").await.expect(200);
    let chain = &chains.body["chains"][0];
    assert_eq!(
        (&chain["name"], &chain["engines"], &chain["active"], &chain["epoch"]),
        (&json!("default"), &json!(["primary"]), &json!("primary"), &json!(0))
    );
    assert_eq!((&chain["health"][0]["engine"], &chain["health"][0]["up"]), (&json!("primary"), &json!(true)));
}
