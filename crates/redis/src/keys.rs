//! Names of the keys in the store. They are part of the stored format: never changed.

use std::borrow::Cow;

use oncegate_core::engine::{Channel, RecordName};
use oncegate_core::hex;
use oncegate_core::record::{Key, Realm};
use oncegate_core::tenant::AppKey;

use super::marker::Marker;
use super::slots;
use super::url::{Layout, Url};

/// Names keys with the prefix of the engine's URL.
pub(super) struct Keys {
    prefix: String,
    /// True if the names of metadata have a hash tag. They have none on a single server, where the names are older than
    /// the tags.
    is_tagged: bool,
}

/// A name of a key, and how its commands are spread over the connections to its server.
pub(super) struct KeyName {
    pub(super) text: String,
    pub(super) spread: Spread,
}

/// Distribution of keys over connections. Commands for one key from one core use one connection, so that they are
/// executed in order.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(super) enum Spread {
    /// By this hash.
    Hash(u8),
    /// Not at all: always the first connection.
    None,
}

/// Between ID and app in the channels of the proxy's records. In their keys the realm comes first.
const OF_PROXY: &str = "}:proxy:";

/// Returns how the keys of a realm begin, after the prefix.
const fn space(realm: Realm) -> &'static str {
    match realm {
        Realm::Api => "og:",
        Realm::Proxy => "ogp:",
    }
}

/// Between a name of metadata and the hash tag of a marker.
const BESIDE: &str = ".at.";

/// Returns a name for metadata that is in the slot of a marker.
pub(super) fn beside(marker: &Marker, name: &str) -> String {
    let tag = marker.key.split(['{', '}']).nth(1);
    tag.map_or_else(|| name.to_owned(), |tag| format!("{name}{BESIDE}{tag}"))
}

impl Keys {
    pub(super) fn new(url: &Url) -> Self {
        Self { prefix: url.prefix.clone(), is_tagged: matches!(url.layout, Layout::Cluster { .. }) }
    }

    /// Returns the key of a claim. The braces are its hash tag: a cluster places the key by the global ID.
    pub(super) fn claim(&self, key: &Key) -> KeyName {
        let id = &mut [0; 32];
        let bytes = key.global_id.as_bytes();
        let text = [&self.prefix, space(key.realm), "{", hex::write(bytes, id), "}:", key.app.as_ref()].concat();
        // A global ID is a digest, so each of its bytes is as good as a hash.
        KeyName { text, spread: Spread::Hash(bytes[0]) }
    }

    /// Returns the name of a channel: that of the record's key.
    pub(super) fn channel(&self, channel: &Channel) -> String {
        let name = channel.as_str();
        match name.split_once(OF_PROXY).filter(|_| name.starts_with('{')) {
            Some((id, app)) => [&self.prefix, space(Realm::Proxy), id, "}:", app].concat(),
            None => [&self.prefix, space(Realm::Api), name].concat(),
        }
    }

