//! The stored value of a claim or a shared record: a head of fixed length, then the record. The head begins with a
//! version of 16 bytes. It is zero, and reserved for merged stores.

use std::time::Duration;

use bytes::{BufMut as _, Bytes, BytesMut};
use oncegate_core::clock::Timestamp;
use oncegate_core::engine::EngineError;

/// Bytes for the version of a merged value.
const VERSION: [u8; 16] = [0; 16];

/// The layout that this release writes.
const LAYOUT: u8 = 1;

const HEAD_BYTES: usize = VERSION.len() + 2 + 3 * 8;

/// An end that never comes.
const NEVER: u64 = u64::MAX;

/// Head of a stored value, before the record.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Head {
    /// The fence of the attempt; `None`: the revision of the write itself.
    pub fence: Option<i64>,
    /// The end, as an instant of the store's clock; `None`: the record has no end.
    pub end: Option<Timestamp>,
    /// The time in microseconds from the write to the end, without the addition for the clock.
    pub lasts_us: u64,
    /// Subscriptions are notified of the write.
    pub notifies: bool,
    /// There is no record, since its end: the key is kept for a while, where a store uses marks again.
    pub is_tombstone: bool,
}

/// Flags of a head.
const NOTIFIES: u8 = 1;
const TOMBSTONE: u8 = 2;

/// A key as the store holds it.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct Found {
    /// The stored value.
    pub value: Bytes,
    /// The revision of the whole store that wrote it.
    pub revision: i64,
    /// Mark that identifies it in a later step.
    pub mark: Mark,
}

/// A number that a key has until it is written again.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
pub struct Mark {
    /// The number.
    pub number: i64,
    /// Time at which the request was sent that has shown it, by this gateway's monotonic clock. Some stores use a
    /// number again after a deletion.
    pub seen_at: Duration,
}

impl Head {
    /// Returns the head of a key without a record, from this instant on.
    pub fn tombstone(since: Timestamp) -> Self {
        Self { fence: None, end: Some(since), lasts_us: 0, notifies: true, is_tombstone: true }
    }

    /// Returns the stored value of a record.
    pub fn encode(self, record: &[u8]) -> Bytes {
        let mut value = BytesMut::with_capacity(HEAD_BYTES + record.len());
        value.put_slice(&VERSION);
        value.put_u8(LAYOUT);
        value.put_u8((u8::from(self.notifies) * NOTIFIES) | (u8::from(self.is_tombstone) * TOMBSTONE));
        value.put_i64(self.fence.unwrap_or_default());
        value.put_u64(self.end.map_or(NEVER, Timestamp::as_micros));
        value.put_u64(self.lasts_us);
        value.put_slice(record);
        value.freeze()
    }

    /// Reads a stored value.
    ///
    /// # Errors
    /// A later release has written it in another layout, or another program has.
    pub fn decode(value: &Bytes) -> Result<(Self, Bytes), EngineError> {
        let unreadable = || {
            EngineError::incompatible(
                "a value in the store cannot be read: a later release or another program has written it; use another prefix, or delete it",
            )
        };
        let number = |at: usize| -> Option<[u8; 8]> { value.get(at..at + 8)?.try_into().ok() };
        let at = VERSION.len();
        if value.len() < HEAD_BYTES || value.get(at) != Some(&LAYOUT) {
            return Err(unreadable());
        }
        let fence = number(at + 2).map(i64::from_be_bytes).ok_or_else(unreadable)?;
        let end = number(at + 10).map(u64::from_be_bytes).ok_or_else(unreadable)?;
        let flags = value.get(at + 1).copied().unwrap_or_default();
        let lasts_us = number(at + 18).map(u64::from_be_bytes).ok_or_else(unreadable)?;
        let head = Self {
            fence: (fence != 0).then_some(fence),
            end: (end != NEVER).then(|| Timestamp::from_micros(end)),
            lasts_us,
            notifies: flags & NOTIFIES != 0,
            is_tombstone: flags & TOMBSTONE != 0,
        };
        Ok((head, value.slice(HEAD_BYTES..)))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_value_reads_back_as_written() {
        let end = Some(Timestamp::from_micros(1_700_000_000_000_000));
        for head in [
            Head { fence: None, end, lasts_us: 7, notifies: false, is_tombstone: false },
            Head { fence: Some(3), end: None, lasts_us: 0, notifies: true, is_tombstone: false },
            Head::tombstone(Timestamp::from_micros(7)),
        ] {
            let value = head.encode(b"record");
            assert_eq!(&value[..16], &[0; 16], "merged values have their version here");
            assert_eq!(Head::decode(&value), Ok((head, Bytes::from_static(b"record"))));
        }
    }

    #[test]
    fn a_value_of_another_layout_is_refused_and_never_absent() {
        let good = Head { fence: None, end: None, lasts_us: 0, notifies: false, is_tombstone: false }.encode(b"");
        let mut later = good.to_vec();
        later[16] = 2;
        for bad in [Bytes::new(), good.slice(..good.len() - 1), later.into()] {
            assert!(Head::decode(&bad).is_err_and(|why| !why.is_uncertain()), "{bad:?}");
        }
    }
}
