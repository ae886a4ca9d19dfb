//! The way to the server over TLS, as the keys of the URL ask for it.

use std::path::Path;

use oncegate_core::claim::ClaimResponse;
use oncegate_core::engine::conformance::{DEADLINE, fresh_claim};
use oncegate_core::engine::{Claims as _, Determinate, EngineError, Topology as _};
use oncegate_testkit::certificates::{Authority, Pair};
use oncegate_testkit::postgres_server::{PostgresServer, give_to_server};

use super::*;

/// A server that shows this certificate.
async fn server(folder: &Path, own: &Pair) -> Option<PostgresServer> {
    use std::os::unix::fs::PermissionsExt as _;
    let files = own.write(folder);
    // It takes no key that others may read.
    std::fs::set_permissions(&files.key, std::fs::Permissions::from_mode(0o600)).unwrap();
    give_to_server(folder);
    let (certificate, key) = (files.certificate.display(), files.key.display());
    PostgresServer::start_with(&[
        "ssl = on",
        &format!("ssl_cert_file = '{certificate}'"),
        &format!("ssl_key_file = '{key}'"),
    ])
    .await
}

/// The server's URL with these keys instead of the key that forbids TLS.
fn url(server: &PostgresServer, keys: &str) -> String {
    server.url().replace("postgres@", "postgres:hunter2hunter2@").replace("sslmode=disable", keys)
}

/// Returns why the engine of this URL cannot reach its server.
async fn refusal(url: &str) -> String {
    match open(url).claim(&fresh_claim(), DEADLINE).await {
        Err(EngineError::Determinate(Determinate::Unavailable(why))) => {
            assert!(!why.contains("hunter2"), "{why}");
            why
        }
        other => panic!("expected the store to be unavailable, got {other:?}"),
    }
}

#[tokio::test]
async fn a_server_of_a_trusted_authority_is_talked_to_over_tls() {
    let (folder, authority) = (tempfile::tempdir().unwrap(), Authority::generate());
    let ca = tempfile::tempdir().unwrap();
    let root = authority.write(&ca.path().join("ca.pem"));
    let Some(server) = server(folder.path(), &authority.issue()).await else { return };
    let engine = open(&url(&server, &format!("sslmode=verify-full&sslrootcert={}", root.display())));
    let request = fresh_claim();
    assert!(matches!(engine.claim(&request, DEADLINE).await, Ok(ClaimResponse::Granted(_))));
    assert!(matches!(engine.claim(&again(&request), DEADLINE).await, Ok(ClaimResponse::Duplicate(_))));
    let plain = "SELECT count(*) FROM pg_stat_ssl JOIN pg_stat_activity USING (pid) WHERE application_name = 'oncegate' \
                 AND NOT ssl";
    assert_eq!(server.query(plain).await, "0", "every connection is encrypted");
    let all =
        "SELECT count(*) > 0 FROM pg_stat_ssl JOIN pg_stat_activity USING (pid) WHERE application_name = 'oncegate'";
    assert_eq!(server.query(all).await, "true");
}

#[tokio::test]
async fn a_server_that_is_not_trusted_or_has_no_tls_is_refused() {
    let (folder, authority) = (tempfile::tempdir().unwrap(), Authority::generate());
    let ca = tempfile::tempdir().unwrap();
    let root = authority.write(&ca.path().join("ca.pem"));
    let stranger = Authority::generate().write(&ca.path().join("stranger.pem"));
    let other = authority.issue_for(&["other.example"], 2090);
    let Some(elsewhere) = server(folder.path(), &other).await else { return };
    let keys = format!("sslmode=verify-ca&sslrootcert={}", stranger.display());
    let why = refusal(&url(&elsewhere, &keys)).await;
    assert!(why.contains("UnknownIssuer") && why.contains("sslrootcert"), "{why}");
    let keys = format!("sslmode=verify-full&sslrootcert={}", root.display());
    let why = refusal(&url(&elsewhere, &keys)).await;
    assert!(why.contains("not valid for name"), "{why}");
    // The authority alone may be asked for, for servers that are reached under other names.
    let keys = format!("sslmode=verify-ca&sslrootcert={}", root.display());
    open(&url(&elsewhere, &keys)).probe().await.expect("the authority is trusted");
    let why = refusal(&url(&elsewhere, "sslmode=verify-full&sslrootcert=/no/such/ca.pem")).await;
    assert!(why.contains("PostgreSQL server"), "{why}");

    let Some(without) = PostgresServer::start().await else { return };
    let why = refusal(&url(&without, "sslmode=require")).await;
    assert!(why.contains("TLS"), "{why}");
}
