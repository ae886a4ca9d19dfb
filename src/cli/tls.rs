//! TLS of commands: trusted authorities and the client certificate.

use std::path::{Path, PathBuf};
use std::sync::Arc;

use anyhow::{Context as _, bail};
use clap::Args;
use rustls::client::danger::{HandshakeSignatureValid, ServerCertVerified, ServerCertVerifier};
use rustls::crypto::{CryptoProvider, verify_tls12_signature, verify_tls13_signature};
use rustls::pki_types::pem::PemObject;
use rustls::pki_types::{CertificateDer, PrivateKeyDer, ServerName, UnixTime};
use rustls::{ClientConfig, DigitallySignedStruct, RootCertStore, SignatureScheme};
use tokio::net::TcpStream;
use tokio_rustls::TlsConnector;
use tokio_rustls::client::TlsStream;

/// TLS arguments, for URLs that begin with `https://`.
#[derive(Args, Clone, Debug, Default)]
pub(super) struct TlsArgs {
    /// PEM file of the authorities for the gateway's certificate; required for https://
    #[arg(long, alias = "admin-ca", value_name = "FILE")]
    ca: Option<PathBuf>,
    /// PEM file of the client certificate, if the gateway requires one
    #[arg(long, value_name = "FILE", requires = "client_key")]
    client_certificate: Option<PathBuf>,
    /// PEM file of the client certificate's private key
    #[arg(long, value_name = "FILE", requires = "client_certificate")]
    client_key: Option<PathBuf>,
    /// True if any certificate is accepted if no authority is named.
    #[arg(skip)]
    unverified: bool,
}

impl TlsArgs {
    /// Accepts any certificate, unless an authority is named. Only for requests without secrets, and without trust in
    /// the answer, to a listener on this machine: its certificate is rarely issued for a loopback address.
    pub(super) fn unverified(self) -> Self {
        Self { unverified: true, ..self }
    }

    /// Performs the TLS handshake with the server of this name.
    pub(super) async fn connect(&self, host: &str, stream: TcpStream) -> anyhow::Result<TlsStream<TcpStream>> {
        let name = ServerName::try_from(host.to_owned()).context("the host of the URL cannot be in a certificate")?;
        let stream = TlsConnector::from(Arc::new(self.config()?)).connect(name, stream).await;
        stream.context("the TLS handshake failed; is --ca the authority of its certificate?")
    }

    /// Returns the configuration for `https://` URLs.
    pub(super) fn config(&self) -> anyhow::Result<ClientConfig> {
        let provider = Arc::new(rustls::crypto::ring::default_provider());
        let config = ClientConfig::builder_with_provider(provider.clone()).with_safe_default_protocol_versions()?;
        let config = match &self.ca {
            Some(ca) => {
                let mut authorities = RootCertStore::empty();
                for certificate in certificates(ca)? {
                    authorities
                        .add(certificate)
                        .with_context(|| format!("the file {} holds no authority", ca.display()))?;
                }
                config.with_root_certificates(authorities)
            }
            None if self.unverified => {
                config.dangerous().with_custom_certificate_verifier(Arc::new(AnyCertificate(provider)))
            }
            None => bail!("https:// needs --ca, a file of the authorities for the gateway's certificate"),
        };
        let (Some(certificate), Some(key)) = (&self.client_certificate, &self.client_key) else {
            return Ok(config.with_no_client_auth());
        };
        let own = PrivateKeyDer::from_pem_slice(&read(key)?);
        let own = own.map_err(|_| anyhow::anyhow!("the file {} holds no private key in PEM", key.display()))?;
        let config = config.with_client_auth_cert(certificates(certificate)?, own);
        config.with_context(|| format!("the file {} is not the key of {}", key.display(), certificate.display()))
    }
}

/// Returns the certificates of a file, at least one.
fn certificates(path: &Path) -> anyhow::Result<Vec<CertificateDer<'static>>> {
    let found: Result<Vec<_>, _> = CertificateDer::pem_slice_iter(&read(path)?).collect();
    match found {
        Ok(found) if !found.is_empty() => Ok(found),
        _ => bail!("the file {} holds no certificate in PEM", path.display()),
    }
}

fn read(path: &Path) -> anyhow::Result<Vec<u8>> {
    std::fs::read(path).with_context(|| format!("cannot read {}", path.display()))
}

/// Accepts any certificate whose key the server has.
#[derive(Debug)]
struct AnyCertificate(Arc<CryptoProvider>);

impl ServerCertVerifier for AnyCertificate {
    fn verify_server_cert(
        &self,
        _certificate: &CertificateDer<'_>,
        _intermediates: &[CertificateDer<'_>],
        _name: &ServerName<'_>,
        _ocsp: &[u8],
        _now: UnixTime,
    ) -> Result<ServerCertVerified, rustls::Error> {
        Ok(ServerCertVerified::assertion())
    }

    fn verify_tls12_signature(
        &self,
        message: &[u8],
        certificate: &CertificateDer<'_>,
        signature: &DigitallySignedStruct,
    ) -> Result<HandshakeSignatureValid, rustls::Error> {
        verify_tls12_signature(message, certificate, signature, &self.0.signature_verification_algorithms)
    }

    fn verify_tls13_signature(
        &self,
        message: &[u8],
        certificate: &CertificateDer<'_>,
        signature: &DigitallySignedStruct,
    ) -> Result<HandshakeSignatureValid, rustls::Error> {
        verify_tls13_signature(message, certificate, signature, &self.0.signature_verification_algorithms)
    }

    fn supported_verify_schemes(&self) -> Vec<SignatureScheme> {
        self.0.signature_verification_algorithms.supported_schemes()
    }
}
