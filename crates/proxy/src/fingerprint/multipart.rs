//! Digest of a form in parts (`multipart/form-data`, RFC 7578) without its boundary, which differs at each try.

use axum::http::{HeaderMap, header};
use sha2::{Digest as _, Sha256};

use crate::fields::only;

/// Returns the digest of a form's parts. `None` if the body is no form, or if readers could understand it differently.
pub(crate) fn digest(headers: &HeaderMap, body: &[u8]) -> Option<[u8; 32]> {
    let content_type = only(headers, &header::CONTENT_TYPE)?.to_str().ok()?;
    let delimiter = format!("\r\n--{}", boundary(content_type)?).into_bytes();
    let mut rest = body.strip_prefix(&delimiter[2..])?;
    let mut digest = Sha256::new();
    loop {
        if let Some(end) = rest.strip_prefix(b"--") {
            return [&b""[..], b"\r\n"].contains(&end).then(|| digest.finalize().into());
        }
        let end = rest.windows(delimiter.len()).position(|window| window == delimiter)?;
        let (part, after) = rest.split_at_checked(end)?;
        // No line end is that of two delimiters: some readers see an empty part between them.
        let part = part.strip_prefix(b"\r\n")?;
        digest.update((part.len() as u64).to_be_bytes());
        digest.update(part);
        rest = after.get(delimiter.len()..)?;
    }
}

/// Returns the boundary of a form.
pub(crate) fn boundary(content_type: &str) -> Option<&str> {
    let mut parameters = content_type.split(';');
    parameters.next().filter(|name| name.trim().eq_ignore_ascii_case("multipart/form-data"))?;
    let mut boundaries = parameters
        .filter_map(|parameter| parameter.split_once('='))
        .map(|(name, value)| (name.trim(), value.trim().trim_matches('"')))
        // `boundary*` and `boundary*0` (RFC 2231) are boundaries to some readers.
        .filter(|(name, _)| name.get(..8).is_some_and(|start| start.eq_ignore_ascii_case("boundary")));
    let (name, value) = boundaries.next().filter(|_| boundaries.next().is_none())?;
    // At most 70 characters (RFC 2046, 5.1.1). Some readers end the type at a comma.
    (name.len() == 8 && (1..=70).contains(&value.len()) && !value.contains(',')).then_some(value)
}

#[cfg(test)]
mod tests {
    use axum::http::HeaderValue;

    use super::*;

    fn of(boundary: &str, body: &str) -> Option<[u8; 32]> {
        let mut headers = HeaderMap::new();
        let content_type = format!("multipart/form-data; boundary={boundary}");
        headers.insert(header::CONTENT_TYPE, HeaderValue::from_str(&content_type).unwrap());
        digest(&headers, body.as_bytes())
    }

    fn form(boundary: &str, parts: &[&str]) -> String {
        let delimiter = format!("\r\n--{boundary}\r\n");
        format!("--{boundary}\r\n{}\r\n--{boundary}--\r\n", parts.join(&delimiter))
    }

    #[test]
    fn the_same_parts_with_another_boundary_are_the_same_form() {
        let one = of("a", &form("a", &["x\r\n\r\n1", "y\r\n\r\n2"])).unwrap();
        assert_eq!(of("\"b\"", &form("b", &["x\r\n\r\n1", "y\r\n\r\n2"])), Some(one));
        assert_ne!(of("a", &form("a", &["x\r\n\r\n1", "y\r\n\r\n3"])), Some(one));
        assert_ne!(of("a", &form("a", &["x\r\n\r\n1y\r\n\r\n2"])), Some(one));
    }

    #[test]
    fn what_readers_could_understand_differently_is_no_form() {
        for body in [
            "",
            "--a",
            "--a\r\nx",
            "pre\r\n--a\r\nx\r\n--a--",
            "--a\r\nx\r\n--a--more",
            "--a\r\nx\r\n--ab\r\n--a--",
            "--a\r\n--a\r\nx\r\n--a--",
        ] {
            assert_eq!(of("a", body), None, "{body}");
        }
        assert_eq!(of("", &form("", &["x"])), None);
        for parameters in ["a; boundary*=utf-8''b", "b; Boundary*0=a", "a; boundary=a", "a, text/plain"] {
            assert_eq!(of(parameters, &form("a", &["x"])), None, "{parameters}");
        }
        assert_eq!(digest(&HeaderMap::new(), b"--a--"), None);
    }
}
