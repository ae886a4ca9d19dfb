//! Quotas of apps, as callers see them: the refused calls and their responses, and the calls that remain possible.

use std::time::Duration;

use futures_util::future::join_all;
use oncegate_core::clock::{Clock, SystemClock};
use oncegate_testkit::client::{Answer, Client};
use oncegate_testkit::fresh;
use oncegate_testkit::gateway::{Gateway, Setup};
use oncegate_testkit::redis_server::RedisServer;
use oncegate_testkit::wait::until;
use serde_json::{Value, json};
use tokio::io::{AsyncReadExt, AsyncWriteExt};
use tokio::net::TcpStream;
use tokio::task::JoinSet;

use crate::proxy::{Caller, Upstream, at, config};
use crate::support::caller::{app, caller, credential};
use crate::support::exposition::Page;
use crate::support::gateway;

const EXCEEDED: &str = "oncegate_quota_exceeded_total";

/// An app with these quotas, and another one without any.
fn shop_and_bank(quota: &str) -> Setup {
    gateway::on_memory().config(&format!("{}[apps.shop.quota]\n{quota}\n{}", app("shop"), app("bank")))
}

async fn exceeded(gateway: &Gateway, app: &str, quota: &str) -> u64 {
    Page::get(&gateway.admin_client()).await.sum(EXCEEDED, &[("app", app), ("quota", quota)])
}

/// Asserts that an answer names this quota, and the time to wait.
#[track_caller]
fn assert_exceeded(answer: &Answer, quota: &str) {
    assert_eq!((answer.code(), &answer.body["quota"]), ((429, "quota_exceeded"), &json!(quota)), "{}", answer.text);
    let wait = answer.body["retry_after_ms"].as_u64().unwrap();
    let seconds: u64 = answer.headers["retry-after"].to_str().unwrap().parse().unwrap();
    assert_eq!(seconds, wait.div_ceil(1000));
    for header in ["ratelimit-policy", "ratelimit"] {
        assert!(answer.headers[header].to_str().unwrap().contains(&format!("\"{quota}\";")), "{:?}", answer.headers);
    }
    assert!(answer.body["detail"].as_str().unwrap().contains(&format!("quota {quota} = ")), "{}", answer.text);
}

/// Repeats a call until a quota refuses it: on a busy machine, the rate may have come back before.
async fn until_refused(call: impl AsyncFn() -> Answer) -> Answer {
    loop {
        let answer = call().await;
        if answer.status == 429 {
            return answer;
        }
    }
}

#[tokio::test]
async fn a_used_up_rate_is_reported_and_recovers() {
    let gateway = shop_and_bank("requests_per_second = 1\nburst = \"3s\"").start().await;
    let shop = caller(&gateway, "shop");
    let first = shop.claim(json!("A-1")).await.expect(201);
    assert_eq!(first.headers["ratelimit-policy"], "\"requests_per_second\";q=3;w=3");
    assert_eq!(first.headers["ratelimit"], "\"requests_per_second\";r=2;t=1");
    // An answer with a problem also counts as a request: duplicates, invalid requests, unknown paths.
    shop.claim(json!("A-1")).await.expect(409);
    assert_eq!(shop.post_raw("/v1/claims", "{").await.code(), (400, "malformed_json"));
    for path in ["/v1/claims", "/v1/claims/batch", "/v1/global-ids"] {
        let refused = until_refused(async || shop.post(path, &json!({ "contents": "A-3" })).await).await;
        assert_exceeded(&refused, "requests_per_second");
        assert!(refused.body["retry_after_ms"].as_u64().unwrap() <= 1000);
    }
    let refused = until_refused(async || shop.get(&first.path("")).await).await;
    assert_exceeded(&refused, "requests_per_second");
    assert_eq!(exceeded(&gateway, "shop", "requests_per_second").await, 4);
    assert_eq!(exceeded(&gateway, "bank", "requests_per_second").await, 0);
    // Nothing was done, and a caller that waits for `Retry-After` succeeds.
    until("the rate comes back", Duration::from_secs(10), async || {
        let answer = shop.claim(json!("A-2")).await;
        if answer.status == 429 {
            tokio::time::sleep(Duration::from_millis(answer.body["retry_after_ms"].as_u64().unwrap())).await;
        }
        answer.status == 201
    })
    .await;
    // Others see no quota.
    let other = caller(&gateway, "bank").claim(json!("A-1")).await.expect(201);
    assert!(!other.headers.contains_key("ratelimit") && !other.headers.contains_key("ratelimit-policy"));
}

