//! Header fields on their path through the proxy (RFC 9110, 7.6). Fields of one connection are removed, and the proxy
//! writes the fields about the origin of a request.

use std::net::IpAddr;

use axum::http::{HeaderMap, HeaderName, HeaderValue, header};

/// Fields of one connection, in addition to those that `Connection` names.
static HOP_BY_HOP: [HeaderName; 8] = [
    header::CONNECTION,
    HeaderName::from_static("keep-alive"),
    HeaderName::from_static("proxy-connection"),
    header::PROXY_AUTHENTICATE,
    header::PROXY_AUTHORIZATION,
    header::TE,
    header::TRANSFER_ENCODING,
    header::UPGRADE,
];

/// Fields that concern more than one connection, even if `Connection` names them.
static NOT_HOP_BY_HOP: [HeaderName; 3] = [header::HOST, header::CONTENT_LENGTH, header::AUTHORIZATION];

/// Fields that are not stored with a response: they belong to one client, or to one connection.
static NEVER_STORED: [HeaderName; 3] =
    [header::SET_COOKIE, header::WWW_AUTHENTICATE, HeaderName::from_static("set-cookie2")];

/// Fields that change the method of a request for frameworks that read them.
const METHOD_OVERRIDES: [&str; 3] = ["x-http-method-override", "x-http-method", "x-method-override"];

/// Beginning of the names of fields between the gateway and its upstreams. A `-` follows, or a `_`, which some upstreams read as
/// `-`.
const OWN_PREFIX: &str = "oncegate";

pub(super) const REPLAYED: HeaderName = HeaderName::from_static("idempotent-replayed");
pub(super) const OUTCOME: HeaderName = HeaderName::from_static("oncegate-outcome");
pub(super) const REPEAT: HeaderName = HeaderName::from_static("oncegate-repeat");
/// Client certificates as a trusted peer passes them on (RFC 9440).
pub(super) const CLIENT_CERT: HeaderName = HeaderName::from_static("client-cert");
const TRAILERS: HeaderValue = HeaderValue::from_static("trailers");
const FORWARDED_FOR: HeaderName = HeaderName::from_static("x-forwarded-for");
const FORWARDED_HOST: HeaderName = HeaderName::from_static("x-forwarded-host");
const FORWARDED_PROTO: HeaderName = HeaderName::from_static("x-forwarded-proto");

/// The client of a request.
#[derive(Clone, Copy)]
pub(super) struct Client {
    pub(super) address: IpAddr,
    pub(super) is_trusted: bool,
    pub(super) is_tls: bool,
    /// SHA-256 of its certificate.
    pub(super) certificate: Option<[u8; 32]>,
}

/// Returns a name with `-` for `_`: an application behind CGI or WSGI sees both as the same character.
pub(super) fn normal(name: &HeaderName) -> String {
    name.as_str().replace('_', "-")
}

/// Reports whether a field changes the method of its request.
pub(super) fn is_method_override(name: &HeaderName) -> bool {
    METHOD_OVERRIDES.contains(&&*normal(name))
}

/// Reports whether a field is about one connection or one message, so that no upstream gets it from its caller.
pub(super) fn is_of_connection(name: &HeaderName) -> bool {
    HOP_BY_HOP.contains(name) || [header::EXPECT, header::CONTENT_LENGTH, header::TRAILER].contains(name)
}

/// Removes the fields of a request's connection, and the fields that only the gateway and upstreams use. The upstream
/// will see the remaining fields, so identities are made from them.
pub(super) fn end_hop(headers: &mut HeaderMap) {
    let accepts_trailers = items(headers, &header::TE).any(|coding| coding.eq_ignore_ascii_case(TRAILERS.as_bytes()));
    remove_hop_by_hop(headers);
    if accepts_trailers {
        headers.insert(header::TE, TRAILERS);
    }
    headers.remove(header::EXPECT);
}

/// Turns the fields that [`end_hop`] has left into those for the upstream. The remaining fields of peers are
/// trusted.
pub(super) fn to_upstream(headers: &mut HeaderMap, client: Client, via: &HeaderValue) {
    let host = headers.get(header::HOST).cloned();
    if let Ok(address) = HeaderValue::from_str(&client.address.to_canonical().to_string()) {
        headers.append(FORWARDED_FOR, address);
    }
    let proto = if client.is_tls { "https" } else { "http" };
    headers.entry(FORWARDED_PROTO).or_insert(HeaderValue::from_static(proto));
    if let Some(host) = host {
        headers.entry(FORWARDED_HOST).or_insert(host);
    }
    headers.append(header::VIA, via.clone());
    if headers.contains_key(header::TE) {
        headers.insert(header::CONNECTION, HeaderValue::from_static("te"));
    }
}

