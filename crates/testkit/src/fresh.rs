//! Values that no other test and no earlier run has used.

/// Returns a number for new contents, or for a seed. A test prints its seed, so that it can be run again.
#[expect(clippy::disallowed_methods, reason = "tests are where seeds come from")]
pub fn number() -> u64 {
    rand::random()
}

/// Returns contents that were never claimed; text, since contents may not hold so large a number.
pub fn contents() -> serde_json::Value {
    format!("{:016x}", number()).into()
}
