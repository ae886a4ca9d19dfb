//! The target of a request, parsed once: routes, identities, fingerprints and the `Host` of the upstream are made of it. Finds what
//! other servers could take for another target.

use std::net::Ipv6Addr;

use axum::http::{HeaderMap, HeaderValue, Method, Request, Uri, Version, header};
use oncegate_web::problem::Problem;
use serde::{Deserialize, Serialize};

use super::fields;

/// Methods that servers may understand in any case.
const STANDARD_METHODS: [Method; 9] = [
    Method::GET,
    Method::HEAD,
    Method::POST,
    Method::PUT,
    Method::DELETE,
    Method::CONNECT,
    Method::OPTIONS,
    Method::TRACE,
    Method::PATCH,
];

/// The target of a request.
#[derive(Clone, Debug)]
pub(super) struct Target {
    /// In lower case, without final dot and port. Empty if an HTTP/1.0 request names none.
    pub(super) host: String,
    /// With unreserved characters decoded, and other escapes in upper case (RFC 3986, 6.2.2).
    pub(super) path: String,
    /// In the same form.
    pub(super) query: Option<String>,
    /// A part of the path that makes some server read it as another path.
    pub(super) ambiguity: Option<&'static str>,
}

/// A part of paths that servers understand differently. A route can allow it.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Deserialize, Serialize)]
#[serde(rename_all = "snake_case")]
pub enum PathForm {
    /// `/a//b`.
    EmptySegments,
    /// `/a%2Fb`.
    EncodedSlashes,
    /// `/a;x=1`.
    PathParameters,
}

impl Target {
    /// Returns the target of a request, and makes it the only one: `Host` becomes that of an absolute target.
    ///
    /// # Errors
    /// It names no host, or a host that servers could read as another one.
    pub(super) fn take<Body>(request: &mut Request<Body>) -> Result<Self, Problem> {
        // As of CONNECT: no route has this path, and the upstream would get `/`.
        if request.uri().path().is_empty() {
            return Err(Problem::invalid("The request's target is no path; send it as `/path`."));
        }
        let field = request.headers().get(header::HOST).cloned();
        let authority = request.uri().authority().map(|authority| authority.as_str().to_owned());
        let is_http2 = request.version() >= Version::HTTP_2;
        let host = match (authority, field) {
            (Some(authority), Some(field))
                if is_http2 && !field.as_bytes().eq_ignore_ascii_case(authority.as_bytes()) =>
            {
                return Err(Problem::invalid("`Host` and `:authority` differ; send one of them, or the same in both."));
            }
            (Some(authority), _) => {
                let field = HeaderValue::try_from(&authority);
                let field = field.map_err(|_| Problem::invalid("The host in the request's target is malformed."))?;
                request.headers_mut().insert(header::HOST, field);
                authority
            }
            (None, Some(field)) => field.to_str().unwrap_or_default().to_owned(),
            (None, None) if is_http2 => {
                return Err(Problem::invalid("The request has neither `:authority` nor `Host`."));
            }
            (None, None) => String::new(),
        };
        let host = if host.is_empty() { host } else { host_name(&host)? };
        let (path, query) = (Spelling::of(request.uri().path()), request.uri().query().map(Spelling::of));
        if request.uri().authority().is_some() {
            // Written, since its slash may be implied.
            let origin = request.uri().path_and_query().map_or_else(|| "/".to_owned(), ToString::to_string);
            let malformed = |_| Problem::invalid("The path in the request's target is malformed.");
            *request.uri_mut() = Uri::try_from(origin).map_err(malformed)?;
        }
        let ambiguity = path.ambiguity();
        Ok(Self { host, path: path.text, query: query.map(|query| query.text), ambiguity })
    }

    /// Returns the first form of the path that is not one of these.
    pub(super) fn form_beside(&self, allowed: &[PathForm]) -> Option<PathForm> {
        form_beside(&self.path, allowed)
    }
}

impl PathForm {
    /// Returns its name in an answer, and in the configuration.
    pub(super) fn names(self) -> (&'static str, &'static str) {
        match self {
            Self::EmptySegments => ("an empty segment", "empty_segments"),
            Self::EncodedSlashes => ("an encoded slash", "encoded_slashes"),
            Self::PathParameters => ("a path parameter (`;`)", "path_parameters"),
        }
    }
}

