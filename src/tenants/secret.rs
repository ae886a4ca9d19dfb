//! Secrets of apps: kept as their SHA-256 only, and compared in constant time.

use std::fmt;
use std::str::FromStr;

use sha2::{Digest, Sha256};
use subtle::ConstantTimeEq;

use crate::domain::hex;

/// The SHA-256 of a secret. A secret has at least 128 random bits, so a fast hash is enough.
#[derive(Clone, PartialEq, Eq)]
pub struct SecretDigest([u8; 32]);

impl SecretDigest {
    /// Stands where there is no secret: no known text hashes to it.
    pub const NOBODY: Self = Self([0; 32]);

    /// The digest of a secret.
    pub fn of(secret: &str) -> Self {
        Self(Sha256::digest(secret).into())
    }

    /// Whether both are of the same secret, in a time that does not tell where they differ.
    pub fn matches(&self, other: &Self) -> bool {
        self.0.ct_eq(&other.0).into()
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

    #[test]
    fn a_digest_reads_back_from_what_sha256sum_prints() {
        let text = "sha256:2c26b46b68ffc68ff99b453c1d30413413422d706483bfa0f98a5e886266e7ae";
        assert!(text.parse::<SecretDigest>().unwrap().matches(&SecretDigest::of("foo")));
        for wrong in
            ["", "sha256:", &text[7..], "sha256:zz26b46b68ffc68ff99b453c1d30413413422d706483bfa0f98a5e886266e7ae"]
        {
            assert_eq!(wrong.parse::<SecretDigest>(), Err(InvalidSecretDigest));
        }
    }
}
