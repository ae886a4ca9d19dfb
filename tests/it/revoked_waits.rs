//! Waiting calls whose caller loses its access: they are refused like new calls, and leave no trace.

use std::fs;
use std::time::Duration;

use oncegate_core::hex;
use oncegate_testkit::client::{Answer, Client};
use oncegate_testkit::gateway::Gateway;
use oncegate_testkit::wait::until;
use serde_json::{Value, json};
use sha2::{Digest, Sha256};
use tokio::task::JoinHandle;

use crate::proxy::{Caller, Upstream, at, config};
use crate::support::exposition::Page;
use crate::support::gateway;

const LEAVES: &str = "leaves_0123456789abcdefghij";
const STAYS: &str = "stays_0123456789abcdefghijk";

/// Less than the wait of each call.
const SOON: Duration = Duration::from_secs(15);

/// Path, header fields and body of a call that waits.
type Way = (&'static str, &'static [(&'static str, &'static str)], Value);

/// Kinds of waits: path, header fields and body of a call that conflicts with the claim or lock of `hold`.
fn ways() -> [Way; 6] {
    const PREFER: &[(&str, &str)] = &[("content-type", "application/json"), ("prefer", "wait=25")];
    const PLAIN: &[(&str, &str)] = &[("content-type", "application/json")];
    let nonce = "a_nonce_of_the_caller";
    [
        ("/v1/claims", PLAIN, json!({ "contents": "body", "wait": "25s" })),
        ("/v1/claims", PREFER, json!({ "contents": "header" })),
        ("/v1/claims", PLAIN, json!({ "contents": "nonce", "wait": "25s", "attempt_nonce": nonce })),
        ("/v1/locks/unfair/holds", PLAIN, json!({ "wait": "25s" })),
        ("/v1/locks/preferred/holds", PREFER, json!({})),
        ("/v1/locks/fair/holds", PLAIN, json!({ "wait": "25s", "fair": true, "attempt_nonce": nonce })),
    ]
}

