//! Programs with one fault each.

use std::os::unix::fs::PermissionsExt as _;

use super::*;
use crate::tests::built_gateway;

/// Measures one program, which is a script.
async fn measured(script: &str) -> Option<(Languages, bool)> {
    let Some(gateway) = built_gateway() else {
        report::say("SKIPPED the languages: no gateway is built");
        return None;
    };
    let peers = tempfile::tempdir().expect("no folder");
    let program = peers.path().join("rust/run");
    fs::create_dir(peers.path().join("rust")).expect("no folder");
    fs::write(&program, format!("#!/bin/sh\n{script}\n")).expect("no program");
    fs::set_permissions(&program, fs::Permissions::from_mode(0o755)).expect("no program");
    let extent = Extent {
        only: vec![Program::Rust],
        peers: peers.path().to_owned(),
        callers: 4,
        measured: Duration::from_secs(1),
        rounds: 1,
        cores: Cores::default(),
        gateway: Some(gateway),
        dir: None,
    };
    match run(extent).await {
        Err(error) if error.to_string().contains("is installed") => {
            report::say(&format!("SKIPPED the languages: {error}"));
            None
        }
        measured => Some(measured.expect("not measured")),
    }
}

#[tokio::test]
async fn a_program_that_grants_once_has_a_rate() {
    let Some((languages, sound)) = measured("echo begin; sleep 1; echo end 500 0; echo repeated 10 0; cat").await
    else {
        return;
    };
    assert!(sound && languages.skipped.is_empty(), "{languages}");
    assert_eq!(languages.rows.len(), 2, "{languages}");
    let row = &languages.rows[0];
    assert!(row.per_second > 10.0 && row.per_second <= 500.0 && row.gateway_us.is_none(), "{languages}");
}

#[tokio::test]
async fn a_program_that_grants_twice_is_left_out_and_reported() {
    let Some((languages, sound)) = measured("echo begin; echo end 500 0; echo repeated 10 1; cat").await else {
        return;
    };
    assert!(!sound && languages.rows.is_empty(), "{languages}");
    assert!(languages.skipped[0].contains("1 of 10 operations were granted twice"), "{languages}");
}

#[tokio::test]
async fn a_program_that_is_not_prepared_is_named() {
    let Some((languages, sound)) = measured("exit 77").await else { return };
    assert!(sound && languages.rows.is_empty(), "{languages}");
    assert!(languages.skipped[0].contains("load/peers/prepare rust"), "{languages}");
}

#[test]
fn lines_have_their_counts() {
    assert_eq!(counts("end 12 3", "end"), Some([12, 3]));
    assert_eq!(counts("begin", "begin"), Some([0, 0]));
    assert_eq!(counts("end x", "end"), None);
    assert_eq!(counts("begin", "end"), None);
}
