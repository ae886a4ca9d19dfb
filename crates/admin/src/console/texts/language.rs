//! The language of a page.

use axum::http::{HeaderMap, header};

use super::{Text, chinese, english};
use crate::console::prose::Prose;

/// A language of the console.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(in crate::console) enum Language {
    /// English.
    English,
    /// Simplified Chinese.
    Chinese,
}

impl Language {
    /// Returns the language that a browser prefers: the first one of `Accept-Language` that the console has, else English.
    pub(in crate::console) fn of(headers: &HeaderMap) -> Self {
        let accepted = headers.get(header::ACCEPT_LANGUAGE).and_then(|value| value.to_str().ok()).unwrap_or_default();
        let known = |tag: &str| {
            let tag = tag.split(';').next().unwrap_or_default().trim().to_ascii_lowercase();
            // Traditional Chinese is another language for readers.
            let is_traditional = ["zh-tw", "zh-hk", "zh-mo"].contains(&tag.as_str()) || tag.contains("hant");
            match tag.split('-').next() {
                Some("en") => Some(Self::English),
                Some("zh") if !is_traditional => Some(Self::Chinese),
                _ => None,
            }
        };
        accepted.split(',').find_map(known).unwrap_or(Self::English)
    }

    /// Returns its tag for the `lang` of a page.
    pub(in crate::console) fn tag(self) -> &'static str {
        match self {
            Self::English => "en",
            Self::Chinese => "zh-Hans",
        }
    }
}

/// The texts in one language.
#[derive(Clone, Copy)]
pub(in crate::console) struct Texts(pub(in crate::console) Language);

impl Texts {
    /// Returns a text.
    pub(in crate::console) fn of(self, text: Text<'_>) -> Prose<'static> {
        Prose::of(match self.0 {
            Language::English => english::text(text),
            Language::Chinese => chinese::text(text),
        })
    }
}

#[cfg(test)]
mod tests {
    use axum::http::HeaderValue;

    use super::*;

    #[test]
    fn the_first_known_language_of_the_browser_is_taken() {
        for (accepted, language) in [
            ("", Language::English),
            ("de-DE,de;q=0.9", Language::English),
            ("en-GB,zh-CN;q=0.5", Language::English),
            ("zh-CN,zh;q=0.9,en;q=0.8", Language::Chinese),
            ("zh", Language::Chinese),
            ("ZH-Hans-SG", Language::Chinese),
            ("zh-TW,zh-Hant;q=0.9,en;q=0.8", Language::English),
            ("fr,zh-CN;q=0.1", Language::Chinese),
        ] {
            let mut headers = HeaderMap::new();
            headers.insert(header::ACCEPT_LANGUAGE, HeaderValue::from_static(accepted));
            assert_eq!(Language::of(&headers), language, "{accepted}");
        }
        assert_eq!(Language::of(&HeaderMap::new()), Language::English);
    }
}
