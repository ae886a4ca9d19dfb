//! Text that callers, operators or stores have chosen. Characters that would hide, reorder or break a line are shown as escapes.

use std::fmt::Write as _;

use maud::Render;
use serde::Deserialize;

/// Largest number of characters of one value that a page shows.
const SHOWN_CHARS: usize = 4096;

/// Text of others. Pages can only show it, and only with escapes.
#[derive(Clone, PartialEq, Eq, PartialOrd, Ord, Debug, Default, Deserialize)]
#[serde(transparent)]
pub(super) struct Untrusted(String);

impl Untrusted {
    /// Returns the text itself, to compare it or to send it.
    pub(super) fn raw(&self) -> &str {
        &self.0
    }

    /// Returns the text with escapes.
    pub(super) fn shown(&self) -> String {
        shown(&self.0)
    }
}

/// Returns a text with escapes, cut to its first characters.
pub(super) fn shown(text: &str) -> String {
    let mut shown = String::with_capacity(text.len());
    let mut chars = text.chars();
    for char in chars.by_ref().take(SHOWN_CHARS) {
        if is_hidden(char) {
            // A string accepts everything that is written to it.
            let _ = write!(shown, "\\u{{{:x}}}", u32::from(char));
        } else {
            shown.push(char);
        }
    }
    if chars.next().is_some() {
        shown.push('…');
    }
    shown
}

impl<T: Into<String>> From<T> for Untrusted {
    fn from(text: T) -> Self {
        Self(text.into())
    }
}

impl Render for Untrusted {
    /// Isolates the text, so that right-to-left letters do not reorder the rest of the line.
    fn render_to(&self, page: &mut String) {
        page.push_str("<bdi>");
        self.shown().as_str().render_to(page);
        page.push_str("</bdi>");
    }
}

/// Reports whether a character is invisible, or changes how others are shown: controls, separators of lines, marks of direction,
/// joiners, fillers, variation selectors, and tags.
fn is_hidden(char: char) -> bool {
    char.is_control()
        || matches!(
            u32::from(char),
            0xad | 0x34f
                | 0x61c
                | 0x115f
                | 0x1160
                | 0x17b4
                | 0x17b5
                | 0x180b..=0x180f
                | 0x200b..=0x200f
                | 0x2028..=0x202e
                | 0x2060..=0x206f
                | 0x3164
                | 0xfe00..=0xfe0f
                | 0xfeff
                | 0xffa0
                | 0xfff0..=0xfffd
                | 0x1d173..=0x1d17a
                | 0xe0000..=0xe0fff
        )
}

#[cfg(test)]
mod tests {
    use maud::html;

    use super::*;

    #[test]
    fn markup_and_hidden_characters_are_shown_as_escapes() {
        let drawn = |text: &str| html! { (Untrusted::from(text)) }.into_string();
        assert_eq!(drawn("</script><b a=\"x\">&"), "<bdi>&lt;/script&gt;&lt;b a=&quot;x&quot;&gt;&amp;</bdi>");
        assert_eq!(
            drawn("a\u{202e}b\u{200b}c\u{2028}d\0e\u{e0041}"),
            "<bdi>a\\u{202e}b\\u{200b}c\\u{2028}d\\u{0}e\\u{e0041}</bdi>"
        );
        assert_eq!(drawn("Grüße 你好 שלום"), "<bdi>Grüße 你好 שלום</bdi>");
        let long = Untrusted::from("x".repeat(65_536)).shown();
        assert_eq!(long.chars().count(), SHOWN_CHARS + 1);
    }
}
