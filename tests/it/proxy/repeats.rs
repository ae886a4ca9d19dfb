//! Repeats of requests whose outcome is unknown, on a route that forwards them.

use std::sync::Arc;

use oncegate_testkit::wait::until;
use serde_json::Value;

use super::bounds::waiting;
use super::framing::{OK, RawUpstream};
use super::{SOON, Upstream, proxy};

const FORWARD: &str = "on_unknown = \"forward\"\n";

/// A repeat without an effect does not show that the first request had none.
#[tokio::test]
async fn a_repeat_without_an_effect_leaves_the_outcome_unknown() {
    for answer in [
        "HTTP/1.1 429 Later\r\ncontent-length: 0\r\nconnection: close\r\n\r\n",
        "HTTP/1.1 401 No\r\ncontent-length: 0\r\nconnection: close\r\n\r\n",
        "HTTP/1.1 503 No\r\noncegate-outcome: failure\r\ncontent-length: 0\r\nconnection: close\r\n\r\n",
    ] {
        let (upstream, port) = RawUpstream::start().await;
        let (_gateway, caller) = proxy(port, FORWARD).await;
        let send = async |answer: &str| {
            upstream.answer(answer);
            caller.post("/orders/a", "k-1", "one").await
        };
        assert_eq!(send("").await.status, 502);
        let repeat = send(answer).await;
        assert!(answer.contains(&repeat.status.to_string()), "{answer}: {}", repeat.status);
        assert_eq!(send(OK).await.status, 201, "{answer}");
        let is_marked = |request: &String| request.contains("oncegate-repeat: unknown");
        assert_eq!(upstream.take().iter().map(is_marked).collect::<Vec<_>>(), [false, true, true], "{answer}");
        assert!(send(OK).await.is_replay() && upstream.take().is_empty(), "{answer}");
    }
}

/// The status, the field of the upstream, and the answer to a repeat: a status or a state.
#[tokio::test]
async fn an_upstream_may_say_what_its_answer_means_and_what_is_unclear_is_unknown() {
    for (status, says, expected) in [
        ("201 Created", "", "replay"),
        ("201 Created", "oncegate-outcome: unknown\r\n", "unknown"),
        ("201 Created", "oncegate-outcome: failure\r\n", "runs"),
        ("201 Created", "oncegate-outcome: maybe\r\n", "unknown"),
        ("201 Created", "oncegate-outcome: success\r\noncegate-outcome: success\r\n", "unknown"),
        ("201 Created", "oncegate-outcome: failure\r\noncegate-outcome: success\r\n", "unknown"),
        ("500 Broken", "oncegate-outcome: success\r\n", "replay"),
        ("429 Later", "oncegate-outcome: unknown\r\n", "unknown"),
    ] {
        let case = format!("{status}, {says}");
        let (upstream, port) = RawUpstream::start().await;
        let (_gateway, caller) = proxy(port, "").await;
        upstream.answer(&format!("HTTP/1.1 {status}\r\n{says}content-length: 2\r\nconnection: close\r\n\r\nok"));
        let first = caller.post("/orders/a", "k-1", "one").await;
        assert!(status.starts_with(&first.status.to_string()), "{case}: {}", first.status);
        let repeat = caller.post("/orders/a", "k-1", "one").await;
        let is_run = upstream.take().len() == 2;
        assert_eq!((is_run, repeat.is_replay()), (expected == "runs", expected == "replay"), "{case}");
        assert!(expected != "unknown" || repeat.status == 409 && repeat.json()["state"] == "unknown", "{case}");
    }
}

/// It has given up its body, so it cannot be forwarded; nor may its key be freed.
#[tokio::test]
async fn a_repeat_that_has_waited_leaves_the_outcome_unknown() {
    let (upstream, port) = Upstream::start().await;
    let (gateway, caller) = proxy(port, FORWARD).await;
    let caller = Arc::new(caller);
    let send = |prefer: &'static str| {
        let fields = [("idempotency-key", "k-1"), ("authorization", "alice"), ("prefer", prefer)];
        let caller = caller.clone();
        tokio::spawn(async move { caller.send("POST", "/orders/slow-broken", &fields, "one").await })
    };
    let first = send("respond-async");
    until("the upstream has it", SOON, async || upstream.effects() == 1).await;
    let repeat = send("wait=20");
    until("the repeat waits", SOON, async || waiting(&gateway).await == 1).await;
    upstream.gate.add_permits(1);
    assert_eq!(first.await.unwrap().status, 500);
    let repeat = repeat.await.unwrap();
    assert_eq!((repeat.status, &repeat.json()["state"]), (409, &Value::from("in_progress")));
    upstream.gate.add_permits(1);
    let next = send("respond-async").await.unwrap();
    assert_eq!(next.headers["x-seen-repeat"], "Some(\"unknown\")", "it is forwarded as a repeat");
    assert_eq!(upstream.effects(), 2);
}
