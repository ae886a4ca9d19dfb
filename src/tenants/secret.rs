//! Secrets of apps: made at random, kept as their SHA-256 only, and compared in constant time.

use std::fmt;
use std::str::FromStr;

use sha2::{Digest, Sha256};
use subtle::ConstantTimeEq;

use crate::domain::attempt::Entropy;
use crate::domain::hex;

/// The SHA-256 of a secret. A secret has at least 128 random bits, so a fast hash is enough.
#[derive(Clone, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct SecretDigest([u8; 32]);

impl SecretDigest {
    /// The digest of a secret.
    pub fn of(secret: &str) -> Self {
        Self(Sha256::digest(secret).into())
    }

    /// Whether both are of the same secret, in a time that does not tell where they differ.
    pub fn matches(&self, other: &Self) -> bool {
        self.0.ct_eq(&other.0).into()
    }

    /// The digest's bytes, for stores and tables.
    pub fn bytes(&self) -> &[u8; 32] {
        &self.0
    }

    /// The digest of these bytes.
    pub fn of_bytes(bytes: [u8; 32]) -> Self {
        Self(bytes)
    }

    /// What tells an app's secrets apart without giving one away: the first 8 hex digits.
    pub fn id(&self) -> String {
        hex::encode(&self.0[..4])
    }
}

impl fmt::Display for SecretDigest {
    /// As it is configured: `sha256:` and the hex digits.
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "sha256:{}", hex::encode(&self.0))
    }
}

/// A secret in the clear: only for the moment in which it is made and told.
pub struct Secret(String);

impl Secret {
    /// Letters and digits, about 190 random bits of them: more than anybody guesses, and nothing that a shell, a URL or
    /// a configuration file would take for something else.
    const LENGTH: usize = 32;

    /// A new secret.
    pub fn random(entropy: &dyn Entropy) -> Self {
        const LETTERS: &[u8; 62] = b"ABCDEFGHIJKLMNOPQRSTUVWXYZabcdefghijklmnopqrstuvwxyz0123456789";
        let mut text = String::with_capacity(Self::LENGTH);
        while text.len() < Self::LENGTH {
            for byte in entropy.bits().to_le_bytes() {
                // Of the values of a byte four times 62 are used, so that no letter is likelier than another.
                let letter = LETTERS.get(usize::from(byte % 62)).filter(|_| byte < 248 && text.len() < Self::LENGTH);
                text.extend(letter.map(|letter| char::from(*letter)));
            }
        }
        Self(text)
    }

    /// The secret itself, to be shown once.
    pub fn reveal(&self) -> &str {
        &self.0
    }

    /// What is kept of it.
    pub fn digest(&self) -> SecretDigest {
        SecretDigest::of(&self.0)
    }
}

impl fmt::Debug for SecretDigest {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("SecretDigest(…)")
    }
}

impl FromStr for SecretDigest {
    type Err = InvalidSecretDigest;

    fn from_str(text: &str) -> Result<Self, InvalidSecretDigest> {
        let digest = text.strip_prefix("sha256:").and_then(hex::decode);
        digest.map(Self).ok_or(InvalidSecretDigest)
    }
}

/// Text that is not the digest of a secret.
#[derive(Clone, Copy, PartialEq, Eq, Debug, thiserror::Error)]
#[error(
    "a secret is configured as \"sha256:\" and the 64 hex digits of its SHA-256: printf %s \"$SECRET\" | sha256sum"
)]
pub struct InvalidSecretDigest;

#[cfg(test)]
mod tests {
    use super::*;
    use crate::domain::attempt::SystemEntropy;

    #[test]
    fn secrets_are_long_plain_and_never_twice_the_same() {
        let secrets: Vec<_> = (0..100).map(|_| Secret::random(&SystemEntropy)).collect();
        let mut letters: Vec<_> = secrets.iter().flat_map(|secret| secret.reveal().bytes()).collect();
        assert_eq!(letters.len(), 3200);
        assert!(letters.iter().all(u8::is_ascii_alphanumeric));
        letters.sort_unstable();
        letters.dedup();
        assert_eq!(letters.len(), 62);
        let mut digests: Vec<_> = secrets.iter().map(Secret::digest).collect();
        digests.sort();
        digests.dedup();
        assert_eq!(digests.len(), secrets.len());
    }

    #[test]
    fn a_digest_reads_back_from_what_sha256sum_prints() {
        let text = "sha256:2c26b46b68ffc68ff99b453c1d30413413422d706483bfa0f98a5e886266e7ae";
        let digest = text.parse::<SecretDigest>().unwrap();
        assert!(digest.matches(&SecretDigest::of("foo")));
        assert_eq!((digest.to_string().as_str(), digest.id().as_str()), (text, "2c26b46b"));
        for wrong in
            ["", "sha256:", &text[7..], "sha256:zz26b46b68ffc68ff99b453c1d30413413422d706483bfa0f98a5e886266e7ae"]
        {
            assert_eq!(wrong.parse::<SecretDigest>(), Err(InvalidSecretDigest));
        }
    }
}
