//! TLS to members: the certificate and key files that a URL names. Read for each connection, so that a new connection
//! uses renewed certificates.

use std::fmt::{self, Write as _};
use std::path::Path;
use std::sync::Arc;

use oncegate_core::engine::Determinate;
use rustls::pki_types::pem::PemObject;
use rustls::pki_types::{CertificateDer, PrivateKeyDer, ServerName};
use rustls::{ClientConfig, RootCertStore};
use tokio::net::TcpStream;
use tokio_rustls::TlsConnector;
use tokio_rustls::client::TlsStream;

use super::url::{Address, Certificates, Url};

/// Error of the files.
#[derive(Clone, PartialEq, Eq, Debug, thiserror::Error)]
#[error("{0}")]
pub struct Unusable(String);

impl Unusable {
    fn new(why: impl fmt::Display) -> Self {
        Self(why.to_string())
    }
}

impl Certificates {
    /// Opens TLS to a member over a connection to it.
    ///
    /// # Errors
    /// The files are of no use, or the member is not trusted.
    pub async fn connect(
        &self,
        member: &Address,
        stream: TcpStream,
        alpn: Option<&'static [u8]>,
    ) -> Result<TlsStream<TcpStream>, Determinate> {
        let unusable = |why: String| Determinate::Incompatible(why);
        let name = self.server_name.clone().unwrap_or_else(|| member.host.clone());
        let server = ServerName::try_from(name.clone());
        let server = server.map_err(|_| unusable(format!("`{name}` is no name of a server for TLS")))?;
        let certificates = self.clone();
        let reading = tokio::task::spawn_blocking(move || certificates.connector(alpn)).await;
        let connector = reading.map_err(|error| unusable(error.to_string()))?;
        let connector = connector.map_err(|error| unusable(error.to_string()))?;
        let connected = connector.connect(server, stream).await;
        connected.map_err(|error| Determinate::Unavailable(format!("no connection to {member}: {error}")))
    }

    /// Reads the files. Blocks. `alpn` is the application protocol of the connections, if the server wants one.
    ///
    /// # Errors
    /// A file cannot be read, or holds something else.
    pub fn connector(&self, alpn: Option<&[u8]>) -> Result<TlsConnector, Unusable> {
        let mut roots = RootCertStore::empty();
        match &self.ca {
            Some(ca) => {
                for certificate in certificates("ca", ca)? {
                    roots.add(certificate).map_err(|_| unusable("ca", ca, "certificate"))?;
                }
            }
            None => drop(roots.add_parsable_certificates(rustls_native_certs::load_native_certs().certs)),
        }
        let provider = Arc::new(rustls::crypto::ring::default_provider());
        let config = ClientConfig::builder_with_provider(provider).with_safe_default_protocol_versions();
        let config = config.map_err(Unusable::new)?.with_root_certificates(roots);
        let mut config = match (&self.client_certificate, &self.client_key) {
            (Some(certificate), Some(key)) => {
                let chain = certificates("client_certificate", certificate)?;
                config.with_client_auth_cert(chain, private_key(key)?).map_err(Unusable::new)?
            }
            _ => config.with_no_client_auth(),
        };
        config.alpn_protocols = alpn.map(<[u8]>::to_vec).into_iter().collect();
        Ok(TlsConnector::from(Arc::new(config)))
    }
}

/// Adds to the reason of a missing connection that only one side may speak TLS.
pub fn with_tls_hint(url: &Url, scheme: &str, why: Determinate) -> Determinate {
    let Determinate::Unavailable(mut why) = why else { return why };
    // A refused certificate is TLS on both sides. A missing connection is no matter of TLS.
    if why.contains("certificate") || why.contains("write ") || why.contains("refused") {
        return Determinate::Unavailable(why);
    }
    let (other, here, what) = match &url.tls {
        Some(_) => (scheme.to_owned(), format!("{scheme}s"), "no TLS"),
        None => (format!("{scheme}s"), scheme.to_owned(), "TLS only"),
    };
    let _ = write!(why, "; if its port speaks {what}, write {other}:// in place of {here}://");
    Determinate::Unavailable(why)
}

fn read(key: &str, path: &Path) -> Result<Vec<u8>, Unusable> {
    std::fs::read(path)
        .map_err(|error| Unusable::new(format_args!("cannot read its {key} {}: {error}", path.display())))
}

fn certificates(key: &str, path: &Path) -> Result<Vec<CertificateDer<'static>>, Unusable> {
    let chain = CertificateDer::pem_slice_iter(&read(key, path)?).collect::<Result<Vec<_>, _>>();
    chain.ok().filter(|chain| !chain.is_empty()).ok_or_else(|| unusable(key, path, "certificate"))
}

fn private_key(path: &Path) -> Result<PrivateKeyDer<'static>, Unusable> {
    PrivateKeyDer::from_pem_slice(&read("client_key", path)?).map_err(|_| unusable("client_key", path, "private key"))
}

fn unusable(key: &str, path: &Path, what: &str) -> Unusable {
    Unusable::new(format_args!("its {key} {} holds no {what} in PEM", path.display()))
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::url::Dialect;

    const DIALECT: Dialect =
        Dialect { engine: "an engine", scheme: "store", form: "store://HOST", port: 1, own_keys: &[] };

    #[test]
    fn the_other_scheme_is_named_where_only_one_side_may_speak_tls() {
        let hint = |url: &str, why: &str| {
            let url = Url::parse(url, &DIALECT).unwrap();
            with_tls_hint(&url, "store", Determinate::Unavailable(why.into())).reason().to_owned()
        };
        assert_eq!(
            hint("store://a", "it hung up"),
            "it hung up; if its port speaks TLS only, write stores:// in place of store://"
        );
        assert_eq!(
            hint("stores://a", "corrupt message"),
            "corrupt message; if its port speaks no TLS, write store:// in place of stores://"
        );
        for why in ["invalid peer certificate: UnknownIssuer", "Connection refused", "write stores://"] {
            assert_eq!(hint("stores://a", why), why);
        }
    }
}
