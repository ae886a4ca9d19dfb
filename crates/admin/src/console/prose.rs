//! Sentences on pages. What stands between two backticks in them is shown as code, as in the log and on the command line.

use std::borrow::Cow;
use std::fmt::{self, Display, Formatter};
use std::ops::Deref;

use maud::{Render, html};

use super::untrusted::{self, Untrusted};

/// A sentence. Values in it may come from others: they are escaped as [`Untrusted`] is.
#[derive(Clone, Debug)]
pub(super) struct Prose<'a>(Cow<'a, str>);

impl<'a> Prose<'a> {
    /// Returns a text as a sentence.
    pub(super) fn of(text: impl Into<Cow<'a, str>>) -> Self {
        Self(text.into())
    }
}

impl Untrusted {
    /// Returns the text as a sentence.
    pub(super) fn prose(&self) -> Prose<'_> {
        Prose::of(self.raw())
    }
}

impl From<Prose<'static>> for Cow<'static, str> {
    fn from(prose: Prose<'static>) -> Self {
        prose.0
    }
}

impl Deref for Prose<'_> {
    type Target = str;

    fn deref(&self) -> &str {
        &self.0
    }
}

impl Display for Prose<'_> {
    fn fmt(&self, formatter: &mut Formatter<'_>) -> fmt::Result {
        formatter.write_str(&self.0)
    }
}

impl Render for Prose<'_> {
    fn render_to(&self, page: &mut String) {
        let shown = untrusted::shown(&self.0);
        let parts: Vec<_> = shown.split('`').collect();
        // A backtick without its partner is only a character.
        let is_paired = parts.len() % 2 == 1;
        for (index, part) in parts.iter().enumerate() {
            if index % 2 == 1 && is_paired {
                html! { code { (part) } }.render_to(page);
            } else {
                html! { @if index > 0 && !is_paired { "`" } (part) }.render_to(page);
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_stands_between_backticks_is_code_and_nothing_else_is_markup() {
        for (sentence, shown) in [
            ("Set `lease`, or <b>ask</b>.", "Set <code>lease</code>, or &lt;b&gt;ask&lt;/b&gt;."),
            ("`a` `<b>`", "<code>a</code> <code>&lt;b&gt;</code>"),
            ("a ` alone", "a ` alone"),
            ("hidden \u{202e}`x\u{200b}`", "hidden \\u{202e}<code>x\\u{200b}</code>"),
        ] {
            assert_eq!(Prose::of(sentence).render().into_string(), shown, "{sentence}");
        }
    }
}
