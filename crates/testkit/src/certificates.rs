//! Certificates for tests: an authority, and the certificates it issues.

use std::path::{Path, PathBuf};
use std::sync::Arc;

use rcgen::{BasicConstraints, CertificateParams, CertifiedIssuer, DnType, IsCa, KeyPair, date_time_ymd};
use rustls::pki_types::pem::PemObject;
use rustls::pki_types::{CertificateDer, PrivateKeyDer};
use rustls::{ClientConfig, RootCertStore, SupportedProtocolVersion};

use crate::fresh;

/// A certificate authority.
pub struct Authority(CertifiedIssuer<'static, KeyPair>);

/// A certificate and its private key, in PEM.
pub struct Pair {
    pub certificate: String,
    pub key: String,
}

/// The files that hold a [`Pair`].
pub struct PairFiles {
    pub certificate: PathBuf,
    pub key: PathBuf,
}

impl Authority {
    /// Creates an authority with a unique name: two of the same name would differ by their signatures only.
    pub fn generate() -> Self {
        let mut params = CertificateParams::default();
        params.distinguished_name.push(DnType::CommonName, format!("authority {:x}", fresh::number()));
        params.is_ca = IsCa::Ca(BasicConstraints::Unconstrained);
        let key = KeyPair::generate().expect("a key");
        Self(CertifiedIssuer::self_signed(params, key).expect("a certificate"))
    }

    /// Returns its own certificate.
    pub fn pem(&self) -> String {
        self.0.pem()
    }

    /// Writes its own certificate into a file.
    pub fn write(&self, file: &Path) -> PathBuf {
        std::fs::write(file, self.pem()).expect("the certificate is written");
        file.to_owned()
    }

    /// Issues a certificate for this machine.
    pub fn issue(&self) -> Pair {
        self.issue_for(&["localhost", "127.0.0.1"], 2090)
    }

    /// Issues a certificate for these names, which expires at the start of this year.
    pub fn issue_for(&self, names: &[&str], year: i32) -> Pair {
        let names: Vec<_> = names.iter().map(ToString::to_string).collect();
        let mut params = CertificateParams::new(names).expect("good names");
        params.not_after = date_time_ymd(year, 1, 1);
        let key = KeyPair::generate().expect("a key");
        let certificate = params.signed_by(&key, &self.0).expect("a certificate");
        Pair { certificate: certificate.pem(), key: key.serialize_pem() }
    }

    /// Returns the configuration of a client that trusts this authority and presents this certificate, if any.
    pub fn client_config(&self, own: Option<&Pair>) -> Arc<ClientConfig> {
        Arc::new(self.client_config_of(rustls::ALL_VERSIONS, own))
    }

    /// The same for these versions of TLS only.
    pub fn client_config_of(&self, versions: &[&'static SupportedProtocolVersion], own: Option<&Pair>) -> ClientConfig {
        let mut roots = RootCertStore::empty();
        roots.add(self.0.der().clone()).expect("an authority");
        let provider = Arc::new(rustls::crypto::ring::default_provider());
        let config = ClientConfig::builder_with_provider(provider).with_protocol_versions(versions);
        let config = config.expect("supported versions").with_root_certificates(roots);
        match own {
            None => config.with_no_client_auth(),
            Some(own) => {
                let chain = CertificateDer::pem_slice_iter(own.certificate.as_bytes()).map(|one| one.expect("PEM"));
                let key = PrivateKeyDer::from_pem_slice(own.key.as_bytes()).expect("PEM");
                config.with_client_auth_cert(chain.collect(), key).expect("a pair")
            }
        }
    }
}

impl Pair {
    /// Returns the certificate in DER.
    pub fn der(&self) -> Vec<u8> {
        CertificateDer::from_pem_slice(self.certificate.as_bytes()).expect("PEM").to_vec()
    }

    /// Writes both into a folder, or replaces them. Each file is renamed into place, so that no reader sees a part of it.
    pub fn write(&self, folder: &Path) -> PairFiles {
        let files = PairFiles { certificate: folder.join("tls.crt"), key: folder.join("tls.key") };
        for (file, text) in [(&files.certificate, &self.certificate), (&files.key, &self.key)] {
            let beside = file.with_extension("new");
            std::fs::write(&beside, text).expect("the file is written");
            std::fs::rename(&beside, file).expect("the file is renamed into place");
        }
        files
    }
}
