//! The table `[proxy]` of the configuration: listener, upstreams and routes. The order of routes matters: the first that matches
//! a request is its route.

use std::collections::BTreeMap;
use std::net::{IpAddr, SocketAddr};
use std::path::PathBuf;
use std::str::FromStr;

use axum::http::uri::{Authority, Scheme};
use axum::http::{HeaderValue, Method, Uri};
use rustls::RootCertStore;
use rustls::pki_types::CertificateDer;
use rustls::pki_types::pem::PemObject as _;
use serde::{Deserialize, Deserializer, Serialize};

use super::dialect::Dialect;
use super::encryption::EncryptionOptions;
pub use super::principal::PrincipalSource;
use super::status::{StatusRule, UpstreamErrors};
use crate::domain::tenant::AppKey;
use crate::domain::terms::{Retention, Span};
use crate::transport::tls::TlsOptions;

/// Table `[proxy]`.
#[derive(Clone, PartialEq, Eq, Debug, Deserialize, Serialize)]
#[serde(deny_unknown_fields)]
pub struct ProxyOptions {
    /// Address of the proxy. Absent: there is no proxy.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub listen: Option<SocketAddr>,
    /// TLS of the listener. If all are empty, that of the API.
    pub tls: TlsOptions,
    /// Addresses whose `X-Forwarded-*`, `Forwarded` and trusted fields are believed.
    pub trusted_peers: Vec<Network>,
    /// Name of the upstream for requests without a route; `refuse`: they are refused.
    pub unmatched: String,
    /// Origins whose scripts may read replays and refusals, and send keys.
    pub cors_origins: Vec<String>,
    /// Encryption of stored responses.
    pub encryption: EncryptionOptions,
    /// Issuers of the tokens that `jwt:iss+sub` believes.
    pub issuers: Vec<IssuerOptions>,
    /// Upstreams by name.
    pub upstreams: BTreeMap<String, UpstreamOptions>,
    /// Routes. The first that matches a request is its route.
    pub routes: Vec<RouteOptions>,
}

impl ProxyOptions {
    /// Returns the origins as requests name them.
    ///
    /// # Errors
    /// The first that is no origin.
    pub fn cors_origins(&self) -> Result<Vec<HeaderValue>, String> {
        let is_origin = |origin: &str| {
            let uri: Option<Uri> = origin.parse().ok();
            uri.is_some_and(|uri| uri.scheme().is_some() && uri.authority().is_some() && uri.path() == "/")
                && !origin.ends_with('/')
        };
        let value = |origin: &String| HeaderValue::from_str(origin).ok().filter(|_| is_origin(origin));
        self.cors_origins.iter().map(|origin| value(origin).ok_or_else(|| origin.clone())).collect()
    }
}

/// Value of [`ProxyOptions::unmatched`] for which requests without a route are refused.
pub const REFUSE: &str = "refuse";

/// Table `[[proxy.issuers]]`.
#[derive(Clone, PartialEq, Eq, Debug, Deserialize, Serialize)]
#[serde(deny_unknown_fields)]
pub struct IssuerOptions {
    /// Its name, as its tokens have it in `iss`.
    pub issuer: String,
    /// URL of its keys (RFC 7517).
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub jwks_url: Option<String>,
    /// File of its keys, instead.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub jwks_file: Option<PathBuf>,
    /// File of the authorities for the certificate of the URL, in PEM. Empty: those of the system.
    #[serde(default)]
    pub ca_file: PathBuf,
    /// Audiences of its tokens, one of which each token must name. Empty: any.
    #[serde(default)]
    pub audience: Vec<String>,
}

