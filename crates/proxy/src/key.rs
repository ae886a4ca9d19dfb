//! The key of a request: 1 to 255 visible ASCII characters, bare or as a string of structured fields (RFC 8941, 3.3.3).

use axum::http::{HeaderMap, HeaderName, header};
use oncegate_core::canonical::canonicalize_but_numbers;
use serde_json::Value;

use super::fields::{items, normal};
use super::options::JsonPointer;
use super::route::Route;

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
    #[error("`Connection` names {0}, so that it ends here; send the key without that")]
    OfConnection(HeaderName),
    #[error("the field {0} is not {1}, though some servers read it so; write {1}")]
    Underscored(HeaderName, HeaderName),
    #[error("the key is in the body, which cannot be read: {0}; send JSON")]
    Body(String),
    #[error("the key is in the body, which has a Content-Encoding; send it without")]
    Encoded,
    #[error("the member {0} of the body has the key, so it is a text of 1 to 255 visible ASCII characters")]
    Member(JsonPointer),
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

    /// Returns the problem of a request whose `Connection` names a field of the key, which would be removed with the connection's.
    pub(super) fn of_connection(headers: &HeaderMap, names: &[HeaderName]) -> Option<InvalidKey> {
        let mut options = items(headers, &header::CONNECTION);
        let key_of = |option: &[u8]| names.iter().find(|name| option.eq_ignore_ascii_case(name.as_str().as_bytes()));
        options.find_map(|option| key_of(option).cloned()).map(InvalidKey::OfConnection)
    }

    /// Returns the key of a request to a route: in its fields, or in its body if the route says where. `body` is none if the route does
    /// not.
    pub(super) fn of_request(
        route: &Route,
        headers: &HeaderMap,
        body: Option<&[u8]>,
    ) -> Result<Option<Self>, InvalidKey> {
        let in_field = Self::of(headers, &route.key_headers)?;
        if in_field.is_none() {
            refuse_hidden(headers, &route.key_headers)?;
        }
        let Some((pointer, body)) = route.options.key_in_body.as_ref().zip(body) else { return Ok(in_field) };
        let in_body = Self::in_body(pointer, headers, body)?;
        if in_field.is_some() && in_body.is_some() && in_field != in_body {
            return Err(InvalidKey::Several);
        }
        Ok(in_body.or(in_field))
    }

    /// Returns the key in a JSON body; `None` if it is not there. A body that cannot be read may have one, so it is refused.
    fn in_body(pointer: &JsonPointer, headers: &HeaderMap, body: &[u8]) -> Result<Option<Self>, InvalidKey> {
        if body.is_empty() {
            return Ok(None);
        }
        if headers.contains_key(header::CONTENT_ENCODING) {
            return Err(InvalidKey::Encoded);
        }
        // No digits are lost in a key.
        let readable = canonicalize_but_numbers(body, "body").map_err(|why| InvalidKey::Body(why.to_string()))?;
        let json: Value = serde_json::from_str(&readable).map_err(|why| InvalidKey::Body(why.to_string()))?;
        match pointer.find(&json) {
            None | Some(Value::Null) => Ok(None),
            Some(Value::String(text)) if is_key(text.as_bytes()) => Ok(Some(Self(text.as_str().into()))),
            Some(_) => Err(InvalidKey::Member(pointer.clone())),
        }
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

    /// Returns the key that an operator has named in the form of a field. `None` if it is no key.
    pub(super) fn named(text: &str) -> Option<Self> {
        Self::parse(&HeaderName::from_static("idempotency-key"), text.as_bytes()).ok()
    }

    /// Returns the key with exactly these characters. `None` if it is no key.
    pub(super) fn verbatim(text: &str) -> Option<Self> {
        is_key(text.as_bytes()).then(|| Self(text.into()))
    }

    pub(super) fn as_str(&self) -> &str {
        &self.0
    }
}

/// Refuses a request without a key that has one in a spelling which only some servers read.
fn refuse_hidden(headers: &HeaderMap, names: &[HeaderName]) -> Result<(), InvalidKey> {
    match names.iter().find_map(|own| Some((twin(headers, own)?.clone(), own.clone()))) {
        Some((twin, own)) => Err(InvalidKey::Underscored(twin, own)),
        None => Ok(()),
    }
}

