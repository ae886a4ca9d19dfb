//! Keys of the store: `<prefix>/c/<global ID>/<namespace>` for claims, `<prefix>/g/<global ID>/<namespace>` for the degraded
//! grants of a claim, `<prefix>/l/<app>/<name>` for locks, `<prefix>/m/<name>` for metadata, and `<prefix>/clock`,
//! `<prefix>/marker`, `<prefix>/sweep` and `<prefix>/compact` of the engine itself.

use bytes::Bytes;
use oncegate_core::engine::{Channel, RecordName};
use oncegate_core::global_id::GlobalId;
use oncegate_core::lock::LockName;
use oncegate_core::record::{Key, Realm};
use oncegate_core::tenant::AppKey;

/// The keys below a prefix.
#[derive(Clone, Debug)]
pub(super) struct Keys {
    prefix: String,
    /// The store's clock.
    pub(super) clock: Bytes,
    /// The random mark of this store, written once.
    pub(super) marker: Bytes,
    /// Position of the sweep that all gateways share.
    pub(super) sweep: Bytes,
    /// Earliest instant of the next compaction.
    pub(super) compact: Bytes,
}

impl Keys {
    pub(super) fn new(prefix: &str) -> Self {
        let own = |name: &str| Bytes::from(format!("{prefix}/{name}"));
        Self {
            clock: own("clock"),
            marker: own("marker"),
            sweep: own("sweep"),
            compact: own("compact"),
            prefix: prefix.to_owned(),
        }
    }

    pub(super) fn claim(&self, key: &Key) -> Bytes {
        format!("{}/c/{}/{}", self.prefix, key.global_id, key.namespace()).into()
    }

    pub(super) fn record(&self, name: &RecordName) -> Bytes {
        match name {
            RecordName::Metadata(name) => format!("{}/m/{name}", self.prefix).into(),
            RecordName::Lock(app, name) => format!("{}/l/{app}/{name}", self.prefix).into(),
            RecordName::Grants(key) => format!("{}/g/{}/{}", self.prefix, key.global_id, key.namespace()).into(),
        }
    }

    /// Returns the key of a channel's record.
    pub(super) fn of_channel(&self, channel: &Channel) -> Option<Bytes> {
        let text = channel.as_str();
        if let Some(lock) = text.strip_prefix("lock:") {
            let name = lock.strip_prefix('{')?.strip_suffix('}')?;
            return Some(format!("{}/l/{name}", self.prefix).into());
        }
        let (global_id, namespace) = text.strip_prefix('{')?.split_once("}:")?;
        Some(format!("{}/c/{global_id}/{namespace}", self.prefix).into())
    }

    /// Returns the range of all claims after this one, or of all claims.
    pub(super) fn claims(&self, after: Option<GlobalId>) -> (Bytes, Bytes) {
        // `0` follows `/`, so this is after all claims of the ID.
        let from = after.map_or_else(String::new, |id| format!("{id}0"));
        let from = format!("{}/c/{from}", self.prefix);
        (from.into(), format!("{}/c0", self.prefix).into())
    }

    /// Returns the range of an app's locks after this one, or of all of them.
    pub(super) fn locks(&self, app: &AppKey, after: Option<&LockName>) -> (Bytes, Bytes) {
        let from = after.map_or_else(String::new, |name| format!("{name}\0"));
        (format!("{}/l/{app}/{from}", self.prefix).into(), format!("{}/l/{app}0", self.prefix).into())
    }

    /// Returns the ranges of the records that end: claims, degraded grants and locks, in the order of their keys.
    pub(super) fn ranges(&self) -> [(Bytes, Bytes); 3] {
        let range = |folder| (format!("{}/{folder}/", self.prefix).into(), format!("{}/{folder}0", self.prefix).into());
        ["c", "g", "l"].map(range)
    }

    /// Returns the claim that a key is for; `None` if it is none that this release writes.
    pub(super) fn claim_of(&self, key: &[u8]) -> Option<Key> {
        let (global_id, namespace) = self.rest(key, "/c/")?.split_once('/')?;
        let (realm, app) = Realm::of_namespace(namespace);
        Some(Key { app: app.parse().ok()?, realm, global_id: global_id.parse().ok()? })
    }

    /// Returns the name of the lock that a key is for.
    pub(super) fn lock_of(&self, key: &[u8]) -> Option<LockName> {
        self.rest(key, "/l/")?.split_once('/')?.1.parse().ok()
    }

    fn rest<'a>(&self, key: &'a [u8], folder: &str) -> Option<&'a str> {
        std::str::from_utf8(key).ok()?.strip_prefix(self.prefix.as_str())?.strip_prefix(folder)
    }
}

#[cfg(test)]
mod tests {
    use oncegate_core::engine::conformance::fresh_claim;

    use super::*;

    fn keys() -> Keys {
        Keys::new("/oncegate")
    }

    fn text(key: &Bytes) -> &str {
        std::str::from_utf8(key).unwrap()
    }

    #[test]
    fn a_key_names_its_claim_and_is_that_of_its_channel() {
        for realm in [Realm::Api, Realm::Proxy] {
            let key = Key { realm, ..fresh_claim().key };
            let stored = keys().claim(&key);
            assert_eq!(text(&stored), format!("/oncegate/c/{}/{}", key.global_id, key.namespace()));
            assert_eq!(keys().claim_of(&stored), Some(key.clone()));
            assert_eq!(keys().of_channel(&Channel::of_claim(&key)), Some(stored.clone()));
            let (from, end) = keys().claims(None);
            assert!(from < stored && stored < end);
            let (after, _) = keys().claims(Some(key.global_id));
            assert!(stored < after, "it is not after itself");
        }
    }

    #[test]
    fn a_lock_is_in_the_range_of_its_app_alone() {
        let (app, name): (AppKey, LockName) = ("shop".parse().unwrap(), "a:1".parse().unwrap());
        let record = RecordName::Lock(app.clone(), name.clone());
        let stored = keys().record(&record);
        assert_eq!(text(&stored), "/oncegate/l/shop/a:1");
        assert_eq!(keys().lock_of(&stored), Some(name.clone()));
        assert_eq!(keys().of_channel(&Channel::of_lock(&app, &name)), Some(stored.clone()));
        let (from, end) = keys().locks(&app, None);
        assert!(from < stored && stored < end);
        assert!(stored < keys().locks(&app, Some(&name)).0);
        let (_, end) = keys().locks(&"sho".parse().unwrap(), None);
        assert!(end <= stored || stored < keys().locks(&"sho".parse().unwrap(), None).0);
        let next = keys().record(&RecordName::Lock(app.clone(), "a:1-b".parse().unwrap()));
        assert!(keys().locks(&app, Some(&name)).0 <= next);
    }

    #[test]
    fn another_key_is_no_claim() {
        for key in ["/oncegate/c/x/shop", "/other/c/00000000000000000000000000000000/shop", "/oncegate/clock"] {
            assert_eq!(keys().claim_of(key.as_bytes()), None, "{key}");
        }
    }
}
