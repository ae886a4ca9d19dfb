//! What a test needs and this machine may not have.

/// Says loudly that a test is skipped; on CI it fails instead, since a skipped test there would be a hole nobody sees.
#[expect(clippy::print_stderr, reason = "a skipped test is to be seen")]
pub(crate) fn skip(what: &str) {
    assert!(!is_ci(), "{what} is not installed: run scripts/install-test-deps");
    eprintln!("SKIPPED: {what} is not installed; run scripts/install-test-deps");
}

/// Asked when the test runs, not when it is built: a build may be shared.
#[expect(clippy::disallowed_methods, reason = "only the environment tells whether this is CI")]
fn is_ci() -> bool {
    std::env::var("CI").is_ok_and(|ci| !ci.is_empty() && ci != "false")
}
