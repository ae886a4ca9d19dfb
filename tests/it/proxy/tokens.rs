//! Callers with tokens, and an issuer that changes its keys.

use std::sync::{Arc, Mutex};
use std::time::{Duration, UNIX_EPOCH};

use axum::{Json, Router};
use base64::Engine as _;
use base64::engine::general_purpose::URL_SAFE_NO_PAD;
use oncegate_core::clock::{Clock as _, SystemClock};
use oncegate_testkit::wait::until;
use ring::rand::SystemRandom;
use ring::signature::{Ed25519KeyPair, KeyPair as _};
use serde_json::{Value, json};
use tokio::net::TcpListener;

use super::{Answer, Caller, SOON, Upstream};
use crate::support::exposition::Page;
use crate::support::gateway;

struct Signer {
    id: &'static str,
    pair: Ed25519KeyPair,
}

impl Signer {
    fn new(id: &'static str) -> Self {
        let document = Ed25519KeyPair::generate_pkcs8(&SystemRandom::new()).unwrap();
        Self { id, pair: Ed25519KeyPair::from_pkcs8(document.as_ref()).unwrap() }
    }

    fn key(&self) -> Value {
        let x = URL_SAFE_NO_PAD.encode(self.pair.public_key().as_ref());
        json!({ "keys": [{ "kty": "OKP", "crv": "Ed25519", "kid": self.id, "x": x }] })
    }

    /// Returns a token for a subject that is valid for some seconds from now on.
    fn token(&self, subject: &str, seconds: i64) -> String {
        let now = i64::try_from(SystemClock::new().wall().as_micros() / 1_000_000).unwrap();
        let parts = [
            json!({ "alg": "EdDSA", "kid": self.id }),
            json!({ "iss": "https://id.example", "sub": subject, "exp": now + seconds }),
        ];
        let signed = parts.map(|part| URL_SAFE_NO_PAD.encode(part.to_string())).join(".");
        let signature = URL_SAFE_NO_PAD.encode(self.pair.sign(signed.as_bytes()).as_ref());
        format!("Bearer {signed}.{signature}")
    }
}

async fn post(caller: &Caller, token: &str) -> Answer {
    caller.send("POST", "/orders/a", &[("idempotency-key", "k-1"), ("authorization", token)], "one").await
}

/// Serves keys, and returns the configuration of a route for tokens that these keys verify.
async fn config(keys: &Arc<Mutex<Value>>, port: u16, route: &str) -> String {
    let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
    let url = format!("http://{}/keys", listener.local_addr().unwrap());
    let served = keys.clone();
    let router = Router::new().fallback(move || std::future::ready(Json(served.lock().unwrap().clone())));
    tokio::spawn(async move { axum::serve(listener, router).await });
    let issuers = format!("issuers = [{{ issuer = \"https://id.example\", jwks_url = {url:?} }}]\n");
    let config = super::config(&issuers, &super::at(port), route);
    config.replace("principal = [\"authorization\"]", "principal = [\"jwt:iss+sub\"]")
}

#[tokio::test]
async fn the_subject_of_a_verified_token_says_who_calls() {
    let (upstream, port) = Upstream::start().await;
    let (first, second) = (Signer::new("1"), Signer::new("2"));
    let keys = Arc::new(Mutex::new(first.key()));
    let gateway = gateway::on_memory().config(&config(&keys, port, "").await).start().await;
    let caller = Caller::of(&gateway);
    until("the keys are known", SOON, async || post(&caller, &first.token("alice", 300)).await.status == 201).await;
    assert!(post(&caller, &first.token("alice", 600)).await.is_replay(), "a refreshed token is the same caller");
    let bob = post(&caller, &first.token("bob", 300)).await;
    assert_eq!((bob.status, bob.is_replay()), (201, false));
    assert_eq!(upstream.effects(), 2);
    // Nothing of these is forwarded.
    let forged = Signer::new("1").token("alice", 300);
    for (token, status, code) in [
        (first.token("alice", -300).as_str(), 401, "unauthenticated"),
        (&forged, 401, "unauthenticated"),
        ("Basic YWxpY2U6MQ==", 400, "principal_missing"),
    ] {
        let refused = post(&caller, token).await;
        assert_eq!((refused.status, &refused.json()["code"]), (status, &Value::from(code)), "{token}");
    }
    assert_eq!(upstream.requests(), 2);
    // A token with a new key lets the keys be read again.
    *keys.lock().unwrap() = second.key();
    let unknown = post(&caller, &second.token("alice", 300)).await;
    assert_eq!((unknown.status, &unknown.json()["code"]), (502, &Value::from("upstream_unavailable")));
    until("the new key is known", SOON, async || post(&caller, &second.token("alice", 300)).await.is_replay()).await;
    assert_eq!(post(&caller, &first.token("alice", 300)).await.status, 401, "the old key is gone");
    assert_eq!(upstream.effects(), 2);
}

/// Nothing was claimed when a request is refused because the keys are not known.
#[tokio::test]
async fn a_caller_that_is_not_known_yet_is_rejected_in_the_dialect_of_oasis() {
    let (upstream, port) = Upstream::start().await;
    let keys = Arc::new(Mutex::new(json!("none")));
    let gateway = gateway::on_memory().config(&config(&keys, port, "dialect = \"oasis\"\n").await).start().await;
    let now = UNIX_EPOCH + Duration::from_micros(SystemClock::new().wall().as_micros());
    let (token, sent) = (Signer::new("1").token("alice", 300), httpdate::fmt_http_date(now));
    let fields = [("repeatability-request-id", "1"), ("repeatability-first-sent", &*sent), ("authorization", &*token)];
    let answer = Caller::of(&gateway).send("POST", "/orders/a", &fields, "one").await;
    assert_eq!((answer.status, &answer.headers["repeatability-result"]), (502, &"rejected".parse().unwrap()));
    assert_eq!(upstream.requests(), 0);
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_token_that_expires_while_its_request_waits_gets_no_replay() {
    let (upstream, port) = Upstream::start().await;
    let signer = Signer::new("1");
    let keys = Arc::new(Mutex::new(signer.key()));
    let gateway = gateway::on_memory().config(&config(&keys, port, "wait = \"28s\"\n").await).start().await;
    let caller = Caller::of(&gateway);
    until("the keys are known", SOON, async || post(&caller, &signer.token("alice", 300)).await.status == 201).await;
    let order = |token: String| {
        let caller = Caller::of(&gateway);
        tokio::spawn(async move {
            let fields = [("idempotency-key", "k-2"), ("authorization", &*token)];
            caller.send("POST", "/orders/slow", &fields, "one").await.status
        })
    };
    let first = order(signer.token("alice", 300));
    until("the upstream has it", SOON, async || upstream.effects() == 2).await;
    // Sixty seconds are tolerated: it is valid for fifteen more.
    let token = signer.token("alice", -45);
    let repeat = order(token.clone());
    let valid = order(signer.token("alice", 300));
    let admin = gateway.admin_client();
    until("both wait", SOON, async || Page::get(&admin).await.sum("oncegate_claims_waiting", &[]) == 2).await;
    until("the token has expired", SOON, async || post(&caller, &token).await.status == 401).await;
    assert!(!repeat.is_finished(), "it waits");
    upstream.gate.add_permits(1);
    assert_eq!((repeat.await.unwrap(), valid.await.unwrap(), first.await.unwrap()), (401, 201, 201));
    assert_eq!(upstream.effects(), 2);
}
