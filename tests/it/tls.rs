//! TLS on the listeners: access, slow handshakes, and certificates that change while requests run.

use std::path::Path;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::time::Duration;

use oncegate_testkit::certificates::{Authority, Pair};
use oncegate_testkit::client::Client;
use oncegate_testkit::fresh;
use oncegate_testkit::gateway::{Gateway, Setup};
use oncegate_testkit::openapi::Spec;
use oncegate_testkit::wait::{answered_within, until};
use rustls::ClientConfig;
use serde_json::json;
use tokio::io::{AsyncReadExt, AsyncWriteExt};
use tokio::net::TcpStream;
use tokio::time::timeout;

use crate::proxy;
use crate::support::command::{oncegate, oncegate_with};
use crate::support::exposition::Page;
use crate::support::gateway;

const SOON: Duration = Duration::from_secs(10);
const RELOADS: &str = "oncegate_tls_reloads_total";

/// The table of a listener whose files are in this folder.
fn table(listener: &str, folder: &Path) -> String {
    let folder = folder.display();
    format!("[server.{listener}]\ncertificate = \"{folder}/tls.crt\"\nkey = \"{folder}/tls.key\"\n")
}

/// A setup whose API speaks TLS with the files of this folder.
fn with_tls(folder: &Path) -> Setup {
    gateway::on_memory().config(&table("tls", folder))
}

/// Opens a connection and returns the server's certificate.
async fn shown(gateway: &Gateway, config: &Arc<ClientConfig>) -> Vec<u8> {
    shown_at(&gateway.api().to_string(), config).await
}

async fn shown_at(address: &str, config: &Arc<ClientConfig>) -> Vec<u8> {
    let stream = TcpStream::connect(address).await.unwrap();
    let name = "localhost".try_into().unwrap();
    let stream = tokio_rustls::TlsConnector::from(config.clone()).connect(name, stream).await.unwrap();
    stream.get_ref().1.peer_certificates().unwrap()[0].to_vec()
}

#[tokio::test]
async fn both_listeners_speak_tls_with_certificates_of_their_own() {
    let (api, admin) = (tempfile::tempdir().unwrap(), tempfile::tempdir().unwrap());
    let (outside, inside) = (Authority::generate(), Authority::generate());
    outside.issue().write(api.path());
    inside.issue().write(admin.path());
    let gateway = with_tls(api.path()).config(&table("admin_tls", admin.path())).start().await;
    let client = Client::over_tls(gateway.api(), outside.client_config(None));
    let granted = client.claim(json!(1)).await.expect(201);
    client.claim(json!(1)).await.expect(409);
    client.settle(&granted, "success").await.expect(200);
    let operator = Client::over_tls(gateway.admin(), inside.client_config(None));
    operator.get("/readyz").await.expect(200);
    let page = Page::get(&operator).await;
    let expiry = page.series("oncegate_tls_certificate_expiry_timestamp_seconds");
    let expiry: Vec<_> = expiry.map(|(labels, value)| (labels[0].1.to_owned(), value.to_owned())).collect();
    // The beginning of 2090.
    assert_eq!(expiry.len(), 2, "{expiry:?}");
    assert!(expiry.iter().all(|(_, ends_at)| ends_at == "3786912000"), "{expiry:?}");
    for (address, authority) in [(gateway.api(), &inside), (gateway.admin(), &outside)] {
        let stranger = Client::over_tls(address, authority.client_config(None));
        let refused = stranger.try_send("GET", "/livez", &[], "").await.unwrap_err();
        assert!(refused.contains("client error (Connect)"), "{refused}");
    }
}

