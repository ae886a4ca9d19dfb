//! Shared records: small versioned values under names, by which gateways agree: the state of a chain, locks, and the degraded grants
//! of a key. A record is replaced by compare-and-set, in one step that also reads the store's clock.

use std::fmt;
use std::time::Duration;

use super::EngineError;
use crate::clock::Timestamp;
use crate::lock::LockName;
use crate::record::Key;
use crate::tenant::AppKey;

/// Maximum length of a metadata value, in bytes.
pub const METADATA_BYTES_MAX: usize = 4096;

/// Maximum length of the value of any record, in bytes: a lock with as many holders and tickets as it may have.
pub const RECORD_BYTES_MAX: usize = 192 << 10;

/// First byte of a stored record with a version before its value. A plain text cannot begin with it.
const VERSIONED: u8 = 1;

/// Length of a version and the byte before it.
const HEADER_BYTES: usize = 9;

/// Deadline of calls for metadata.
const METADATA_DEADLINE: Duration = Duration::from_millis(500);

/// Name of a shared record.
#[derive(Clone, PartialEq, Eq, PartialOrd, Ord, Hash, Debug)]
pub enum RecordName {
    /// Metadata of the gateways: up to 200 letters, digits, `.`, `_` and `-`.
    Metadata(Box<str>),
    /// A lock of an app.
    Lock(AppKey, LockName),
    /// The degraded grants of a key, in the shard of the key. See [`crate::outage::grants`].
    Grants(Key),
}

/// A value and its version, in the form in which stores keep it.
///
/// A versioned record begins with its version. A plain one is its text alone, which operators can read in the store: its text is its
/// version, so its writer never writes the same text twice for two states.
#[derive(Clone, PartialEq, Eq)]
pub struct SharedRecord(Box<[u8]>);

/// A metadata value: a short text.
#[derive(Clone, PartialEq, Eq)]
pub struct Metadata(Box<str>);

/// A value that is too long for its record.
#[derive(Clone, Copy, PartialEq, Eq, Debug, thiserror::Error)]
#[error("the value of a record has at most {0} bytes")]
pub struct TooLong(usize);

/// A request to replace a record.
#[derive(Clone, Debug)]
pub struct RecordChange {
    /// Name of the record.
    pub name: RecordName,
    /// The record whose version must be stored now; `None`: no record.
    pub expected: Option<SharedRecord>,
    /// The record to store.
    pub new: SharedRecord,
    /// Time after which the record ends; `None`: never.
    pub lasts: Option<Duration>,
    /// The change is made only at or after this instant of the store,
    pub from: Timestamp,
    /// and only before this one.
    pub before: Timestamp,
    /// Purpose of the change.
    pub purpose: ChangePurpose,
    /// Longest lease that it begins or extends: after a loss of data, grants are frozen for the longest one.
    pub lease_max: Duration,
    /// True if subscriptions to the record are notified once it is stored.
    pub notifies: bool,
}

/// Purpose of a change. It decides whether the change is accepted while grants are refused.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum ChangePurpose {
    /// Grants something, or queues for it. Refused while the store has no room, and while a chain grants nothing.
    Grant,
    /// Ends or extends a grant, or changes metadata. Always accepted.
    Keep,
}

/// A record as a store keeps it at an instant.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct RecordView {
    /// The record; `None` if there is none, or it has ended.
    pub record: Option<SharedRecord>,
    /// The store's now.
    pub now: Timestamp,
    /// Most that the store's clock gains on real time, over any span. Ends of leases are later by this time, so that no
    /// lease ends early. Zero for a clock that no gateway pushes.
    pub clock_gain: Duration,
}

/// The answer to a change.
#[derive(Clone, PartialEq, Eq, Debug)]
pub enum ChangeResponse {
    /// The new record is stored, since this instant of the store or before.
    Stored(Timestamp),
    /// The change was not made, because another version is stored or the instant is not in its bounds.
    Refused {
        /// The stored record.
        view: RecordView,
        /// An earlier try of the same call may have stored the record, and another call may have replaced it since.
        maybe_stored: bool,
    },
}

impl SharedRecord {
    /// Creates a record with a version that no other record of its name ever has: 64 random bits.
    ///
    /// # Errors
    /// The value is longer than [`RECORD_BYTES_MAX`].
    pub fn versioned(version: u64, value: &[u8]) -> Result<Self, TooLong> {
        if value.len() > RECORD_BYTES_MAX {
            return Err(TooLong(RECORD_BYTES_MAX));
        }
        Ok(Self([&[VERSIONED][..], &version.to_be_bytes(), value].concat().into()))
    }

