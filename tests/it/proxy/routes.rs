//! The routes of the proxy as operators see them, with the answers of a known workload.

use hyper_util::client::legacy::Client;
use hyper_util::rt::TokioExecutor;
use serde_json::json;

use super::{Caller, Upstream, address};
use crate::admin::commands::Terminal;
use crate::admin::{alice, operated};

#[tokio::test]
async fn a_route_is_listed_with_its_answers() {
    let (_upstream, port) = Upstream::start().await;
    let config = format!(
        "[proxy]\nlisten = \"127.0.0.1:0\"\n[proxy.upstreams.orders]\nurls = [\"http://127.0.0.1:{port}\"]\n\
         [[proxy.routes]]\nname = \"orders.create\"\napp = \"default\"\npath = \"/orders/{{kind}}\"\nmethods = [\"POST\"]\n\
         upstream = \"orders\"\nprincipal = [\"authorization\"]\n"
    );
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
