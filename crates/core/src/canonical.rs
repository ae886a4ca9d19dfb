//! Canonical JSON by RFC 8785 (JCS). Values that JSON libraries read differently are rejected: equal keys, halves of surrogate
//! pairs, numbers that lose digits. The parser is in `parser`, numbers and strings are in `number` and `string`.

mod number;
mod parser;
mod string;
#[cfg(test)]
mod tests;

use std::fmt;
use std::sync::Arc;

pub use self::number::NumberFault;
use self::parser::InexactNumber;

/// Maximum nesting of arrays and objects.
pub const DEPTH_MAX: usize = 32;

/// JSON in canonical form: equal values have equal texts.
#[derive(Clone, PartialEq, Eq, Hash)]
pub struct Canonical(Arc<str>);

impl Canonical {
    /// Wraps text that is known to be canonical. It is not checked.
    pub fn trusted(text: &str) -> Self {
        Self(text.into())
    }

    /// Returns the text.
    pub fn as_str(&self) -> &str {
        &self.0
    }
}

impl fmt::Debug for Canonical {
    /// Writes only the length: contents do not belong in a log.
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "Canonical({} bytes)", self.0.len())
    }
}

/// Returns the canonical form of `contents`. Rejects contents without a value, such as `{"order_id": null}`: one unset variable
/// would make all operations the same.
pub fn canonicalize(json: &[u8]) -> Result<Canonical, NotCanonical> {
    let parsed = parser::canonicalize(json, "contents", InexactNumber::Refused)?;
    if parsed.holds_value { Ok(Canonical(parsed.text.into())) } else { Err(NotCanonical::Empty) }
}

/// Returns the canonical form of any JSON value. Errors call it `root`.
pub fn canonicalize_any(json: &[u8], root: &'static str) -> Result<Canonical, NotCanonical> {
    parser::canonicalize(json, root, InexactNumber::Refused).map(|parsed| Canonical(parsed.text.into()))
}

/// Returns the same, with `0` for each number that has no canonical form: for readers of other members, which are as
/// unambiguous as in a canonical form. Texts with different numbers may have the same result, so it identifies nothing.
pub fn canonicalize_but_numbers(json: &[u8], root: &'static str) -> Result<String, NotCanonical> {
    parser::canonicalize(json, root, InexactNumber::Zero).map(|parsed| parsed.text)
}

/// Error: the text has no canonical form. Contains the position, and the correction. Repeats keys, but never values.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum NotCanonical {
    /// Not JSON.
    #[error("{root}: not valid JSON at byte {offset}: expected {expected}")]
    Syntax {
        /// Name of the text.
        root: &'static str,
        /// Position in bytes.
        offset: usize,
        /// Expected syntax.
        expected: &'static str,
    },
    /// Contents without a value.
    #[error(
        "contents: they contain no value, only null, \"\", {{}} or []; send what distinguishes this operation from others, such \
         as {{\"order_id\": \"A-1001\"}}"
    )]
    Empty,
    /// An object has the same key twice.
    #[error("{path}: the key occurs twice in its object; send it once")]
    DuplicateKey {
        /// Path of the key.
        path: String,
    },
    /// A string contains half of a surrogate pair.
    #[error("{path}: a `\\u` escape is half of a surrogate pair; send whole characters")]
    LoneSurrogate {
        /// Path of the string, or of the object whose key it is.
        path: String,
    },
    /// More than [`DEPTH_MAX`] arrays and objects inside one another.
    #[error("{path}: nested deeper than {DEPTH_MAX} levels; send it as a string")]
    TooDeep {
        /// Path of the first array or object that is too deep.
        path: String,
    },
    /// A double cannot represent a number.
    #[error("{path}: {fault}; send it as a string")]
    Number {
        /// Path of the number.
        path: String,
        /// The reason.
        fault: NumberFault,
    },
}
