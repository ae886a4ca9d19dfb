//! What callers prove themselves with, `Bearer <app key>.<secret>`, and the table that it is looked up in.
//!
//! The table is keyed by the digest of the secret together with the app key, so there is no step that an unknown app, a
//! wrong secret or a disabled app would skip or add: each is one hash, one look, and nothing found.

use std::hash::BuildHasher;
use std::sync::{Arc, Mutex, PoisonError};

use hashbrown::{DefaultHashBuilder, HashTable};
use subtle::ConstantTimeEq;

use super::App;
use super::secret::SecretDigest;
use super::usage::LastUse;
use crate::domain::clock::Timestamp;
use crate::domain::tenant::AppKey;

/// What is looked up for a caller that sent no credential, so that this costs what a wrong secret costs. No app key is
/// empty, so it is never found.
const NOBODY: (&str, &str) = ("", "oncegate_nobody_has_this_secret_");

/// Every secret of every app.
pub(super) struct Credentials {
    table: HashTable<Credential>,
    /// Seeded at random, so that nobody can find out what is in the table by which texts collide.
    hasher: DefaultHashBuilder,
}

/// A secret of an app.
pub(super) struct Credential {
    digest: SecretDigest,
    pub(super) app: Arc<App>,
    pub(super) last_use: Arc<LastUse>,
}

impl Credentials {
    /// The secrets of these apps.
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

    /// The app's secret that this authorization proves, if it proves any.
    pub(super) fn find(&self, authorization: Option<&str>) -> Option<&Credential> {
        let sent = authorization.and_then(parts);
        let sent = sent.and_then(|(key, secret)| Some((key, SecretDigest::of_sent(secret)?)));
        let (key, digest) = sent.unwrap_or_else(|| (NOBODY.0, SecretDigest::of(NOBODY.1)));
        let is_it = |it: &Credential| it.digest.matches(&digest) & (it.app.key.as_ref() == key);
        self.table.find(self.hash(&digest, key), is_it)
    }

    fn hash(&self, digest: &SecretDigest, key: &str) -> u64 {
        self.hasher.hash_one((digest.bytes(), key))
    }
}

/// What the requests of one connection have verified. A connection sends the same credential again and again, so what it
/// verified last is compared before it is hashed and looked up; only credentials that were right are kept, for as long as the
/// connection lives and the apps are those of then.
#[derive(Default)]
pub struct CachedCredential(Mutex<Option<Verified>>);

struct Verified {
    authorization: Box<[u8]>,
    /// Of which apps.
    of: u64,
    app: Arc<App>,
    last_use: Arc<LastUse>,
}

impl CachedCredential {
    /// The app, if this authorization has verified it before. As long to compare wherever two of a length differ.
    pub(super) fn matches(&self, authorization: &[u8], of: u64, now: Timestamp) -> Option<Arc<App>> {
        let verified = self.0.lock().unwrap_or_else(PoisonError::into_inner);
        let verified = verified.as_ref().filter(|verified| verified.of == of)?;
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

    /// Keeps what an authorization has verified.
    pub(super) fn keep(&self, authorization: &[u8], of: u64, credential: &Credential) {
        let (app, last_use) = (credential.app.clone(), credential.last_use.clone());
        let verified = Verified { authorization: authorization.into(), of, app, last_use };
        *self.0.lock().unwrap_or_else(PoisonError::into_inner) = Some(verified);
    }
}

/// App key and secret of an authorization.
fn parts(authorization: &str) -> Option<(&str, &str)> {
    // An app key may hold dots, a secret may not.
    let (key, secret) = bearer(authorization)?.rsplit_once('.')?;
    (!key.is_empty()).then_some((key, secret))
}

/// The credential of a `Bearer` authorization; the scheme's case does not matter (RFC 9110, 11.1).
pub fn bearer(authorization: &str) -> Option<&str> {
    let (scheme, credential) = authorization.split_once(' ')?;
    scheme.eq_ignore_ascii_case("bearer").then(|| credential.trim_matches(' '))
}