#[tokio::test]
async fn both_versions_of_tls_are_spoken_and_http_1_1_alone() {
    let (folder, authority) = (tempfile::tempdir().unwrap(), Authority::generate());
    authority.issue().write(folder.path());
    let gateway = with_tls(folder.path()).start().await;
    for version in [&rustls::version::TLS12, &rustls::version::TLS13] {
        for (offered, agreed) in [(vec![], None), (vec![b"h2".to_vec(), b"http/1.1".to_vec()], Some(&b"http/1.1"[..]))]
        {
            let mut config = authority.client_config_of(&[version], None);
            config.alpn_protocols = offered;
            let stream = TcpStream::connect(gateway.api()).await.unwrap();
            let connector = tokio_rustls::TlsConnector::from(Arc::new(config));
            let mut stream = connector.connect("localhost".try_into().unwrap(), stream).await.unwrap();
            assert_eq!(stream.get_ref().1.protocol_version(), Some(version.version));
            assert_eq!(stream.get_ref().1.alpn_protocol(), agreed);
            stream.write_all(b"GET /x HTTP/1.1\r\nhost: localhost\r\nconnection: close\r\n\r\n").await.unwrap();
            let mut answer = String::new();
            stream.read_to_string(&mut answer).await.unwrap();
            assert!(answer.starts_with("HTTP/1.1 404 "), "{answer}");
        }
    }
}

#[tokio::test]
async fn with_client_authorities_a_valid_client_certificate_is_required() {
    let (folder, authority, callers) = (tempfile::tempdir().unwrap(), Authority::generate(), Authority::generate());
    authority.issue().write(folder.path());
    callers.write(&folder.path().join("callers.pem"));
    let client_ca = format!("client_ca = \"{}/callers.pem\"\n", folder.path().display());
    let gateway = with_tls(folder.path()).config(&client_ca).start().await;
    let client = |own: Option<Pair>| Client::over_tls(gateway.api(), authority.client_config(own.as_ref()));
    client(Some(callers.issue())).claim(json!(1)).await.expect(201);
    let expired = callers.issue_for(&["caller"], 2001);
    for (who, own) in
        [("no certificate", None), ("a stranger", Some(Authority::generate().issue())), ("a late one", Some(expired))]
    {
        let refused = client(own).try_send("GET", "/v1/claims/x", &[], "").await;
        assert!(refused.is_err(), "{who} got in: {refused:?}");
    }
    until("the refusals are counted", SOON, async || {
        Page::get(&gateway.admin_client()).await.sum("oncegate_tls_handshake_failures_total", &[("listener", "api")])
            == 3
    })
    .await;
    // None of them keeps its permit for longer.
    client(Some(callers.issue())).claim(json!(1)).await.expect(409);
}

#[tokio::test]
async fn plain_http_gets_a_response_and_noise_is_closed() {
    let (folder, authority) = (tempfile::tempdir().unwrap(), Authority::generate());
    authority.issue().write(folder.path());
    let gateway = with_tls(folder.path()).start().await;
    let mut answer = String::new();
    let mut stream = TcpStream::connect(gateway.api()).await.unwrap();
    stream
        .write_all(b"POST /v1/claims HTTP/1.1\r\nhost: localhost\r\ncontent-length: 14\r\n\r\n{\"contents\":1}")
        .await
        .unwrap();
    timeout(SOON, stream.read_to_string(&mut answer)).await.expect("an answer, then closed").unwrap();
    let (head, body) = answer.split_once("\r\n\r\n").unwrap();
    assert!(head.starts_with("HTTP/1.1 400 ") && body.contains("https://"), "{answer}");
    Spec::load().check_problem(400, body.as_bytes()).unwrap();
    for noise in
        [&b"\x00\x00\x00\x00"[..], b"\x16\x03\x01\xff\xff\x01\x00", b"\x16\x03\x01\x00\x05hello", b"\xff", b"{}"]
    {
        let mut stream = TcpStream::connect(gateway.api()).await.unwrap();
        stream.write_all(noise).await.unwrap();
        stream.shutdown().await.unwrap();
        let closed = timeout(SOON, stream.read_to_end(&mut Vec::new())).await;
        assert!(closed.is_ok(), "not closed after {noise:?}");
    }
    assert!(!gateway.log().contains("panicked"), "{}", gateway.log());
    Client::over_tls(gateway.api(), authority.client_config(None)).claim(json!(1)).await.expect(201);
}

