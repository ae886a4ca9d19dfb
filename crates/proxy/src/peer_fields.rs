//! Fields about the origin and the sender of a request: used from trusted peers only, and never from trailers.

use std::net::IpAddr;
use std::time::Duration;

use axum::http::{HeaderMap, HeaderName, header};

use super::fields::{self, normal};
use super::hourly::Hourly;
use super::options::{Network, PrincipalSource, ProxyOptions, RouteOptions};

/// Beginnings of their names. An application behind CGI or WSGI sees `_` and `-` as the same character.
const PREFIXES: [&str; 7] =
    ["forwarded", "x-forwarded", "x-real-ip", "x-original-", "x-rewrite-", "client-cert", "oncegate-"];

/// Fields that an upstream must not get after a body, as it could merge them into the head (RFC 9110, 6.5.1).
static NOT_IN_TRAILERS: [HeaderName; 10] = [
    header::AUTHORIZATION,
    header::CONTENT_ENCODING,
    header::CONTENT_LENGTH,
    header::CONTENT_RANGE,
    header::CONTENT_TYPE,
    header::COOKIE,
    header::EXPECT,
    header::HOST,
    header::RANGE,
    header::TRAILER,
];

/// The names of these fields, and the peers that may send them.
pub(super) struct PeerFields {
    trusted_peers: Vec<Network>,
    /// Those of the configuration, with `-` for `_`.
    names: Vec<String>,
    /// The fields of keys, likewise.
    keys: Vec<String>,
    /// Peers that the log has named.
    reported: Hourly<IpAddr>,
}

impl PeerFields {
    /// Returns those of these options. `None` if a name is not valid.
    pub(super) fn new(options: &ProxyOptions) -> Option<Self> {
        let mut names: Vec<_> = options.strip_fields().ok()?.iter().map(normal).collect();
        for source in options.routes.iter().flat_map(|route| &route.principal) {
            if let PrincipalSource::Trusted(name) = source {
                names.push(normal(name));
            }
        }
        let keys = options.routes.iter().map(RouteOptions::key_headers).collect::<Option<Vec<_>>>()?.concat();
        let keys = keys.iter().map(normal).collect();
        Some(Self { trusted_peers: options.trusted_peers.clone(), names, keys, reported: Hourly::default() })
    }

    /// Reports whether the fields of this peer are believed.
    pub(super) fn is_trusted(&self, peer: IpAddr) -> bool {
        self.trusted_peers.iter().any(|network| network.contains(peer))
    }

    /// Reports whether a field is removed unless a trusted peer sends it.
    pub(super) fn contains(&self, name: &HeaderName) -> bool {
        let name = normal(name);
        PREFIXES.iter().any(|prefix| name.starts_with(prefix)) || self.names.contains(&name)
    }

    /// Removes these fields from a request of a peer that is not trusted.
    pub(super) fn remove(&self, headers: &mut HeaderMap) {
        fields::remove(headers, |name| self.contains(name));
    }

    /// Removes trailers that an upstream must not get, also those of trusted peers: peers may replace fields of heads
    /// only.
    pub(super) fn remove_from_trailers(&self, trailers: &mut HeaderMap) {
        fields::remove_hop_by_hop(trailers);
        fields::remove(trailers, |name| {
            self.contains(name)
                || NOT_IN_TRAILERS.contains(name)
                || self.keys.contains(&normal(name))
                || fields::is_method_override(name)
        });
    }

    /// Logs that an untrusted peer sends the fields of a load balancer: once an hour for each of a few peers.
    pub(super) fn report(&self, headers: &HeaderMap, peer: IpAddr, now: Duration) {
        let name = HeaderName::from_static("x-forwarded-for");
        if !headers.contains_key(name) && !headers.contains_key(header::FORWARDED) {
            return;
        }
        let peer = peer.to_canonical();
        if !self.reported.is_due(peer, now) {
            return;
        }
        let line = self.line(peer);
        tracing::warn!(
            %peer,
            line,
            "A peer that is not trusted sends X-Forwarded-For or Forwarded, which the proxy replaces. If it is your load balancer, \
             write this line into [proxy]"
        );
    }