/// Turns the fields of an upstream's response into those for the caller.
pub(super) fn to_caller(headers: &mut HeaderMap, via: &HeaderValue) {
    remove_hop_by_hop(headers);
    headers.remove(REPLAYED);
    headers.append(header::VIA, via.clone());
}

/// Says that the connection closes: some of the request's body may be unread, and the client's next request would follow it
/// (RFC 9112, 9.6).
pub(super) fn close(headers: &mut HeaderMap) {
    headers.insert(header::CONNECTION, HeaderValue::from_static("close"));
}

/// Turns the fields after an upstream's body into those for the caller.
pub(super) fn trailers_to_caller(trailers: &mut HeaderMap) {
    remove_hop_by_hop(trailers);
    trailers.remove(REPLAYED);
}

/// The fields of responses that a route stores.
#[derive(Default, Debug)]
pub struct StoredFields {
    /// Stored although they belong to one client.
    with: Vec<HeaderName>,
    /// Not stored, in addition to the fields that are never stored.
    without: Vec<HeaderName>,
}

impl StoredFields {
    /// Returns those of these names.
    ///
    /// # Errors
    /// An impossible field name, or a field that must not be stored, with the reason.
    pub(super) fn new(with: &[String], without: &[String]) -> Result<Self, String> {
        let parse = |option: &str, names: &[String]| {
            let name = |name: &String| {
                name.parse()
                    .map_err(|_| format!("{option} has {name:?}, which is no field name; write one like \"X-Session\""))
            };
            names.iter().map(name).collect::<Result<Vec<HeaderName>, _>>()
        };
        let (with, without) = (parse("store_with", with)?, parse("store_without", without)?);
        match with.iter().find_map(|name| Some((name, not_storable(name)?))) {
            Some((name, why)) => Err(format!("store_with has \"{name}\", {why}; leave it out")),
            None => Ok(Self { with, without }),
        }
    }

    /// Returns the fields of a caller's response that are stored.
    pub(super) fn of<'h>(&self, headers: &'h HeaderMap) -> impl Iterator<Item = (&'h HeaderName, &'h HeaderValue)> {
        headers.iter().filter(move |(name, _)| {
            let is_default = !NEVER_STORED.contains(name) && !is_for_proxies(name) && **name != header::CONTENT_LENGTH;
            (is_default || self.with.contains(name)) && !self.without.contains(name)
        })
    }
}

/// Returns the fields of a replay. The fields of the stored response are filtered like those of a new response.
pub(super) fn replayed(mut headers: HeaderMap, stored: &StoredFields) -> HeaderMap {
    remove_hop_by_hop(&mut headers);
    headers.remove(REPLAYED);
    let mut kept = HeaderMap::with_capacity(headers.len());
    for (name, value) in stored.of(&headers) {
        kept.append(name.clone(), value.clone());
    }
    kept
}

/// Returns why a field can never be stored; `None` if it can.
fn not_storable(name: &HeaderName) -> Option<&'static str> {
    if HOP_BY_HOP.contains(name) || is_for_proxies(name) {
        Some("which concerns a single connection")
    } else if *name == header::CONTENT_LENGTH {
        Some("which each replay gets from its body")
    } else if is_own(name) {
        Some("which only the gateway and its upstreams use")
    } else {
        None
    }
}

fn is_for_proxies(name: &HeaderName) -> bool {
    name.as_str().starts_with("proxy-")
}

fn is_own(name: &HeaderName) -> bool {
    name.as_str().strip_prefix(OWN_PREFIX).is_some_and(|rest| rest.starts_with(['-', '_']))
}

/// Returns the items of a field that is a list (RFC 9110, 5.6.1).
pub(super) fn items<'h>(headers: &'h HeaderMap, name: &HeaderName) -> impl Iterator<Item = &'h [u8]> + use<'h> {
    let lines = headers.get_all(name).iter();
    lines.flat_map(|line| line.as_bytes().split(|byte| *byte == b',')).map(<[u8]>::trim_ascii)
}

/// Returns the value of a field that occurs once.
pub(super) fn only<'h>(headers: &'h HeaderMap, name: &HeaderName) -> Option<&'h HeaderValue> {
    let mut values = headers.get_all(name).iter();
    values.next().filter(|_| values.next().is_none())
}

/// Removes the fields of one connection, and those that only the gateway and upstreams use.
pub(super) fn remove_hop_by_hop(headers: &mut HeaderMap) {
    let named = items(headers, &header::CONNECTION).filter_map(|name| HeaderName::from_bytes(name).ok());
    let named: Vec<_> = named.collect();
    // A client must not remove the fields about its identity or the length of its body.
    let is_named = |name: &HeaderName| named.contains(name) && !NOT_HOP_BY_HOP.contains(name);
    remove(headers, |name| HOP_BY_HOP.contains(name) || is_own(name) || is_named(name));
}