/// Half-open handshakes delay no other connection, end in time, and count as connections.
#[tokio::test]
async fn slow_handshakes_are_not_waited_for() {
    let (folder, authority) = (tempfile::tempdir().unwrap(), Authority::generate());
    authority.issue().write(folder.path());
    let gateway = with_tls(folder.path())
        .env("ONCEGATE_LIMITS__HEADER_READ_TIMEOUT", "4s")
        .env("ONCEGATE_LIMITS__CONNECTIONS", 20)
        .start()
        .await;
    let client = Client::over_tls(gateway.api(), authority.client_config(None));
    let mut slow = Vec::new();
    for number in 0..19_usize {
        let mut stream = TcpStream::connect(gateway.api()).await.unwrap();
        stream.write_all(&b"\x16\x03\x01\x02\x00\x01"[..number % 7]).await.unwrap();
        slow.push(stream);
    }
    // One connection is left for others.
    answered_within(Duration::from_millis(900), client.claim(fresh::contents())).await.expect(201);
    let refused = Client::over_tls(gateway.api(), authority.client_config(None));
    assert!(refused.try_send("GET", "/x", &[], "").await.is_err(), "there were places beyond the limit");
    for stream in &mut slow {
        let closed = timeout(Duration::from_secs(30), stream.read_to_end(&mut Vec::new())).await;
        assert!(closed.is_ok(), "a handshake was waited for");
    }
    refused.claim(fresh::contents()).await.expect(201);
    // A head that does not come is not waited for either.
    let connector = tokio_rustls::TlsConnector::from(authority.client_config(None));
    let stream = TcpStream::connect(gateway.api()).await.unwrap();
    let mut stream = connector.connect("localhost".try_into().unwrap(), stream).await.unwrap();
    stream.write_all(b"GET / HTTP").await.unwrap();
    let closed = timeout(Duration::from_secs(30), stream.read_to_end(&mut Vec::new())).await;
    assert!(closed.is_ok(), "a head was waited for");
}

#[tokio::test]
async fn a_handshake_that_was_not_finished_does_not_hold_up_the_end() {
    let (folder, authority) = (tempfile::tempdir().unwrap(), Authority::generate());
    authority.issue().write(folder.path());
    let mut gateway = with_tls(folder.path()).env("ONCEGATE_LIMITS__HEADER_READ_TIMEOUT", "1h").start().await;
    let mut half = TcpStream::connect(gateway.api()).await.unwrap();
    half.write_all(b"\x16\x03").await.unwrap();
    // Once this one is served, the half-open one has been taken too.
    Client::over_tls(gateway.api(), authority.client_config(None)).claim(json!(1)).await.expect(201);
    gateway.signal("TERM");
    assert!(answered_within(SOON, gateway.ended()).await.success());
}

/// The certificate changes again and again; open connections continue, new ones are shown the new one, and no request
/// fails.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_certificate_changes_under_load_without_one_failed_request() {
    let (folder, authority) = (tempfile::tempdir().unwrap(), Authority::generate());
    authority.issue().write(folder.path());
    let gateway = with_tls(folder.path()).start().await;
    let config = authority.client_config(None);
    let (stop, served) = (Arc::new(AtomicBool::new(false)), Arc::new(AtomicU64::new(0)));
    let load: Vec<_> = (0..8)
        .map(|number| {
            let (stop, served, config, address) = (stop.clone(), served.clone(), config.clone(), gateway.api());
            tokio::spawn(async move {
                // Half of them keep their connection, half make a new one each time.
                let kept = Client::over_tls(address, config.clone());
                while !stop.load(Ordering::Relaxed) {
                    let client = if number % 2 == 0 { kept.clone() } else { Client::over_tls(address, config.clone()) };
                    let granted = client.claim(fresh::contents()).await.expect(201);
                    client.settle(&granted, "success").await.expect(200);
                    served.fetch_add(1, Ordering::Relaxed);
                }
            })
        })
        .collect();
    for round in 0..3 {
        let next = authority.issue();
        next.write(folder.path());
        if round == 0 {
            gateway.signal("HUP");
        }
        let since = served.load(Ordering::Relaxed);
        until("the new certificate is shown", SOON, async || shown(&gateway, &config).await == next.der()).await;
        until("requests go on", SOON, async || served.load(Ordering::Relaxed) > since + 50).await;
    }
    stop.store(true, Ordering::Relaxed);
    for task in load {
        task.await.expect("no request failed");
    }
    let page = Page::get(&gateway.admin_client()).await;
    assert!(page.sum(RELOADS, &[("listener", "api"), ("result", "ok")]) >= 3);
    assert_eq!(page.sum("oncegate_tls_handshake_failures_total", &[]), 0);
}