#[tokio::test]
async fn granted_claims_are_settled_and_renewed_beyond_the_rate() {
    let gateway = shop_and_bank("requests_per_second = 1\nburst = \"4s\"").start().await;
    let shop = caller(&gateway, "shop");
    let mut granted = Vec::new();
    for contents in ["a", "b", "c", "d"] {
        granted.push(shop.claim(json!(contents)).await.expect(201));
    }
    let refused = until_refused(async || shop.claim(json!("e")).await).await;
    assert_exceeded(&refused, "requests_per_second");
    shop.renew(&granted[0], None).await.expect(200);
    for (granted, outcome) in granted.iter().zip(["success", "failure", "unknown", "success"]) {
        shop.settle(granted, outcome).await.expect(200);
    }
    let item = json!({ "global_id": "0".repeat(32), "attempt": granted[0].body["attempt"], "outcome": "failure" });
    let items = vec![item; 3];
    for answer in outcomes(&shop, &items).await {
        assert_eq!(answer["status"], 200, "{answer}");
    }
    // Its quota is exceeded, so new claims are refused.
    let refused = shop.claim(json!("f")).await;
    assert_exceeded(&refused, "requests_per_second");
    assert!(refused.body["retry_after_ms"].as_u64().unwrap() > 2_000, "{}", refused.text);
    // And what may be overdrawn is bounded too.
    let answers = outcomes(&shop, &vec![items[0].clone(); 20]).await;
    let taken = answers.iter().take_while(|answer| answer["status"] == 200).count();
    assert!((2..8).contains(&taken), "{taken} of 20");
    assert!(answers[taken..].iter().all(|answer| answer["quota"] == "requests_per_second"));
    let refused = until_refused(async || shop.settle(&granted[0], "success").await).await;
    assert_exceeded(&refused, "requests_per_second");
}

/// Calls that end or extend a hold need no rate, like those of claims.
#[tokio::test]
async fn held_locks_are_renewed_and_released_beyond_the_rate() {
    let gateway = shop_and_bank("requests_per_second = 1\nburst = \"2s\"").start().await;
    let shop = caller(&gateway, "shop");
    let held = shop.post("/v1/locks/a/holds", &json!({})).await.expect(201);
    let call =
        async |what: &str| shop.post(&format!("/v1/locks/a/{what}"), &json!({ "attempt": held.body["attempt"] })).await;
    // Each of these is one more than new requests may be, so that none may follow for a while.
    for what in ["renewal", "renewal", "renewal", "release", "release"] {
        let refused = until_refused(async || shop.post("/v1/locks/b/holds", &json!({})).await).await;
        assert_exceeded(&refused, "requests_per_second");
        assert_ne!(call(what).await.status, 429, "{what}");
    }
    assert_exceeded(&until_refused(async || shop.get("/v1/locks/a").await).await, "requests_per_second");
}

