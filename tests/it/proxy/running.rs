//! Running requests: repeats that wait, late responses, endless responses, and requests in observe mode.

use std::sync::Arc;

use axum::http::HeaderValue;
use oncegate_testkit::certificates::Authority;
use oncegate_testkit::redis_server::RedisServer;
use oncegate_testkit::wait::until;
use serde_json::Value;

use super::bounds::waiting;
use super::records::encryption;
use super::{Caller, SOON, Upstream, proxy, proxy_with};
use crate::support::exposition::Page;
use crate::support::gateway;

#[tokio::test]
async fn a_repeat_waits_for_the_response_of_the_running_request() {
    for (of_route, prefer) in [("wait = \"20s\"\n", "respond-async"), ("", "wait=20")] {
        let (upstream, port) = Upstream::start().await;
        let (gateway, caller) = proxy(port, of_route).await;
        let caller = Arc::new(caller);
        let send = || {
            let caller = caller.clone();
            let fields = [("idempotency-key", "k-1"), ("authorization", "alice"), ("prefer", prefer)];
            tokio::spawn(async move { caller.send("POST", "/orders/slow", &fields, "one").await })
        };
        let first = send();
        until("the upstream has it", SOON, async || upstream.effects() == 1).await;
        let repeats = [send(), send()];
        until("both wait", SOON, async || waiting(&gateway).await == 2).await;
        upstream.gate.add_permits(1);
        let first = first.await.unwrap();
        assert!(!first.headers.contains_key("preference-applied"), "it did not wait");
        for repeat in repeats {
            let repeat = repeat.await.unwrap();
            assert_eq!((repeat.status, repeat.body.as_ref()), (201, first.body.as_ref()));
            assert!(repeat.is_replay());
            // The wait of the route is no preference of the caller.
            let applied = repeat.headers.get("preference-applied").map(HeaderValue::as_bytes);
            assert_eq!(applied, of_route.is_empty().then_some(prefer.as_bytes()));
        }
        let settled = send().await.unwrap();
        assert!(settled.is_replay() && !settled.headers.contains_key("preference-applied"), "it did not wait");
        assert_eq!(upstream.effects(), 1);
    }
}

#[tokio::test]
async fn a_wait_that_a_caller_prefers_is_named_where_it_waited_in_vain() {
    for dialect in ["ietf", "stripe"] {
        let (upstream, port) = Upstream::start().await;
        let (_gateway, caller) = proxy(port, &format!("dialect = \"{dialect}\"\n")).await;
        let caller = Arc::new(caller);
        let first = tokio::spawn({
            let caller = caller.clone();
            async move { caller.post("/orders/slow", "k-1", "one").await.status }
        });
        until("the upstream has it", SOON, async || upstream.effects() == 1).await;
        let at_once = caller.post("/orders/slow", "k-1", "one").await;
        assert!(at_once.status == 409 && !at_once.headers.contains_key("preference-applied"), "{dialect}");
        let fields = [("idempotency-key", "k-1"), ("authorization", "alice"), ("prefer", "wait=1")];
        let waited = caller.send("POST", "/orders/slow", &fields, "one").await;
        assert_eq!(
            (waited.status, &waited.headers["preference-applied"]),
            (409, &"wait=1".parse().unwrap()),
            "{dialect}"
        );
        upstream.gate.add_permits(1);
        assert_eq!(first.await.unwrap(), 201);
    }
}

#[tokio::test]
async fn a_repeat_of_a_request_without_a_response_in_time_waits_for_it() {
    let (upstream, port) = Upstream::start().await;
    let (_gateway, caller) = proxy_with(port, "", "").await;
    let late = caller.post("/orders/late", "k-1", "one").await;
    assert_eq!((late.status, &late.json()["code"]), (504, &Value::from("upstream_timeout")));
    assert!(late.headers.contains_key("retry-after"));
    let repeat = caller.post("/orders/late", "k-1", "one").await;
    assert_eq!((repeat.status, &repeat.json()["state"]), (409, &Value::from("in_progress")));
    let fields = [("idempotency-key", "k-1"), ("authorization", "alice"), ("prefer", "wait=20")];
    let (waiting, ()) = tokio::join!(caller.send("POST", "/orders/late", &fields, "one"), async {
        upstream.gate.add_permits(1);
    });
    assert!(waiting.status == 201 && waiting.is_replay(), "{}", waiting.status);
    assert_eq!(upstream.effects(), 1);
}

