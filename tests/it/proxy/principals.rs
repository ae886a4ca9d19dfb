//! Callers with a certificate, and callers that may no longer get a stored response.

use std::sync::atomic::{AtomicU16, Ordering};
use std::sync::{Arc, Mutex};

use axum::Router;
use axum::extract::Request;
use axum::http::StatusCode;
use oncegate_testkit::certificates::{Authority, Pair};
use oncegate_testkit::gateway::Gateway;
use rustls::pki_types::ServerName;
use serde_json::Value;
use tokio::io::{AsyncReadExt as _, AsyncWriteExt as _};
use tokio::net::{TcpListener, TcpStream};
use tokio_rustls::TlsConnector;

use super::{Caller, Upstream, address, proxy};
use crate::support::gateway;

/// A gateway whose callers are known by their certificates.
async fn by_certificate(port: u16, of_proxy: &str, more: &str) -> Gateway {
    let config = format!(
        "[proxy]\nlisten = \"127.0.0.1:0\"\n{of_proxy}[proxy.upstreams.orders]\nurls = [\"http://127.0.0.1:{port}\"]\n\
         [[proxy.routes]]\nname = \"orders.create\"\napp = \"default\"\npath = \"/orders/{{kind}}\"\nmethods = [\"POST\"]\n\
         upstream = \"orders\"\nprincipal = [\"client-cert\"]\n{more}"
    );
    gateway::on_memory().config(&config).start().await
}

#[tokio::test]
async fn the_certificate_of_the_connection_says_who_calls() {
    let (upstream, port) = Upstream::start().await;
    let (folder, authority, callers) = (tempfile::tempdir().unwrap(), Authority::generate(), Authority::generate());
    let identity = authority.issue().write(folder.path());
    let client_ca = callers.write(&folder.path().join("callers.pem"));
    let tls =
        format!("certificate = {:?}\nkey = {:?}\nclient_ca = {client_ca:?}\n", identity.certificate, identity.key);
    for table in ["server.tls", "proxy.tls"] {
        let gateway = by_certificate(port, "", &format!("[{table}]\n{tls}")).await;
        let send = async |own: &Pair| {
            let answer = send_over_tls(&address(&gateway), &authority, Some(own)).await.expect("it is let in");
            assert!(answer.starts_with("HTTP/1.1 201"), "{answer}");
            answer.contains("idempotent-replayed: true")
        };
        let (alice, bob) = (callers.issue(), callers.issue());
        assert_eq!((send(&alice).await, send(&alice).await, send(&bob).await), (false, true, false), "{table}");
        assert!(send_over_tls(&address(&gateway), &authority, None).await.is_err(), "{table}");
    }
    assert_eq!(upstream.effects(), 4);
}

#[tokio::test]
async fn callers_of_the_api_may_need_certificates_while_browsers_reach_the_proxy() {
    let (_upstream, port) = Upstream::start().await;
    let (folder, authority, callers) = (tempfile::tempdir().unwrap(), Authority::generate(), Authority::generate());
    let identity = authority.issue().write(folder.path());
    let client_ca = callers.write(&folder.path().join("callers.pem"));
    let own = format!("certificate = {:?}\nkey = {:?}\n", identity.certificate, identity.key);
    let tables = format!("[proxy.tls]\n{own}[server.tls]\n{own}client_ca = {client_ca:?}\n");
    let (gateway, _) = proxy(port, &tables).await;
    let browser = send_over_tls(&address(&gateway), &authority, None).await.expect("it is let in");
    assert!(browser.starts_with("HTTP/1.1 201"), "{browser}");
    let api = gateway.api().to_string();
    assert!(send_over_tls(&api, &authority, None).await.is_err());
    assert!(send_over_tls(&api, &authority, Some(&callers.issue())).await.is_ok());
}

/// Sends a request with a key; returns the response. An error means that the listener refuses the caller.
async fn send_over_tls(address: &str, authority: &Authority, own: Option<&Pair>) -> std::io::Result<String> {
    let stream = TcpStream::connect(address).await?;
    let name = ServerName::try_from("localhost").unwrap();
    let mut stream = TlsConnector::from(authority.client_config(own)).connect(name, stream).await?;
    let request = "POST /orders/a HTTP/1.1\r\nhost: a\r\nidempotency-key: k-1\r\nauthorization: alice\r\nconnection: close\r\n\
                   content-length: 3\r\n\r\none";
    stream.write_all(request.as_bytes()).await?;
    let mut answer = String::new();
    stream.read_to_string(&mut answer).await?;
    Ok(answer)
}

