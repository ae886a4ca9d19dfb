//! The certificate and key files that a `rediss://` URL names. Read for each connection, so that a new connection uses
//! renewed certificates.

use std::path::PathBuf;
use std::sync::Arc;

use redis::{ClientTlsConfig, TlsCertificates};
use rustls::pki_types::pem::PemObject;
use rustls::pki_types::{CertificateDer, PrivateKeyDer};
use rustls::{ClientConfig, RootCertStore};
use tokio_rustls::TlsConnector;

use super::invalid_url::InvalidUrl;

/// Paths of the files. Without any, the system's authorities are trusted, and no client certificate is sent.
#[derive(Clone, PartialEq, Eq, Debug, Default)]
pub(super) struct Certificates {
    pub(super) ca: Option<PathBuf>,
    pub(super) client_certificate: Option<PathBuf>,
    pub(super) client_key: Option<PathBuf>,
}

impl Certificates {
    /// Returns whether the URL names any.
    pub(super) fn are_named(&self) -> bool {
        *self != Self::default()
    }

    /// Checks that the named files fit together.
    pub(super) fn check(&self, tls: bool) -> Result<(), InvalidUrl> {
        if self.are_named() && !tls {
            return Err(InvalidUrl::new("ca, client_certificate and client_key are for rediss://, which is TLS"));
        }
        if self.client_certificate.is_some() != self.client_key.is_some() {
            return Err(InvalidUrl::new("client_certificate and client_key go together; name both or none"));
        }
        Ok(())
    }

    /// Reads the files. Blocks.
    pub(super) fn read(&self) -> Result<TlsCertificates, InvalidUrl> {
        let client_tls = match (&self.client_certificate, &self.client_key) {
            (Some(certificate), Some(key)) => Some(ClientTlsConfig {
                client_cert: read("client_certificate", certificate, has_certificate)?,
                client_key: read("client_key", key, |pem| PrivateKeyDer::from_pem_slice(pem).is_ok())?,
            }),
            _ => None,
        };
        let root_cert = self.ca.as_ref().map(|ca| read("ca", ca, has_certificate)).transpose()?;
        Ok(TlsCertificates { client_tls, root_cert })
    }

    /// Reads the files, and returns what opens TLS with them. Blocks.
    pub(super) fn connector(&self) -> Result<TlsConnector, InvalidUrl> {
        let TlsCertificates { client_tls, root_cert } = self.read()?;
        let mut roots = RootCertStore::empty();
        match root_cert {
            Some(ca) => {
                for certificate in chain(&ca)? {
                    roots.add(certificate).map_err(|_| unusable())?;
                }
            }
            None => drop(roots.add_parsable_certificates(rustls_native_certs::load_native_certs().certs)),
        }
        let provider = Arc::new(rustls::crypto::ring::default_provider());
        let config = ClientConfig::builder_with_provider(provider).with_safe_default_protocol_versions();
        let config = config.map_err(|_| unusable())?.with_root_certificates(roots);
        let config = match client_tls {
            Some(ClientTlsConfig { client_cert, client_key }) => {
                let key = PrivateKeyDer::from_pem_slice(&client_key).map_err(|_| unusable())?;
                config.with_client_auth_cert(chain(&client_cert)?, key).map_err(|_| unusable())?
            }
            None => config.with_no_client_auth(),
        };
        Ok(TlsConnector::from(Arc::new(config)))
    }
}

/// Returns the error for files that do not fit together.
pub(super) fn unusable() -> InvalidUrl {
    InvalidUrl::new("its ca, client_certificate or client_key cannot be used")
}

fn chain(pem: &[u8]) -> Result<Vec<CertificateDer<'static>>, InvalidUrl> {
    CertificateDer::pem_slice_iter(pem).collect::<Result<_, _>>().map_err(|_| unusable())
}

/// Reads a file and checks its contents. An error repeats none of them.
fn read(key: &str, path: &PathBuf, is_good: impl Fn(&[u8]) -> bool) -> Result<Vec<u8>, InvalidUrl> {
    let shown = path.display();
    let pem =
        std::fs::read(path).map_err(|error| InvalidUrl::new(format!("cannot read its {key} {shown}: {error}")))?;
    if is_good(&pem) {
        return Ok(pem);
    }
    let what = if key == "client_key" { "private key" } else { "certificate" };
    Err(InvalidUrl::new(format!("its {key} {shown} holds no {what} in PEM")))
}

fn has_certificate(pem: &[u8]) -> bool {
    let mut certificates = CertificateDer::pem_slice_iter(pem).peekable();
    certificates.peek().is_some() && certificates.all(|certificate| certificate.is_ok())
}