/// Removes the fields with these names.
pub(super) fn remove(headers: &mut HeaderMap, is_removed: impl Fn(&HeaderName) -> bool) {
    let removed: Vec<_> = headers.keys().filter(|name| is_removed(name)).cloned().collect();
    for name in removed {
        headers.remove(name);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const VIA: HeaderValue = HeaderValue::from_static("1.1 oncegate-1");

    fn headers(fields: &[(&'static str, &'static str)]) -> HeaderMap {
        fields.iter().map(|(name, value)| (HeaderName::from_static(name), HeaderValue::from_static(value))).collect()
    }

    fn client() -> Client {
        Client { address: "192.0.2.1".parse().unwrap(), is_trusted: false, is_tls: false, certificate: None }
    }

    #[test]
    fn fields_of_one_connection_and_those_that_it_names_stay_behind() {
        let mut fields = headers(&[
            ("connection", "close, X-Hop, authorization, content-length"),
            ("x-hop", "1"),
            ("keep-alive", "1"),
            ("te", "gzip, Trailers"),
            ("transfer-encoding", "chunked"),
            ("upgrade", "h2c"),
            ("proxy-authorization", "x"),
            ("authorization", "a"),
            ("content-length", "1"),
            ("x-end", "1"),
            ("oncegate-repeat", "unknown"),
            ("oncegate_repeat", "unknown"),
            ("expect", "100-continue"),
        ]);
        end_hop(&mut fields);
        to_upstream(&mut fields, client(), &VIA);
        let mut left: Vec<_> = fields.keys().map(HeaderName::as_str).collect();
        left.sort_unstable();
        let forwarded = ["x-end", "x-forwarded-for", "x-forwarded-proto"];
        assert_eq!(left, [&["authorization", "connection", "content-length", "te", "via"][..], &forwarded].concat());
        assert_eq!((&fields[header::TE], &fields[header::CONNECTION]), (&TRAILERS, &HeaderValue::from_static("te")));
    }

    #[test]
    fn where_a_request_comes_from_is_added_to_what_peers_say() {
        let mut fields = headers(&[]);
        fields.insert(header::HOST, HeaderValue::from_static("shop"));
        to_upstream(&mut fields, client(), &VIA);
        assert_eq!(
            (&fields[FORWARDED_PROTO], &fields[FORWARDED_HOST]),
            (&"http".parse().unwrap(), &"shop".parse().unwrap())
        );
        assert_eq!(fields.get_all(FORWARDED_FOR).iter().collect::<Vec<_>>(), ["192.0.2.1"]);
        let mut fields =
            headers(&[("x-forwarded-for", "10.0.0.1"), ("x-forwarded-proto", "https"), ("x-forwarded-host", "api")]);
        fields.insert(header::HOST, HeaderValue::from_static("shop"));
        to_upstream(&mut fields, client(), &VIA);
        assert_eq!(
            (&fields[FORWARDED_PROTO], &fields[FORWARDED_HOST]),
            (&"https".parse().unwrap(), &"api".parse().unwrap())
        );
        assert_eq!(fields.get_all(FORWARDED_FOR).iter().collect::<Vec<_>>(), ["10.0.0.1", "192.0.2.1"]);
    }

    #[test]
    fn what_belongs_to_one_client_is_not_stored() {
        let mut fields = headers(&[
            ("set-cookie", "a=1"),
            ("www-authenticate", "Basic"),
            ("proxy-x", "1"),
            ("content-length", "3"),
            ("idempotent-replayed", "true"),
            ("oncegate-outcome", "success"),
            ("location", "/1"),
        ]);
        to_caller(&mut fields, &VIA);
        let names = |with: &[&str], without: &[&str]| {
            let [with, without] =
                [with, without].map(|names| names.iter().map(|name| (*name).to_owned()).collect::<Vec<_>>());
            let stored = StoredFields::new(&with, &without).unwrap();
            let mut names: Vec<_> = stored.of(&fields).map(|(name, _)| name.as_str().to_owned()).collect();
            names.sort_unstable();
            names
        };
        assert_eq!(names(&[], &[]), ["location", "via"]);
        assert_eq!(names(&["Set-Cookie"], &["Via"]), ["location", "set-cookie"]);
        for wrong in ["a b", "connection", "proxy-x", "content-length", "oncegate-outcome"] {
            assert!(StoredFields::new(&[wrong.to_owned()], &[]).is_err(), "{wrong}");
        }
    }
}
