//! TLS of a listener: the files that it is told of, what is wrong with them, and what new connections are greeted with.
//! When the files are read again is decided in `server`.

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

use crate::domain::clock::Timestamp;
use crate::telemetry::metrics::tls::TlsMetrics;

/// The tables `[server.tls]` and `[server.admin_tls]`. Empty paths stand for none; all of them: no TLS.
#[derive(Clone, PartialEq, Eq, Debug, Deserialize, Serialize)]
#[serde(deny_unknown_fields)]
pub struct TlsOptions {
    /// The certificate that the listener shows, and those that lead to its authority, in PEM.
    pub certificate: PathBuf,
    /// The private key of that certificate, in PEM.
    pub key: PathBuf,
    /// The authorities of callers' certificates, in PEM. With it, a caller without such a certificate is refused.
    pub client_ca: PathBuf,
}

/// Which of [`TlsOptions`] is wrong, and what to do about it. Never holds what a file holds.
#[derive(Clone, PartialEq, Eq, Debug, thiserror::Error)]
#[error("{message}")]
pub struct InvalidTls {
    /// The name of the key.
    pub key: &'static str,
    message: String,
}

/// What stood in the files of [`TlsOptions`] when they were read, not yet looked at.
pub struct TlsFiles {
    options: TlsOptions,
    certificate: Vec<u8>,
    key: Vec<u8>,
    client_ca: Option<Vec<u8>>,
}

/// What a listener shows to those who connect, and asks of them.
pub struct Identity {
    config: Arc<ServerConfig>,
    /// When its certificate ends, if that can be told.
    pub ends_at: Option<Timestamp>,
}

/// The TLS of one listener. What it shows can be replaced; connections that stand keep what they were shown.
pub struct Tls {
    shown: ArcSwap<ServerConfig>,
    metrics: TlsMetrics,
}

impl TlsOptions {
    /// Whether the listener speaks TLS.
    pub fn is_on(&self) -> bool {
        !self.certificate.as_os_str().is_empty()
    }

    /// Whether what is set makes sense as it is. Reads no file.
    ///
    /// # Errors
    /// What is missing.
    pub fn check(&self) -> Result<(), InvalidTls> {
        let is_set = |path: &Path| !path.as_os_str().is_empty();
        match (self.is_on(), is_set(&self.key), is_set(&self.client_ca)) {
            (true, true, _) | (false, false, false) => Ok(()),
            (true, false, _) => Err(invalid("key", "a certificate needs its private key; name the file that holds it")),
            (false, _, _) => {
                let message = "TLS needs a certificate; name the file that holds it, or take out the rest of the table";
                Err(invalid("certificate", message))
            }
        }
    }

    /// Reads the files. Blocks.
    ///
    /// # Errors
    /// A file that cannot be read.
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
    /// Tells files that hold something else from files that hold the same.
    pub fn digest(&self) -> [u8; 32] {
        let mut digest = Sha256::new();
        for part in [Some(&self.certificate), Some(&self.key), self.client_ca.as_ref()] {
            digest.update(part.map_or(u64::MAX, |part| part.len() as u64).to_be_bytes());
            digest.update(part.map_or(&[][..], Vec::as_slice));
        }
        digest.finalize().into()
    }

    /// What a listener can do with them.
    ///
    /// # Errors
    /// What is wrong with which file: no PEM, no certificate, a key of another certificate.
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
                    format!("{key} is not the key of the certificate in {certificate}; name both of one pair"),
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
        let refused = |why: String| invalid("client_ca", format!("{} cannot be used: {why}", path.display()));
        let mut authorities = RootCertStore::empty();
        for certificate in certificates("client_ca", path, pem)? {
            authorities.add(certificate).map_err(|error| refused(error.to_string()))?;
        }
        let verifier = WebPkiClientVerifier::builder_with_provider(Arc::new(authorities), provider).build();
        verifier.map_err(|error| refused(error.to_string()))
    }
}

impl Tls {
    /// The TLS of a listener that shows this.
    pub fn new(identity: Identity, metrics: TlsMetrics) -> Self {
        Self { shown: ArcSwap::new(identity.config), metrics }
    }

    /// What connections are shown from now on.
    pub fn replace(&self, identity: Identity) {
        self.shown.store(identity.config);
    }

    /// Shakes hands with who has just connected, for as long as `limit`. Nothing if that comes to nothing.
    pub(super) async fn greet(&self, stream: TcpStream, limit: Duration) -> Option<Greeted> {
        let failure = match timeout(limit, self.try_greet(stream)).await {
            Ok(Ok(greeted)) => return Some(greeted),
            Ok(Err(failure)) => failure.to_string(),
            Err(_elapsed) => format!("not done within {limit:?}"),
        };
        self.metrics.handshake_failed();
        // A client that does not trust the certificate, or shows none that is trusted, is one client's news; many are
        // seen in the metric.
        tracing::debug!(error = failure, "a TLS handshake failed");
        None
    }

    async fn try_greet(&self, stream: TcpStream) -> io::Result<Greeted> {
        let mut first = [0];
        // A client may speak HTTP without knowing better; it can be told so in its own words. No handshake begins with
        // a letter, as the name of a method does.
        if stream.peek(&mut first).await? == 1 && first[0].is_ascii_uppercase() {
            return Ok(Greeted::PlainHttp(stream));
        }
        let acceptor = TlsAcceptor::from(self.shown.load_full());
        Ok(Greeted::Tls(Box::new(acceptor.accept(stream).await?)))
    }
}

/// What came of a greeting.
pub(super) enum Greeted {
    Tls(Box<TlsStream<TcpStream>>),
    /// The client speaks HTTP without TLS.
    PlainHttp(TcpStream),
}

fn invalid(key: &'static str, message: impl Into<String>) -> InvalidTls {
    InvalidTls { key, message: message.into() }
}

fn read(key: &'static str, path: &Path) -> Result<Vec<u8>, InvalidTls> {
    fs::read(path).map_err(|error| invalid(key, format!("cannot read {}: {error}", path.display())))
}

/// The certificates of a file, of which there is at least one.
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
