//! Settings of the proxy and of its routes, each with the requests that show it.

use oncegate_testkit::gateway::Gateway;

use super::{Answer, Caller, Upstream, at, config, proxy};
use crate::support::exposition::Page;
use crate::support::gateway;

const ALICE: (&str, &str) = ("authorization", "alice");

/// A gateway with these settings of the proxy and of its route. Paths without a route go to the upstream.
async fn with(of_proxy: &str, of_route: &str) -> (std::sync::Arc<Upstream>, Gateway, Caller) {
    let (upstream, port) = Upstream::start().await;
    let config = config(&format!("unmatched = \"orders\"\n{of_proxy}"), &at(port), of_route);
    let gateway = gateway::on_memory().config(&config).start().await;
    let caller = Caller::of(&gateway);
    (upstream, gateway, caller)
}

fn code(answer: &Answer) -> String {
    if answer.status < 400 { answer.status.to_string() } else { answer.json()["code"].as_str().unwrap().to_owned() }
}

#[tokio::test]
async fn forms_of_paths_are_allowed_by_the_route_or_for_paths_without_a_route() {
    const FORMS: [(&str, &str); 3] =
        [("path_parameters", "b;x=1"), ("encoded_slashes", "b%2Fc"), ("empty_segments", "/b")];
    for (allowed, _) in FORMS {
        let allow = format!("allow_in_path = [{allowed:?}]\n");
        for (of_proxy, of_route, path) in [("", allow.as_str(), "/orders/{form}"), (&allow, "", "/x/{form}")] {
            let of_route = format!("{of_route}path = \"/orders/{{*rest}}\"\n");
            let (upstream, port) = Upstream::start().await;
            let config = config(&format!("unmatched = \"orders\"\n{of_proxy}"), &at(port), "");
            let config = config.replace("path = \"/orders/{kind}\"\n", &of_route);
            let gateway = gateway::on_memory().config(&config).start().await;
            let caller = Caller::of(&gateway);
            let mut effects = 0;
            for (form, text) in FORMS {
                let path = path.replace("{form}", text);
                let fields = [ALICE, ("idempotency-key", form)];
                let fields = if of_proxy.is_empty() { &fields[..] } else { &fields[..1] };
                let answer = caller.send("POST", &path, fields, "one").await;
                let expected = if form == allowed { "201" } else { "ambiguous_target" };
                assert_eq!(code(&answer), expected, "{path}, allowed: {allowed}");
                effects += usize::from(form == allowed);
                assert_eq!(upstream.effects(), effects, "{path}, allowed: {allowed}");
            }
            // What is allowed in one place is not in the other.
            let other = if of_proxy.is_empty() { "/x/{form}" } else { "/orders/{form}" };
            for (form, text) in FORMS {
                let answer = caller.send("POST", &other.replace("{form}", text), &[ALICE], "one").await;
                assert_eq!(code(&answer), "ambiguous_target", "{other}, {form}");
            }
        }
    }
}

#[tokio::test]
async fn keys_without_a_route_are_forwarded_and_counted_where_an_operator_wants_that() {
    let (upstream, gateway, caller) = with("unmatched_keyed = \"forward\"\n", "").await;
    for (count, (method, path)) in [
        ("PATCH", "/orders/a"),
        ("POST", "/orders/a/"),
        ("POST", "/elsewhere"),
        ("POST", "/elsewhere"),
        ("PURGE", "/x"),
    ]
    .into_iter()
    .enumerate()
    {
        let answer = caller.send(method, path, &[ALICE, ("idempotency-key", "k-1")], "one").await;
        assert_eq!((answer.status, answer.is_replay()), (201, false), "{method} {path}");
        assert_eq!(upstream.effects(), count + 1, "{method} {path}");
        let page = Page::get(&gateway.admin_client()).await;
        let labels = [("reason", "no_route_for_key"), ("result", "forwarded")];
        assert_eq!(page.sum("oncegate_proxy_off_route_total", &labels), count as u64 + 1, "{method} {path}");
    }
    gateway.logged("Requests with a key were forwarded without protection", 1).await;
    // What servers could take for a request to the route is refused all the same.
    let fields = [ALICE, ("idempotency-key", "k-1")];
    assert_eq!(code(&caller.send("post", "/orders/a", &fields, "one").await), "ambiguous_target");
}

#[tokio::test]
async fn the_key_may_be_in_fields_of_other_names() {
    let (upstream, port) = Upstream::start().await;
    let more = "key_headers = [\"X-Idempotency-Key\", \"PayPal-Request-Id\"]\n";
    let (_gateway, caller) = proxy(port, more).await;
    let [first, second] = ["x-idempotency-key", "paypal-request-id"];
    for (fields, expected, is_replay) in [
        (&[(first, "k-1")][..], "201", false),
        (&[(second, "k-1")], "201", true),
        (&[(first, "k-1"), (second, "k-1")], "201", true),
        (&[(first, "k-1"), (second, "k-2")], "idempotency_key_invalid", false),
        (&[("idempotency-key", "k-1")], "idempotency_key_invalid", false),
    ] {
        let fields = [&[ALICE], fields].concat();
        let answer = caller.send("POST", "/orders/a", &fields, "one").await;
        assert_eq!((code(&answer).as_str(), answer.is_replay()), (expected, is_replay), "{fields:?}");
    }
    assert_eq!(upstream.effects(), 1);
}