    /// Returns the line of the configuration that would trust a peer, too.
    fn line(&self, peer: IpAddr) -> String {
        let peers = self.trusted_peers.iter().map(ToString::to_string).chain([peer.to_string()]);
        format!("trusted_peers = [{}]", peers.map(|peer| format!("\"{peer}\"")).collect::<Vec<_>>().join(", "))
    }
}

impl ProxyOptions {
    /// Returns the problem of a route that reads a principal or a key from a field that the proxy removes.
    pub fn stripped_of(&self, route: &RouteOptions) -> Option<String> {
        let peer_fields = PeerFields::new(self)?;
        let removed = |name: &HeaderName| {
            peer_fields
                .contains(name)
                .then(|| format!("the proxy removes `{name}` from requests of peers that are not trusted"))
        };
        let principal = route.principal.iter().find_map(|source| match source {
            PrincipalSource::Field(name) | PrincipalSource::OptionalField(name) => {
                let advice = format!("write \"trusted:{name}\" and name the peers in proxy.trusted_peers");
                Some(format!("{}, so it makes no principal; {advice}", removed(name)?))
            }
            _ => None,
        });
        let key = || route.key_headers()?.iter().find_map(removed);
        principal.or_else(|| Some(format!("{}, so it cannot have the key; name another in key_headers", key()?)))
    }
}

#[cfg(test)]
mod tests {
    use axum::http::HeaderValue;

    use super::*;

    fn peer_fields() -> PeerFields {
        PeerFields {
            trusted_peers: vec!["10.0.0.0/8".parse().unwrap()],
            names: vec!["x-user".to_owned(), "true-client-ip".to_owned()],
            keys: vec!["idempotency-key".to_owned()],
            reported: Hourly::default(),
        }
    }

    fn headers(names: &[&str]) -> HeaderMap {
        names.iter().map(|name| (name.parse::<HeaderName>().unwrap(), HeaderValue::from_static("1"))).collect()
    }

    #[test]
    fn each_field_is_removed_in_each_spelling() {
        let spoofed = [
            "Forwarded",
            "X-Forwarded-For",
            "X_Forwarded_For",
            "X_Forwarded-Port",
            "X-Forwarded-Client-Cert",
            "X-Forwarded",
            "X-Real-IP",
            "X_Real-IP",
            "X-Original-URL",
            "X_Rewrite_URL",
            "Client-Cert",
            "Client_Cert-Chain",
            "Oncegate_Repeat",
            "X_User",
            "True-Client_IP",
        ];
        let mut fields = headers(&spoofed);
        fields.extend(headers(&["authorization", "x-user-agent", "idempotency-key", "x-http-method"]));
        peer_fields().remove(&mut fields);
        let mut left: Vec<_> = fields.keys().map(HeaderName::as_str).collect();
        left.sort_unstable();
        assert_eq!(left, ["authorization", "idempotency-key", "x-http-method", "x-user-agent"]);
        let mut trailers = headers(&spoofed);
        trailers.extend(headers(&[
            "authorization",
            "host",
            "te",
            "idempotency-key",
            "idempotency_key",
            "x_http_method",
            "x-sum",
        ]));
        peer_fields().remove_from_trailers(&mut trailers);
        assert_eq!(trailers.keys().collect::<Vec<_>>(), ["x-sum"]);
    }

    #[test]
    fn a_peer_is_reported_once_an_hour_with_the_line_that_would_trust_it() {
        let fields = peer_fields();
        assert_eq!(fields.line([192, 0, 2, 1].into()), "trusted_peers = [\"10.0.0.0/8\", \"192.0.2.1\"]");
        let peer = [192, 0, 2, 1].into();
        let is_due = |fields: &PeerFields| fields.reported.is_due(peer, Duration::ZERO);
        fields.report(&headers(&["x-forwarded-proto"]), peer, Duration::ZERO);
        assert!(is_due(&fields), "it sends none of the two");
        for name in ["forwarded", "x-forwarded-for"] {
            let fields = peer_fields();
            fields.report(&headers(&[name]), peer, Duration::ZERO);
            assert!(!is_due(&fields), "{name} was reported");
        }
    }
}