/// As Kubernetes does it: the files are behind a link to a folder, and the link is what changes.
#[tokio::test]
async fn a_swapped_link_is_a_change() {
    let (folder, authority) = (tempfile::tempdir().unwrap(), Authority::generate());
    let link = folder.path().join("data");
    let place = |name: &str, pair: &Pair| {
        let own = folder.path().join(name);
        std::fs::create_dir(&own).unwrap();
        pair.write(&own);
        let new = folder.path().join("new");
        std::os::unix::fs::symlink(&own, &new).unwrap();
        std::fs::rename(new, &link).unwrap();
    };
    let (first, second) = (authority.issue(), authority.issue());
    place("first", &first);
    let tables = format!("[proxy]\nlisten = \"127.0.0.1:0\"\n{}", table("tls", &link).replace("[server.", "[proxy."));
    let gateway = with_tls(&link).config(&table("admin_tls", &link)).config(&tables).start().await;
    let config = authority.client_config(None);
    let listeners = [gateway.api().to_string(), gateway.admin().to_string(), proxy::address(&gateway)];
    for listener in &listeners {
        assert_eq!(shown_at(listener, &config).await, first.der(), "{listener}");
    }
    place("second", &second);
    for listener in &listeners {
        until("the new certificate is shown", SOON, async || shown_at(listener, &config).await == second.der()).await;
    }
}

#[tokio::test]
async fn a_new_certificate_that_is_no_good_leaves_the_old_one() {
    let (folder, authority) = (tempfile::tempdir().unwrap(), Authority::generate());
    let first = authority.issue();
    let files = first.write(folder.path());
    let gateway = with_tls(folder.path()).start().await;
    let config = authority.client_config(None);
    let failed =
        async || Page::get(&gateway.admin_client()).await.sum(RELOADS, &[("listener", "api"), ("result", "failed")]);
    let mut seen = 0;
    let mut refused = async |what: &str, words: &str| {
        until(what, SOON, async || failed().await > seen && gateway.log().contains(words)).await;
        seen = failed().await;
        assert_eq!(shown(&gateway, &config).await, first.der(), "{what}");
    };
    std::fs::write(&files.certificate, "no certificate").unwrap();
    refused("a file without PEM is reported", "tls.crt holds no certificate in PEM").await;
    std::fs::write(&files.certificate, &authority.issue().certificate).unwrap();
    refused("a certificate of another key is reported", "tls.key is not the key of the certificate in").await;
    std::fs::remove_file(&files.certificate).unwrap();
    refused("a missing file is reported", "cannot read").await;
    authority.issue_for(&["localhost"], 2001).write(folder.path());
    refused("an expired one is reported", "the new certificate expired at 2001-01-01T00:00:00.000000Z").await;
    // It is reported once, and again at each reload.
    let response = || gateway.log().matches("the new certificate expired").count();
    let before = response();
    gateway.signal("HUP");
    until("it is reported again at a reload", SOON, async || response() > before).await;
    let last = authority.issue();
    last.write(folder.path());
    until("a good one is taken up", SOON, async || shown(&gateway, &config).await == last.der()).await;
}

#[tokio::test]
async fn a_reload_may_name_other_files() {
    let (old, new, authority) = (tempfile::tempdir().unwrap(), tempfile::tempdir().unwrap(), Authority::generate());
    let (first, second) = (authority.issue(), authority.issue());
    first.write(old.path());
    second.write(new.path());
    let gateway = with_tls(old.path()).start().await;
    let config = authority.client_config(None);
    assert_eq!(shown(&gateway, &config).await, first.der());
    gateway.configure(&table("tls", new.path()));
    gateway.signal("HUP");
    until("the other certificate is shown", SOON, async || shown(&gateway, &config).await == second.der()).await;
}