#[tokio::test]
async fn a_response_that_never_ends_breaks_off_and_is_not_run_again() {
    let (upstream, port) = Upstream::start().await;
    let (_gateway, caller) = proxy_with(port, "", "").await;
    let stalled = tokio::time::timeout(SOON, caller.post("/orders/stalls", "k-1", "one")).await.unwrap();
    assert_eq!((stalled.status, stalled.body), (201, None), "it must not look complete");
    let repeat = caller.post("/orders/stalls", "k-1", "one").await;
    assert_eq!((repeat.status, &repeat.json()["state"]), (409, &Value::from("unknown")));
    assert_eq!(upstream.effects(), 1);
}

#[tokio::test]
async fn a_request_without_a_key_is_waited_for_as_long_as_one_with_a_key() {
    let (_upstream, port) = Upstream::start().await;
    let (_gateway, caller) = proxy_with(port, "", "").await;
    let sent = |path| tokio::time::timeout(SOON, caller.send("PUT", path, &[], "one"));
    let (late, stalled) = tokio::join!(sent("/orders/late"), sent("/orders/stalls"));
    let (late, stalled) = (late.expect("it is given up"), stalled.expect("it breaks off"));
    assert_eq!((late.status, &late.json()["code"]), (504, &Value::from("upstream_timeout")));
    assert_eq!((stalled.status, stalled.body), (201, None), "it must not look complete");
}

/// The time ends before the response begins, or while it arrives.
#[tokio::test]
async fn an_exchange_that_takes_longer_than_any_may_is_cut_and_its_outcome_unknown() {
    let (upstream, port) = Upstream::start().await;
    let of_upstream = format!("urls = [\"http://127.0.0.1:{port}\"]\nexchange_max = \"2s\"\n");
    let (_gateway, caller) = super::start("", &of_upstream, "").await;
    let sent = |path| tokio::time::timeout(SOON, caller.post(path, path, "one"));
    let (slow, stalled) = tokio::join!(sent("/orders/slow"), sent("/orders/stalls"));
    let (slow, stalled) = (slow.expect("it is cut"), stalled.expect("it is cut"));
    assert_eq!((slow.status, &slow.json()["code"]), (504, &Value::from("upstream_timeout")));
    assert_eq!((stalled.status, stalled.body), (201, None), "it must not look complete");
    for path in ["/orders/slow", "/orders/stalls"] {
        until("the outcome is recorded", SOON, async || {
            let repeat = caller.post(path, path, "one").await;
            assert_eq!(repeat.status, 409, "{path}");
            repeat.json()["state"] == "unknown"
        })
        .await;
    }
    assert_eq!(upstream.effects(), 2);
}

#[tokio::test]
async fn a_response_beyond_the_bytes_of_its_app_leaves_a_tombstone() {
    let (keys, _folder) = encryption(&["aa"]);
    for keys in ["", &keys] {
        let (upstream, port) = Upstream::start().await;
        let settings = format!("response_bytes = \"1MiB\"\n[defaults.quota]\nresponse_bytes_total = \"8KiB\"\n{keys}");
        let (_gateway, caller) = proxy(port, &settings).await;
        assert_eq!(caller.post("/orders/large", "k-1", "one").await.status, 201, "it is passed on");
        let repeat = caller.post("/orders/large", "k-1", "one").await;
        assert_eq!((repeat.status, &repeat.json()["code"]), (409, &Value::from("response_not_stored")));
        assert_eq!(repeat.headers.get("location"), Some(&HeaderValue::from_static("/large/1")), "with {keys:?}");
        caller.post("/orders/a", "k-2", "one").await;
        assert!(caller.post("/orders/a", "k-2", "one").await.is_replay(), "there is room for this one");
        assert_eq!(upstream.effects(), 2);
    }
}

#[tokio::test]
async fn a_private_response_leaves_a_tombstone_and_an_old_one_too() {
    let (upstream, port) = Upstream::start().await;
    let (_gateway, caller) = proxy(port, "response_retention = \"1s\"\nretention = \"1h\"\n").await;
    for path in ["/orders/private", "/orders/private-in-pieces"] {
        assert_eq!(caller.post(path, path, "one").await.body.unwrap(), "secret");
        let repeat = caller.post(path, path, "one").await;
        assert_eq!((repeat.status, &repeat.json()["code"]), (409, &Value::from("response_not_stored")), "{path}");
    }
    let first = caller.post("/orders/a", "k-2", "one").await;
    until("the response is too old", SOON, async || {
        let repeat = caller.post("/orders/a", "k-2", "one").await;
        repeat.status == 409 && repeat.headers["location"] == first.headers["location"]
    })
    .await;
    assert_eq!(upstream.effects(), 3);
}

