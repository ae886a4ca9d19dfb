//! Cross-origin requests (Fetch standard): preflights allow the fields of keys, and scripts of listed origins may read
//! refusals, replays, and the fields that identify these.

use axum::http::{HeaderMap, HeaderName, HeaderValue, Method, Request, header};
use axum::response::Response;

use super::fields::items;

/// Fields of responses that scripts may read.
const EXPOSED: HeaderValue =
    HeaderValue::from_static("Idempotent-Replayed, Retry-After, Oncegate-Degraded, Location, ETag");

const TRUE: HeaderValue = HeaderValue::from_static("true");

/// A mark on responses that come from an upstream, not from the gateway.
#[derive(Clone, Copy)]
pub(super) struct FromUpstream;

/// A request of a script of a listed origin.
pub(super) struct CrossOrigin {
    origin: HeaderValue,
    is_preflight: bool,
}

impl CrossOrigin {
    /// Returns what matters of a request if its origin is listed.
    pub(super) fn of<Body>(request: &Request<Body>, origins: &[HeaderValue]) -> Option<Self> {
        let headers = request.headers();
        let origin = headers.get(header::ORIGIN).filter(|origin| origins.contains(origin))?;
        let is_preflight =
            request.method() == Method::OPTIONS && headers.contains_key(header::ACCESS_CONTROL_REQUEST_METHOD);
        Some(Self { origin: origin.clone(), is_preflight })
    }

    /// Adds the fields to a response.
    pub(super) fn allow(&self, response: &mut Response, key_headers: &[HeaderName]) {
        let is_upstreams = response.extensions_mut().remove::<FromUpstream>().is_some();
        let headers = response.headers_mut();
        if self.is_preflight {
            for name in key_headers {
                append(headers, header::ACCESS_CONTROL_ALLOW_HEADERS, HeaderValue::from(name.clone()));
            }
            return;
        }
        append(headers, header::ACCESS_CONTROL_EXPOSE_HEADERS, EXPOSED);
        if !is_upstreams {
            // A stored response names the origin of the first request.
            headers.insert(header::ACCESS_CONTROL_ALLOW_ORIGIN, self.origin.clone());
            headers.insert(header::ACCESS_CONTROL_ALLOW_CREDENTIALS, TRUE);
            append(headers, header::VARY, HeaderValue::from_static("Origin"));
        }
    }
}

/// Adds a value to a list, unless it has it.
fn append(headers: &mut HeaderMap, name: HeaderName, value: HeaderValue) {
    if !items(headers, &name).any(|item| item.eq_ignore_ascii_case(value.as_bytes())) {
        headers.append(name, value);
    }
}

#[cfg(test)]
mod tests {
    use axum::body::Body;

    use super::*;

    const SHOP: HeaderValue = HeaderValue::from_static("https://shop.example");

    fn response(upstreams: bool) -> Response {
        let mut response = Response::new(Body::empty());
        response.headers_mut().insert(header::ACCESS_CONTROL_ALLOW_ORIGIN, HeaderValue::from_static("https://first"));
        if upstreams {
            response.extensions_mut().insert(FromUpstream);
        }
        response
    }

    fn request(method: Method, origin: &'static str) -> Request<()> {
        let mut request = Request::new(());
        *request.method_mut() = method;
        request.headers_mut().insert(header::ORIGIN, HeaderValue::from_static(origin));
        request.headers_mut().insert(header::ACCESS_CONTROL_REQUEST_METHOD, HeaderValue::from_static("POST"));
        request
    }

    #[test]
    fn a_listed_origin_may_read_refusals_and_replays_and_others_get_what_the_upstream_says() {
        let cross = CrossOrigin::of(&request(Method::POST, "https://shop.example"), &[SHOP]).unwrap();
        let (mut own, mut upstreams) = (response(false), response(true));
        cross.allow(&mut own, &[]);
        cross.allow(&mut upstreams, &[]);
        assert_eq!(own.headers()[header::ACCESS_CONTROL_ALLOW_ORIGIN], SHOP);
        assert_eq!(own.headers()[header::VARY], "Origin");
        assert_eq!(upstreams.headers()[header::ACCESS_CONTROL_ALLOW_ORIGIN], "https://first");
        for name in ["location", "etag", "idempotent-replayed", "retry-after", "oncegate-degraded"] {
            let mut exposed = items(own.headers(), &header::ACCESS_CONTROL_EXPOSE_HEADERS);
            assert!(exposed.any(|item| item.eq_ignore_ascii_case(name.as_bytes())), "{name}");
        }
        assert_eq!(upstreams.headers()[header::ACCESS_CONTROL_EXPOSE_HEADERS], EXPOSED);
        assert!(CrossOrigin::of(&request(Method::POST, "https://evil.example"), &[SHOP]).is_none());
    }

    #[test]
    fn a_preflight_allows_the_fields_of_keys() {
        let key = HeaderName::from_static("idempotency-key");
        let cross = CrossOrigin::of(&request(Method::OPTIONS, "https://shop.example"), &[SHOP]).unwrap();
        let mut preflight = response(true);
        preflight.headers_mut().insert(header::ACCESS_CONTROL_ALLOW_HEADERS, HeaderValue::from_static("content-type"));
        for _ in 0..2 {
            cross.allow(&mut preflight, std::slice::from_ref(&key));
        }
        let allowed: Vec<_> = preflight.headers().get_all(header::ACCESS_CONTROL_ALLOW_HEADERS).iter().collect();
        assert_eq!(allowed, ["content-type", "idempotency-key"]);
    }
}
