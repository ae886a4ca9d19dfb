//! Sets of public keys (RFC 7517), and the signatures that they verify (RFC 7518, 3; RFC 8037).

use base64::Engine as _;
use base64::engine::general_purpose::URL_SAFE_NO_PAD;
use ring::signature::{
    ECDSA_P256_SHA256_FIXED, ECDSA_P384_SHA384_FIXED, ED25519, RSA_PKCS1_2048_8192_SHA256, RSA_PKCS1_2048_8192_SHA384,
    RSA_PKCS1_2048_8192_SHA512, RSA_PSS_2048_8192_SHA256, RSA_PSS_2048_8192_SHA384, RSA_PSS_2048_8192_SHA512,
    RsaPublicKeyComponents, UnparsedPublicKey,
};
use serde::Deserialize;

/// Most keys of a set.
const KEYS_MAX: usize = 64;

/// The keys of an issuer that can verify a signature.
pub(crate) struct KeySet(Vec<Key>);

struct Key {
    id: Option<String>,
    /// The only algorithm that it is for, if it names one.
    algorithm: Option<String>,
    public: Public,
}

enum Public {
    Rsa { n: Vec<u8>, e: Vec<u8> },
    P256(Vec<u8>),
    P384(Vec<u8>),
    Ed25519(Vec<u8>),
}

/// Reason why a signature is not verified.
#[derive(Debug, PartialEq, Eq)]
pub(crate) enum NotVerified {
    UnknownKey,
    WrongSignature,
}

#[derive(Deserialize)]
struct Document {
    keys: Vec<serde_json::Value>,
}

#[derive(Deserialize)]
struct Jwk {
    kty: String,
    kid: Option<String>,
    alg: Option<String>,
    #[serde(rename = "use")]
    usage: Option<String>,
    crv: Option<String>,
    n: Option<String>,
    e: Option<String>,
    x: Option<String>,
    y: Option<String>,
}

impl KeySet {
    /// Reads a set. Keys for other purposes, and of kinds that are not supported, are left out.
    pub(crate) fn parse(text: &[u8]) -> Result<Self, String> {
        let document: Document =
            serde_json::from_slice(text).map_err(|error| format!("this is no set of keys (RFC 7517): {error}"))?;
        let keys: Vec<_> = document.keys.into_iter().take(KEYS_MAX).filter_map(Key::read).collect();
        if keys.is_empty() {
            return Err("the set has no public key of RSA, P-256, P-384 or Ed25519 for signatures".to_owned());
        }
        Ok(Self(keys))
    }

    /// Verifies a signature with the key that has this ID, or with the only one there is.
    pub(crate) fn verify(
        &self,
        id: Option<&str>,
        algorithm: &str,
        signed: &[u8],
        signature: &[u8],
    ) -> Result<(), NotVerified> {
        let key = match id {
            Some(id) => self.0.iter().find(|key| key.id.as_deref() == Some(id)),
            None => self.0.first().filter(|_| self.0.len() == 1),
        };
        let key = key.ok_or(NotVerified::UnknownKey)?;
        let is_allowed = key.algorithm.as_ref().is_none_or(|only| only == algorithm);
        if is_allowed && key.public.verifies(algorithm, signed, signature) {
            Ok(())
        } else {
            Err(NotVerified::WrongSignature)
        }
    }
}

impl Key {
    fn read(value: serde_json::Value) -> Option<Self> {
        let jwk: Jwk = serde_json::from_value(value).ok()?;
        if jwk.usage.is_some_and(|usage| usage != "sig") {
            return None;
        }
        let decode = |text: &Option<String>| URL_SAFE_NO_PAD.decode(text.as_deref()?).ok();
        let point = |bytes: usize| {
            let (x, y) = (decode(&jwk.x)?, decode(&jwk.y)?);
            (x.len() == bytes && y.len() == bytes).then(|| [&[4][..], &x, &y].concat())
        };
        let public = match (jwk.kty.as_str(), jwk.crv.as_deref()) {
            ("RSA", _) => Public::Rsa { n: decode(&jwk.n)?, e: decode(&jwk.e)? },
            ("EC", Some("P-256")) => Public::P256(point(32)?),
            ("EC", Some("P-384")) => Public::P384(point(48)?),
            ("OKP", Some("Ed25519")) => Public::Ed25519(decode(&jwk.x)?),
            _ => return None,
        };
        Some(Self { id: jwk.kid, algorithm: jwk.alg, public })
    }
}

impl Public {
    /// Reports whether a signature is right. The kind of the key decides the allowed algorithms: never `none`, and
    /// never an algorithm with a shared secret.
    fn verifies(&self, algorithm: &str, signed: &[u8], signature: &[u8]) -> bool {
        match self {
            Self::Rsa { n, e } => {
                let parameters = match algorithm {
                    "RS256" => &RSA_PKCS1_2048_8192_SHA256,
                    "RS384" => &RSA_PKCS1_2048_8192_SHA384,
                    "RS512" => &RSA_PKCS1_2048_8192_SHA512,
                    "PS256" => &RSA_PSS_2048_8192_SHA256,
                    "PS384" => &RSA_PSS_2048_8192_SHA384,
                    "PS512" => &RSA_PSS_2048_8192_SHA512,
                    _ => return false,
                };
                RsaPublicKeyComponents { n, e }.verify(parameters, signed, signature).is_ok()
            }
            Self::P256(point) => {
                algorithm == "ES256"
                    && UnparsedPublicKey::new(&ECDSA_P256_SHA256_FIXED, point).verify(signed, signature).is_ok()
            }
            Self::P384(point) => {
                algorithm == "ES384"
                    && UnparsedPublicKey::new(&ECDSA_P384_SHA384_FIXED, point).verify(signed, signature).is_ok()
            }
            Self::Ed25519(key) => {
                ["EdDSA", "Ed25519"].contains(&algorithm)
                    && UnparsedPublicKey::new(&ED25519, key).verify(signed, signature).is_ok()
            }
        }
    }
}
