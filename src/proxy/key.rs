//! The key of a request: 1 to 255 visible ASCII characters, bare or as a string of structured fields (RFC 8941, 3.3.3).

use axum::http::{HeaderMap, HeaderName};

/// Longest key in characters.
const LENGTH_MAX: usize = 255;

/// A key as its caller means it: the quoted and the bare form are the same.
#[derive(Clone, PartialEq, Eq, Debug)]
pub(super) struct IdempotencyKey(Box<str>);

/// Reason why a request has no usable key.
#[derive(Clone, PartialEq, Eq, Debug, thiserror::Error)]
pub(super) enum InvalidKey {
    #[error("{0} is empty or longer than 255 characters; send a fresh random value for each operation, such as a UUID")]
    Length(HeaderName),
    #[error("{0} may have visible ASCII characters only; send a fresh random value for each operation, such as a UUID")]
    Characters(HeaderName),
    #[error(
        "{0} begins with a quote, and is not a string of structured fields: close it, and escape quotes by a backslash"
    )]
    Quoting(HeaderName),
    #[error("{0} has parameters after the string; send the string alone")]
    Parameters(HeaderName),
    #[error("{0} came twice; send one field with one key")]
    Twice(HeaderName),
    #[error("the request has several keys that differ; send one")]
    Several,
}

impl IdempotencyKey {
    /// Returns the key in these fields; `None` if there is none. The same key in two fields of different names is one key.
    pub(super) fn of(headers: &HeaderMap, names: &[HeaderName]) -> Result<Option<Self>, InvalidKey> {
        let mut found: Option<Self> = None;
        for name in names {
            let mut values = headers.get_all(name).iter();
            let Some(value) = values.next() else { continue };
            if values.next().is_some() {
                return Err(InvalidKey::Twice(name.clone()));
            }
            let key = Self::parse(name, value.as_bytes())?;
            if found.as_ref().is_some_and(|other| *other != key) {
                return Err(InvalidKey::Several);
            }
            found = Some(key);
        }
        Ok(found)
    }

    fn parse(name: &HeaderName, value: &[u8]) -> Result<Self, InvalidKey> {
        let text = value.trim_ascii();
        let text = match text.strip_prefix(b"\"") {
            None => text.to_vec(),
            Some(rest) => unquoted(name, rest)?,
        };
        if text.is_empty() || text.len() > LENGTH_MAX {
            return Err(InvalidKey::Length(name.clone()));
        }
        if !text.iter().all(u8::is_ascii_graphic) {
            return Err(InvalidKey::Characters(name.clone()));
        }
        String::from_utf8(text).map(|key| Self(key.into())).map_err(|_| InvalidKey::Characters(name.clone()))
    }

    pub(super) fn as_str(&self) -> &str {
        &self.0
    }
}

/// Returns the text of a quoted string after its first quote.
fn unquoted(name: &HeaderName, rest: &[u8]) -> Result<Vec<u8>, InvalidKey> {
    let wrong = || InvalidKey::Quoting(name.clone());
    let mut text = Vec::with_capacity(rest.len());
    let mut bytes = rest.iter();
    while let Some(byte) = bytes.next() {
        match byte {
            b'"' => {
                return match bytes.as_slice().trim_ascii_start() {
                    [] => Ok(text),
                    [b';', ..] => Err(InvalidKey::Parameters(name.clone())),
                    _ => Err(wrong()),
                };
            }
            b'\\' => text.push(*bytes.next().filter(|escaped| b"\"\\".contains(escaped)).ok_or_else(wrong)?),
            byte => text.push(*byte),
        }
    }
    Err(wrong())
}

#[cfg(test)]
mod tests {
    use axum::http::HeaderValue;

    use super::*;

    const NAME: HeaderName = HeaderName::from_static("idempotency-key");
    const OTHER: HeaderName = HeaderName::from_static("x-idempotency-key");

    fn of(fields: &[(HeaderName, &str)]) -> Result<Option<String>, InvalidKey> {
        let mut headers = HeaderMap::new();
        for (name, value) in fields {
            headers.append(name, HeaderValue::from_bytes(value.as_bytes()).unwrap());
        }
        Ok(IdempotencyKey::of(&headers, &[NAME, OTHER])?.map(|key| key.as_str().to_owned()))
    }

    #[test]
    fn a_quoted_and_a_bare_key_are_the_same() {
        for (value, key) in
            [("abc", "abc"), ("\"abc\"", "abc"), ("\"a\\\"b\\\\c\"", "a\"b\\c"), (" a ", "a"), ("a\"b", "a\"b")]
        {
            assert_eq!(of(&[(NAME, value)]), Ok(Some(key.to_owned())), "{value}");
        }
        assert_eq!(of(&[]), Ok(None));
        assert_eq!(of(&[(NAME, "a"), (OTHER, "\"a\"")]), Ok(Some("a".to_owned())));
    }

    #[test]
    fn a_wrong_key_is_refused() {
        assert_eq!(of(&[(NAME, &"a".repeat(255))]), Ok(Some("a".repeat(255))));
        for wrong in ["", "  ", "\"\"", &"a".repeat(256)] {
            assert_eq!(of(&[(NAME, wrong)]), Err(InvalidKey::Length(NAME)), "{wrong}");
        }
        for wrong in ["a b", "ä", "\"a b\""] {
            assert_eq!(of(&[(NAME, wrong)]), Err(InvalidKey::Characters(NAME)), "{wrong}");
        }
        for wrong in ["\"", "\"a", "\"a\"b", "\"a\\b\""] {
            assert_eq!(of(&[(NAME, wrong)]), Err(InvalidKey::Quoting(NAME)), "{wrong}");
        }
        assert_eq!(of(&[(NAME, "\"a\";x=1")]), Err(InvalidKey::Parameters(NAME)));
        assert_eq!(of(&[(NAME, "a"), (NAME, "a")]), Err(InvalidKey::Twice(NAME)));
        assert_eq!(of(&[(NAME, "a"), (OTHER, "b")]), Err(InvalidKey::Several));
    }
}
