//! TLS to members: the certificate and key files that a URL names. Read for each connection, so that a new connection
//! uses renewed certificates.

use std::fmt;
use std::path::{Path, PathBuf};
use std::sync::Arc;

use oncegate_core::engine::Determinate;
use rustls::pki_types::pem::PemObject;
use rustls::pki_types::{CertificateDer, PrivateKeyDer, ServerName};
use rustls::{ClientConfig, RootCertStore};
use tokio::net::TcpStream;
use tokio_rustls::TlsConnector;
use tokio_rustls::client::TlsStream;

use super::url::Address;

/// Paths of the files. Without a `ca`, the system's authorities are trusted.
#[derive(Clone, PartialEq, Eq, Debug, Default)]
pub struct Certificates {
    /// Authorities that are trusted.
    pub ca: Option<PathBuf>,
    /// Our certificate.
    pub client_certificate: Option<PathBuf>,
    /// Its key.
    pub client_key: Option<PathBuf>,
    /// The name that members' certificates must have, if it is not the host's.
    pub server_name: Option<String>,
}

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

    /// Checks that the named files fit together.
    ///
    /// # Errors
    /// They do not.
    pub fn check(&self) -> Result<(), Unusable> {
        if self.client_certificate.is_some() == self.client_key.is_some() {
            return Ok(());
        }
        Err(Unusable::new("client_certificate and client_key go together; name both or none"))
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
