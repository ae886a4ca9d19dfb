//! The text of a value while it is written in canonical form, and the place in it for errors.

use std::fmt::Write as _;

use crate::error::{NotCanonical, Reason};

pub(crate) const DEPTH_MAX: usize = 32;

/// Writes one value in canonical form.
pub(crate) struct Speller {
    pub(crate) out: String,
    pub(crate) path: String,
    /// There is a number, a boolean or a text with a character in it: one unset ID must not name every order.
    pub(crate) has_value: bool,
}

impl Speller {
    pub(crate) fn refuse(&self, reason: Reason, detail: impl Into<String>) -> NotCanonical {
        NotCanonical { reason, path: self.path.clone(), detail: detail.into() }
    }

    pub(crate) fn too_deep(&self) -> NotCanonical {
        self.refuse(Reason::TooDeep, format!("nested deeper than {DEPTH_MAX} levels: send it as text"))
    }
}

/// Appends `.name`, or `["a name"]` where the name has other characters.
pub(crate) fn push_step(path: &mut String, name: &str) {
    if !name.is_empty() && name.bytes().all(|byte| byte == b'_' || byte.is_ascii_alphanumeric()) {
        path.push('.');
        path.push_str(name);
    } else {
        path.push('[');
        push_quoted(path, name);
        path.push(']');
    }
}

/// Appends a JSON string in the form of ECMAScript: with required escapes only.
pub(crate) fn push_quoted(out: &mut String, text: &str) {
    out.push('"');
    for char in text.chars() {
        match char {
            '"' => out.push_str("\\\""),
            '\\' => out.push_str("\\\\"),
            '\u{8}' => out.push_str("\\b"),
            '\t' => out.push_str("\\t"),
            '\n' => out.push_str("\\n"),
            '\u{c}' => out.push_str("\\f"),
            '\r' => out.push_str("\\r"),
            char if char < ' ' => {
                let _ = write!(out, "\\u{:04x}", u32::from(char));
            }
            char => out.push(char),
        }
    }
    out.push('"');
}
