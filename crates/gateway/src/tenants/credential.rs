//! Verification of credentials, `Bearer <app key>.<secret>`, against a table of all secrets.
//!
//! The table is keyed by the digest of the secret and the app key. So an unknown app, a wrong secret and a disabled app
//! each take one hash and one lookup, and the time does not reveal the case.

use std::hash::BuildHasher;
use std::sync::{Arc, Mutex, PoisonError};

use hashbrown::{DefaultHashBuilder, HashTable};
use oncegate_core::clock::Timestamp;
use oncegate_core::tenant::AppKey;
use subtle::ConstantTimeEq;

use super::App;
use super::secret::SecretDigest;
use super::usage::LastUse;

/// Credential for the lookup when none was sent, so that this case takes as long as a wrong one. No app key is empty,
/// so it is never found.
const ABSENT: (&str, &str) = ("", "oncegate_nobody_has_this_secret_");

/// Secrets of all apps.
pub(super) struct Credentials {
    table: HashTable<Credential>,
    /// Seeded at random, so that collisions do not reveal the table's content.
    hasher: DefaultHashBuilder,
}

/// Secret of an app.
pub(super) struct Credential {
    digest: SecretDigest,
    pub(super) app: Arc<App>,
    pub(super) last_use: Arc<LastUse>,
}

impl Credentials {
    /// Returns the table of these apps' secrets.
    pub(super) fn of<'a>(apps: impl IntoIterator<Item = &'a Arc<App>>) -> Self {
        let mut credentials = Self { table: HashTable::new(), hasher: DefaultHashBuilder::default() };
        for app in apps {
            for (digest, last_use) in app.secrets.iter().zip(app.usage.last_uses(&app.secrets)) {
                let hash = credentials.hash(digest, app.key.as_ref());
                let credential = Credential { digest: digest.clone(), app: app.clone(), last_use };
                let hasher = |it: &Credential| credentials.hasher.hash_one((it.digest.bytes(), it.app.key.as_ref()));
                credentials.table.insert_unique(hash, credential, hasher);
            }
        }
        credentials
    }

    /// Returns the secret that this authorization contains.
    pub(super) fn find(&self, authorization: Option<&str>) -> Option<&Credential> {
        let sent = authorization.and_then(parts);
        let sent = sent.and_then(|(key, secret)| Some((key, SecretDigest::of_sent(secret)?)));
        let (key, digest) = sent.unwrap_or_else(|| (ABSENT.0, SecretDigest::of(ABSENT.1)));
        let is_it = |it: &Credential| it.digest.matches(&digest) & (it.app.key.as_ref() == key);
        self.table.find(self.hash(&digest, key), is_it)
    }

    fn hash(&self, digest: &SecretDigest, key: &str) -> u64 {
        self.hasher.hash_one((digest.bytes(), key))
    }
}

/// Last credential that was verified on a connection. The next request usually sends the same one, which is then
/// compared instead of hashed and looked up. Valid as long as the apps are unchanged.
#[derive(Default)]
pub struct CachedCredential(Mutex<Option<Verified>>);

struct Verified {
    authorization: Box<[u8]>,
    /// Number of the set of apps it was verified against.
    apps: u64,
    app: Arc<App>,
    last_use: Arc<LastUse>,
}

impl CachedCredential {
    /// Returns the app if this authorization is the cached one. Takes the same time wherever two of equal length
    /// differ.
    pub(super) fn matches(&self, authorization: &[u8], apps: u64, now: Timestamp) -> Option<Arc<App>> {
        let verified = self.0.lock().unwrap_or_else(PoisonError::into_inner);
        let verified = verified.as_ref().filter(|verified| verified.apps == apps)?;
        let is_same: bool = verified.authorization.ct_eq(authorization).into();
        is_same.then(|| {
            verified.last_use.record(now);
            verified.app.clone()
        })
    }

    /// Returns the app whose credential the connection's last valid request carried.
    pub fn app(&self) -> Option<AppKey> {
        let verified = self.0.lock().unwrap_or_else(PoisonError::into_inner);
        verified.as_ref().map(|verified| verified.app.key.clone())
    }

    /// Stores a verified authorization.
    pub(super) fn keep(&self, authorization: &[u8], apps: u64, credential: &Credential) {
        let (app, last_use) = (credential.app.clone(), credential.last_use.clone());
        let verified = Verified { authorization: authorization.into(), apps, app, last_use };
        *self.0.lock().unwrap_or_else(PoisonError::into_inner) = Some(verified);
    }
}

/// Returns the app key and the secret of an authorization.
fn parts(authorization: &str) -> Option<(&str, &str)> {
    // An app key may contain dots, a secret may not.
    let (key, secret) = bearer(authorization)?.rsplit_once('.')?;
    (!key.is_empty()).then_some((key, secret))
}

/// Returns the credential of a `Bearer` authorization. The scheme is case-insensitive (RFC 9110, 11.1).
pub fn bearer(authorization: &str) -> Option<&str> {
    let (scheme, credential) = authorization.split_once(' ')?;
    scheme.eq_ignore_ascii_case("bearer").then(|| credential.trim_matches(' '))
}