/// The proxy's requests are those of the app of their route.
#[tokio::test]
async fn requests_with_a_key_use_the_rate_and_the_places_of_their_app() {
    let (upstream, port) = Upstream::start().await;
    let proxy = config("", &at(port), "").replace("\"default\"", "\"shop\"");
    let start = async |setup: Setup, quota: &str| {
        setup.config(&format!("{proxy}{}[apps.shop.quota]\n{quota}\n", app("shop"))).start().await
    };
    let gateway = start(gateway::on_memory(), "requests_per_second = 1\nburst = \"2s\"").await;
    let caller = Caller::of(&gateway);
    let mut sent = 0;
    until("the rate is used up", Duration::from_secs(10), async || {
        sent += 1;
        caller.post("/orders/a", &format!("k-{sent}"), "one").await.status == 429
    })
    .await;
    assert_eq!(upstream.effects(), sent - 1, "what is refused is not forwarded");
    assert_eq!(exceeded(&gateway, "shop", "requests_per_second").await, 1);

    let Some(server) = RedisServer::start().await else { return };
    let gateway = start(gateway::on(server.url()).patient(), "requests_in_flight = 1").await;
    let first = Caller::of(&gateway);
    until("the store serves", Duration::from_secs(10), async || {
        first.post("/orders/a", "before", "one").await.status == 201
    })
    .await;
    // Each asks the store, and one waits for its answer.
    server.freeze();
    let sent = [1, 2, 3, 4].map(|number| {
        let caller = Caller::of(&gateway);
        tokio::spawn(async move { caller.post("/orders/a", &format!("frozen-{number}"), "one").await.status })
    });
    until("all but one are answered", Duration::from_secs(10), async || {
        sent.iter().filter(|sent| sent.is_finished()).count() >= 3
    })
    .await;
    server.thaw();
    let statuses: Vec<_> = join_all(sent).await.into_iter().map(Result::unwrap).collect();
    assert_eq!(statuses.iter().filter(|status| **status == 429).count(), 3, "{statuses:?}");
    assert_eq!(exceeded(&gateway, "shop", "requests_in_flight").await, 3);
}

#[tokio::test]
async fn a_call_that_is_willing_to_wait_has_a_place_while_it_asks_the_store() {
    let Some(server) = RedisServer::start().await else { return };
    let apps = format!("{}deadline = \"10s\"\n[apps.shop.quota]\nrequests_in_flight = 1\n{}", app("shop"), app("bank"));
    let gateway = gateway::on(server.url()).patient().config(&apps).start().await;
    let shop = caller(&gateway, "shop");
    until("the store serves", Duration::from_secs(10), async || shop.claim(fresh::contents()).await.status == 201)
        .await;
    for (is_lock, wait) in [(false, Value::Null), (false, json!("1s")), (true, Value::Null), (true, json!("1s"))] {
        let refused_before = exceeded(&gateway, "shop", "requests_in_flight").await;
        server.freeze();
        let sent = [1, 2, 3, 4].map(|number| {
            let (shop, wait, name) = (caller(&gateway, "shop"), wait.clone(), format!("{is_lock}-{wait}-{number}"));
            let name = name.replace(['"', '-'], "");
            tokio::spawn(async move {
                let answer = if is_lock {
                    let body = if wait.is_null() { json!({}) } else { json!({ "wait": wait }) };
                    shop.post(&format!("/v1/locks/{name}/holds"), &body).await
                } else {
                    let (mut body, contents) = (json!({}), json!(name));
                    body["contents"] = contents;
                    if !wait.is_null() {
                        body["wait"] = wait;
                    }
                    shop.post("/v1/claims", &body).await
                };
                answer.status
            })
        });
        until("all but one are answered", Duration::from_secs(10), async || {
            sent.iter().filter(|sent| sent.is_finished()).count() >= 3
        })
        .await;
        server.thaw();
        let statuses: Vec<_> = join_all(sent).await.into_iter().map(Result::unwrap).collect();
        let refused = statuses.iter().filter(|status| **status == 429).count();
        assert_eq!(refused, 3, "lock: {is_lock}, wait: {wait}: {statuses:?}");
        assert_eq!(exceeded(&gateway, "shop", "requests_in_flight").await, refused_before + 3);
    }
}

#[tokio::test]
async fn a_call_that_waits_gives_the_place_of_its_app_back() {
    let gateway = shop_and_bank("requests_in_flight = 2").start().await;
    let shop = caller(&gateway, "shop");
    shop.claim(json!("A-1")).await.expect(201);
    shop.post("/v1/locks/a/holds", &json!({})).await.expect(201);
    let fair = json!({ "fair": true, "wait": "20s" });
    let mut waits = Vec::new();
    for (path, body) in [("/v1/claims", json!({ "contents": "A-1", "wait": "20s" })), ("/v1/locks/a/holds", fair)] {
        for count in 1..=3 {
            let (shop, body) = (shop.clone(), body.clone());
            waits.push(tokio::spawn(async move { shop.post(path, &body).await.status }));
            until(&format!("{count} wait at {path}"), Duration::from_secs(10), async || {
                let page = Page::get(&gateway.admin_client()).await;
                let of_lock = shop_sees_waiting(&gateway).await;
                let waiting = if path == "/v1/claims" { page.sum("oncegate_claims_waiting", &[]) } else { of_lock };
                waiting == count
            })
            .await;
        }
    }
    assert!(waits.iter().all(|waits| !waits.is_finished()), "none was refused");
    shop.claim(json!("A-2")).await.expect(201);
}

