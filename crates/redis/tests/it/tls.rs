//! Connections to the server over TLS: the authorities that the engine trusts, the certificate that it shows, and its
//! errors.

use std::path::Path;

use oncegate_core::engine::conformance::{DEADLINE, fresh_claim};
use oncegate_core::engine::{Claims as _, Topology as _};
use oncegate_testkit::certificates::{Authority, Pair};

use super::*;

const PASSWORD: &str = "hunter2hunter2";

/// Starts a server with this certificate that trusts `ca.pem`, and may require certificates of clients.
async fn server(folder: &Path, authority: &Authority, own: &Pair, clients: &str) -> Option<RedisServer> {
    authority.write(&folder.join("ca.pem"));
    own.write(folder);
    let file = |key: &str, name: &str| format!("tls-{key} {}", folder.join(name).display());
    let lines = [
        "tls-port 0".to_owned(),
        file("cert-file", "tls.crt"),
        file("key-file", "tls.key"),
        file("ca-cert-file", "ca.pem"),
        format!("tls-auth-clients {clients}"),
        format!("requirepass {PASSWORD}"),
    ];
    RedisServer::start_with(&lines.each_ref().map(String::as_str)).await
}

/// The server's URL with the password and these keys.
fn url(server: &RedisServer, keys: &str) -> String {
    server.tls_url().replace("rediss://", &format!("rediss://:{PASSWORD}@")) + keys
}

/// Returns why the engine of this URL cannot reach its server.
async fn refusal(url: &str) -> String {
    let why = unavailable(open(url).claim(&fresh_claim(), DEADLINE).await);
    assert!(!why.contains(PASSWORD), "{why}");
    why
}

#[tokio::test]
async fn a_server_of_a_trusted_authority_is_talked_to() {
    let (folder, authority) = (tempfile::tempdir().unwrap(), Authority::generate());
    let Some(server) = server(folder.path(), &authority, &authority.issue(), "no").await else { return };
    let redis = open(&url(&server, &format!("?ca={}&prefix=tls:", folder.path().join("ca.pem").display())));
    redis.probe().await.expect("the server is trusted");
    let request = fresh_claim();
    granted(&redis, &request).await;
    assert!(is_duplicate(&redis, &again(&request)).await);
    redis.settle(&settle(&request, success("1")), DEADLINE).await.unwrap();
}

#[tokio::test]
async fn an_untrusted_server_receives_no_data() {
    let (folder, authority) = (tempfile::tempdir().unwrap(), Authority::generate());
    let stranger = Authority::generate().write(&folder.path().join("stranger.pem"));
    let Some(server) = server(folder.path(), &authority, &authority.issue(), "no").await else { return };
    for keys in [String::new(), format!("?ca={}", stranger.display())] {
        let why = refusal(&url(&server, &keys)).await;
        assert!(why.contains("certificate") && why.contains("?ca="), "{why}");
    }
    // Without TLS at the port that has it, and the other way round.
    let why = refusal(&url(&server, "").replace("rediss:", "redis:")).await;
    assert!(why.contains("connection to the Redis server failed"), "{why}");
    let why = refusal(&format!("rediss://:{PASSWORD}@{}?ca={}", server.address(), stranger.display())).await;
    assert!(why.contains("no connection to the Redis server within"), "{why}");
}

#[tokio::test]
async fn a_certificate_for_another_host_is_refused() {
    let (folder, authority) = (tempfile::tempdir().unwrap(), Authority::generate());
    let other = authority.issue_for(&["other.example"], 2090);
    let Some(server) = server(folder.path(), &authority, &other, "no").await else { return };
    let why = refusal(&url(&server, &format!("?ca={}", folder.path().join("ca.pem").display()))).await;
    assert!(why.contains("not valid for name \"127.0.0.1\""), "{why}");
}

#[tokio::test]
async fn a_server_that_wants_a_certificate_is_shown_one() {
    let (folder, authority) = (tempfile::tempdir().unwrap(), Authority::generate());
    let Some(server) = server(folder.path(), &authority, &authority.issue(), "yes").await else { return };
    let ca = format!("?ca={}", folder.path().join("ca.pem").display());
    let why = refusal(&url(&server, &ca)).await;
    assert!(why.contains("connection to the Redis server failed"), "{why}");
    let own = tempfile::tempdir().unwrap();
    let files = authority.issue_for(&["gateway"], 2090).write(own.path());
    let keys = format!("{ca}&client_certificate={}&client_key={}", files.certificate.display(), files.key.display());
    let redis = open(&url(&server, &keys));
    redis.probe().await.expect("the certificate is taken");
    granted(&redis, &fresh_claim()).await;
}

/// Certificates are renewed while the gateway runs: the next connection goes by the files as they are then.
#[tokio::test]
async fn renewed_certificates_are_taken_up_with_the_next_connection() {
    let (folder, authority) = (tempfile::tempdir().unwrap(), Authority::generate());
    let Some(mut server) = server(folder.path(), &authority, &authority.issue(), "no").await else { return };
    let redis = open(&url(&server, &format!("?ca={}", folder.path().join("ca.pem").display())));
    redis.probe().await.expect("the server is trusted");
    let next = Authority::generate();
    next.issue().write(folder.path());
    server.restart().await;
    let why = "the next authority is not trusted yet";
    soon(why, async || redis.probe().await.is_err_and(|error| error.to_string().contains("certificate"))).await;
    next.write(&folder.path().join("ca.pem"));
    serves_again(&redis).await;
}

#[tokio::test]
async fn unusable_files_are_reported_before_any_connection() {
    let folder = tempfile::tempdir().unwrap();
    let noise = folder.path().join("noise");
    std::fs::write(&noise, "hidden").unwrap();
    let pair = Authority::generate().issue().write(folder.path());
    let (certificate, key, noise) = (pair.certificate.display(), pair.key.display(), noise.display());
    for (keys, hint) in [
        ("ca=/no/such/ca.pem".to_owned(), "cannot read its ca /no/such/ca.pem: No such file"),
        (format!("ca={noise}"), "holds no certificate in PEM"),
        (format!("client_certificate={certificate}&client_key={noise}"), "holds no private key in PEM"),
        (format!("client_certificate={key}&client_key={key}"), "holds no certificate in PEM"),
    ] {
        let url = format!("rediss://:{PASSWORD}@host?{keys}");
        assert_eq!(Redis::check(&url), Ok(()), "the URL itself is good");
        for refused in [Redis::check_files(&url), Redis::open(&url, options()).map(drop)] {
            let why = refused.unwrap_err().to_string();
            assert!(why.contains(hint) && !why.contains(PASSWORD) && !why.contains("hidden"), "{why}");
        }
    }
}
