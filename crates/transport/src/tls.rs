//! TLS of a listener: its certificate and key files, errors in them, and the handshake of new connections. `server` decides
//! when to read the files again.

mod expiry;

use std::fs;
use std::io;
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::time::Duration;

use arc_swap::ArcSwap;
use rustls::pki_types::pem::PemObject;
use rustls::pki_types::{CertificateDer, PrivateKeyDer};
use rustls::server::WebPkiClientVerifier;
use rustls::server::danger::ClientCertVerifier;
use rustls::{RootCertStore, ServerConfig};
use serde::{Deserialize, Serialize};
use sha2::{Digest, Sha256};
use tokio::net::TcpStream;
use tokio::time::timeout;
use tokio_rustls::TlsAcceptor;
use tokio_rustls::server::TlsStream;

use oncegate_core::clock::Timestamp;
use oncegate_telemetry::metrics::tls::TlsMetrics;

/// The tables `[server.tls]`, `[server.admin_tls]` and `[proxy.tls]`. An empty path means none. If all are empty, the listener has no TLS.
#[derive(Clone, PartialEq, Eq, Debug, Deserialize, Serialize)]
#[serde(deny_unknown_fields)]
pub struct TlsOptions {
    /// File of the listener's certificate and the certificates up to its authority, in PEM.
    pub certificate: PathBuf,
    /// File of the private key of that certificate, in PEM.
    pub key: PathBuf,
    /// File of the authorities of callers' certificates, in PEM. If it is set, callers need such a certificate.
    pub client_ca: PathBuf,
}

/// A wrong value in [`TlsOptions`], and what to do about it. Never contains the contents of a file.
#[derive(Clone, PartialEq, Eq, Debug, thiserror::Error)]
#[error("{message}")]
pub struct InvalidTls {
    /// Name of the configuration key.
    pub key: &'static str,
    message: String,
}

/// The contents of the files of [`TlsOptions`], not yet checked.
pub struct TlsFiles {
    options: TlsOptions,
    certificate: Vec<u8>,
    key: Vec<u8>,
    client_ca: Option<Vec<u8>>,
}

/// The certificate of a listener, with its requirements for clients.
pub struct Identity {
    config: Arc<ServerConfig>,
    /// End of the certificate's validity, if it can be read.
    pub ends_at: Option<Timestamp>,
}

/// The TLS of one listener. Its identity can be replaced; open connections are not affected.
pub struct Tls {
    config: ArcSwap<ServerConfig>,
    metrics: TlsMetrics,
}

impl TlsOptions {
    /// Reports whether the listener uses TLS.
    pub fn is_on(&self) -> bool {
        !self.certificate.as_os_str().is_empty()
    }

    /// Checks that the options fit together. Reads no file.
    pub fn check(&self) -> Result<(), InvalidTls> {
        let is_set = |path: &Path| !path.as_os_str().is_empty();
        match (self.is_on(), is_set(&self.key), is_set(&self.client_ca)) {
            (true, true, _) | (false, false, false) => Ok(()),
            (true, false, _) => {
                Err(invalid("key", "a certificate needs its private key; set the path of the key file"))
            }
            (false, _, _) => {
                let message =
                    "TLS needs a certificate; set the path of its file, or remove the other keys of the table";
                Err(invalid("certificate", message))
            }
        }
    }

    /// Reads the files. Blocks.
    pub fn read(&self) -> Result<TlsFiles, InvalidTls> {
        let client_ca = Some(&self.client_ca).filter(|path| !path.as_os_str().is_empty());
        Ok(TlsFiles {
            certificate: read("certificate", &self.certificate)?,
            key: read("key", &self.key)?,
            client_ca: client_ca.map(|path| read("client_ca", path)).transpose()?,
            options: self.clone(),
        })
    }
}

impl TlsFiles {
    /// Returns a digest of the contents, to detect changes.
    pub fn digest(&self) -> [u8; 32] {
        let mut digest = Sha256::new();
        for part in [Some(&self.certificate), Some(&self.key), self.client_ca.as_ref()] {
            digest.update(part.map_or(u64::MAX, |part| part.len() as u64).to_be_bytes());
            digest.update(part.map_or(&[][..], Vec::as_slice));
        }
        digest.finalize().into()
    }

    /// Parses the files.
    ///
    /// # Errors
    /// The file that is wrong, and why: not PEM, no certificate, the key of another certificate.
    pub fn identity(&self) -> Result<Identity, InvalidTls> {
        let chain = certificates("certificate", &self.options.certificate, &self.certificate)?;
        let key = PrivateKeyDer::from_pem_slice(&self.key).map_err(|_| {
            let path = self.options.key.display();
            invalid(
                "key",
                format!("{path} holds no private key in PEM; a block -----BEGIN PRIVATE KEY----- without a passphrase is needed"),
            )
        })?;
        let provider = Arc::new(rustls::crypto::ring::default_provider());
        let clients = match &self.client_ca {
            None => WebPkiClientVerifier::no_client_auth(),
            Some(pem) => self.verifier(pem, provider.clone())?,
        };
        let ends_at = chain.first().and_then(|certificate| expiry::ends_at(certificate));
        let config = ServerConfig::builder_with_provider(provider)
            .with_safe_default_protocol_versions()
            .map_err(|error| invalid("certificate", error.to_string()))?
            .with_client_cert_verifier(clients)
            .with_single_cert(chain, key);
        let mut config = config.map_err(|error| {
            let (certificate, key) = (self.options.certificate.display(), self.options.key.display());
            match error {
                rustls::Error::InconsistentKeys(_) => invalid(
                    "key",
                    format!("{key} is not the key of the certificate in {certificate}; set both files of one pair"),
                ),
                error => invalid("certificate", format!("{certificate} and {key} cannot be used: {error}")),
            }
        })?;
        config.alpn_protocols = vec![b"http/1.1".to_vec()];
        Ok(Identity { config: Arc::new(config), ends_at })
    }