/// The requests that queue for the lock of a test.
async fn shop_sees_waiting(gateway: &Gateway) -> u64 {
    caller(gateway, "shop").get("/v1/locks/a").await.body["waiting"].as_u64().unwrap_or_default()
}

/// An eighth of the places is for what ends or extends something.
#[tokio::test]
async fn granted_claims_and_held_locks_end_while_all_other_places_are_taken() {
    let gateway = shop_and_bank("requests_in_flight = 8").start().await;
    let shop = caller(&gateway, "shop");
    let granted = shop.claim(json!("a")).await.expect(201);
    let held = shop.post("/v1/locks/a/holds", &json!({})).await.expect(201);
    let mut kept = Vec::new();
    for _ in 0..7 {
        kept.push(unfinished(&gateway, "shop").await);
    }
    for path in ["/v1/claims", "/v1/locks/b/holds"] {
        assert_exceeded(&shop.post(path, &json!({})).await, "requests_in_flight");
    }
    shop.renew(&granted, None).await.expect(200);
    shop.settle(&granted, "success").await.expect(200);
    let attempt = json!({ "attempt": held.body["attempt"] });
    for path in ["/v1/locks/a/renewal", "/v1/locks/a/release"] {
        shop.post(path, &attempt).await.expect(200);
    }
}

async fn outcomes(client: &Client, items: &[Value]) -> Vec<Value> {
    let answer = client.post("/v1/outcomes/batch", &json!({ "items": items })).await.expect(200);
    answer.body["items"].as_array().unwrap().clone()
}

#[tokio::test]
async fn each_item_of_a_batch_is_a_request() {
    let gateway = shop_and_bank("requests_per_second = 1\nburst = \"5s\"").start().await;
    let shop = caller(&gateway, "shop");
    let items: Vec<_> = (0..12).map(|number| json!({ "contents": number })).collect();
    let answer = shop.post("/v1/claims/batch", &json!({ "items": items })).await.expect(200);
    let answers = answer.body["items"].as_array().unwrap();
    let granted = answers.iter().take_while(|answer| answer["status"] == 201).count();
    assert!((5..8).contains(&granted), "{}", answer.text);
    assert_eq!(answers.len(), 12);
    for refused in &answers[granted..] {
        assert_eq!((&refused["status"], &refused["quota"]), (&json!(429), &json!("requests_per_second")), "{refused}");
        assert!(refused["retry_after_ms"].as_u64().unwrap() <= 1000);
    }
    assert_eq!(exceeded(&gateway, "shop", "requests_per_second").await, (12 - granted) as u64);
    assert!(answer.headers["ratelimit"].to_str().unwrap().starts_with("\"requests_per_second\";r=0;"));
}

#[tokio::test]
async fn the_bytes_of_claims_and_results_have_a_rate_of_their_own() {
    let gateway = shop_and_bank("claim_bytes_per_second = 100\nburst = \"10s\"").start().await;
    let shop = caller(&gateway, "shop");
    let large = |name: &str| json!({ "name": name, "note": "x".repeat(800) });
    let first = shop.claim(large("first")).await.expect(201);
    assert!(first.headers["ratelimit-policy"].to_str().unwrap().ends_with(";q=1000;w=10;qu=\"content-bytes\""));
    assert_exceeded(&shop.claim(large("second")).await, "claim_bytes_per_second");
    // Small things pass, each by its own size, in a batch too.
    let items = json!([{ "contents": 1 }, { "contents": large("third") }, { "contents": 2 }]);
    let answer = shop.post("/v1/claims/batch", &json!({ "items": items })).await.expect(200);
    let statuses: Vec<_> = answer.body["items"].as_array().unwrap().iter().map(|item| &item["status"]).collect();
    assert_eq!(statuses, [201, 429, 201], "{}", answer.text);
    assert_eq!(exceeded(&gateway, "shop", "claim_bytes_per_second").await, 2);
    // A result may be overdrawn, by ten seconds' worth; and is paid for.
    let result = json!({ "outcome": "success", "result": "y".repeat(950) });
    shop.report(&first, result).await.expect(200);
    let refused = shop.claim(json!("small")).await;
    assert_exceeded(&refused, "claim_bytes_per_second");
    assert!(refused.body["retry_after_ms"].as_u64().unwrap() > 2_000, "{}", refused.text);
    assert!(shop.get(&first.path("")).await.expect(200).body["result"].is_string(), "reading costs no bytes");
}

