//! Secrets of apps and operators: random, stored as SHA-256 only, compared in constant time. Digests of guessable
//! secrets are refused in the configuration.

use std::collections::HashSet;
use std::fmt;
use std::str::FromStr;
use std::sync::LazyLock;

use sha2::{Digest, Sha256};
use subtle::ConstantTimeEq;

use oncegate_core::attempt::Entropy;
use oncegate_core::hex;

/// Shortest length of a secret: 22 random letters and digits are 128 bits. A shorter one is never accepted, even if its
/// digest is configured.
const LENGTH_MIN: usize = 22;

/// Longest length of a secret; bounds the work of hashing what a caller sends.
const LENGTH_MAX: usize = 1024;

/// SHA-256 of a secret. A fast hash is enough, since a secret has at least 128 random bits.
#[derive(Clone, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct SecretDigest([u8; 32]);

impl SecretDigest {
    /// Returns the digest of a secret.
    pub fn of(secret: &str) -> Self {
        Self(Sha256::digest(secret).into())
    }

    /// Returns the digest of a secret that a caller sent, or nothing if no secret has its length.
    pub fn of_sent(secret: &str) -> Option<Self> {
        (LENGTH_MIN..=LENGTH_MAX).contains(&secret.len()).then(|| Self::of(secret))
    }

    /// Compares two digests in constant time.
    pub fn matches(&self, other: &Self) -> bool {
        self.0.ct_eq(&other.0).into()
    }

    /// Returns the digest's bytes, for stores and tables.
    pub fn bytes(&self) -> &[u8; 32] {
        &self.0
    }

    /// Returns the digest of these bytes.
    pub fn of_bytes(bytes: [u8; 32]) -> Self {
        Self(bytes)
    }

    /// Returns the first 8 hex digits, which name a secret without revealing it.
    pub fn id(&self) -> String {
        hex::encode(&self.0[..4])
    }
}

impl fmt::Display for SecretDigest {
    /// Writes the form of the configuration: `sha256:` and the hex digits.
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "sha256:{}", hex::encode(&self.0))
    }
}

/// Secret in clear text, for the moment in which it is created and shown.
pub struct Secret(String);

impl Secret {
    /// About 190 random bits of letters and digits, which need no quoting in a shell, a URL or a configuration file.
    const LENGTH: usize = 32;

    /// Returns a new secret.
    pub fn random(entropy: &dyn Entropy) -> Self {
        const LETTERS: &[u8; 62] = b"ABCDEFGHIJKLMNOPQRSTUVWXYZabcdefghijklmnopqrstuvwxyz0123456789";
        let mut text = String::with_capacity(Self::LENGTH);
        while text.len() < Self::LENGTH {
            for byte in entropy.bits().to_le_bytes() {
                // Only values below 4 × 62 are used, so that all letters are equally likely.
                let letter = LETTERS.get(usize::from(byte % 62)).filter(|_| byte < 248 && text.len() < Self::LENGTH);
                text.extend(letter.map(|letter| char::from(*letter)));
            }
        }
        Self(text)
    }

    /// Returns the secret itself, to be shown once.
    pub fn reveal(&self) -> &str {
        &self.0
    }

    /// Returns the digest to store.
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
        let digest = text.strip_prefix("sha256:").and_then(hex::decode).map(Self);
        let digest = digest.ok_or(InvalidSecretDigest::Malformed)?;
        if GUESSABLE.contains(&digest) { Err(InvalidSecretDigest::Guessable) } else { Ok(digest) }
    }
}

/// Text that is not the digest of a secret.
#[derive(Clone, Copy, PartialEq, Eq, Debug, thiserror::Error)]
pub enum InvalidSecretDigest {
    /// Not a digest.
    #[error(
        "a secret is configured as \"sha256:\" and the 64 hex digits of its SHA-256; `oncegate app new NAME` makes one for an \
         app, `oncegate admin-token new NAME` for an operator"
    )]
    Malformed,
    /// Digest of nothing or of a well-known word.
    #[error(
        "this is the SHA-256 of nothing or of a well-known word; `oncegate app new NAME` makes a secret for an app, `oncegate \
         admin-token new NAME` a token for an operator"
    )]
    Guessable,
}

/// Digests of placeholders for a secret: nothing, the name of a shell variable, a word from an example. Each also with
/// the line feed that `echo` adds.
static GUESSABLE: LazyLock<HashSet<SecretDigest>> = LazyLock::new(|| {
    const WORDS: &str = "test test1 test2 test3 testing secret secrets mysecret my-secret my_secret supersecret s3cret password \
        passw0rd password1 password123 changeme change-me change_me admin admin123 administrator root user guest default \
        token mytoken my-token my_token key apikey api-key example demo dev local placeholder todo none null undefined foo bar \
        baz foobar hello world hunter2 letmein welcome qwerty abc abc123 123 1234 12345 123456 1234567 12345678 123456789 \
        1234567890 0 1 a x xxx oncegate shop alice bob default.secret $SECRET $TOKEN ${SECRET} ${TOKEN} SECRET TOKEN \
        ONCEGATE_ADMIN_TOKEN $ONCEGATE_ADMIN_TOKEN";
    let words = WORDS.split_whitespace().chain([""]);
    words.flat_map(|word| [SecretDigest::of(word), SecretDigest::of(&format!("{word}\n"))]).collect()
});

#[cfg(test)]
mod tests {
    use oncegate_core::attempt::SystemEntropy;

    use super::*;

    #[test]
    fn secrets_are_long_alphanumeric_and_unique() {
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
    fn a_digest_is_parsed_from_the_output_of_sha256sum() {
        let text = "sha256:1f55b9dbb34db31ee615fea98af1b62ec6f169bb38355164364099813349e079";
        let digest = text.parse::<SecretDigest>().unwrap();
        assert!(digest.matches(&SecretDigest::of("0123456789abcdefABCDEF")));
        assert_eq!((digest.to_string().as_str(), digest.id().as_str()), (text, &text[7..15]));
        let no_hex = text.replacen(|digit: char| digit.is_ascii_hexdigit(), "z", 1);
        for wrong in ["", "sha256:", &text[7..], &no_hex, "sha256:<64 hex digits>"] {
            assert_eq!(wrong.parse::<SecretDigest>(), Err(InvalidSecretDigest::Malformed));
        }
    }

    #[test]
    fn digests_of_nothing_and_of_well_known_words_are_refused() {
        for word in ["", "\n", "test", "test\n", "test2", "password", "$SECRET"] {
            let digest = SecretDigest::of(word).to_string();
            assert_eq!(digest.parse::<SecretDigest>(), Err(InvalidSecretDigest::Guessable), "{word:?}");
        }
    }

    #[test]
    fn a_secret_that_is_too_short_or_too_long_is_never_compared() {
        for length in [0, 1, LENGTH_MIN - 1, LENGTH_MAX + 1] {
            assert!(SecretDigest::of_sent(&"x".repeat(length)).is_none(), "{length}");
        }
        for length in [LENGTH_MIN, LENGTH_MAX] {
            let secret = "x".repeat(length);
            assert_eq!(SecretDigest::of_sent(&secret), Some(SecretDigest::of(&secret)), "{length}");
        }
        assert!(SecretDigest::of_sent(Secret::random(&SystemEntropy).reveal()).is_some());
    }
}
