//! A roster: one metadata record in which each gateway of a chain keeps an entry about itself. The record has no clock: a reader measures
//! on its own clock when it last saw an entry change.

use std::collections::BTreeMap;
use std::time::Duration;

use oncegate_core::engine::{EngineError, Metadata};
use serde::Serialize;
use serde::de::DeserializeOwned;
use serde_json::{Map, Value};

/// Format of the record. Raised only when an older release could not read what a newer one writes.
const FORMAT: u32 = 1;

/// Age after which an entry is removed: its gateway has stopped, or does not reach the store.
const FORGOTTEN: Duration = Duration::from_mins(1);

/// The entry of a gateway. Its members have short names, since all gateways share one record.
pub(crate) trait Entry: Clone + DeserializeOwned + Serialize {
    /// Name of the entries, in the record and in errors.
    const ENTRIES: &'static str;

    /// Returns the ID of the gateway.
    fn gateway(&self) -> &str;

    /// Returns whether the gateway has written both at the same time.
    fn is_same_write(&self, other: &Self) -> bool;
}

/// An entry, and when it was seen.
#[derive(Clone)]
pub(crate) struct Known<E> {
    pub(crate) entry: E,
    /// Time at which this gateway saw its last change, or found it.
    pub(crate) at: Duration,
    /// True if this gateway has seen it change. An entry that was only found may be that of a gateway that has ended.
    pub(crate) has_changed: bool,
}

/// The entries that this gateway has read, by the IDs of their gateways.
#[derive(Clone)]
pub(crate) struct Roster<E>(BTreeMap<String, Known<E>>);

impl<E> Default for Roster<E> {
    fn default() -> Self {
        Self(BTreeMap::new())
    }
}

impl<E: Entry> Roster<E> {
    /// Reads the record at an instant of this gateway's monotonic clock.
    pub(crate) fn read(&mut self, record: Option<&Metadata>, now: Duration) -> Result<(), EngineError> {
        let read: Vec<E> = record.map(parse).transpose()?.unwrap_or_default();
        self.0.retain(|gateway, _| read.iter().any(|entry| entry.gateway() == *gateway));
        for entry in read {
            match self.0.get_mut(entry.gateway()) {
                Some(known) if known.entry.is_same_write(&entry) => {}
                Some(known) => *known = Known { entry, at: now, has_changed: true },
                None => {
                    let gateway = entry.gateway().to_owned();
                    self.0.insert(gateway, Known { entry, at: now, has_changed: false });
                }
            }
        }
        Ok(())
    }

    /// Returns the entries of the other gateways.
    pub(crate) fn others(&self, own: &str) -> impl Iterator<Item = &Known<E>> {
        self.0.values().filter(move |known| known.entry.gateway() != own)
    }

    /// Returns those entries of the other gateways that are not forgotten at this time.
    pub(crate) fn living(&self, own: &str, now: Duration) -> impl Iterator<Item = &Known<E>> {
        self.others(own).filter(move |known| now.saturating_sub(known.at) <= FORGOTTEN)
    }
}

/// Returns the record with these entries.
///
/// # Errors
/// It is longer than a record may be.
pub(crate) fn record<E: Entry>(entries: &[E]) -> Result<Metadata, EngineError> {
    let unwritable =
        |why: String| EngineError::incompatible(format!("the {} of the gateways cannot be written: {why}", E::ENTRIES));
    let entries = serde_json::to_value(entries).map_err(|why| unwritable(why.to_string()))?;
    let members = [("format".to_owned(), Value::from(FORMAT)), (E::ENTRIES.to_owned(), entries)];
    Metadata::new(Value::Object(Map::from_iter(members)).to_string()).map_err(|why| unwritable(why.to_string()))
}

/// Returns the entries of a record.
///
/// # Errors
/// It is of another format.
pub(crate) fn parse<E: Entry>(record: &Metadata) -> Result<Vec<E>, EngineError> {
    let unreadable =
        || EngineError::incompatible(format!("the {} of the gateways cannot be read by this release", E::ENTRIES));
    let mut members: Map<String, Value> = serde_json::from_str(record.as_str()).map_err(|_| unreadable())?;
    if members.get("format") != Some(&Value::from(FORMAT)) {
        return Err(unreadable());
    }
    let entries = members.remove(E::ENTRIES).ok_or_else(unreadable)?;
    serde_json::from_value(entries).map_err(|_| unreadable())
}