fn form_beside(path: &str, allowed: &[PathForm]) -> Option<PathForm> {
    let forms = [(PathForm::EmptySegments, "//"), (PathForm::EncodedSlashes, "%2F"), (PathForm::PathParameters, ";")];
    let has = |(form, part): &(PathForm, &str)| path.contains(part) && !allowed.contains(form);
    forms.into_iter().find(has).map(|(form, _)| form)
}

/// Reports whether a method differs from a standard one only in case.
pub(super) fn is_misspelt(method: &Method) -> bool {
    STANDARD_METHODS
        .iter()
        .any(|standard| standard != method && standard.as_str().eq_ignore_ascii_case(method.as_str()))
}

/// Reports whether a request asks frameworks to use another method.
pub(super) fn overrides_method(headers: &HeaderMap) -> bool {
    headers.keys().any(fields::is_method_override)
}

/// Returns the part of a path that is the reason to refuse an unsafe request, unless it is one of these forms.
pub(super) fn refused_in(path: &str, allowed: &[PathForm]) -> Option<&'static str> {
    let spelling = Spelling::of(path);
    let ambiguity = spelling.ambiguity();
    ambiguity.or_else(|| form_beside(&spelling.text, allowed).map(|form| form.names().0))
}

/// Returns a path of the configuration as requests are compared with it.
pub(super) fn spelled(path: &str) -> String {
    Spelling::of(path).text
}

/// Returns a path as servers see it that decode its escapes, but for `%2F`. Each byte becomes a character, so that different paths
/// stay different.
pub(super) fn decoded(path: &str) -> String {
    let mut pieces = path.split('%');
    let mut text: String = pieces.next().unwrap_or_default().bytes().map(char::from).collect();
    for piece in pieces {
        let byte = piece.get(..2).and_then(|digits| u8::from_str_radix(digits, 16).ok()).filter(|byte| *byte != b'/');
        text.push(byte.map_or('%', char::from));
        let rest = if byte.is_some() { &piece[2..] } else { piece };
        text.extend(rest.bytes().map(char::from));
    }
    text
}

/// Returns the pattern that matches the decoded paths of a pattern.
pub(super) fn decoded_pattern(pattern: &str) -> String {
    // A doubled brace is no parameter.
    decoded(&pattern.replace("%7B", "{{").replace("%7D", "}}"))
}

/// Returns the name of `host[:port]` in the form for comparisons.
fn host_name(host: &str) -> Result<String, Problem> {
    if host.contains('%') {
        return Err(Problem::invalid("The host has an escape (`%`); send its name without escapes."));
    }
    if host.contains('@') {
        return Err(Problem::invalid("The host has user information; send `Host: <name>[:<port>]`."));
    }
    // The colons of an IPv6 address are in brackets.
    let end = host.rfind(']').map_or(0, |end| end + 1);
    let (name, port) = match host[end..].find(':') {
        Some(at) => (&host[..end + at], Some(&host[end + at + 1..])),
        None => (host, None),
    };
    if port.is_some_and(|port| !port.bytes().all(|byte| byte.is_ascii_digit())) {
        return Err(Problem::invalid("The port of the host is no number; send `Host: <name>[:<port>]`."));
    }
    if name.starts_with('[') {
        let address = ipv6(name).ok_or_else(|| Problem::invalid("The host is no IPv6 address."))?;
        return Ok(format!("[{address}]"));
    }
    let name = plain_host(name);
    if name.is_empty() || name.starts_with('.') || name.ends_with('.') || name.contains("..") {
        return Err(Problem::invalid("The host has an empty label; send `Host: <name>[:<port>]`."));
    }
    Ok(name)
}

/// Returns the IPv6 address in a pair of brackets.
pub(super) fn ipv6(text: &str) -> Option<Ipv6Addr> {
    text.strip_prefix('[')?.strip_suffix(']')?.parse().ok()
}

/// Returns the name of a host in lower case and without its final dot, or its IPv6 address in the shortest form.
pub(super) fn plain_host(name: &str) -> String {
    if let Some(address) = ipv6(name) {
        return format!("[{address}]");
    }
    name.strip_suffix('.').unwrap_or(name).to_ascii_lowercase()
}

/// A path or a query in its common spelling.
struct Spelling {
    text: String,
    has_wrong_escape: bool,
    has_control: bool,
}