#[tokio::test]
async fn unusable_tls_files_are_reported_before_the_start() {
    let (folder, authority) = (tempfile::tempdir().unwrap(), Authority::generate());
    let file = |name: &str, text: &str| std::fs::write(folder.path().join(name), text).unwrap();
    let (own, other) = (authority.issue(), authority.issue());
    for (name, text) in [
        ("tls.crt", own.certificate.as_str()),
        ("tls.key", &own.key),
        ("other.key", &other.key),
        ("noise", "hidden noise"),
        ("empty", ""),
    ] {
        file(name, text);
    }
    for (settings, words) in [
        ("certificate = \"tls.crt\"", "server.tls.key: a certificate needs its private key"),
        ("key = \"tls.key\"", "server.tls.certificate: TLS needs a certificate"),
        ("client_ca = \"tls.crt\"", "server.tls.certificate: TLS needs a certificate"),
        ("certificate = \"none\"\nkey = \"tls.key\"", "line 2: server.tls.certificate: cannot read none: No such file"),
        ("certificate = \"noise\"\nkey = \"tls.key\"", "server.tls.certificate: noise holds no certificate in PEM"),
        ("certificate = \"tls.crt\"\nkey = \"empty\"", "line 3: server.tls.key: empty holds no private key in PEM"),
        ("certificate = \"tls.crt\"\nkey = \"tls.crt\"", "server.tls.key: tls.crt holds no private key in PEM"),
        (
            "certificate = \"tls.crt\"\nkey = \"other.key\"",
            "server.tls.key: other.key is not the key of the certificate",
        ),
        ("certificate = \"tls.crt\"\nkey = \"tls.key\"\nclient_ca = \"noise\"", "server.tls.client_ca: noise holds no"),
    ] {
        file("oncegate.toml", &format!("[server.tls]\n{settings}\n"));
        for command in [["config", "check"], ["serve", "--engine=memory:"]] {
            let ended = oncegate(folder.path(), &[command[0], command[1], "--config", "oncegate.toml"]);
            assert_eq!(ended.code, Some(2), "{command:?}: {}", ended.err);
            assert!(ended.err.contains(words), "no {words:?} in: {}", ended.err);
            assert!(!ended.err.contains("hidden"), "{}", ended.err);
        }
    }
    file("oncegate.toml", "[server.tls]\ncertificate = \"tls.crt\"\nkey = \"tls.key\"\nclient_ca = \"tls.crt\"\n");
    let ended = oncegate(folder.path(), &["config", "check", "--config", "oncegate.toml"]);
    assert_eq!(ended.code, Some(0), "{}", ended.err);
    Authority::generate().issue_for(&["localhost"], 2001).write(folder.path());
    file("oncegate.toml", "[server.tls]\ncertificate = \"tls.crt\"\nkey = \"tls.key\"\n");
    let ended = oncegate(folder.path(), &["config", "check", "--config", "oncegate.toml"]);
    let warning = "Warning: server.tls.certificate: the certificate expired at 2001-01-01T00:00:00.000000Z";
    assert!(ended.code == Some(0) && ended.out.contains(warning), "{}{}", ended.out, ended.err);
    // Who may not read the key may still look at the settings.
    std::fs::remove_file(folder.path().join("tls.key")).unwrap();
    let ended = oncegate(folder.path(), &["config", "print", "--config", "oncegate.toml"]);
    assert!(ended.code == Some(0) && ended.out.contains("key = \"tls.key\""), "{}{}", ended.out, ended.err);
}

/// The rules of an open gateway are not those of a network that is encrypted.
#[tokio::test]
async fn an_open_gateway_stays_on_loopback_with_tls_too() {
    let (folder, authority) = (tempfile::tempdir().unwrap(), Authority::generate());
    authority.issue().write(folder.path());
    let (_, log) = with_tls(folder.path()).listen("0.0.0.0:0").try_start().await.err().expect("refused");
    assert!(log.contains("allow_open"), "{log}");
    let gateway = with_tls(folder.path()).start().await;
    let client = Client::over_tls(gateway.api(), authority.client_config(None));
    let json = ("content-type", "application/json");
    let answer = client.send("POST", "/v1/claims", &[("host", "evil.example"), json], "{\"contents\":1}").await;
    assert_eq!(answer.code(), (400, "invalid_request"));
}

