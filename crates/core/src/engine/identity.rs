//! The identity of a store, which does not depend on its address. Two engines may be one server under two names by
//! mistake, and a switch between them gains nothing.

use std::fmt;
use std::sync::Arc;

use futures_util::future::BoxFuture;

use super::error::EngineError;

/// Looks up the value at a place of a server.
pub type LookUp = Arc<dyn Fn(String) -> BoxFuture<'static, Result<Option<Vec<u8>>, EngineError>> + Send + Sync>;

/// What tells a store from others.
#[derive(Clone)]
pub struct StoreIdentity {
    /// Kind of the server, such as `etcd`. Stores of two kinds are never the same.
    pub kind: &'static str,
    /// Random bytes, written once into the empty store.
    pub marker: Vec<u8>,
    /// What tells its servers from others.
    pub servers: Servers,
}

/// What tells the servers of a store from others.
#[derive(Clone)]
pub enum Servers {
    /// A name that the server has given itself, and that no other server has.
    Named(String),
    /// Only their data: they are the servers that have the marker at this place.
    ByMarker {
        /// Place of the marker, the same at all servers of this kind.
        place: String,
        /// Looks up any place at these servers.
        look_up: LookUp,
    },
}

/// What two stores have in common.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Common {
    /// Nothing.
    Nothing,
    /// Their servers, which keep the data of both.
    Servers,
    /// All: they are one store.
    Data,
}

impl StoreIdentity {
    /// Returns what this store and another one have in common.
    ///
    /// # Errors
    /// That is not known: the servers do not answer, or neither engine may read the marker of the other.
    pub async fn common_with(&self, other: &Self) -> Result<Common, EngineError> {
        if self.kind != other.kind {
            return Ok(Common::Nothing);
        }
        let is_same_place = match (&self.servers, &other.servers) {
            (Servers::Named(own), Servers::Named(others)) if own == others => self.marker == other.marker,
            (
                Servers::ByMarker { place, look_up },
                Servers::ByMarker { place: other_place, look_up: look_up_at_other },
            ) => {
                let is_here = look_up(other_place.clone()).await.map(|found| found.as_ref() == Some(&other.marker));
                // One of the two may lack the rights.
                let is_same = match is_here {
                    Ok(true) => true,
                    is_here => match look_up_at_other(place.clone()).await {
                        Ok(found) => found.as_ref() == Some(&self.marker),
                        Err(why) => is_here.map_err(|_| why)?,
                    },
                };
                if !is_same {
                    return Ok(Common::Nothing);
                }
                place == other_place
            }
            _ => return Ok(Common::Nothing),
        };
        Ok(if is_same_place { Common::Data } else { Common::Servers })
    }
}

impl fmt::Debug for StoreIdentity {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("StoreIdentity").field("kind", &self.kind).finish_non_exhaustive()
    }
}

#[cfg(test)]
mod tests {
    use std::future::ready;

    use super::*;

    fn named(kind: &'static str, server: &str, marker: &str) -> StoreIdentity {
        StoreIdentity { kind, marker: marker.into(), servers: Servers::Named(server.into()) }
    }

    /// A store with its marker at a place of servers that have these values, or may not be read.
    fn by_marker(place: &str, marker: &str, values: Option<&[(&str, &str)]>) -> StoreIdentity {
        let values: Option<Vec<(String, Vec<u8>)>> = values
            .map(|values| values.iter().map(|(at, value)| ((*at).to_owned(), value.as_bytes().to_vec())).collect());
        let look_up: LookUp = Arc::new(move |place| {
            let denied = EngineError::incompatible("no rights");
            let found = values
                .as_ref()
                .ok_or(denied)
                .map(|values| values.iter().find(|(at, _)| *at == place).map(|(_, value)| value.clone()));
            Box::pin(ready(found))
        });
        let servers = Servers::ByMarker { place: place.into(), look_up };
        StoreIdentity { kind: "etcd", marker: marker.into(), servers }
    }

    #[tokio::test]
    async fn a_server_with_a_name_is_known_by_it() {
        let store = named("redis", "run-1", "a");
        for (other, expected) in [
            (named("redis", "run-1", "a"), Common::Data),
            (named("redis", "run-1", "b"), Common::Servers),
            (named("redis", "run-2", "a"), Common::Nothing),
            (named("postgres", "run-1", "a"), Common::Nothing),
            (by_marker("/a", "a", None), Common::Nothing),
        ] {
            assert_eq!(store.common_with(&other).await, Ok(expected), "{other:?}");
        }
    }

    #[tokio::test]
    async fn servers_without_a_name_are_known_by_the_marker_of_the_other_store() {
        let both = [("/a", "1"), ("/b", "2")];
        let store = by_marker("/a", "1", Some(&both));
        assert_eq!(store.common_with(&by_marker("/a", "1", Some(&both))).await, Ok(Common::Data));
        assert_eq!(store.common_with(&by_marker("/b", "2", Some(&both))).await, Ok(Common::Servers));
        for elsewhere in [by_marker("/a", "3", Some(&[("/a", "3")])), by_marker("/b", "3", Some(&[("/b", "3")]))] {
            assert_eq!(store.common_with(&elsewhere).await, Ok(Common::Nothing));
        }
    }

    #[tokio::test]
    async fn one_of_two_engines_needs_the_rights_to_read_the_marker_of_the_other() {
        let (allowed, denied) = (by_marker("/a", "1", Some(&[("/a", "1"), ("/b", "2")])), by_marker("/b", "2", None));
        assert_eq!(allowed.common_with(&denied).await, Ok(Common::Servers));
        assert_eq!(denied.common_with(&allowed).await, Ok(Common::Servers));
        let elsewhere = by_marker("/a", "1", Some(&[("/a", "1")]));
        assert_eq!(elsewhere.common_with(&denied).await, Ok(Common::Nothing));
        assert!(by_marker("/a", "1", None).common_with(&denied).await.is_err());
    }
}