/// Reports whether a request has this field, or one that some servers read as this field.
pub(super) fn has_field(headers: &HeaderMap, name: &HeaderName) -> bool {
    headers.contains_key(name) || twin(headers, name).is_some()
}

/// Returns the field that differs from this one only in `_` for `-`.
fn twin<'h>(headers: &'h HeaderMap, own: &HeaderName) -> Option<&'h HeaderName> {
    let is_twin =
        |name: &&HeaderName| *name != own && name.as_str().len() == own.as_str().len() && normal(name) == normal(own);
    headers.keys().find(is_twin)
}

fn is_key(text: &[u8]) -> bool {
    (1..=LENGTH_MAX).contains(&text.len()) && text.iter().all(u8::is_ascii_graphic)
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
    fn a_key_in_a_body_is_a_text_at_its_place() {
        let pointer = JsonPointer::try_from("/input/key".to_owned()).unwrap();
        let of = |body: &str| {
            let key = IdempotencyKey::in_body(&pointer, &HeaderMap::new(), body.as_bytes());
            key.map(|key| key.map(|key| key.as_str().to_owned()))
        };
        let found = Ok(Some("k-1".to_owned()));
        assert_eq!(of(r#"{"input": {"key": "k-1"}}"#), found);
        assert_eq!(
            of(r#"{"input": {"key": "\u006b-1"}, "n": 9007199254740993}"#),
            found,
            "digits of others are not its own"
        );
        for number in ["12345678901234567890", "0.1234567890123456789", "1e400", "1e-400"] {
            assert_eq!(of(&format!(r#"{{"n": {number}, "input": {{"key": "k-1"}}}}"#)), found, "{number}");
            for twice in [r#""input": {"key": "a", "key": "k-1"}"#, r#""input": {"key": "a"}, "input": {"key": "k-1"}"#]
            {
                let body = format!(r#"{{"n": {number}, {twice}}}"#);
                assert!(matches!(of(&body), Err(InvalidKey::Body(_))), "{body}: a key is chosen");
            }
        }
        for none in ["", "{}", r#"{"input": null}"#, r#"{"input": {"key": null}}"#, "[1]", "1"] {
            assert_eq!(of(none), Ok(None), "{none}");
        }
        let member = Err(InvalidKey::Member(pointer.clone()));
        for text in
            ["1", "12345678901234567890", "\"\"", "\"a b\"", "\"ä\"", "[\"a\"]", &format!("\"{}\"", "a".repeat(256))]
        {
            assert_eq!(of(&format!(r#"{{"input": {{"key": {text}}}}}"#)), member, "{text}");
        }
        for unreadable in ["k-1", "{", r#"{"input": {"key": "a", "key": "b"}}"#, "\u{feff}{}"] {
            assert!(matches!(of(unreadable), Err(InvalidKey::Body(_))), "{unreadable}");
        }
        let encoded = HeaderMap::from_iter([(header::CONTENT_ENCODING, HeaderValue::from_static("gzip"))]);
        assert_eq!(IdempotencyKey::in_body(&pointer, &encoded, b"x"), Err(InvalidKey::Encoded));
    }

    #[test]
    fn a_key_that_only_some_servers_would_read_is_refused() {
        let names = [NAME, OTHER];
        let fields =
            |name: &'static str| HeaderMap::from_iter([(HeaderName::from_static(name), HeaderValue::from_static("a"))]);
        for twin in ["idempotency_key", "x_idempotency-key"] {
            assert!(matches!(refuse_hidden(&fields(twin), &names), Err(InvalidKey::Underscored(..))), "{twin}");
        }
        assert_eq!(refuse_hidden(&fields("idempotency-keys"), &names), Ok(()));
        let connection = |value| {
            let headers = HeaderMap::from_iter([(header::CONNECTION, HeaderValue::from_static(value))]);
            IdempotencyKey::of_connection(&headers, &names)
        };
        assert_eq!(connection("close, Idempotency-Key"), Some(InvalidKey::OfConnection(NAME)));
        assert_eq!(connection("close, te"), None);
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
