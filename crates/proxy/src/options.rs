//! The table `[proxy]` of the configuration. Upstreams, routes, and the values of some keys are in files below.

mod bytes;
mod network;
mod pointer;
mod route;
mod upstream;

use std::collections::{BTreeMap, BTreeSet};
use std::net::SocketAddr;
use std::path::PathBuf;
use std::time::Duration;

use axum::http::{HeaderName, HeaderValue, Uri, header};
use oncegate_core::tenant::AppKey;
use oncegate_core::terms::Span;
use oncegate_transport::tls::TlsOptions;
use serde::{Deserialize, Serialize};

pub use self::bytes::Bytes;
pub use self::network::Network;
pub use self::pointer::JsonPointer;
pub use self::route::{FingerprintPart, KeyRequirement, OnUnknown, RouteOptions, needs_no_key};
pub use self::upstream::{UpstreamOptions, authorities, server_of};
use super::encryption::EncryptionOptions;
pub use super::principal_source::PrincipalSource;
pub use super::target::PathForm;

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
    /// Names of further fields that only trusted peers may send, such as `True-Client-IP`.
    pub strip_fields: Vec<String>,
    /// Name of the upstream for requests without a route; `refuse`: they are refused.
    pub unmatched: String,
    /// Memory for the bodies of requests, of all callers.
    pub request_bytes_total: Bytes,
    /// Treatment of requests with a key that would pass without protection.
    pub unmatched_keyed: OnUnmatchedKey,
    /// Forms that the paths of unsafe requests without a route may have.
    pub allow_in_path: Vec<PathForm>,
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
    /// Returns the names of the further fields that only trusted peers may send.
    ///
    /// # Errors
    /// An impossible field name, or a field that the proxy needs.
    pub fn strip_fields(&self) -> Result<Vec<HeaderName>, String> {
        let needed = [header::HOST, header::CONTENT_LENGTH, header::TRANSFER_ENCODING, header::CONNECTION];
        let name = |name: &String| match name.parse::<HeaderName>() {
            Ok(name) if needed.contains(&name) => {
                Err(format!("{name:?} is a field that each request needs; leave it out"))
            }
            Ok(name) => Ok(name),
            Err(_) => Err(format!("{name:?} is no name of a field; write one like \"True-Client-IP\"")),
        };
        self.strip_fields.iter().map(name).collect()
    }

    /// Returns the name of the upstream for requests without a route, if they are not refused.
    pub fn unmatched(&self) -> Option<&str> {
        Some(self.unmatched.as_str()).filter(|name| *name != REFUSE)
    }

    /// Returns the apps that requests count for; `None` represents requests that no route takes.
    pub fn payers(&self) -> BTreeSet<Option<AppKey>> {
        let routes = self.routes.iter().map(|route| Some(route.app.clone()));
        routes.chain(self.unmatched().map(|_| None)).collect()
    }

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

/// Value of [`ProxyOptions::unmatched`] for refusing requests without a route.
pub const REFUSE: &str = "refuse";

/// Treatment of requests with a key that would pass without protection.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Deserialize, Serialize)]
#[serde(rename_all = "snake_case")]
pub enum OnUnmatchedKey {
    /// 400 `no_route_for_key`.
    Refuse,
    /// They are forwarded, counted and logged.
    Forward,
}

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
    /// Audiences of its tokens. Each token must name one of them. Empty: any.
    #[serde(default)]
    pub audience: Vec<String>,
}

/// Default of a duration.
fn span<const SECONDS: u64>() -> Span {
    Span(Duration::from_secs(SECONDS))
}