/// The same call without a wait and with another nonce. It is granted if the operation or lock is free.
async fn take(client: &Client, (path, _, mut body): (&'static str, &[(&str, &str)], Value)) -> Answer {
    let fields = body.as_object_mut().unwrap();
    fields.remove("wait");
    fields.remove("attempt_nonce");
    client.post(path, &body).await
}

async fn free(client: &Client, path: &str, held: &Answer) {
    if path == "/v1/claims" {
        client.settle(held, "failure").await.expect(200);
    } else {
        let body = json!({ "attempt": held.body["attempt"] });
        client.post(&path.replace("holds", "release"), &body).await.expect(200);
    }
}

fn apps(proxy: &str, secrets: &[&str], more: &str) -> String {
    let digest = |secret: &&str| format!("\"sha256:{}\"", hex::encode(&Sha256::digest(secret)));
    let secrets: Vec<_> = secrets.iter().map(digest).collect();
    format!("{proxy}\n[apps.shop]\nlease = \"2m\"\nsecrets = [{}]\n{more}\n", secrets.join(", "))
}

fn reload(gateway: &Gateway, text: &str) {
    let beside = gateway.config_file().with_extension("new");
    fs::write(&beside, text).unwrap();
    fs::rename(&beside, gateway.config_file()).unwrap();
    gateway.signal("HUP");
}

async fn answered<T>(waits: JoinHandle<T>) -> T {
    tokio::time::timeout(SOON, waits).await.expect("it is answered").expect("no panic")
}

async fn waiting(gateway: &Gateway) -> u64 {
    Page::get(&gateway.admin_client()).await.sum("oncegate_claims_waiting", &[])
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_caller_that_loses_its_access_while_it_waits_gets_what_a_new_call_gets() {
    for (secrets, more, refused) in
        [(&[STAYS][..], "", (401, "unauthenticated")), (&[LEAVES, STAYS], "disabled = true", (403, "app_disabled"))]
    {
        let (upstream, port) = Upstream::start().await;
        let proxy = config("", &at(port), "wait = \"25s\"\n").replace("\"default\"", "\"shop\"");
        let before = apps(&proxy, &[LEAVES, STAYS], "");
        let gateway = gateway::on_memory().config(&before).start().await;
        let [leaves, stays] = [LEAVES, STAYS].map(|secret| gateway.client().with_credential(&format!("shop.{secret}")));

        let mut held = Vec::new();
        for way in ways() {
            held.push(take(&stays, way).await.expect(201));
        }
        let order =
            |caller: Caller| tokio::spawn(async move { caller.post("/orders/slow", "k-1", "one").await.status });
        let first = order(Caller::of(&gateway));
        until("the upstream has it", SOON, async || upstream.effects() == 1).await;

        let calls: Vec<_> = ways()
            .into_iter()
            .map(|(path, fields, body)| {
                let client = leaves.clone();
                tokio::spawn(async move { client.send("POST", path, fields, body.to_string()).await })
            })
            .collect();
        let repeat = order(Caller::of(&gateway));
        until("the claims wait", SOON, async || waiting(&gateway).await == 4).await;
        until("the fair request waits", SOON, async || {
            stays.get("/v1/locks/fair").await.body["waiting"].as_u64() == Some(1)
        })
        .await;

        reload(&gateway, &apps(&proxy, secrets, more));
        for ((path, ..), call) in ways().into_iter().zip(calls) {
            assert_eq!(answered(call).await.code(), refused, "{path}");
        }
        // The proxy's callers need no secret of the app, but the app.
        if refused.0 == 403 {
            assert_eq!(answered(repeat).await, 503);
            upstream.gate.add_permits(1);
        } else {
            assert_eq!(waiting(&gateway).await, 1);
            upstream.gate.add_permits(1);
            assert_eq!(answered(repeat).await, 201);
        }
        assert_eq!((answered(first).await, upstream.effects()), (201, 1));

        // A refused caller gets no grant, and no place in the queue is kept for it.
        reload(&gateway, &before);
        until("the app is back", SOON, async || {
            stays.post("/v1/global-ids", &json!({ "contents": 1 })).await.status == 200
        })
        .await;
        for (way, held) in ways().into_iter().zip(&held) {
            free(&stays, way.0, held).await;
            take(&stays, way).await.expect(201);
        }
    }
}

/// What they wait for is in a chain that new calls do not use, so a grant there would let an operation run twice.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_call_that_waits_while_its_app_moves_to_another_chain_is_not_granted_in_the_old_one() {
    let (upstream, port) = Upstream::start().await;
    let proxy = config("", &at(port), "wait = \"25s\"\n").replace("\"default\"", "\"shop\"");
    let engines = "[engines]\nprimary = \"memory:\"\nspare = \"memory:\"\n[chains.default]\nengines = [\"primary\"]\n\
                   [chains.other]\nengines = [\"spare\"]\n";
    let before = format!("{engines}{}", apps(&proxy, &[STAYS], ""));
    let gateway = gateway::on_configured().config(&before).start().await;
    let shop = gateway.client().with_credential(&format!("shop.{STAYS}"));
    for way in ways() {
        take(&shop, way).await.expect(201);
    }
    let order = |caller: Caller| tokio::spawn(async move { caller.post("/orders/slow", "k-1", "one").await.status });
    let first = order(Caller::of(&gateway));
    until("the upstream has it", SOON, async || upstream.effects() == 1).await;
    let wait = || {
        let call = |(path, fields, body): Way| {
            let client = shop.clone();
            tokio::spawn(async move { client.send("POST", path, fields, body.to_string()).await })
        };
        ways().map(call)
    };
    let all_wait = async |claims: u64| {
        until("the claims wait", SOON, async || waiting(&gateway).await == claims).await;
        until("the fair request waits", SOON, async || {
            shop.get("/v1/locks/fair").await.body["waiting"].as_u64() == Some(1)
        })
        .await;
    };
    let (calls, repeat) = (wait(), order(Caller::of(&gateway)));
    all_wait(4).await;

    reload(&gateway, &format!("{engines}{}", apps(&proxy, &[STAYS], "chain = \"other\"")));
    for ((path, ..), call) in ways().into_iter().zip(calls) {
        assert_eq!(answered(call).await.code(), (503, "store_unavailable"), "{path}");
    }
    assert_eq!(answered(repeat).await, 503);
    upstream.gate.add_permits(1);
    assert_eq!((answered(first).await, upstream.effects()), (201, 1));

    // In the other chain nothing is held. Who waits there gets what is freed there.
    let mut held = Vec::new();
    for way in ways() {
        held.push(take(&shop, way).await.expect(201));
    }
    let calls = wait();
    all_wait(3).await;
    for (way, held) in ways().into_iter().zip(&held) {
        free(&shop, way.0, held).await;
    }
    for ((path, ..), call) in ways().into_iter().zip(calls) {
        assert_eq!(answered(call).await.status, 201, "{path}");
    }
}
