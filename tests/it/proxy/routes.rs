//! The routes of the proxy as operators see them, with the answers of a known workload; and requests that no route protects.

use hyper_util::client::legacy::Client;
use hyper_util::rt::TokioExecutor;
use serde_json::json;

use super::{Caller, Upstream, address, config, proxy_with};
use crate::admin::commands::Terminal;
use crate::admin::{alice, operated};
use crate::support::exposition::Page;

#[tokio::test]
async fn a_route_is_listed_with_its_answers() {
    let (_upstream, port) = Upstream::start().await;
    let config = config("", &format!("urls = [\"http://127.0.0.1:{port}\"]\n"), "");
    let gateway = operated("memory:").config(&config).start().await;
    let caller = Caller { http: Client::builder(TokioExecutor::new()).build_http(), address: address(&gateway) };
    for (key, status) in [("k-1", 201), ("k-1", 201), ("k-2", 201), ("k-1", 201)] {
        assert_eq!(caller.post("/orders/a", key, "one").await.status, status);
    }
    let shown = alice(&gateway).get("/admin/v1/proxy/routes").await.expect(200).body;
    let route = &shown["routes"][0];
    assert_eq!((&route["name"], &route["path"]), (&json!("orders.create"), &json!("/orders/{kind}")));
    assert_eq!((&route["app"], &route["upstream"]), (&json!("default"), &json!("orders")));
    assert_eq!(route["answers"], json!({ "forwarded": 2, "replayed": 2 }));
    assert!(route["stored_bytes"].as_u64() > Some(0) && route["upstream_p99_seconds"].is_number(), "{shown}");
    let printed = Terminal::at(&gateway).run(&["proxy", "routes"]).expect(0).out;
    assert!(printed.contains("forwarded 2, replayed 2"), "{printed}");

    let alone = operated("memory:").start().await;
    assert_eq!(alice(&alone).get("/admin/v1/proxy/routes").await.expect(200).body["routes"], json!([]));
    assert_eq!(Terminal::at(&alone).run(&["proxy", "routes"]).expect(0).out, "The gateway has no proxy.\n");
}

/// Method, path, key, status, and how it is counted off the routes: reason and result.
type OffRoute = (&'static str, &'static str, &'static str, u16, Option<(&'static str, &'static str)>);

#[tokio::test]
async fn requests_that_no_route_protects_are_counted_by_reason_and_the_log_names_those_with_a_key() {
    const LOGGED: &str = "Requests with a key were forwarded without protection";
    let enforced: &[OffRoute] = &[
        ("POST", "/orders/a", "k-1", 201, None),
        ("POST", "/elsewhere", "", 404, None),
        ("PUT", "/orders/a", "", 201, None),
        ("post", "/orders/a", "k-2", 400, Some(("ambiguous_target", "refused"))),
        ("PATCH", "/orders/a", "k-2", 400, Some(("no_route_for_key", "refused"))),
        ("PUT", "/orders/a", "k-2", 201, Some(("no_route_for_key", "forwarded"))),
    ];
    let observed: &[OffRoute] = &[
        ("POST", "/elsewhere", "k-1", 201, Some(("no_route", "forwarded"))),
        ("post", "/orders/a", "k-2", 201, Some(("ambiguous_target", "forwarded"))),
        ("PATCH", "/orders/a", "k-2", 201, Some(("no_route_for_key", "forwarded"))),
    ];
    for (more, requests, refused, lines) in [("", enforced, 2, 1), ("[defaults]\nmode = \"observe\"\n", observed, 2, 0)]
    {
        let (_upstream, port) = Upstream::start().await;
        let (gateway, caller) = proxy_with(port, "", more).await;
        for (method, path, key, status, off_route) in requests {
            let before = Page::get(&gateway.admin_client()).await;
            let fields = [("authorization", "alice"), ("idempotency-key", *key)];
            let fields = if key.is_empty() { &fields[..1] } else { &fields };
            let case = format!("{more}{method} {path} {key}");
            assert_eq!(caller.send(method, path, fields, "one").await.status, *status, "{case}");
            let after = Page::get(&gateway.admin_client()).await;
            let count = |page: &Page, labels: &[(&str, &str)]| page.sum("oncegate_proxy_off_route_total", labels);
            assert_eq!(count(&after, &[]) - count(&before, &[]), u64::from(off_route.is_some()), "{case}");
            if let Some((reason, result)) = off_route {
                let labels = [("reason", *reason), ("result", *result)];
                assert_eq!(count(&after, &labels) - count(&before, &labels), 1, "{case}");
            }
        }
        let page = Page::get(&gateway.admin_client()).await;
        let labels = [("route", "orders.create"), ("result", "refused")];
        assert_eq!(page.sum("oncegate_proxy_requests_total", &labels), refused, "{more}: on the path of a route");
        gateway.logged(LOGGED, lines).await;
    }
}

/// `Connection` says that the field ends at the proxy, and another server could still see it.
#[tokio::test]
async fn a_key_that_connection_names_is_refused_and_forwarded_without_it_where_it_is_observed() {
    for (more, status) in [("", "400"), ("key = \"optional\"\n", "400"), ("[defaults]\nmode = \"observe\"\n", "201")] {
        let (upstream, port) = Upstream::start().await;
        let (gateway, _caller) = super::proxy(port, more).await;
        let request = "POST /orders/a HTTP/1.1\r\nhost: a\r\nconnection: close, Idempotency-Key\r\nidempotency-key: k-1\r\n\
                       authorization: alice\r\ncontent-length: 3\r\n\r\none";
        let answer = super::framing::exchange(&address(&gateway), request).await;
        assert!(answer.starts_with(&format!("HTTP/1.1 {status}")), "{more}: {answer}");
        assert!(status == "201" || answer.contains("idempotency_key_invalid"), "{more}: {answer}");
        assert_eq!(upstream.effects(), usize::from(status == "201"), "{more}");
    }
}