#[tokio::test]
async fn a_certificate_in_a_field_is_believed_from_trusted_peers_only() {
    let (upstream, port) = Upstream::start().await;
    for (peers, expected) in [("[\"127.0.0.1\"]", 201), ("[\"192.0.2.1\"]", 400)] {
        let gateway = by_certificate(port, &format!("trusted_peers = {peers}\n"), "").await;
        let caller = Caller::of(&gateway);
        let send = async |more: &[(&str, &str)]| {
            caller.send("POST", "/orders/a", &[&[("idempotency-key", "k-1")], more].concat(), "one").await
        };
        assert_eq!(send(&[("client-cert", ":AQID:")]).await.status, expected);
        let without = send(&[]).await;
        assert_eq!((without.status, &without.json()["code"]), (400, &Value::from("principal_missing")));
    }
    assert_eq!(upstream.effects(), 1);
}

#[tokio::test]
async fn a_replay_needs_the_consent_of_the_server_that_is_asked() {
    for of_proxy in ["", "trusted_peers = [\"127.0.0.1\"]\n"] {
        needs_consent(of_proxy).await;
    }
}

async fn needs_consent(of_proxy: &str) {
    let (upstream, port) = Upstream::start().await;
    let (status, asked) = (Arc::new(AtomicU16::new(204)), Arc::new(Mutex::new(Vec::new())));
    let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
    let url = format!("http://{}/may-replay", listener.local_addr().unwrap());
    let answer = {
        let (status, asked) = (status.clone(), asked.clone());
        move |request: Request| async move {
            let field = |name: &str| request.headers()[name].to_str().unwrap().to_owned();
            let fields = ["authorization", "x-forwarded-for", "x-forwarded-method", "x-forwarded-uri"].map(field);
            let spoofed = request.headers().values().filter(|value| value.as_bytes() == b"spoofed").count();
            assert_eq!(spoofed, 0, "{:?}", request.headers());
            asked.lock().unwrap().push((request.method().to_string(), fields.join(" ")));
            StatusCode::from_u16(status.load(Ordering::SeqCst)).unwrap()
        }
    };
    tokio::spawn(async move { axum::serve(listener, Router::new().fallback(answer)).await });
    let (_gateway, caller) = super::start(of_proxy, &super::at(port), &format!("authorize = \"{url}\"\n")).await;
    // The server must not read any value that a caller sends about its own request.
    let fields = [
        ("idempotency-key", "k-1"),
        ("authorization", "alice"),
        ("x-forwarded-uri", "spoofed"),
        ("x-forwarded-method", "spoofed"),
        ("x_forwarded_uri", "spoofed"),
        ("x-http-method-override", "spoofed"),
        ("range", "spoofed"),
        ("if-none-match", "spoofed"),
    ];
    assert_eq!(caller.send("POST", "/orders/a", &fields, "one").await.status, 201);
    assert!(asked.lock().unwrap().is_empty(), "nothing is replayed");
    assert!(caller.send("POST", "/orders/a", &fields, "one").await.is_replay());
    assert_eq!(asked.lock().unwrap()[..], [("GET".to_owned(), "alice 127.0.0.1 POST /orders/a".to_owned())]);
    // A tombstone says where the effect is, so it needs the consent as well.
    assert_eq!(caller.post("/orders/big", "k-2", "one").await.status, 201);
    let tombstone = caller.post("/orders/big", "k-2", "one").await;
    assert_eq!((tombstone.status, &tombstone.headers["location"]), (409, &"/big/1".parse().unwrap()));
    assert_eq!(asked.lock().unwrap().len(), 2);
    for (says, expected, code) in
        [(401, 403, "replay_refused"), (302, 403, "replay_refused"), (500, 502, "upstream_unavailable")]
    {
        status.store(says, Ordering::SeqCst);
        for (path, fields) in [("/orders/a", &fields[..]), ("/orders/big", &[("idempotency-key", "k-2"), fields[1]])] {
            let refused = caller.send("POST", path, fields, "one").await;
            assert_eq!((refused.status, &refused.json()["code"]), (expected, &Value::from(code)), "{says}");
            assert!(!refused.headers.contains_key("location"), "{says}");
        }
    }
    assert_eq!(upstream.effects(), 2);
}
