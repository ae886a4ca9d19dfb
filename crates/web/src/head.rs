//! The rules for the head of every request, on both listeners: a bounded number of fields, one valid `Host`, and no coding of
//! the body except `chunked`.

use std::net::{IpAddr, Ipv6Addr};

use axum::http::uri::Authority;
use axum::http::{HeaderValue, Request, Version, header};
use oncegate_core::limits::Limits;

use super::problem::{Code, Problem};

/// Checks a head. With `loopback_only`, its host must be this machine.
pub fn check<Body>(request: &Request<Body>, limits: &Limits, loopback_only: bool) -> Result<(), Problem> {
    if request.headers().contains_key(header::CONTENT_ENCODING) {
        let detail = "The gateway takes bodies without a content coding only; send no `Content-Encoding`.";
        return Err(Problem::new(Code::UnsupportedMediaType, detail));
    }
    let mut credentials = request.headers().get_all(header::AUTHORIZATION).iter();
    if credentials.next().is_some() && credentials.next().is_some() {
        return Err(Problem::invalid("The request has more than one `Authorization` field; send one."));
    }
    let host = check_framing(request, limits)?;
    check_host(request, host, loopback_only)
}

/// Checks the head of a request that is forwarded. Its body may have any content coding.
pub fn check_for_forwarding<Body>(request: &Request<Body>, limits: &Limits) -> Result<(), Problem> {
    let host = check_framing(request, limits)?;
    check_host(request, host, false)
}

/// Checks the fields that define the end of a message, and returns the only `Host`.
fn check_framing<'r, Body>(request: &'r Request<Body>, limits: &Limits) -> Result<Option<&'r HeaderValue>, Problem> {
    let headers = request.headers();
    if headers.len() > limits.headers {
        return Err(too_large(limits));
    }
    let (mut host, mut transfer_coding) = (None, None);
    for (name, value) in headers {
        if name == header::HOST {
            if host.replace(value).is_some() {
                return Err(Problem::invalid("The request has more than one `Host` field; send one."));
            }
        } else if name == header::TRANSFER_ENCODING {
            let is_second = transfer_coding.replace(value).is_some();
            if is_second || !value.as_bytes().eq_ignore_ascii_case(b"chunked") {
                return Err(unknown_transfer_coding());
            }
        }
    }
    Ok(host)
}

/// Checks the `Host` field (RFC 9112, 3.2), and the host of an absolute target, which takes precedence over it.
fn check_host<Body>(request: &Request<Body>, host: Option<&HeaderValue>, loopback_only: bool) -> Result<(), Problem> {
    let field = match host {
        Some(value) => {
            let name = value.to_str().ok().and_then(host_name);
            Some(name.ok_or_else(|| Problem::invalid("The `Host` field is malformed; send `Host: <name>[:<port>]`."))?)
        }
        None if request.version() >= Version::HTTP_11 => {
            return Err(Problem::invalid("The request has no `Host` field; HTTP/1.1 needs one."));
        }
        None => None,
    };
    let target = match request.uri().authority() {
        Some(authority) => {
            let name = host_name(authority.as_str());
            Some(name.ok_or_else(|| Problem::invalid("The host in the request's target is malformed."))?)
        }
        None => None,
    };
    let mut named = field.into_iter().chain(target).peekable();
    if loopback_only && (named.peek().is_none() || !named.all(is_loopback)) {
        return Err(Problem::invalid(
            "This listener is for its own machine, so it answers only to a `Host` that is loopback: 127.0.0.1, [::1] or \
             localhost. Of an open gateway that is the API; to open it to others, configure apps with secrets, or set \
             server.allow_open = true. While server.admin_listen is loopback, it is the admin API too.",
        ));
    }
    Ok(())
}

/// Returns the host of a request with its port. The target's takes precedence over the field.
pub fn host<Body>(request: &Request<Body>) -> Option<&str> {
    let target = request.uri().authority().map(Authority::as_str);
    target.or_else(|| request.headers().get(header::HOST).and_then(|value| value.to_str().ok()))
}

/// Reports whether `host[:port]` is this machine.
pub fn is_loopback_host(text: &str) -> bool {
    host_name(text).is_some_and(is_loopback)
}

/// Returns the name in `host[:port]`, if that is well-formed (RFC 3986, 3.2.2; no `IPvFuture`).
fn host_name(text: &str) -> Option<&str> {
    let (name, port) = if let Some(rest) = text.strip_prefix('[') {
        let (address, port) = rest.split_once(']')?;
        address.parse::<Ipv6Addr>().ok()?;
        (address, port)
    } else {
        let (name, port) = text.split_at(text.find(':').unwrap_or(text.len()));
        let allowed = |byte: u8| byte.is_ascii_alphanumeric() || b"-._~!$&'()*+,;=%".contains(&byte);
        if name.is_empty() || !name.bytes().all(allowed) {
            return None;
        }
        (name, port)
    };
    let port = if port.is_empty() { port } else { port.strip_prefix(':')? };
    port.bytes().all(|byte| byte.is_ascii_digit()).then_some(name)
}

