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