impl Spelling {
    fn of(raw: &str) -> Self {
        let mut spelling = Self { text: String::with_capacity(raw.len()), has_wrong_escape: false, has_control: false };
        let mut rest = raw;
        while let Some(at) = rest.find('%') {
            let (before, escape) = rest.split_at(at);
            spelling.text.push_str(before);
            let digits = escape.get(1..3).filter(|digits| digits.bytes().all(|digit| digit.is_ascii_hexdigit()));
            let Some(byte) = digits.and_then(|digits| u8::from_str_radix(digits, 16).ok()) else {
                spelling.has_wrong_escape = true;
                spelling.text.push('%');
                rest = &escape[1..];
                continue;
            };
            spelling.has_control |= byte.is_ascii_control();
            if byte.is_ascii_alphanumeric() || b"-._~".contains(&byte) {
                spelling.text.push(char::from(byte));
            } else {
                spelling.text.push_str(&escape[..3].to_ascii_uppercase());
            }
            rest = &escape[3..];
        }
        spelling.text.push_str(rest);
        spelling.has_control |= raw.bytes().any(|byte| byte.is_ascii_control());
        spelling
    }

    /// Returns the part that makes some server read this path as another one.
    fn ambiguity(&self) -> Option<&'static str> {
        if self.has_wrong_escape {
            return Some("a `%` that two hexadecimal digits do not follow");
        }
        if self.has_control {
            return Some("an encoded control character");
        }
        if self.text.contains('\\') || self.text.contains("%5C") {
            return Some("a backslash");
        }
        // Some servers decode slashes before they remove dot segments, and others remove what follows a `;` first.
        let is_dots = |segment: &str| {
            let end = segment.find(';').into_iter().chain(segment.find("%3B")).min().unwrap_or(segment.len());
            [".", ".."].contains(&&segment[..end])
        };
        self.text.replace("%2F", "/").split('/').any(is_dots).then_some("a dot segment")
    }
}

/// Returns the path that the most lenient of servers would see: without parameters, empty segments and dots, and with all
/// escaped separators.
pub(super) fn plainest(path: &str) -> String {
    let mut text = path.replace("%25", "%");
    for (escape, separator) in
        [("%2F", "/"), ("%2f", "/"), ("%5C", "/"), ("%5c", "/"), ("\\", "/"), ("%3B", ";"), ("%3b", ";")]
    {
        text = text.replace(escape, separator);
    }
    let mut segments = Vec::new();
    for segment in text.split('/') {
        match segment.split(';').next().unwrap_or_default() {
            "" | "." => {}
            ".." => drop(segments.pop()),
            segment => segments.push(segment),
        }
    }
    format!("/{}", segments.join("/"))
}

#[cfg(test)]
mod tests {
    use super::*;

    fn target(version: Version, uri: &str, hosts: &[&str]) -> Result<(Target, String), String> {
        let mut request = Request::builder().version(version).uri(uri);
        for host in hosts {
            request = request.header(header::HOST, *host);
        }
        let mut request = request.body(()).unwrap();
        let target = Target::take(&mut request).map_err(|problem| problem.detail.into_owned())?;
        assert!(request.uri().authority().is_none());
        let host = request.headers().get(header::HOST).map_or("", |host| host.to_str().unwrap());
        Ok((target, host.to_owned()))
    }

    fn at(uri: &str) -> Target {
        target(Version::HTTP_11, uri, &["shop"]).unwrap().0
    }

    #[test]
    fn a_host_has_one_form() {
        for host in [
            "api.shop.example",
            "API.Shop.example:80",
            "api.shop.example.",
            "api.shop.example.:8443",
            "api.shop.example:",
        ] {
            assert_eq!(target(Version::HTTP_11, "/", &[host]).unwrap().0.host, "api.shop.example", "{host}");
        }
        assert_eq!(target(Version::HTTP_11, "/", &["[2001:DB8:0::1]:443"]).unwrap().0.host, "[2001:db8::1]");
        assert_eq!(target(Version::HTTP_11, "/", &["[0:0:0:0:0:0:0:1]"]).unwrap().0.host, plain_host("[::0:1]"));
        assert_eq!(target(Version::HTTP_10, "/", &[]).unwrap().0.host, "");
        for wrong in
            ["%61pi.shop.example", "u@shop", "shop..", ".", "a..b", "[::x]", "[::1", "[::1]x", "shop:x", "shop:80:x"]
        {
            assert!(target(Version::HTTP_11, "/", &[wrong]).is_err(), "{wrong}");
        }
    }