#[tokio::test]
async fn a_late_record_counts_as_what_it_keeps() {
    let gateway = shop_and_bank("claim_bytes_per_second = 1000").start().await;
    let shop = caller(&gateway, "shop");
    let contents = json!({ "note": "x".repeat(900) });
    let id = shop.post("/v1/global-ids", &json!({ "contents": contents })).await.expect(200);
    shop.claim(json!("small")).await.expect(201);
    let attempt = format!("{}-0123456789abcdef", SystemClock::new().wall().as_micros());
    let report = json!({ "attempt": attempt, "outcome": "success", "contents": contents });
    let late = shop.post(&id.path("/outcome"), &report).await.expect(200);
    assert_eq!(late.body["late"], true);
    let left = late.headers["ratelimit"].to_str().unwrap();
    let left: u64 = left.split("r=").nth(1).unwrap().split(';').next().unwrap().parse().unwrap();
    assert!(left < 500, "{left}");
    let another = async || shop.claim(json!({ "note": "z".repeat(900), "order": fresh::contents() })).await;
    assert_exceeded(&until_refused(another).await, "claim_bytes_per_second");
}

#[tokio::test]
async fn late_outcomes_with_contents_keep_to_the_rate() {
    let gateway = shop_and_bank("claim_bytes_per_second = 1000").start().await;
    let shop = caller(&gateway, "shop");
    let mut items = Vec::new();
    for number in 0..100 {
        let contents = json!({ "number": number, "note": "x".repeat(900) });
        let id = shop.post("/v1/global-ids", &json!({ "contents": contents })).await.expect(200);
        let attempt = format!("{}-0123456789abcdef", SystemClock::new().wall().as_micros());
        let id = &id.body["global_id"];
        items.push(json!({ "global_id": id, "attempt": attempt, "outcome": "success", "contents": contents }));
    }
    let answers = outcomes(&shop, &items).await;
    let taken = answers.iter().filter(|answer| answer["status"] == 200).count();
    // A burst of a second, ten seconds of debt for outcomes, and a request that is larger than the rest.
    assert!((10..15).contains(&taken), "{taken} of 100 are taken");
    assert!(answers[taken..].iter().all(|answer| answer["quota"] == "claim_bytes_per_second"));
}

#[tokio::test]
async fn contents_of_an_outcome_in_time_are_not_counted_twice() {
    let gateway = shop_and_bank("claim_bytes_per_second = 1000\nburst = \"30s\"").start().await;
    let shop = caller(&gateway, "shop");
    let contents = json!({ "note": "x".repeat(900) });
    let left = |answer: &Answer| -> u64 {
        let left = answer.headers["ratelimit"].to_str().unwrap();
        left.split("r=").nth(1).unwrap().split(';').next().unwrap().parse().unwrap()
    };
    let granted = shop.claim(contents.clone()).await.expect(201);
    let settled = shop.report(&granted, json!({ "outcome": "success", "contents": contents })).await.expect(200);
    assert_eq!(settled.body["late"], false);
    assert!(left(&settled) >= left(&granted), "{} and then {}", left(&granted), left(&settled));
}

