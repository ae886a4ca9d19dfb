//! TLS to members: the certificate and key files that an `etcds://` URL names. Read for each connection, so that a new connection
//! uses renewed certificates.

use std::path::{Path, PathBuf};
use std::sync::Arc;

use rustls::pki_types::pem::PemObject;
use rustls::pki_types::{CertificateDer, PrivateKeyDer};
use rustls::{ClientConfig, RootCertStore};
use tokio_rustls::TlsConnector;

use super::url::InvalidUrl;

/// Paths of the files. Without a `ca`, the system's authorities are trusted.
#[derive(Clone, PartialEq, Eq, Debug, Default)]
pub(super) struct Certificates {
    pub(super) ca: Option<PathBuf>,
    pub(super) client_certificate: Option<PathBuf>,
    pub(super) client_key: Option<PathBuf>,
    /// The name that members' certificates must have, if it is not the host's.
    pub(super) server_name: Option<String>,
}

impl Certificates {
    /// Checks that the files that are named go together.
    pub(super) fn check(&self) -> Result<(), InvalidUrl> {
        if self.client_certificate.is_some() == self.client_key.is_some() {
            return Ok(());
        }
        Err(InvalidUrl::new("client_certificate and client_key go together; name both or none"))
    }

    /// Reads the files. Blocks.
    pub(super) fn connector(&self) -> Result<TlsConnector, InvalidUrl> {
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
        let config = config.map_err(InvalidUrl::new)?.with_root_certificates(roots);
        let mut config = match (&self.client_certificate, &self.client_key) {
            (Some(certificate), Some(key)) => {
                let chain = certificates("client_certificate", certificate)?;
                config.with_client_auth_cert(chain, private_key(key)?).map_err(InvalidUrl::new)?
            }
            _ => config.with_no_client_auth(),
        };
        config.alpn_protocols = vec![b"h2".to_vec()];
        Ok(TlsConnector::from(Arc::new(config)))
    }
}

fn read(key: &str, path: &Path) -> Result<Vec<u8>, InvalidUrl> {
    std::fs::read(path)
        .map_err(|error| InvalidUrl::new(format_args!("cannot read its {key} {}: {error}", path.display())))
}

fn certificates(key: &str, path: &Path) -> Result<Vec<CertificateDer<'static>>, InvalidUrl> {
    let chain = CertificateDer::pem_slice_iter(&read(key, path)?).collect::<Result<Vec<_>, _>>();
    chain.ok().filter(|chain| !chain.is_empty()).ok_or_else(|| unusable(key, path, "certificate"))
}

fn private_key(path: &Path) -> Result<PrivateKeyDer<'static>, InvalidUrl> {
    PrivateKeyDer::from_pem_slice(&read("client_key", path)?).map_err(|_| unusable("client_key", path, "private key"))
}

fn unusable(key: &str, path: &Path, what: &str) -> InvalidUrl {
    InvalidUrl::new(format_args!("its {key} {} holds no {what} in PEM", path.display()))
}
