//! Programs that a test needs and that may not be installed.

use std::path::PathBuf;
use std::process::{Command, Stdio};

/// Skips a test that needs a program.
pub fn skip(program: &str) {
    skip_because(&format!("{program} is not installed; run scripts/install-test-deps"));
}

/// Prints that a test is skipped. On CI the test fails, since it would not be noticed.
#[expect(clippy::print_stderr, reason = "a skipped test must be visible")]
pub fn skip_because(why: &str) {
    assert!(!is_ci(), "{why}");
    eprintln!("SKIPPED: {why}");
}

/// Returns whether this program is installed. The shell searches for it, since some programs take long to print their version.
pub fn is_installed(name: &str) -> bool {
    let found = Command::new("sh").args(["-c", "command -v \"$0\"", name]).stdout(Stdio::null()).status();
    found.is_ok_and(|status| status.success())
}

/// Returns a command of this program, or `None` if it is not installed: the test skips itself then.
pub fn tool(name: &str) -> Option<Command> {
    if is_installed(name) {
        return Some(Command::new(name));
    }
    skip(name);
    None
}

/// Returns the library that shows a process another time, or `None` if it is not installed: the test skips itself then.
pub fn faketime() -> Option<PathBuf> {
    let folders = std::fs::read_dir("/usr/lib").into_iter().flatten().flatten();
    let mut libraries = folders.map(|folder| folder.path().join("faketime/libfaketimeMT.so.1"));
    let library = libraries.find(|library| library.exists());
    if library.is_none() {
        skip("faketime");
    }
    library
}

/// Reads the environment of the run, not of the build: a build may be shared.
#[expect(clippy::disallowed_methods, reason = "only the environment says whether this is CI")]
fn is_ci() -> bool {
    std::env::var("CI").is_ok_and(|ci| !ci.is_empty() && ci != "false")
}
