//! Notes: small named values that gateways keep for themselves in a store, beside the claims, and agree by.

use std::fmt;

/// How long a note may be, in bytes.
pub const NOTE_BYTES_MAX: usize = 4096;

/// The text of a note.
#[derive(Clone, PartialEq, Eq)]
pub struct Note(Box<str>);

/// A text too long for a note.
#[derive(Clone, Copy, PartialEq, Eq, Debug, thiserror::Error)]
#[error("a note has {NOTE_BYTES_MAX} bytes at most")]
pub struct TooLong;

impl Note {
    /// A note of this text.
    ///
    /// # Errors
    /// That it is longer than [`NOTE_BYTES_MAX`].
    pub fn new(text: impl Into<Box<str>>) -> Result<Self, TooLong> {
        let text = text.into();
        if text.len() <= NOTE_BYTES_MAX { Ok(Self(text)) } else { Err(TooLong) }
    }

    /// Its text.
    pub fn as_str(&self) -> &str {
        &self.0
    }
}

impl fmt::Debug for Note {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "Note({} bytes)", self.0.len())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_note_is_bounded() {
        assert!(Note::new("x".repeat(NOTE_BYTES_MAX)).is_ok());
        assert_eq!(Note::new("x".repeat(NOTE_BYTES_MAX + 1)), Err(TooLong));
    }
}