    #[test]
    fn an_absolute_target_replaces_the_host_and_http2_has_one_name() {
        let (absolute, host) = target(Version::HTTP_11, "https://Other.example:1/a?b", &["shop"]).unwrap();
        assert_eq!(
            (absolute.host.as_str(), absolute.path.as_str(), host.as_str()),
            ("other.example", "/a", "Other.example:1")
        );
        for pathless in ["shop", "shop:80"] {
            assert!(target(Version::HTTP_11, pathless, &["shop"]).unwrap_err().contains("no path"), "{pathless}");
        }
        let implied = target(Version::HTTP_11, "http://shop?b", &["shop"]).unwrap().0;
        assert_eq!((implied.path.as_str(), implied.query.as_deref()), ("/", Some("b")));
        assert!(target(Version::HTTP_2, "https://shop/a", &["other"]).is_err());
        assert!(target(Version::HTTP_2, "https://shop/a", &["shop:443"]).is_err());
        assert_eq!(target(Version::HTTP_2, "https://shop/a", &["SHOP"]).unwrap().1, "shop");
        assert_eq!(target(Version::HTTP_2, "https://shop/a", &[]).unwrap().1, "shop");
        assert_eq!(target(Version::HTTP_2, "/a", &["shop"]).unwrap().0.host, "shop");
        assert!(target(Version::HTTP_2, "/a", &[]).is_err());
    }

    #[test]
    fn unreserved_characters_are_decoded_and_other_escapes_have_capitals() {
        let target = at("/v1/%6frders%2d%7E%2f%c3%A9?%61=%2b");
        assert_eq!((target.path.as_str(), target.query.as_deref()), ("/v1/orders-~%2F%C3%A9", Some("a=%2B")));
        assert_eq!(at("/a?%").query.as_deref(), Some("%"));
    }

    #[test]
    fn a_decoded_path_keeps_its_segments_and_its_bytes_apart() {
        for (path, expected) in [
            ("/a%3Ab%40", "/a:b@"),
            ("/a%2Fb%25", "/a%2Fb%"),
            ("/%C3%A9%FF", "/\u{c3}\u{a9}\u{ff}"),
            ("/\u{e9}", "/\u{c3}\u{a9}"),
            ("/%2541", "/%41"),
        ] {
            assert_eq!(decoded(path), expected, "{path}");
        }
        assert_eq!(decoded_pattern("/{id}/%7Bx%7D%3A"), "/{id}/{{x}}:");
    }

    #[test]
    fn a_path_that_servers_could_take_for_another_is_ambiguous() {
        for good in
            ["/", "/a", "/a/", "/a/b.c", "/..a", "/a%20b", "/a?x=//../%2f%", "/a;x", "/a//b", "/a%2Fb", "/...", "*"]
        {
            assert_eq!(at(good).ambiguity, None, "{good}");
        }
        for bad in [
            "/a/../b",
            "/./a",
            "/a/..",
            "/a%5cb",
            "/a\\b",
            "/%2e%2E/a",
            "/.%2e",
            "/x/..;/a",
            "/%2e;x=1/a",
            "/x/..%3b/a",
            "/x%2f..%2fa",
            "/a%2F.",
            "/a%00",
            "/a%0a",
            "/a%7f",
            "/a%",
            "/a%2",
            "/a%zz",
            "/a%u0065",
        ] {
            assert!(at(bad).ambiguity.is_some(), "{bad}");
        }
    }

    #[test]
    fn forms_that_a_route_can_allow_are_found() {
        use PathForm::{EmptySegments, EncodedSlashes, PathParameters};
        for (path, form) in
            [("/a//b", EmptySegments), ("//a", EmptySegments), ("/a%2fb", EncodedSlashes), ("/a;b", PathParameters)]
        {
            assert_eq!(at(path).form_beside(&[]), Some(form), "{path}");
            assert_eq!(at(path).form_beside(&[form]), None, "{path}");
        }
        assert_eq!(at("/a/b%3B").form_beside(&[]), None);
    }

    #[test]
    fn methods_in_another_case_and_overrides_are_found() {
        for (method, is_wrong) in [("post", true), ("PoST", true), ("POST", false), ("purge", false)] {
            assert_eq!(is_misspelt(&Method::from_bytes(method.as_bytes()).unwrap()), is_wrong, "{method}");
        }
        for (name, is_one) in [("X-HTTP-Method-Override", true), ("X_HTTP_Method", true), ("X-Method", false)] {
            let headers = [(name.parse().unwrap(), HeaderValue::from_static("POST"))].into_iter().collect();
            assert_eq!(overrides_method(&headers), is_one, "{name}");
        }
    }
}
