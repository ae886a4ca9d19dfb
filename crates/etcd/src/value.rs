//! The stored value of a claim or a shared record: a head of fixed length, then the record. The head begins with a version of 16
//! bytes, which is zero: a place for stores that are merged.

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

/// What stands before the record.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(super) struct Head {
    /// The fence of the attempt; `None`: the revision of the write itself.
    pub(super) fence: Option<i64>,
    /// The end, as an instant of the store's clock; `None`: the record has no end.
    pub(super) end: Option<Timestamp>,
    /// The time in microseconds from the write to the end, without what is added to it for the clock.
    pub(super) lasts_us: u64,
    /// Subscriptions are notified of the write.
    pub(super) notifies: bool,
}

/// A key as the store holds it.
#[derive(Clone, PartialEq, Eq, Debug)]
pub(super) struct Found {
    pub(super) value: Bytes,
    /// The revision that wrote it.
    pub(super) mod_revision: i64,
}

impl Head {
    /// Returns the stored value of a record.
    pub(super) fn encode(self, record: &[u8]) -> Bytes {
        let mut value = BytesMut::with_capacity(HEAD_BYTES + record.len());
        value.put_slice(&VERSION);
        value.put_u8(LAYOUT);
        value.put_u8(u8::from(self.notifies));
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
    pub(super) fn decode(value: &Bytes) -> Result<(Self, Bytes), EngineError> {
        let unreadable = || EngineError::incompatible("a value in etcd cannot be read by this release");
        let number = |at: usize| -> Option<[u8; 8]> { value.get(at..at + 8)?.try_into().ok() };
        let at = VERSION.len();
        if value.len() < HEAD_BYTES || value.get(at) != Some(&LAYOUT) {
            return Err(unreadable());
        }
        let fence = number(at + 2).map(i64::from_be_bytes).ok_or_else(unreadable)?;
        let end = number(at + 10).map(u64::from_be_bytes).ok_or_else(unreadable)?;
        let lasts_us = number(at + 18).map(u64::from_be_bytes).ok_or_else(unreadable)?;
        let head = Self {
            fence: (fence != 0).then_some(fence),
            end: (end != NEVER).then(|| Timestamp::from_micros(end)),
            lasts_us,
            notifies: value.get(at + 1).is_some_and(|flags| flags & 1 == 1),
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
            Head { fence: None, end, lasts_us: 7, notifies: false },
            Head { fence: Some(3), end: None, lasts_us: 0, notifies: true },
        ] {
            let value = head.encode(b"record");
            assert_eq!(&value[..16], &[0; 16], "merged values have their version here");
            assert_eq!(Head::decode(&value), Ok((head, Bytes::from_static(b"record"))));
        }
    }

    #[test]
    fn a_value_of_another_layout_is_refused_and_never_absent() {
        let good = Head { fence: None, end: None, lasts_us: 0, notifies: false }.encode(b"");
        let mut later = good.to_vec();
        later[16] = 2;
        for bad in [Bytes::new(), good.slice(..good.len() - 1), later.into()] {
            assert!(Head::decode(&bad).is_err_and(|why| !why.is_uncertain()), "{bad:?}");
        }
    }
}