/// Table `[proxy.upstreams.<name>]`.
#[derive(Clone, PartialEq, Eq, Debug, Deserialize, Serialize)]
#[serde(deny_unknown_fields)]
pub struct UpstreamOptions {
    /// Where its servers are, such as `http://10.0.0.7:9000`. Used in turn.
    pub urls: Vec<String>,
    /// File of the authorities for the certificates of `https` servers, in PEM. Empty: those of the system.
    #[serde(default)]
    pub ca_file: PathBuf,
    /// True if they speak HTTP/2, also without TLS.
    #[serde(default)]
    pub http2: bool,
    /// Time limit of connecting to one of them.
    #[serde(default = "span::<1>")]
    pub connect_timeout: Span,
    /// Time limit until the head of a response, and between pieces of its body.
    #[serde(default = "span::<30>")]
    pub timeout: Span,
    /// Time limit of a whole exchange. The renewal of its claim ends there.
    #[serde(default = "span::<300>")]
    pub exchange_max: Span,
    /// Requests with a key use only connections that were idle for less than this.
    #[serde(default = "span::<4>")]
    pub idle: Span,
    /// Time after which a WebSocket is closed on which neither side has sent anything.
    #[serde(default = "span::<300>")]
    pub websocket_idle: Span,
}

/// Table `[[proxy.routes]]`.
#[derive(Clone, PartialEq, Eq, Debug, Deserialize, Serialize)]
#[serde(deny_unknown_fields)]
pub struct RouteOptions {
    /// Name of the route. The operation of its claims is `proxy:<name>`.
    pub name: String,
    /// The app whose claims they are.
    pub app: AppKey,
    /// Hosts of its requests. Empty: any.
    #[serde(default)]
    pub hosts: Vec<String>,
    /// Paths of its requests: `/v1/orders/{id}`, `/v1/{*rest}`.
    pub path: String,
    /// Methods that are protected. Others on this path are forwarded without protection.
    pub methods: Vec<String>,
    /// Name of the upstream.
    pub upstream: String,
    /// Meaning of a request without a key.
    #[serde(default)]
    pub key: KeyRequirement,
    /// Names of the field with the key.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub key_headers: Option<Vec<String>>,
    /// Statuses and bodies of refusals, and defaults.
    #[serde(default)]
    pub dialect: Dialect,
    /// What makes two callers different.
    pub principal: Vec<PrincipalSource>,
    /// True if all callers share their keys: `principal` is empty.
    #[serde(default)]
    pub shared_keys: bool,
    /// URL that is asked with the caller's credentials before each replay. A status of 2xx allows it.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub authorize: Option<String>,
    /// Parts of a request that must be the same on a repeat.
    #[serde(default = "default_fingerprint")]
    pub fingerprint: Vec<FingerprintPart>,
    /// Statuses of responses that are stored. An exact status beats a class.
    #[serde(default = "default_store")]
    pub store: Vec<StatusRule>,
    /// Statuses that mean that nothing happened.
    #[serde(default = "default_release")]
    pub release: Vec<StatusRule>,
    /// Meaning of a 5xx response. The dialect has a default.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub on_5xx: Option<UpstreamErrors>,
    /// Answer to a repeat of a request whose outcome is unknown.
    #[serde(default)]
    pub on_unknown: OnUnknown,
    /// Lease of the claim, renewed while the exchange runs.
    #[serde(default = "span::<60>")]
    pub lease: Span,
    /// Time for which a repeat of a running request waits for its response.
    #[serde(default = "span::<0>")]
    pub wait: Span,
    /// Time for which a key blocks repeats.
    #[serde(default = "default_retention")]
    pub retention: Retention,
    /// Time for which a response can be replayed. Absent: as long as the key blocks.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub response_retention: Option<Span>,
    /// Fields of responses that are stored although they belong to one client, such as `Set-Cookie`.
    #[serde(default)]
    pub store_with: Vec<String>,
    /// Fields of responses that are not stored, beside those that never are.
    #[serde(default)]
    pub store_without: Vec<String>,
    /// Size of the largest body that is stored. A longer response cannot be replayed.
    #[serde(default = "default_response_bytes")]
    pub response_bytes: Bytes,
    /// True if responses with `Cache-Control: no-store` are stored as well.
    #[serde(default)]
    pub store_private: bool,
}

/// Meaning of a request without a key on a protected route.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default, Deserialize, Serialize)]
#[serde(rename_all = "snake_case")]
pub enum KeyRequirement {
    /// It is refused.
    #[default]
    Required,
    /// It is forwarded without protection.
    Optional,
    /// Keys are ignored: nothing on this route is protected.
    Off,
}

