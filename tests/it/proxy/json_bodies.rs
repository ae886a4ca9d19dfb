//! JSON bodies that the proxy reads: keys in them (`key_in_body`), and members that may differ on a repeat (`fingerprint_without`).

use serde_json::Value;

use super::{Caller, Upstream, proxy};

type Fields<'a> = &'a [(&'a str, &'a str)];

const KEY_IN_BODY: &str = "key_in_body = \"/variables/input/idempotencyKey\"\n";
const LIMITS: &str = "[limits]\nbody_bytes = 4096\ncontents_bytes = 1024\nresult_bytes = 1024\n";
const OBSERVE: &str = "[defaults]\nmode = \"observe\"\n";

/// Returns the body of a mutation of GraphQL with this key, as JSON.
fn mutation(key: &str, amount: u32) -> String {
    format!(
        r#"{{"query": "mutation", "variables": {{"input": {{"idempotencyKey": {key}, "amount": {amount}}}}}, "pad": ""}}"#
    )
}

/// Sends a request with these fields and those of its caller.
async fn send(caller: &Caller, fields: Fields<'_>, body: &str) -> (u16, bool, Value) {
    let fields = [fields, &[("authorization", "alice"), ("content-type", "application/json")]].concat();
    let answer = caller.send("POST", "/orders/a", &fields, body).await;
    let json = answer.body.as_ref().and_then(|body| serde_json::from_slice(body).ok()).unwrap_or_default();
    (answer.status, answer.is_replay(), json)
}

#[tokio::test]
async fn a_repeat_may_differ_in_members_that_are_left_out() {
    let (upstream, port) = Upstream::start().await;
    let (_gateway, caller) = proxy(port, &format!("fingerprint_without = [\"/id\"]\n{LIMITS}")).await;
    let key = [("idempotency-key", "k-1")];
    let body = |id: &str, amount: u32| format!(r#"{{"jsonrpc": "2.0", "id": {id}, "params": {{"amount": {amount}}}}}"#);
    assert_eq!(send(&caller, &key, &body("1", 5)).await.0, 201);
    for id in ["2", "\"x\"", "null"] {
        let (status, is_replay, _) = send(&caller, &key, &body(id, 5)).await;
        assert!(status == 201 && is_replay, "{id}: {status}");
    }
    let (status, _, problem) = send(&caller, &key, &body("1", 6)).await;
    assert_eq!((status, &problem["code"]), (422, &"fingerprint_mismatch".into()));
    // A digest would also cover the members that are left out.
    let long = format!("{}{}", body("1", 5), " ".repeat(4096));
    let digest = "sha-256=:47DEQpj8HBSa+/TImW+5JCeuQeRkm5NMpJWZG3hSuFU=:";
    let (status, _, problem) = send(&caller, &[key[0], ("content-digest", digest)], &long).await;
    assert_eq!((status, &problem["code"]), (413, &"body_too_large".into()), "{problem}");
    assert_eq!(upstream.effects(), 1);
}

#[tokio::test]
async fn a_key_in_the_body_is_the_key_of_the_request() {
    let (upstream, port) = Upstream::start().await;
    let (_gateway, caller) = proxy(port, &format!("{KEY_IN_BODY}{LIMITS}")).await;
    assert_eq!(send(&caller, &[], &mutation("\"k-1\"", 5)).await.0, 201);
    let same = [("idempotency-key", "\"k-1\"")];
    for fields in [&[][..], &same] {
        let (status, is_replay, _) = send(&caller, fields, &mutation("\"k-1\"", 5)).await;
        assert!(status == 201 && is_replay, "{fields:?}: {status}");
    }
    // A field alone is a key as well.
    assert_eq!(send(&caller, &[("idempotency-key", "k-2")], &mutation("null", 5)).await.0, 201);
    assert_eq!(upstream.effects(), 2);

    let (other, gzip) = (("idempotency-key", "k-2"), ("content-encoding", "gzip"));
    let long = format!("{}{}", mutation("\"k-3\"", 5), " ".repeat(4096));
    let refused: [(Fields<'_>, &str, u16, &str); 8] = [
        (&[], &mutation("\"k-1\"", 6), 422, "fingerprint_mismatch"),
        (&[other], &mutation("\"k-1\"", 5), 400, "idempotency_key_invalid"),
        (&[], &mutation("null", 5), 400, "idempotency_key_invalid"),
        (&[], &mutation("7", 5), 400, "idempotency_key_invalid"),
        (&[], "", 400, "idempotency_key_invalid"),
        (&[], "no JSON", 400, "idempotency_key_invalid"),
        (&[gzip], &mutation("\"k-3\"", 5), 400, "idempotency_key_invalid"),
        (&[], &long, 413, "body_too_large"),
    ];
    for (fields, body, status, code) in refused {
        let (answered, _, problem) = send(&caller, fields, body).await;
        assert_eq!((answered, &problem["code"]), (status, &code.into()), "{fields:?} {body}: {problem}");
    }
    assert_eq!(upstream.effects(), 2);
}

#[tokio::test]
async fn a_key_in_the_body_is_optional_where_the_route_says_so_and_refuses_nothing_while_it_is_observed() {
    let long = format!("{}{}", mutation("\"k-3\"", 5), " ".repeat(4096));
    // The body, and its answer on a route with optional keys. Observed, each request is forwarded.
    let requests = [
        (mutation("null", 5), 201),
        (String::new(), 201),
        (mutation("\"k-1\"", 5), 201),
        (mutation("7", 5), 400),
        ("no JSON".to_owned(), 400),
        (long, 413),
    ];
    for (settings, is_observed) in [
        (format!("{KEY_IN_BODY}key = \"optional\"\n{LIMITS}"), false),
        (format!("{KEY_IN_BODY}{OBSERVE}{LIMITS}"), true),
    ] {
        let (upstream, port) = Upstream::start().await;
        let (_gateway, caller) = proxy(port, &settings).await;
        let mut effects = 0;
        for (body, status) in &requests {
            let expected = if is_observed { 201 } else { *status };
            let (status, is_replay, _) = send(&caller, &[], body).await;
            assert_eq!((status, is_replay), (expected, false), "observed {is_observed}: {body}");
            effects += usize::from(expected == 201);
            assert_eq!(upstream.effects(), effects, "observed {is_observed}: {body}");
        }
        let (_, is_replay, _) = send(&caller, &[], &requests[2].0).await;
        assert_ne!(is_replay, is_observed);
    }
}
