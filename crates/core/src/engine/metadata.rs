//! Metadata: small named values that gateways store beside the claims, to agree on the state of a chain.

use std::fmt;

/// Maximum length of a metadata value, in bytes.
pub const METADATA_BYTES_MAX: usize = 4096;

/// A metadata value: a short text.
#[derive(Clone, PartialEq, Eq)]
pub struct Metadata(Box<str>);

/// A text that is too long for a metadata value.
#[derive(Clone, Copy, PartialEq, Eq, Debug, thiserror::Error)]
#[error("a metadata value has at most {METADATA_BYTES_MAX} bytes")]
pub struct TooLong;

impl Metadata {
    /// Creates a value from its text.
    ///
    /// # Errors
    /// The text is longer than [`METADATA_BYTES_MAX`].
    pub fn new(text: impl Into<Box<str>>) -> Result<Self, TooLong> {
        let text = text.into();
        if text.len() <= METADATA_BYTES_MAX { Ok(Self(text)) } else { Err(TooLong) }
    }

    /// Returns the text.
    pub fn as_str(&self) -> &str {
        &self.0
    }
}

impl fmt::Debug for Metadata {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "Metadata({} bytes)", self.0.len())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_metadata_value_is_bounded() {
        assert!(Metadata::new("x".repeat(METADATA_BYTES_MAX)).is_ok());
        assert_eq!(Metadata::new("x".repeat(METADATA_BYTES_MAX + 1)), Err(TooLong));
    }
}