    /// Creates a plain record.
    pub fn plain(text: &Metadata) -> Self {
        Self(text.0.as_bytes().into())
    }

    /// Reads a record in its stored form.
    ///
    /// # Errors
    /// It is incompatible: no release wrote it in this form.
    pub fn from_stored(bytes: impl Into<Box<[u8]>>) -> Result<Self, EngineError> {
        let record = Self(bytes.into());
        let is_readable = match record.0.first() {
            Some(&VERSIONED) => (HEADER_BYTES..=HEADER_BYTES + RECORD_BYTES_MAX).contains(&record.0.len()),
            _ => record.0.len() <= METADATA_BYTES_MAX && std::str::from_utf8(&record.0).is_ok(),
        };
        if is_readable { Ok(record) } else { Err(EngineError::incompatible("a record cannot be read by this release")) }
    }

    /// Returns the record in its stored form. It begins with [`Self::version`].
    pub fn as_stored(&self) -> &[u8] {
        &self.0
    }

    /// Returns the version: the start of a versioned record, or the whole text of a plain one.
    pub fn version(&self) -> &[u8] {
        if self.0.first() == Some(&VERSIONED) { &self.0[..HEADER_BYTES.min(self.0.len())] } else { &self.0 }
    }

    /// Returns the value.
    pub fn value(&self) -> &[u8] {
        if self.0.first() == Some(&VERSIONED) { self.0.get(HEADER_BYTES..).unwrap_or_default() } else { &self.0 }
    }
}

impl fmt::Debug for SharedRecord {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "SharedRecord({} bytes)", self.0.len())
    }
}

impl RecordChange {
    /// Creates a change of metadata, which lasts until it is replaced.
    pub fn of_metadata(name: &str, expected: Option<&Metadata>, new: &Metadata) -> Self {
        Self {
            name: RecordName::Metadata(name.into()),
            expected: expected.map(SharedRecord::plain),
            new: SharedRecord::plain(new),
            lasts: None,
            from: Timestamp::default(),
            before: Timestamp::from_micros(u64::MAX),
            purpose: ChangePurpose::Keep,
            lease_max: Duration::ZERO,
            notifies: false,
        }
    }

    /// Decides the change, given the record that is stored at this instant: `Some` is the answer, and `None` means that the new record
    /// is stored.
    pub fn decide(&self, stands: Option<&SharedRecord>, now: Timestamp) -> Option<ChangeResponse> {
        let version = stands.map(SharedRecord::version);
        // A repeated call, whose first answer was lost.
        if version == Some(self.new.version()) {
            return Some(ChangeResponse::Stored(now));
        }
        let is_due = self.from <= now && now < self.before;
        if is_due && version == self.expected.as_ref().map(SharedRecord::version) {
            return None;
        }
        let view = RecordView { record: stands.cloned(), now, clock_gain: Duration::ZERO };
        Some(ChangeResponse::Refused { view, maybe_stored: false })
    }
}

impl Metadata {
    /// Creates a value from its text.
    ///
    /// # Errors
    /// The text is longer than [`METADATA_BYTES_MAX`].
    pub fn new(text: impl Into<Box<str>>) -> Result<Self, TooLong> {
        let text = text.into();
        let is_plain = text.len() <= METADATA_BYTES_MAX && text.as_bytes().first() != Some(&VERSIONED);
        if is_plain { Ok(Self(text)) } else { Err(TooLong(METADATA_BYTES_MAX)) }
    }

    /// Returns the text.
    pub fn as_str(&self) -> &str {
        &self.0
    }
}

impl fmt::Debug for Metadata {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "Metadata({} bytes)", self.0.len())
    }
}

impl TryFrom<SharedRecord> for Metadata {
    type Error = EngineError;

    fn try_from(record: SharedRecord) -> Result<Self, EngineError> {
        let text = String::from_utf8(record.0.into()).ok().and_then(|text| Self::new(text).ok());
        text.ok_or_else(|| EngineError::incompatible("a metadata value cannot be read by this release"))
    }
}