/// A request of an app that has been asked for its body and does not send it.
async fn unfinished(gateway: &Gateway, app: &str) -> TcpStream {
    let head = format!(
        "POST /v1/claims HTTP/1.1\r\nhost: localhost\r\nauthorization: Bearer {}\r\ncontent-type: application/json\r\n\
         content-length: 14\r\nexpect: 100-continue\r\n\r\n",
        credential(app)
    );
    let mut stream = TcpStream::connect(gateway.api()).await.unwrap();
    stream.write_all(head.as_bytes()).await.unwrap();
    let mut answer = [0; 12];
    stream.read_exact(&mut answer).await.unwrap();
    assert_eq!(&answer, b"HTTP/1.1 100");
    stream
}

#[tokio::test]
async fn an_app_has_only_so_many_requests_in_flight() {
    let gateway = shop_and_bank("requests_in_flight = 2").start().await;
    let (shop, bank) = (caller(&gateway, "shop"), caller(&gateway, "bank"));
    let (first, _second) = (unfinished(&gateway, "shop").await, unfinished(&gateway, "shop").await);
    let refused = shop.claim(json!(1)).await;
    assert_exceeded(&refused, "requests_in_flight");
    assert_eq!(refused.headers["ratelimit-policy"], "\"requests_in_flight\";q=2;qu=\"concurrent-requests\"");
    bank.claim(json!(1)).await.expect(201);
    // A caller that disconnects releases its permit.
    drop(first);
    until("the place is free", Duration::from_secs(10), async || shop.claim(fresh::contents()).await.status == 201)
        .await;
    assert!(exceeded(&gateway, "shop", "requests_in_flight").await >= 1);
    assert_eq!(exceeded(&gateway, "bank", "requests_in_flight").await, 0);
}

#[tokio::test]
async fn no_app_alone_takes_all_places() {
    let setup = gateway::on_memory().config(&format!("{}{}", app("shop"), app("bank")));
    let gateway = setup.env("ONCEGATE_LIMITS__REQUESTS_IN_FLIGHT", 6).start().await;
    let mut kept = Vec::new();
    for _ in 0..3 {
        kept.push(unfinished(&gateway, "shop").await);
    }
    assert_exceeded(&caller(&gateway, "shop").claim(json!(1)).await, "requests_in_flight");
    caller(&gateway, "bank").claim(json!(1)).await.expect(201);
    // The one app of an open gateway shares its quota with no other.
    let open = gateway::on_memory().env("ONCEGATE_LIMITS__REQUESTS_IN_FLIGHT", 6).start().await;
    for _ in 0..5 {
        kept.push(unfinished(&open, "anybody").await);
    }
    open.client().claim(json!(1)).await.expect(201);
}

#[tokio::test]
async fn requests_without_credentials_use_no_quota() {
    let gateway = shop_and_bank("requests_per_second = 1\nburst = \"2s\"\nrequests_in_flight = 1").start().await;
    let wrong = gateway.client().with_credential("shop.wrong_secret_0123456789abcdef");
    let mut flood = JoinSet::new();
    for number in 0..20 {
        let (wrong, anybody) = (wrong.clone(), gateway.client());
        flood.spawn(async move {
            for _ in 0..5 {
                for client in [&wrong, &anybody] {
                    let answer = client.claim(json!(number)).await;
                    assert_eq!(answer.code(), (401, "unauthenticated"));
                    assert!(!answer.headers.contains_key("ratelimit"));
                }
            }
        });
    }
    flood.join_all().await;
    let shop = caller(&gateway, "shop");
    let first = shop.claim(json!(1)).await.expect(201);
    assert_eq!(first.headers["ratelimit"], "\"requests_per_second\";r=1;t=1");
    // With its quota used up the app gets 429, and requests without a valid credential still get 401.
    while shop.claim(json!(1)).await.status != 429 {}
    assert_eq!(wrong.claim(json!(1)).await.code(), (401, "unauthenticated"));
    assert_eq!(exceeded(&gateway, "shop", "requests_in_flight").await, 0);
}

