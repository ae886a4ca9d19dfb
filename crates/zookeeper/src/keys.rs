//! Nodes of the store: `<root>/c/<first 3 digits>/<global ID>.<namespace>` for claims, `<root>/g/…` in the same form for
//! degraded grants, `<root>/l/<app>/<name>` for locks, `<root>/m/<name>` for metadata, and `<root>/clock`, `clock5`, `marker`
//! and `sweep` of the engine itself.

use bytes::Bytes;
use oncegate_core::engine::{Channel, RecordName};
use oncegate_core::global_id::GlobalId;
use oncegate_core::lock::LockName;
use oncegate_core::record::{Key, Realm};
use percent_encoding::{AsciiSet, NON_ALPHANUMERIC, percent_decode_str, utf8_percent_encode};

/// Bytes of names that are encoded. A slash would begin another node.
const ENCODED: &AsciiSet = &NON_ALPHANUMERIC.remove(b'-').remove(b'_').remove(b'.').remove(b':').remove(b'@');

/// Digits of a global ID that name the folder of a claim: a list of the children of each of these stays short.
const DIGITS: usize = 3;

/// The nodes below a root, which is written without a slash at its end.
#[derive(Clone, Debug)]
pub(super) struct Keys {
    /// The folder of folders of claims.
    pub(super) claims: String,
    /// The folder of folders of degraded grants.
    pub(super) grants: String,
    /// The folder of folders of locks.
    pub(super) locks: String,
    /// The folder of metadata.
    pub(super) metadata: String,
    /// The store's clock.
    pub(super) clock: String,
    /// Start of the clock's present period of five seconds.
    pub(super) clock5: String,
    /// The random mark of this store, written once.
    pub(super) marker: String,
    /// Position of the sweep that all gateways share.
    pub(super) sweep: String,
}

impl Keys {
    pub(super) fn new(root: &str) -> Self {
        let own = |name: &str| format!("{root}/{name}");
        Self {
            claims: own("c"),
            grants: own("g"),
            locks: own("l"),
            metadata: own("m"),
            clock: own("clock"),
            clock5: own("clock5"),
            marker: own("marker"),
            sweep: own("sweep"),
        }
    }

    pub(super) fn claim(&self, key: &Key) -> Bytes {
        node_of(&self.claims, &key.global_id.to_string(), &key.namespace()).into()
    }

    pub(super) fn record(&self, name: &RecordName) -> Bytes {
        match name {
            RecordName::Metadata(name) => format!("{}/{}", self.metadata, encoded(name)).into(),
            RecordName::Lock(app, name) => format!("{}/{app}/{}", self.locks, encoded(name.as_ref())).into(),
            RecordName::Grants(key) => node_of(&self.grants, &key.global_id.to_string(), &key.namespace()).into(),
        }
    }

    /// Returns the node of a channel's record.
    pub(super) fn of_channel(&self, channel: &Channel) -> Option<String> {
        let text = channel.as_str();
        if let Some(lock) = text.strip_prefix("lock:") {
            let (app, name) = lock.strip_prefix('{')?.strip_suffix('}')?.split_once('/')?;
            return Some(format!("{}/{app}/{}", self.locks, encoded(name)));
        }
        let (global_id, namespace) = text.strip_prefix('{')?.split_once("}:")?;
        Some(node_of(&self.claims, global_id, namespace))
    }

    /// Returns the name of the folder in which the claims of this ID are.
    pub(super) fn folder_of(id: GlobalId) -> String {
        id.to_string().get(..DIGITS).unwrap_or_default().to_owned()
    }
}

/// Returns the node of a claim, or of its degraded grants, below the folder of either.
fn node_of(above: &str, global_id: &str, namespace: &str) -> String {
    let digits = global_id.get(..DIGITS).unwrap_or(global_id);
    format!("{above}/{digits}/{global_id}.{namespace}")
}

/// Returns the claim that a node is for, by its name; `None` if it is none that this release writes.
pub(super) fn claim_of(name: &str) -> Option<Key> {
    let (global_id, namespace) = name.split_once('.')?;
    let (realm, app) = Realm::of_namespace(namespace);
    Some(Key { app: app.parse().ok()?, realm, global_id: global_id.parse().ok()? })
}

/// Returns the lock that a node is for, by its name.
pub(super) fn lock_of(name: &str) -> Option<LockName> {
    percent_decode_str(name).decode_utf8().ok()?.parse().ok()
}

/// Returns the node above this one.
pub(super) fn parent(path: &str) -> &str {
    path.rsplit_once('/').map_or("", |(parent, _)| parent)
}

/// Returns a name as that of a node. No node is called `.` or `..`.
fn encoded(name: &str) -> String {
    let name = utf8_percent_encode(name, ENCODED).to_string();
    if name.bytes().all(|byte| byte == b'.') { name.replace('.', "%2E") } else { name }
}

#[cfg(test)]
mod tests {
    use oncegate_core::engine::conformance::fresh_claim;
    use oncegate_core::tenant::AppKey;

    use super::*;

    fn keys() -> Keys {
        Keys::new("/oncegate")
    }

    #[test]
    fn a_node_names_its_claim_and_is_that_of_its_channel() {
        for realm in [Realm::Api, Realm::Proxy] {
            let key = Key { realm, ..fresh_claim().key };
            let stored = String::from_utf8(keys().claim(&key).to_vec()).unwrap();
            let (id, folder) = (key.global_id.to_string(), Keys::folder_of(key.global_id));
            assert_eq!(stored, format!("/oncegate/c/{folder}/{id}.{}", key.namespace()));
            assert_eq!(&id[..3], folder);
            assert_eq!(claim_of(stored.rsplit_once('/').unwrap().1), Some(key.clone()));
            assert_eq!(keys().of_channel(&Channel::of_claim(&key)), Some(stored));
        }
        for other in ["x.shop", "00000000000000000000000000000000", ""] {
            assert_eq!(claim_of(other), None, "{other}");
        }
    }

    #[test]
    fn a_lock_is_one_node_whatever_its_name() {
        let app: AppKey = "shop".parse().unwrap();
        for name in ["a:1", ".", "..", "a/b", "a%2Fb", "ä"] {
            let Ok(name) = name.parse::<LockName>() else { continue };
            let stored = keys().record(&RecordName::Lock(app.clone(), name.clone()));
            let stored = String::from_utf8(stored.to_vec()).unwrap();
            let (folder, own) = stored.rsplit_once('/').unwrap();
            assert_eq!(folder, "/oncegate/l/shop");
            assert!(own.bytes().any(|byte| byte != b'.'), "{own}");
            assert_eq!(lock_of(own), Some(name.clone()));
            assert_eq!(keys().of_channel(&Channel::of_lock(&app, &name)), Some(stored.clone()));
            assert_eq!(parent(&stored), "/oncegate/l/shop");
        }
    }
}