/// Answer to a repeat of a request whose outcome is unknown.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default, Deserialize, Serialize)]
#[serde(rename_all = "snake_case")]
pub enum OnUnknown {
    /// 409.
    #[default]
    Refuse,
    /// It is forwarded with `Oncegate-Repeat: unknown`, and the upstream decides.
    Forward,
}

/// A part of the fingerprint.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Debug, Deserialize, Serialize)]
pub enum FingerprintPart {
    /// The method.
    #[serde(rename = "method")]
    Method,
    /// The path.
    #[serde(rename = "path")]
    Path,
    /// The query.
    #[serde(rename = "query")]
    Query,
    /// The media type.
    #[serde(rename = "content-type")]
    ContentType,
    /// The precondition.
    #[serde(rename = "if-match")]
    IfMatch,
    /// The bytes of the body.
    #[serde(rename = "body")]
    Body,
    /// The JSON value of the body: order of members and white space make no difference.
    #[serde(rename = "body:json")]
    BodyJson,
}

/// A number of bytes as configuration writes it: `65536`, `"64KiB"`, `"1MiB"`.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Serialize)]
pub struct Bytes(pub usize);

impl<'de> Deserialize<'de> for Bytes {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        #[derive(Deserialize)]
        #[serde(untagged)]
        enum Form {
            Number(usize),
            Text(String),
        }
        let bytes = match Form::deserialize(deserializer)? {
            Form::Number(bytes) => Some(bytes),
            Form::Text(text) => [("KiB", 10), ("MiB", 20), ("B", 0)].into_iter().find_map(|(unit, shift)| {
                let count = text.strip_suffix(unit)?.trim_end().parse::<usize>().ok()?;
                count.checked_mul(1 << shift)
            }),
        };
        bytes.map(Self).ok_or_else(|| serde::de::Error::custom("a size is a number of bytes, or \"64KiB\" or \"1MiB\""))
    }
}

/// Addresses with a common prefix: `10.0.0.0/8`, `::1`.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Network {
    address: IpAddr,
    bits: u8,
}

impl Network {
    /// Reports whether an address is one of these.
    pub fn contains(&self, address: IpAddr) -> bool {
        let (own, other, width) = match (self.address, address.to_canonical()) {
            (IpAddr::V4(own), IpAddr::V4(other)) => (u128::from(own.to_bits()), u128::from(other.to_bits()), 32),
            (IpAddr::V6(own), IpAddr::V6(other)) => (own.to_bits(), other.to_bits(), 128),
            _ => return false,
        };
        (own ^ other).checked_shr(width - u32::from(self.bits)).unwrap_or(0) == 0
    }
}

impl FromStr for Network {
    type Err = String;

    fn from_str(text: &str) -> Result<Self, String> {
        let parse = || {
            let (address, bits) = text.split_once('/').map_or((text, None), |(address, bits)| (address, Some(bits)));
            let address: IpAddr = address.parse().ok()?;
            let width = if address.is_ipv4() { 32 } else { 128 };
            let bits = bits.map_or(Some(width), |bits| bits.parse().ok()).filter(|bits| *bits <= width)?;
            Some(Self { address, bits })
        };
        parse().ok_or_else(|| {
            format!("{text:?} is no address; write one like \"10.0.0.7\", or a network like \"10.0.0.0/8\"")
        })
    }
}

impl<'de> Deserialize<'de> for Network {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        String::deserialize(deserializer)?.parse().map_err(serde::de::Error::custom)
    }
}

impl Serialize for Network {
    fn serialize<S: serde::Serializer>(&self, serializer: S) -> Result<S::Ok, S::Error> {
        serializer.collect_str(&format_args!("{}/{}", self.address, self.bits))
    }
}

/// Returns scheme, host and port of an upstream's URL, `http://<host>[:<port>]` or `https://…`.
pub fn server_of(url: &str) -> Option<(Scheme, Authority)> {
    let uri: Uri = url.parse().ok()?;
    let scheme = uri.scheme().filter(|scheme| [Scheme::HTTP, Scheme::HTTPS].contains(scheme))?;
    let is_bare = uri.path() == "/" && uri.query().is_none();
    let authority = uri.authority().filter(|authority| is_bare && !authority.as_str().contains('@'))?;
    Some((scheme.clone(), authority.clone()))
}