#[tokio::test]
async fn observe_mode_refuses_nothing() {
    let (upstream, port) = Upstream::start().await;
    let more =
        "[defaults]\nmode = \"observe\"\n[limits]\nbody_bytes = 65536\ncontents_bytes = 1024\nresult_bytes = 1024\n";
    let (_gateway, caller) = proxy(port, more).await;
    let large = "x".repeat(100_000);
    let (alice, key) = (("authorization", "alice"), ("idempotency-key", "k-1"));
    let requests: [(&[(&str, &str)], &str); 5] =
        [(&[alice], "1"), (&[key], "1"), (&[alice, key], &large), (&[alice, key], "1"), (&[alice, key], "2")];
    for (count, (fields, body)) in requests.into_iter().enumerate() {
        let answer = caller.send("POST", "/orders/a", fields, body).await;
        assert_eq!((answer.status, answer.is_replay()), (201, false), "{count}");
        assert_eq!(answer.body.unwrap().len(), "order ".len() + body.len(), "{count}");
        assert_eq!(upstream.effects(), count + 1);
    }
}

#[tokio::test]
async fn observe_mode_forwards_beyond_a_quota() {
    let (upstream, port) = Upstream::start().await;
    let more = "[defaults]\nmode = \"observe\"\n[defaults.quota]\nrequests_per_second = 1\n";
    let (_gateway, caller) = proxy(port, more).await;
    for count in 1..=20 {
        let answer = caller.post("/orders/a", &format!("k-{count}"), "one").await;
        assert_eq!((answer.status, upstream.effects()), (201, count));
    }
}

/// Each of them asks a store that does not answer.
#[tokio::test]
async fn observe_mode_forwards_what_the_store_does_not_answer() {
    let Some(mut server) = RedisServer::start().await else { return };
    let (upstream, port) = Upstream::start().await;
    let config = super::config("", &super::at(port), "[defaults]\nmode = \"observe\"\n");
    let gateway = gateway::on(server.url()).config(&config).start().await;
    let caller = Caller::of(&gateway);
    server.kill();
    for count in 1..=3 {
        let answer = caller.post("/orders/a", "k-1", "one").await;
        assert_eq!((answer.status, answer.is_replay(), upstream.effects()), (201, false, count));
        assert_eq!(answer.body.as_deref(), Some(&b"order one"[..]));
    }
}

#[tokio::test]
async fn an_upstream_over_https_is_verified() {
    let (upstream, port) = Upstream::start().await;
    let folder = tempfile::tempdir().unwrap();
    let [authority, other] = [(); 2].map(|()| Authority::generate());
    let identity = authority.issue().write(folder.path());
    let tls = format!("certificate = {:?}\nkey = {:?}\n", identity.certificate, identity.key);
    // The upstream is a second proxy, whose listener has the certificate of the API.
    let (https, _) = proxy(port, &format!("[server.tls]\n{tls}")).await;
    let servers = [("authority", &authority, 201), ("other", &other, 502)];
    for (name, authority, status) in servers {
        let file = authority.write(&folder.path().join(name));
        let of_upstream = format!("urls = [\"https://{}\"]\nca_file = {file:?}\n", super::address(&https));
        let (_gateway, caller) = super::start("", &of_upstream, "").await;
        let answer = caller.post("/orders/a", name, "one").await;
        assert_eq!(answer.status, status, "{name}: {:?}", answer.body);
        if status == 201 {
            assert!(caller.post("/orders/a", name, "one").await.is_replay());
        } else {
            assert_eq!(caller.post("/orders/a", name, "one").await.status, 502, "nothing was sent: the key is free");
        }
    }
    assert_eq!(upstream.effects(), 1);
}

#[tokio::test]
async fn a_long_transfer_is_streamed_in_both_directions() {
    let (upstream, port) = Upstream::start().await;
    let (_gateway, caller) = proxy(port, "").await;
    let body = "x".repeat(8 << 20);
    let answer = tokio::time::timeout(6 * SOON, caller.send("PUT", "/orders/a", &[], &body)).await.unwrap();
    assert_eq!((answer.status, answer.body.unwrap().len()), (201, "order ".len() + body.len()));
    assert_eq!(upstream.effects(), 1);
}

#[tokio::test]
async fn requests_without_a_key_have_a_count_of_their_own() {
    let (_upstream, port) = Upstream::start().await;
    let (gateway, caller) = proxy(port, "").await;
    assert_eq!(caller.send("POST", "/orders/a", &[("authorization", "alice")], "one").await.status, 400);
    assert_eq!(caller.post("/orders/a", &"k".repeat(256), "one").await.status, 400);
    assert_eq!(caller.post("/orders/a", "k-1", "one").await.status, 201);
    let page = Page::get(&gateway.admin_client()).await;
    let count = |result| page.sum("oncegate_proxy_requests_total", &[("result", result)]);
    assert_eq!((count("no_key"), count("refused"), count("forwarded")), (1, 1, 1));
}
