//! The tables of upstreams: their servers, and the authorities for their certificates.

use std::path::{Path, PathBuf};

use axum::http::Uri;
use axum::http::uri::{Authority, Scheme};
use oncegate_core::terms::Span;
use rustls::RootCertStore;
use rustls::pki_types::CertificateDer;
use rustls::pki_types::pem::PemObject as _;
use serde::{Deserialize, Serialize};

use super::span;

/// Table `[proxy.upstreams.<name>]`.
#[derive(Clone, PartialEq, Eq, Debug, Deserialize, Serialize)]
#[serde(deny_unknown_fields)]
pub struct UpstreamOptions {
    /// URLs of its servers, such as `http://10.0.0.7:9000`. Used round-robin.
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
    /// Exchanges with all of its servers at once. An exchange lasts until its response has been received, even if its
    /// caller has disconnected.
    #[serde(default = "default_exchanges")]
    pub exchanges: usize,
    /// `WebSockets` with all of its servers that are open at once.
    #[serde(default = "default_websockets")]
    pub websockets: usize,
    /// Requests with a key use only connections that were idle for less than this.
    #[serde(default = "span::<4>")]
    pub idle: Span,
    /// Time after which an idle WebSocket is closed: neither side has sent anything.
    #[serde(default = "span::<300>")]
    pub websocket_idle: Span,
}

/// Returns scheme, host and port of an upstream's URL, `http://<host>[:<port>]` or `https://…`.
pub fn server_of(url: &str) -> Option<(Scheme, Authority)> {
    let uri: Uri = url.parse().ok()?;
    let scheme = uri.scheme().filter(|scheme| [Scheme::HTTP, Scheme::HTTPS].contains(scheme))?;
    let is_bare = uri.path() == "/" && uri.query().is_none();
    let authority = uri.authority().filter(|authority| is_bare && !authority.as_str().contains('@'))?;
    Some((scheme.clone(), authority.clone()))
}

fn default_exchanges() -> usize {
    512
}

fn default_websockets() -> usize {
    1024
}

impl UpstreamOptions {
    /// Returns the authorities for the certificates of its servers. None if no server needs one.
    ///
    /// # Errors
    /// There are none, for a person to read.
    pub fn authorities(&self) -> Result<RootCertStore, String> {
        let is_https = |url: &String| server_of(url).is_some_and(|(scheme, _)| scheme == Scheme::HTTPS);
        if self.urls.iter().any(is_https) { authorities(&self.ca_file) } else { Ok(RootCertStore::empty()) }
    }
}

/// Returns the authorities of a file, or those of the system if its path is empty.
///
/// # Errors
/// There are none, for a person to read.
pub fn authorities(ca_file: &Path) -> Result<RootCertStore, String> {
    let mut authorities = RootCertStore::empty();
    if ca_file.as_os_str().is_empty() {
        authorities.add_parsable_certificates(rustls_native_certs::load_native_certs().certs);
    } else {
        let pem = std::fs::read(ca_file).map_err(|error| format!("{}: {error}", ca_file.display()))?;
        for certificate in CertificateDer::pem_slice_iter(&pem) {
            let added = certificate.ok().and_then(|certificate| authorities.add(certificate).ok());
            added.ok_or_else(|| format!("{} holds no certificates in PEM", ca_file.display()))?;
        }
    }
    if authorities.is_empty() {
        return Err("no authority for certificates is known; name a file of them in ca_file".to_owned());
    }
    Ok(authorities)
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
}
