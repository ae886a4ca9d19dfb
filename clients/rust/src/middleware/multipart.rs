//! Digest of a form in parts (`multipart/form-data`, RFC 7578) without its boundary, which clients choose again for each try.

use http::HeaderMap;
use http::header::CONTENT_TYPE;
use sha2::{Digest as _, Sha256};

/// Returns the digest of a form's parts. `None` if the body is no form, or if readers could understand it differently.
pub(super) fn digest(headers: &HeaderMap, body: &[u8]) -> Option<[u8; 32]> {
    let mut types = headers.get_all(CONTENT_TYPE).iter();
    let content_type = types.next().filter(|_| types.next().is_none())?.to_str().ok()?;
    let delimiter = format!("\r\n--{}", boundary(content_type)?).into_bytes();
    let mut rest = body.strip_prefix(&delimiter[2..])?;
    let mut digest = Sha256::new();
    loop {
        if let Some(end) = rest.strip_prefix(b"--") {
            return [&b""[..], b"\r\n"].contains(&end).then(|| digest.finalize().into());
        }
        let end = rest.windows(delimiter.len()).position(|window| window == delimiter)?;
        let (part, after) = rest.split_at(end);
        // No line end is that of two delimiters: some readers see an empty part between them.
        let part = part.strip_prefix(b"\r\n")?;
        digest.update((part.len() as u64).to_be_bytes());
        digest.update(part);
        rest = &after[delimiter.len()..];
    }
}

/// Returns the boundary of a form.
fn boundary(content_type: &str) -> Option<&str> {
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
