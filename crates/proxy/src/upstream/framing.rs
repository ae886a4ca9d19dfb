//! Framing of responses (RFC 9112, 6.3): a response that readers could understand in two ways is refused, or gets one framing.

use axum::http::{HeaderMap, HeaderValue, Response, StatusCode, header};

/// Gives a response one framing.
///
/// # Errors
/// The reason why its end is not certain, or a switch to a protocol that the request did not offer.
pub(crate) fn checked<B>(mut response: Response<B>, offers_upgrade: bool) -> Result<Response<B>, &'static str> {
    let status = response.status();
    if status == StatusCode::SWITCHING_PROTOCOLS && !offers_upgrade {
        return Err("the upstream switched to a protocol that the request did not offer");
    }
    let headers = response.headers_mut();
    let mut codings = headers.get_all(header::TRANSFER_ENCODING).iter();
    let coding = codings.next();
    if codings.next().is_some() || coding.is_some_and(|coding| !coding.as_bytes().eq_ignore_ascii_case(b"chunked")) {
        return Err("the upstream used a transfer coding other than `chunked`");
    }
    let is_chunked = coding.is_some();
    let length = length(headers)?;
    headers.remove(header::CONTENT_LENGTH);
    // RFC 9112, 6.2 and RFC 9110, 8.6: no length together with a transfer coding, or with a 204.
    if let Some(length) = length.filter(|_| !is_chunked && status != StatusCode::NO_CONTENT) {
        headers.insert(header::CONTENT_LENGTH, HeaderValue::from(length));
    }
    Ok(response)
}

/// Returns the length that all lines and list members agree on.
fn length(headers: &HeaderMap) -> Result<Option<u64>, &'static str> {
    let mut agreed = None;
    for member in headers.get_all(header::CONTENT_LENGTH).iter().flat_map(|line| line.as_bytes().split(|b| *b == b','))
    {
        let length = oncegate_transport::length(member.trim_ascii());
        let length = length.ok_or("the upstream sent a Content-Length that is no number")?;
        if agreed.replace(length).is_some_and(|other| other != length) {
            return Err("the upstream sent lengths that differ");
        }
    }
    Ok(agreed)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn length_of(status: u16, fields: &[(&str, &str)]) -> Result<Option<String>, ()> {
        let build =
            fields.iter().fold(Response::builder().status(status), |build, (name, value)| build.header(*name, *value));
        let response = checked(build.body(()).unwrap(), false).map_err(drop)?;
        Ok(response.headers().get(header::CONTENT_LENGTH).map(|length| length.to_str().unwrap().to_owned()))
    }

    #[test]
    fn a_response_has_one_framing() {
        let length = |value| ("content-length", value);
        let chunked = ("transfer-encoding", "Chunked");
        for (fields, expected) in [
            (&[][..], None),
            (&[length("3")], Some("3")),
            (&[length("003")], Some("3")),
            (&[length("3, 3")], Some("3")),
            (&[length("3"), length("3")], Some("3")),
            (&[length("3"), chunked], None),
            (&[chunked, length("3")], None),
        ] {
            assert_eq!(length_of(200, fields), Ok(expected.map(str::to_owned)), "{fields:?}");
        }
        assert_eq!(length_of(204, &[length("5")]), Ok(None));
        assert_eq!(length_of(304, &[length("5")]), Ok(Some("5".to_owned())), "that of the body it stands for");
        for wrong in [
            &[length("3, 5")][..],
            &[length("3"), length("5")],
            &[length("+3")],
            &[length("")],
            &[length("3,")],
            &[length("0x3")],
            &[length("99999999999999999999")],
            &[("transfer-encoding", "gzip")],
            &[("transfer-encoding", "gzip, chunked")],
            &[("transfer-encoding", "")],
            &[chunked, chunked],
            &[chunked, length("3, 5")],
        ] {
            assert_eq!(length_of(200, wrong), Err(()), "{wrong:?}");
        }
        assert_eq!(length_of(101, &[]), Err(()));
        assert!(checked(Response::builder().status(101).body(()).unwrap(), true).is_ok());
    }
}