#[tokio::test]
async fn a_route_says_what_an_error_of_its_server_means() {
    for (meaning, status, is_replay, effects) in
        [("unknown", 409, false, 1), ("store", 500, true, 1), ("release", 500, false, 2)]
    {
        let (upstream, port) = Upstream::start().await;
        let (_gateway, caller) = proxy(port, &format!("on_5xx = {meaning:?}\n")).await;
        assert_eq!(caller.post("/orders/broken", "k-1", "one").await.status, 500);
        let repeat = caller.post("/orders/broken", "k-1", "one").await;
        assert_eq!((repeat.status, repeat.is_replay()), (status, is_replay), "{meaning}");
        assert_eq!(upstream.effects(), effects, "{meaning}");
    }
}

#[tokio::test]
async fn callers_share_keys_only_where_the_route_says_so() {
    let (upstream, port) = Upstream::start().await;
    let shared =
        config("", &at(port), "shared_keys = true\n").replace("principal = [\"authorization\"]", "principal = []");
    let gateway = gateway::on_memory().config(&shared).start().await;
    let caller = Caller::of(&gateway);
    let key = ("idempotency-key", "k-1");
    for (number, fields) in [&[ALICE, key][..], &[("authorization", "bob"), key], &[key]].into_iter().enumerate() {
        let answer = caller.send("POST", "/orders/a", fields, "one").await;
        assert_eq!((answer.status, answer.is_replay()), (201, number > 0), "{fields:?}");
    }
    assert_eq!(upstream.effects(), 1);
}

#[tokio::test]
async fn a_route_chooses_the_fields_that_are_stored() {
    let (_upstream, port) = Upstream::start().await;
    let more = "store_with = [\"Set-Cookie\"]\nstore_without = [\"Location\", \"X-Twice\"]\n";
    let (_gateway, caller) = proxy(port, more).await;
    let first = caller.post("/orders/a", "k-1", "one").await;
    assert!(["set-cookie", "location", "x-twice"].iter().all(|name| first.headers.contains_key(*name)));
    let repeat = caller.post("/orders/a", "k-1", "one").await;
    assert!(repeat.is_replay());
    assert_eq!(repeat.headers["set-cookie"], "session=secret");
    assert!(["location", "x-twice"].iter().all(|name| !repeat.headers.contains_key(*name)));
    // Neither does the refusal of a response that is not stored name them.
    caller.post("/orders/big", "k-2", "one").await;
    let refused = caller.post("/orders/big", "k-2", "one").await;
    assert_eq!((code(&refused).as_str(), refused.headers.get("location")), ("response_not_stored", None));
}

#[tokio::test]
async fn bodies_are_compared_by_their_json_where_the_route_says_so() {
    let (upstream, port) = Upstream::start().await;
    let (_gateway, caller) = proxy(port, "fingerprint = [\"method\", \"path\", \"body:json\"]\n").await;
    for (body, expected, is_replay) in [
        (r#"{"item": 7, "count": 1}"#, "201", false),
        (r#"{"count":1.0,"item":7}"#, "201", true),
        (r#"{"count":2,"item":7}"#, "fingerprint_mismatch", false),
        ("item 7", "fingerprint_mismatch", false),
    ] {
        let answer = caller.post("/orders/a", "k-1", body).await;
        assert_eq!((code(&answer).as_str(), answer.is_replay()), (expected, is_replay), "{body}");
    }
    assert_eq!(upstream.effects(), 1);
}

/// Nothing counts against the bytes of an app that the store does not keep.
#[tokio::test]
async fn repeats_that_observe_mode_lets_pass_take_no_room_for_responses() {
    let more = "[defaults]\nmode = \"observe\"\n[defaults.quota]\nresponse_bytes_total = \"2KiB\"\n";
    let (upstream, gateway, caller) = with("", more).await;
    for _ in 0..20 {
        assert_eq!(caller.post("/orders/a", "k-1", "one").await.status, 201);
    }
    assert_eq!(caller.post("/orders/a", "k-2", "one").await.status, 201);
    assert_eq!(upstream.effects(), 21);
    let page = Page::get(&gateway.admin_client()).await;
    assert_eq!(page.sum("oncegate_proxy_tombstones_total", &[]), 0);
    let bytes = page.sum("oncegate_proxy_stored_bytes_total", &[]);
    assert!((1..2048).contains(&bytes), "two responses: {bytes}");
}

/// Each of these is no tunnel, and nothing of it is forwarded.
#[tokio::test]
async fn the_proxy_opens_no_tunnel() {
    for more in ["", "key = \"optional\"\n", "[defaults]\nmode = \"observe\"\n"] {
        let (upstream, gateway, _caller) = with("", more).await;
        for key in ["", "idempotency-key: k-1\r\n"] {
            let request = format!(
                "CONNECT shop.example:443 HTTP/1.1\r\nhost: shop.example:443\r\nauthorization: alice\r\n{key}\r\n"
            );
            let answer = super::framing::exchange(&super::address(&gateway), &request).await;
            assert!(
                answer.starts_with("HTTP/1.1 405") && answer.contains("method_not_allowed"),
                "{more}{key}: {answer}"
            );
        }
        assert_eq!(upstream.requests(), 0);
    }
}
