//! Names of the keys in the store. They are part of the stored format: never changed.

use crate::domain::hex;
use crate::domain::record::Key;

/// Names keys with the prefix of the engine's URL.
pub(super) struct Keys {
    prefix: String,
}

/// A name of a key, and how its commands are spread over the connections to its server.
pub(super) struct KeyName {
    pub(super) text: String,
    pub(super) spread: Spread,
}

/// How the commands of a key are spread over connections. Commands for one key that come from one core go over one
/// connection, so that they are executed in their order.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(super) enum Spread {
    /// By this hash.
    Hash(u8),
    /// Not at all: always the first connection.
    None,
}

impl Keys {
    pub(super) fn new(prefix: String) -> Self {
        Self { prefix }
    }

    /// Returns the key of a claim. The braces are its hash tag: a cluster places the key by the global ID.
    pub(super) fn claim(&self, key: &Key) -> KeyName {
        let id = &mut [0; 32];
        let bytes = key.global_id.as_bytes();
        let text = [&self.prefix, "og:{", hex::write(bytes, id), "}:", key.app.as_ref()].concat();
        // A global ID is a digest, so each of its bytes is as good as a hash.
        KeyName { text, spread: Spread::Hash(bytes[0]) }
    }

    /// Returns the key of a metadata value.
    pub(super) fn metadata(&self, name: &str) -> KeyName {
        KeyName { text: format!("{}og:note:{name}", self.prefix), spread: Spread::None }
    }

    /// Returns the key of a server's marker, which is gone if the server has lost its data.
    pub(super) fn marker(&self) -> String {
        format!("{}og:marker", self.prefix)
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::domain::global_id::GlobalId;

    #[test]
    fn keys_keep_their_names() {
        let keys = Keys::new("shop:".into());
        let key = Key { app: "orders".parse().unwrap(), global_id: GlobalId::from_bytes([0xa5; 16]) };
        assert_eq!(keys.claim(&key).text, format!("shop:og:{{{}}}:orders", "a5".repeat(16)));
        assert_eq!(keys.metadata("chain.main").text, "shop:og:note:chain.main");
        assert_eq!(keys.marker(), "shop:og:marker");
    }
}