    /// Returns the channel of such a name.
    pub(super) fn channel_of<'n>(&self, name: &'n str) -> Option<Cow<'n, str>> {
        let name = name.strip_prefix(&*self.prefix)?;
        let of_proxy =
            || name.strip_prefix(space(Realm::Proxy)).map(|name| Cow::Owned(name.replacen("}:", OF_PROXY, 1)));
        name.strip_prefix(space(Realm::Api)).map(Cow::Borrowed).or_else(of_proxy)
    }

    /// Returns the key of a shared record. Metadata always takes the first connection, and other records are spread over all. In a
    /// cluster, metadata is in the slot of its name, or of the tag that the name ends with, and degraded grants are in that of their
    /// claim.
    pub(super) fn record(&self, name: &RecordName) -> KeyName {
        let prefix = &self.prefix;
        match name {
            RecordName::Metadata(name) => {
                let text = match name.rsplit_once(BESIDE) {
                    _ if !self.is_tagged => format!("{prefix}og:metadata:{name}"),
                    Some((name, tag)) => format!("{prefix}og:metadata:{name}{BESIDE}{{{tag}}}"),
                    None => format!("{prefix}og:metadata:{{{name}}}"),
                };
                KeyName { text, spread: Spread::None }
            }
            RecordName::Lock(app, name) => {
                let tag = format!("{app}/{name}");
                let spread = Spread::Hash(slots::slot_of(tag.as_bytes()).to_le_bytes()[0]);
                KeyName { text: format!("{prefix}og:lock:{{{tag}}}"), spread }
            }
            RecordName::Grants(key) => {
                let Key { app, realm, global_id } = key;
                let text = format!("{prefix}{}grants:{{{global_id}}}:{app}", space(*realm));
                KeyName { text, spread: self.claim(key).spread }
            }
        }
    }

    /// Returns the set of unknown claims that has the entry of a claim. Its commands use the connection of the claim,
    /// so that they are sent together.
    pub(super) fn unknowns(&self, key: &Key) -> KeyName {
        let bytes = key.global_id.as_bytes();
        KeyName { spread: Spread::Hash(bytes[0]), ..self.unknowns_set(&key.app, bytes[0] >> 4) }
    }

    /// Returns the set of unknown claims of an app whose IDs begin with this digit. In a cluster the sets are in different slots.
    pub(super) fn unknowns_set(&self, app: &AppKey, digit: u8) -> KeyName {
        KeyName { text: format!("{}og:unknowns:{{{app}/{digit:x}}}", self.prefix), spread: Spread::Hash(digit << 4) }
    }

    /// Returns the marker of a server that answers for all keys.
    pub(super) fn marker(&self) -> Marker {
        Marker { key: format!("{}og:marker", self.prefix), place: None }
    }

    /// Returns the marker of a shard of a cluster, in a slot that it answers for.
    pub(super) fn marker_in(&self, slot: u16, shard: u16) -> Marker {
        Marker { key: format!("{}og:{{{}}}:marker", self.prefix, slots::tag_of(slot)), place: Some((slot, shard)) }
    }

    /// Returns a key in the slot of another one, for a write that replicas acknowledge.
    pub(super) fn written(&self, slot: u16) -> String {
        format!("{}og:{{{}}}:written", self.prefix, slots::tag_of(slot))
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use oncegate_core::global_id::GlobalId;

    #[test]
    fn keys_keep_their_names() {
        let keys = Keys::new(&Url::parse("redis://h?prefix=shop:").unwrap());
        let key =
            Key { app: "orders".parse().unwrap(), realm: Realm::Api, global_id: GlobalId::from_bytes([0xa5; 16]) };
        assert_eq!(keys.claim(&key).text, format!("shop:og:{{{}}}:orders", "a5".repeat(16)));
        let of_proxy = Key { realm: Realm::Proxy, ..key.clone() };
        assert_eq!(keys.claim(&of_proxy).text, format!("shop:ogp:{{{}}}:orders", "a5".repeat(16)));
        for key in [&key, &of_proxy] {
            assert_eq!(keys.unknowns(key).text, "shop:og:unknowns:{orders/a}");
            assert_eq!(keys.unknowns(key).spread, keys.claim(key).spread);
            let grants = keys.record(&RecordName::Grants(key.clone()));
            assert_eq!(grants.text, keys.claim(key).text.replace(":{", ":grants:{"));
            assert_eq!(slots::slot_of(grants.text.as_bytes()), slots::slot_of_claim(key));
            assert_eq!(grants.spread, keys.claim(key).spread);
            let channel = Channel::of_claim(key);
            assert_eq!(keys.channel(&channel), keys.claim(key).text);
            assert_eq!(keys.channel_of(&keys.channel(&channel)).as_deref(), Some(channel.as_str()));
        }
        let metadata = RecordName::Metadata("chain.main".into());
        assert_eq!(keys.record(&metadata).text, "shop:og:metadata:chain.main");
        let lock = RecordName::Lock("orders".parse().unwrap(), "a:b".parse().unwrap());
        assert_eq!(keys.record(&lock).text, "shop:og:lock:{orders/a:b}");
        assert_eq!(keys.marker().key, "shop:og:marker");

        let tagged = Keys::new(&Url::parse("redis+cluster://h?prefix=shop:").unwrap());
        assert_eq!(tagged.claim(&key).text, keys.claim(&key).text);
        assert_eq!(tagged.record(&lock).text, keys.record(&lock).text);
        assert_eq!(tagged.record(&metadata).text, "shop:og:metadata:{chain.main}");
        let marker = tagged.marker_in(12182, 0);
        let beside = tagged.record(&RecordName::Metadata(beside(&marker, "kept.main").into())).text;
        assert_eq!(beside, format!("shop:og:metadata:kept.main.at.{{{}}}", slots::tag_of(12182)));
        assert_eq!(slots::slot_of(beside.as_bytes()), 12182);
        assert_eq!(slots::slot_of_claim(&key), slots::slot_of(tagged.claim(&key).text.as_bytes()));
        assert_eq!(marker.key, format!("shop:og:{{{}}}:marker", slots::tag_of(12182)));
    }
}