/// Reports whether a host is this machine. A web page whose name was rebound to 127.0.0.1 still sends its name.
fn is_loopback(name: &str) -> bool {
    name.eq_ignore_ascii_case("localhost") || name.parse::<IpAddr>().is_ok_and(|ip| ip.is_loopback())
}

/// Returns the problem of a head that exceeds its limits.
pub fn too_large(limits: &Limits) -> Problem {
    let (fields, bytes) = (limits.headers, limits.header_bytes);
    Problem::invalid(format!("The head of a request may have {fields} header fields, and {bytes} bytes in all."))
}

/// Returns the problem of a transfer coding that the gateway does not decode.
pub fn unknown_transfer_coding() -> Problem {
    Problem::new(
        Code::NotSupported,
        "The only transfer coding that the gateway decodes is `chunked`; send the body with a Content-Length, or chunked \
         alone.",
    )
}

#[cfg(test)]
mod tests {
    use super::*;

    fn checked(version: Version, target: &str, fields: &[(&'static str, &'static str)], loopback_only: bool) -> u16 {
        let mut request = Request::builder().version(version).uri(target);
        for (name, value) in fields {
            request = request.header(*name, *value);
        }
        let request = request.body(()).unwrap();
        check(&request, &Limits::default(), loopback_only)
            .map_or_else(|problem| problem.code.status().as_u16(), |()| 200)
    }

    fn with_host(host: &'static str, loopback_only: bool) -> u16 {
        checked(Version::HTTP_11, "/", &[("host", host)], loopback_only)
    }

    #[test]
    fn a_request_needs_one_valid_host() {
        for good in
            ["shop.example", "shop.example:", "SHOP:80", "10.0.0.1:8080", "[::2]", "[2001:db8::1]:443", "a_b", "%41"]
        {
            assert_eq!(with_host(good, false), 200, "{good}");
        }
        for bad in
            ["", ":80", "a b", "a/b", "a@b", "a:b", "a:80:90", "[::1", "::1", "[x]", "[::1]x", "[::1]:x", "a\tb", "a?"]
        {
            assert_eq!(with_host(bad, false), 400, "{bad}");
        }
        let twice = [("host", "a"), ("host", "a")];
        assert_eq!(checked(Version::HTTP_11, "/", &twice, false), 400);
        assert_eq!(checked(Version::HTTP_10, "/", &twice, false), 400);
        assert_eq!(checked(Version::HTTP_11, "/", &[], false), 400);
        assert_eq!(checked(Version::HTTP_10, "/", &[], false), 200, "HTTP/1.0 knows no Host");
        assert_eq!(checked(Version::HTTP_11, "http://u@a/", &[("host", "a")], false), 400);
    }

    #[test]
    fn only_loopback_hosts_are_loopback() {
        for own in ["127.0.0.1:8080", "127.9.9.9", "localhost", "LOCALHOST:1", "[::1]:8080", "[::1]"] {
            assert_eq!(with_host(own, true), 200, "{own}");
        }
        for other in
            ["example.com", "127.0.0.1.example.com", "localhost.example.com", "10.0.0.1:80", "[::2]", "0.0.0.0", ""]
        {
            assert_eq!(with_host(other, true), 400, "{other}");
        }
        // A request without a host is rejected too.
        assert_eq!(checked(Version::HTTP_10, "/", &[], true), 400);
        let own = [("host", "localhost")];
        assert_eq!(checked(Version::HTTP_11, "http://127.0.0.1:1/", &own, true), 200);
        assert_eq!(checked(Version::HTTP_11, "http://evil.example/", &own, true), 400);
        assert_eq!(checked(Version::HTTP_11, "http://localhost/", &[("host", "evil.example")], true), 400);
    }

    #[test]
    fn a_request_has_one_credential() {
        let with = |fields: &[(&'static str, &'static str)]| {
            checked(Version::HTTP_11, "/", &[&[("host", "a")], fields].concat(), false)
        };
        assert_eq!(with(&[("authorization", "Bearer a")]), 200);
        assert_eq!(with(&[("authorization", "Bearer a"), ("Authorization", "Bearer b")]), 400);
    }

    #[test]
    fn bodies_have_no_coding_except_chunked() {
        let with = |fields: &[(&'static str, &'static str)]| {
            checked(Version::HTTP_11, "/", &[&[("host", "a")], fields].concat(), false)
        };
        assert_eq!(with(&[("transfer-encoding", "Chunked")]), 200);
        for coding in ["gzip, chunked", "chunked, chunked", "identity", "", "x"] {
            assert_eq!(with(&[("transfer-encoding", coding)]), 501, "{coding}");
        }
        assert_eq!(with(&[("transfer-encoding", "chunked"), ("transfer-encoding", "chunked")]), 501);
        for coding in ["gzip", "identity", ""] {
            assert_eq!(with(&[("content-encoding", coding)]), 415, "{coding}");
        }
    }

    #[test]
    fn a_head_has_a_bounded_number_of_fields() {
        let fields = vec![("x", "y"); Limits::default().headers];
        assert_eq!(checked(Version::HTTP_10, "/", &fields, false), 200);
        assert_eq!(checked(Version::HTTP_10, "/", &[&fields[..], &[("x", "y")]].concat(), false), 400);
    }
}