    fn verifier(
        &self,
        pem: &[u8],
        provider: Arc<rustls::crypto::CryptoProvider>,
    ) -> Result<Arc<dyn ClientCertVerifier>, InvalidTls> {
        let path = &self.options.client_ca;
        let unusable = |why: String| invalid("client_ca", format!("{} cannot be used: {why}", path.display()));
        let mut authorities = RootCertStore::empty();
        for certificate in certificates("client_ca", path, pem)? {
            authorities.add(certificate).map_err(|error| unusable(error.to_string()))?;
        }
        let verifier = WebPkiClientVerifier::builder_with_provider(Arc::new(authorities), provider).build();
        verifier.map_err(|error| unusable(error.to_string()))
    }
}

impl Tls {
    /// Returns the TLS of a listener with this identity.
    pub fn new(identity: Identity, metrics: TlsMetrics) -> Self {
        Self { config: ArcSwap::new(identity.config), metrics }
    }

    /// Uses this identity for new connections from now on.
    pub fn replace(&self, identity: Identity) {
        self.config.store(identity.config);
    }

    /// Performs the TLS handshake of a new connection within `limit`. Returns `None` if it fails.
    pub(super) async fn handshake(&self, stream: TcpStream, limit: Duration) -> Option<Handshake> {
        let failure = match timeout(limit, self.try_handshake(stream)).await {
            Ok(Ok(handshake)) => return Some(handshake),
            Ok(Err(failure)) => failure.to_string(),
            Err(_elapsed) => format!("not completed within {limit:?}"),
        };
        self.metrics.handshake_failed();
        // Operators need not know of one client that rejects the certificate, or that has no trusted one. The metric
        // shows many.
        tracing::debug!(error = failure, "A TLS handshake failed");
        None
    }

    async fn try_handshake(&self, stream: TcpStream) -> io::Result<Handshake> {
        let mut first = [0];
        // A client that sends HTTP by mistake can get an HTTP response. A method begins with a letter, a handshake never does.
        if stream.peek(&mut first).await? == 1 && first[0].is_ascii_uppercase() {
            return Ok(Handshake::PlainHttp(stream));
        }
        let acceptor = TlsAcceptor::from(self.config.load_full());
        Ok(Handshake::Tls(Box::new(acceptor.accept(stream).await?)))
    }
}

/// The result of a handshake.
pub(super) enum Handshake {
    Tls(Box<TlsStream<TcpStream>>),
    /// The client sent HTTP without TLS.
    PlainHttp(TcpStream),
}

/// Returns the SHA-256 of the client's certificate.
pub(super) fn certificate_of(stream: &TlsStream<TcpStream>) -> Option<[u8; 32]> {
    let certificate = stream.get_ref().1.peer_certificates()?.first()?;
    Some(Sha256::digest(certificate).into())
}

fn invalid(key: &'static str, message: impl Into<String>) -> InvalidTls {
    InvalidTls { key, message: message.into() }
}

fn read(key: &'static str, path: &Path) -> Result<Vec<u8>, InvalidTls> {
    fs::read(path).map_err(|error| invalid(key, format!("cannot read {}: {error}", path.display())))
}

/// Returns the certificates of a file: at least one.
fn certificates(key: &'static str, path: &Path, pem: &[u8]) -> Result<Vec<CertificateDer<'static>>, InvalidTls> {
    let found: Result<Vec<_>, _> = CertificateDer::pem_slice_iter(pem).collect();
    match found {
        Ok(found) if !found.is_empty() => Ok(found),
        _ => {
            let path = path.display();
            Err(invalid(
                key,
                format!("{path} holds no certificate in PEM; a block -----BEGIN CERTIFICATE----- is needed"),
            ))
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn certificate_and_key_belong_together_and_authorities_need_both() {
        let checked = |certificate: &str, key: &str, client_ca: &str| {
            let options = TlsOptions { certificate: certificate.into(), key: key.into(), client_ca: client_ca.into() };
            options.check().map(|()| options.is_on()).map_err(|invalid| invalid.key)
        };
        assert_eq!(checked("", "", ""), Ok(false));
        assert_eq!(checked("a.pem", "a.key", ""), Ok(true));
        assert_eq!(checked("a.pem", "a.key", "ca.pem"), Ok(true));
        assert_eq!(checked("a.pem", "", ""), Err("key"));
        assert_eq!(checked("", "a.key", ""), Err("certificate"));
        assert_eq!(checked("", "", "ca.pem"), Err("certificate"));
    }

    #[test]
    fn a_file_of_certificates_has_at_least_one() {
        let certificates = |pem: &str| certificates("client_ca", Path::new("ca.pem"), pem.as_bytes());
        let one = "-----BEGIN CERTIFICATE-----\nAAAA\n-----END CERTIFICATE-----\n";
        assert_eq!(certificates(one).unwrap().len(), 1);
        assert_eq!(certificates(&one.repeat(2)).unwrap().len(), 2);
        for wrong in ["", "text", &one.replace("AAAA", "!")] {
            let refused = certificates(wrong).unwrap_err();
            assert!(refused.key == "client_ca" && refused.message.contains("holds no certificate"), "{refused:?}");
        }
    }
}