impl UpstreamOptions {
    /// Returns those of one server, with the defaults.
    pub fn of(url: String, ca_file: PathBuf) -> Self {
        Self {
            urls: vec![url],
            ca_file,
            http2: false,
            connect_timeout: span::<1>(),
            timeout: span::<30>(),
            exchange_max: span::<300>(),
            idle: span::<4>(),
            websocket_idle: span::<300>(),
        }
    }

    /// Returns the authorities for certificates. None if no server needs one.
    ///
    /// # Errors
    /// There are none, for a person to read.
    pub fn authorities(&self) -> Result<RootCertStore, String> {
        let mut authorities = RootCertStore::empty();
        if !self.urls.iter().filter_map(|url| server_of(url)).any(|(scheme, _)| scheme == Scheme::HTTPS) {
            return Ok(authorities);
        }
        if self.ca_file.as_os_str().is_empty() {
            authorities.add_parsable_certificates(rustls_native_certs::load_native_certs().certs);
        } else {
            let pem = std::fs::read(&self.ca_file).map_err(|error| format!("{}: {error}", self.ca_file.display()))?;
            for certificate in CertificateDer::pem_slice_iter(&pem) {
                let added = certificate.ok().and_then(|certificate| authorities.add(certificate).ok());
                added.ok_or_else(|| format!("{} holds no certificates in PEM", self.ca_file.display()))?;
            }
        }
        if authorities.is_empty() {
            return Err("no authority for certificates is known; name a file of them in ca_file".to_owned());
        }
        Ok(authorities)
    }
}

/// Reports whether no request of this method needs a key: it is safe, or opens a tunnel.
pub fn needs_no_key(method: &Method) -> bool {
    method.is_safe() || *method == Method::CONNECT
}

fn span<const SECONDS: u64>() -> Span {
    Span(std::time::Duration::from_secs(SECONDS))
}

fn default_fingerprint() -> Vec<FingerprintPart> {
    use FingerprintPart::{Body, ContentType, IfMatch, Method, Path, Query};
    vec![Method, Path, Query, ContentType, IfMatch, Body]
}

fn default_store() -> Vec<StatusRule> {
    StatusRule::list(&["2xx", "301", "302", "303", "4xx"])
}

fn default_release() -> Vec<StatusRule> {
    StatusRule::list(&["307", "308", "401", "407", "408", "421", "425", "429"])
}

fn default_retention() -> Retention {
    Retention::For(std::time::Duration::from_hours(24))
}

fn default_response_bytes() -> Bytes {
    Bytes(64 << 10)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn an_upstream_is_a_host_and_a_port() {
        assert_eq!(server_of("http://10.0.0.7:9000").unwrap().1.as_str(), "10.0.0.7:9000");
        assert_eq!(server_of("https://orders/").unwrap(), (Scheme::HTTPS, Authority::from_static("orders")));
        for wrong in [
            "",
            "orders:9000",
            "https://orders/v1",
            "http://orders/v1",
            "http://orders?x",
            "http://u@orders",
            "ftp://x",
        ] {
            assert_eq!(server_of(wrong), None, "{wrong}");
        }
    }

    #[test]
    fn a_network_contains_the_addresses_of_its_prefix() {
        let contains =
            |network: &str, address: &str| network.parse::<Network>().unwrap().contains(address.parse().unwrap());
        for (network, address) in [
            ("10.0.0.0/8", "10.9.9.9"),
            ("127.0.0.1", "127.0.0.1"),
            ("0.0.0.0/0", "8.8.8.8"),
            ("::/0", "::1"),
            ("10.0.0.0/8", "::ffff:10.1.1.1"),
        ] {
            assert!(contains(network, address), "{network} {address}");
        }
        for (network, address) in
            [("10.0.0.0/8", "11.0.0.1"), ("127.0.0.1", "127.0.0.2"), ("::/0", "1.1.1.1"), ("fd00::/8", "fe00::1")]
        {
            assert!(!contains(network, address), "{network} {address}");
        }
        for wrong in ["", "x", "10.0.0.0/33", "10.0.0.0/x", "10.0.0.0/8/8"] {
            assert!(wrong.parse::<Network>().is_err(), "{wrong}");
        }
    }
}