impl dyn super::Engine + '_ {
    /// Returns the metadata stored under this name, if any.
    ///
    /// # Errors
    /// The engine has no answer, or a later release has written the value.
    pub async fn get_metadata(&self, name: &str) -> Result<Option<Metadata>, EngineError> {
        let view = self.get_record(&RecordName::Metadata(name.into()), METADATA_DEADLINE).await?;
        view.record.map(Metadata::try_from).transpose()
    }

    /// Stores metadata if `expected` is stored now (`None`: nothing). Returns whether it is stored.
    ///
    /// # Errors
    /// The engine has no answer, or it is not known whether the call has stored the value.
    pub async fn compare_and_set_metadata(
        &self,
        name: &str,
        expected: Option<&Metadata>,
        new: &Metadata,
    ) -> Result<bool, EngineError> {
        match self.change_record(&RecordChange::of_metadata(name, expected, new), METADATA_DEADLINE).await? {
            ChangeResponse::Stored(_) => Ok(true),
            ChangeResponse::Refused { maybe_stored: false, .. } => Ok(false),
            ChangeResponse::Refused { maybe_stored: true, .. } => {
                Err(EngineError::indeterminate("the value may have been stored, and replaced since"))
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn change(expected: Option<&SharedRecord>, new: &SharedRecord) -> RecordChange {
        let metadata = RecordChange::of_metadata("n", None, &Metadata::new("").unwrap());
        RecordChange { expected: expected.cloned(), new: new.clone(), ..metadata }
    }

    const NOW: Timestamp = Timestamp::from_micros(100);

    #[test]
    fn a_metadata_value_is_bounded() {
        assert!(Metadata::new("x".repeat(METADATA_BYTES_MAX)).is_ok());
        assert!(Metadata::new("x".repeat(METADATA_BYTES_MAX + 1)).is_err());
        assert!(Metadata::new("\u{1}x").is_err(), "it would be read as a version");
        assert!(SharedRecord::versioned(1, &vec![0; RECORD_BYTES_MAX + 1]).is_err());
    }

    #[test]
    fn a_stored_record_reads_back_and_another_form_is_refused() {
        let versioned = SharedRecord::versioned(7, b"value").unwrap();
        assert_eq!((versioned.version().len(), versioned.value()), (9, &b"value"[..]));
        let plain = SharedRecord::plain(&Metadata::new("{}").unwrap());
        assert_eq!((plain.version(), plain.value()), (&b"{}"[..], &b"{}"[..]));
        for record in [versioned, plain] {
            assert_eq!(SharedRecord::from_stored(record.as_stored()), Ok(record));
        }
        for bad in [&[1, 2][..], &[0xff]] {
            assert!(SharedRecord::from_stored(bad).is_err(), "{bad:?}");
        }
        let largest = SharedRecord::versioned(1, &vec![0; RECORD_BYTES_MAX]).unwrap().as_stored().to_vec();
        assert!(SharedRecord::from_stored(&largest[..]).is_ok());
        assert!(SharedRecord::from_stored([&largest[..], &[0]].concat()).is_err());
    }

    #[test]
    fn versions_are_compared_and_not_values() {
        let record = |version, value: &str| SharedRecord::versioned(version, value.as_bytes()).unwrap();
        let (old, same_value, new) = (record(1, "a"), record(2, "a"), record(3, "b"));
        assert_eq!(change(Some(&old), &new).decide(Some(&old), NOW), None);
        assert!(change(Some(&old), &new).decide(Some(&same_value), NOW).is_some(), "another version of the same value");
        assert!(change(None, &new).decide(Some(&old), NOW).is_some());
        assert!(change(Some(&old), &new).decide(None, NOW).is_some());
        assert_eq!(change(None, &new).decide(None, NOW), None);
        let repeated = change(Some(&old), &new).decide(Some(&record(3, "other bytes")), NOW);
        assert_eq!(repeated, Some(ChangeResponse::Stored(NOW)), "a repeat finds its own version");
    }

    #[test]
    fn a_change_is_made_only_within_its_bounds() {
        let new = SharedRecord::versioned(1, b"").unwrap();
        let within = |from, before| {
            let (from, before) = (Timestamp::from_micros(from), Timestamp::from_micros(before));
            RecordChange { from, before, ..change(None, &new) }.decide(None, NOW).is_none()
        };
        assert!(within(100, 101));
        assert!(!within(0, 100), "the end is not part of it");
        assert!(!within(101, 200));
    }
}