#[tokio::test]
async fn a_body_that_is_not_wanted_does_not_take_the_answer_with_it() {
    let gateway = shop_and_bank("requests_per_second = 1").start().await;
    let shop = caller(&gateway, "shop");
    let first = shop.claim(json!("first")).await.expect(201);
    // Overdrawn, so that it stays used up for some seconds.
    for _ in 0..9 {
        shop.renew(&first, None).await.expect(200);
    }
    // A caller that sends all of it before it listens.
    let body = json!({ "contents": "x".repeat(900_000) }).to_string();
    let head = format!(
        "POST /v1/claims HTTP/1.1\r\nhost: localhost\r\nauthorization: Bearer {}\r\ncontent-type: application/json\r\n\
         content-length: {}\r\n\r\n",
        credential("shop"),
        body.len()
    );
    for _ in 0..5 {
        let mut stream = TcpStream::connect(gateway.api()).await.unwrap();
        stream.write_all(head.as_bytes()).await.unwrap();
        for part in body.as_bytes().chunks(100_000) {
            stream.write_all(part).await.expect("the body is taken");
            tokio::task::yield_now().await;
        }
        let mut answer = [0; 12];
        stream.read_exact(&mut answer).await.expect("an answer");
        assert_eq!(&answer, b"HTTP/1.1 429");
    }
}

#[tokio::test]
async fn quotas_change_with_the_configuration() {
    let quota = |quota: &str| format!("{}[apps.shop.quota]\n{quota}\n", app("shop"));
    let slow = quota("requests_per_second = 1\nburst = \"1m\"");
    let gateway = gateway::on_memory().config(&slow).start().await;
    let shop = caller(&gateway, "shop");
    let reload = async |toml: &str| {
        let response = || gateway.log().matches("Configuration reloaded").count();
        let before = response();
        gateway.configure(toml);
        gateway.signal("HUP");
        until("it is read again", Duration::from_secs(10), async || response() > before).await;
    };
    for number in 0..60 {
        shop.claim(json!(number)).await.expect(201);
    }
    while shop.claim(json!("more")).await.status != 429 {}
    // The same quota continues where it was: a new one would allow 60. It regains one a second.
    reload(&format!("{slow}[apps.bank]\ndisabled = true\n")).await;
    let mut regained = 0;
    let refused = loop {
        let answer = shop.claim(json!("more")).await;
        if answer.status == 429 {
            break answer;
        }
        regained += 1;
    };
    assert_exceeded(&refused, "requests_per_second");
    assert!(regained < 30, "{regained}");
    reload(&quota("requests_per_second = 2\nburst = \"1s\"")).await;
    let changed = shop.claim(json!("changed")).await.expect(201);
    assert_eq!(changed.headers["ratelimit-policy"], "\"requests_per_second\";q=2;w=1");
    reload(&app("shop")).await;
    for number in 0..50 {
        assert_ne!(shop.claim(json!({ "free": number })).await.status, 429);
    }
}

#[tokio::test]
async fn nobody_asks_for_a_retention_beyond_the_apps() {
    let config = format!("{}retention_max = \"2d\"\n{}", app("shop"), app("bank"));
    let gateway = gateway::on_memory().config(&config).start().await;
    let shop = caller(&gateway, "shop");
    for retention in ["49h", "forever"] {
        let refused = shop.post("/v1/claims", &json!({ "contents": 1, "retention": retention })).await;
        assert_eq!(refused.code(), (400, "invalid_request"), "{retention}");
        let detail = refused.body["detail"].as_str().unwrap();
        assert!(detail.contains("`retention`") && detail.contains("is 2d (retention_max)"), "{detail}");
    }
    let items = json!([{ "contents": 1, "retention": "3d" }, { "contents": 1, "retention": "48h" }]);
    let answer = shop.post("/v1/claims/batch", &json!({ "items": items })).await.expect(200);
    assert_eq!((&answer.body["items"][0]["status"], &answer.body["items"][1]["status"]), (&json!(400), &json!(201)));
    let granted = shop.claim(json!(2)).await.expect(201);
    let report = |retention: &str| json!({ "outcome": "success", "retention": retention });
    assert_eq!(shop.report(&granted, report("forever")).await.code(), (400, "invalid_request"));
    assert_eq!(shop.get(&granted.path("")).await.expect(200).body["state"], "in_progress", "nothing was done");
    shop.report(&granted, report("2d")).await.expect(200);
    caller(&gateway, "bank").post("/v1/claims", &json!({ "contents": 1, "retention": "forever" })).await.expect(201);
}
