//! What no other test, and no earlier run, has used.

/// A number for contents that nobody has claimed yet, and for seeds, which a test prints so that it can be run again.
#[expect(clippy::disallowed_methods, reason = "tests are where seeds come from")]
pub fn number() -> u64 {
    rand::random()
}

/// Contents that nobody has claimed yet; text, since so large a number is no contents.
pub fn contents() -> serde_json::Value {
    format!("{:016x}", number()).into()
}