#[tokio::test]
async fn commands_speak_tls_to_the_admin_listener() {
    let (folder, authority) = (tempfile::tempdir().unwrap(), Authority::generate());
    authority.issue_for(&["localhost"], 2090).write(folder.path());
    authority.write(&folder.path().join("ca.pem"));
    Authority::generate().write(&folder.path().join("stranger.pem"));
    let own = folder.path().join("own");
    std::fs::create_dir(&own).unwrap();
    authority.issue_for(&["operator"], 2090).write(&own);
    let gateway = gateway::on_memory().config(&table("admin_tls", folder.path())).start().await;
    let url = format!("https://localhost:{}", gateway.admin().port());
    let health = |words: &[&str]| oncegate(folder.path(), &[&["health"], words].concat());
    let asked = health(&["--admin", &url, "--ca", "ca.pem"]);
    assert_eq!((asked.code, asked.out.as_str()), (Some(0), "ready\n"), "{}", asked.err);
    for (words, hint) in [
        (&["--admin", &url][..], "https:// needs --ca"),
        (&["--admin", &url, "--ca", "stranger.pem"], "invalid peer certificate: UnknownIssuer"),
        (&["--admin", &url, "--ca", "tls.key"], "tls.key holds no certificate in PEM"),
        (&["--admin", &url, "--ca", "none.pem"], "cannot read none.pem: No such file"),
        (&["--admin", &url.replace("localhost", "127.0.0.1"), "--ca", "ca.pem"], "not valid for name \"127.0.0.1\""),
    ] {
        let asked = health(words);
        assert_eq!(asked.code, Some(1), "{words:?}");
        assert!(asked.err.contains(hint) && asked.err.lines().count() == 1, "no {hint:?} in: {}", asked.err);
    }
    // By its own configuration, the certificate of a gateway's own listener need not be for a loopback address.
    let config = format!("[server]\nadmin_listen = \"{}\"\n{}", gateway.admin(), table("admin_tls", folder.path()));
    std::fs::write(folder.path().join("oncegate.toml"), &config).unwrap();
    assert_eq!(health(&["--config", "oncegate.toml"]).code, Some(0));
    // A client that sends a token verifies the server first.
    let engines = |words: &[&str]| {
        let words = [&["engine", "list", "--config", "oncegate.toml"], words].concat();
        oncegate_with(folder.path(), &words, &[("ONCEGATE_ADMIN_TOKEN", "0123456789abcdef0123456789abcdef")])
    };
    assert!(engines(&[]).err.contains("https:// needs --ca"), "{}", engines(&[]).err);
    // The call reaches the gateway, which answers that it has no tokens.
    let refused = engines(&["--admin", &url, "--admin-ca", "ca.pem"]);
    assert!(refused.err.contains("[admin.tokens]"), "{}", refused.err);

    let wants = format!("{}client_ca = \"ca.pem\"\n", table("admin_tls", folder.path()));
    let wants = wants.replace("ca.pem", &folder.path().join("ca.pem").display().to_string());
    let gateway = gateway::on_memory().config(&wants).start().await;
    let url = format!("https://localhost:{}", gateway.admin().port());
    assert_eq!(health(&["--admin", &url, "--ca", "ca.pem"]).code, Some(1));
    let shown = ["--client-certificate", "own/tls.crt", "--client-key", "own/tls.key"];
    let asked = health(&[&["--admin", &url, "--ca", "ca.pem"][..], &shown].concat());
    assert_eq!(asked.code, Some(0), "{}", asked.err);
    let asked = health(&["--admin", &url, "--ca", "ca.pem", "--client-certificate", "own/tls.crt"]);
    assert!(asked.err.contains("--client-key"), "{}", asked.err);
}
