//! The key of a request: 1 to 255 visible ASCII characters, bare or as a string of structured fields (RFC 8941, 3.3.3).

use http::HeaderMap;

const NAME: &str = "idempotency-key";
const LENGTH_MAX: usize = 255;
const FRESH: &str = "send a fresh random value for each operation, such as a UUID";

/// Returns the key, or nothing if there is none. The quoted and the bare form are the same key.
///
/// # Errors
///
/// Says why the key cannot be used.
pub(super) fn of(headers: &HeaderMap) -> Result<Option<String>, String> {
    let mut values = headers.get_all(NAME).iter();
    let Some(value) = values.next() else { return Ok(None) };
    if values.next().is_some() {
        return Err("Idempotency-Key came twice; send one field with one key.".to_owned());
    }
    let text = value.as_bytes().trim_ascii();
    let text = match text.strip_prefix(b"\"") {
        None => text.to_vec(),
        Some(rest) => unquoted(rest)?,
    };
    if text.is_empty() || text.len() > LENGTH_MAX {
        return Err(format!("Idempotency-Key is empty or longer than {LENGTH_MAX} characters; {FRESH}."));
    }
    let key = String::from_utf8(text).ok().filter(|text| text.bytes().all(|byte| byte.is_ascii_graphic()));
    key.map(Some).ok_or_else(|| format!("Idempotency-Key may have visible ASCII characters only; {FRESH}."))
}

/// Returns the detail for a request without a key.
pub(super) fn missing() -> String {
    format!("Idempotency-Key is missing; {FRESH}, and the same one with each repeat.")
}

/// Returns the text of a quoted string after its first quote.
fn unquoted(rest: &[u8]) -> Result<Vec<u8>, String> {
    let wrong = || "Idempotency-Key begins with a quote, but is not a complete string; close it, and escape quotes by a backslash.";
    let mut text = Vec::with_capacity(rest.len());
    let mut bytes = rest.iter();
    while let Some(byte) = bytes.next() {
        match byte {
            b'"' => {
                return match bytes.as_slice().trim_ascii_start() {
                    [] => Ok(text),
                    [b';', ..] => {
                        Err("Idempotency-Key has parameters after the string; send the string alone.".to_owned())
                    }
                    _ => Err(wrong().to_owned()),
                };
            }
            b'\\' => text.push(*bytes.next().filter(|escaped| b"\"\\".contains(escaped)).ok_or_else(wrong)?),
            byte => text.push(*byte),
        }
    }
    Err(wrong().to_owned())
}

#[cfg(test)]
mod tests {
    use http::HeaderValue;

    use super::*;

    fn of_lines(lines: &[&str]) -> Result<Option<String>, String> {
        let mut headers = HeaderMap::new();
        for line in lines {
            headers.append(NAME, HeaderValue::from_bytes(line.as_bytes()).expect("a value"));
        }
        of(&headers)
    }

    #[test]
    fn a_quoted_and_a_bare_key_are_the_same() {
        for (value, key) in [
            ("abc", "abc"),
            ("\"abc\"", "abc"),
            ("\"a\\\"b\\\\c\"", "a\"b\\c"),
            (" a ", "a"),
            ("a\"b", "a\"b"),
            ("a,b", "a,b"),
        ] {
            assert_eq!(of_lines(&[value]), Ok(Some(key.to_owned())), "{value}");
        }
        assert_eq!(of_lines(&[]), Ok(None));
        assert_eq!(of_lines(&[&"k".repeat(255)]), Ok(Some("k".repeat(255))));
    }

    #[test]
    fn a_wrong_key_is_refused() {
        let long = "k".repeat(256);
        for wrong in
            ["", "  ", "\"\"", &long, "a b", "ä", "\"a b\"", "\"", "\"a", "\"a\"b", "\"a\\b\"", "\"a\";x=1", "a, b"]
        {
            assert!(of_lines(&[wrong]).is_err(), "{wrong}");
        }
        assert!(of_lines(&["a", "a"]).is_err_and(|why| why.contains("twice")));
    }
}
