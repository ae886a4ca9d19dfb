//! Sweeping: all gateways together delete ended records, one page at a time. How far they have come is a key.

use std::time::Duration;

use bytes::{BufMut as _, Bytes, BytesMut};
use oncegate_core::attempt::{Entropy as _, SystemEntropy};
use oncegate_core::backoff::jittered;
use oncegate_core::clock::Timestamp;

use super::time;

/// Time between two pages.
const BREAK: Duration = Duration::from_millis(250);

/// Returns the pause of a gateway before it looks whether a page is due.
pub fn pause(sweep_interval: Duration) -> Duration {
    let pause = BREAK.min(sweep_interval);
    jittered(pause, pause / 2, SystemEntropy.bits())
}

/// Position of the sweep that all gateways share.
#[derive(Clone, PartialEq, Eq, Debug, Default)]
pub struct Cursor {
    /// The next page is due at this instant.
    pub due: Timestamp,
    /// First key of the next page; empty: the first key of all.
    pub from: Bytes,
}

impl Cursor {
    /// Returns the cursor after a page that was swept at this instant. `next` is where the next one begins; `None`: it was the last one.
    pub fn after_page(now: Timestamp, next: Option<Bytes>, sweep_interval: Duration) -> Self {
        let pause = if next.is_some() { BREAK.min(sweep_interval) } else { sweep_interval };
        Self { due: now.plus(pause), from: next.unwrap_or_default() }
    }

    /// Returns the stored form.
    pub fn encode(&self) -> Bytes {
        let mut value = BytesMut::with_capacity(8 + self.from.len());
        value.put_slice(&time::encode(self.due));
        value.put_slice(&self.from);
        value.freeze()
    }

    /// Reads a cursor. A damaged one is that of the first page.
    pub fn decode(value: &Bytes) -> Self {
        let due = value.get(..8).and_then(time::decode).unwrap_or_default();
        Self { due, from: if value.len() > 8 { value.slice(8..) } else { Bytes::new() } }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_cursor_reads_back_and_a_damaged_one_begins_anew() {
        for from in [Bytes::new(), Bytes::from_static(b"/oncegate/c/1")] {
            let cursor = Cursor { due: Timestamp::from_micros(7), from };
            assert_eq!(Cursor::decode(&cursor.encode()), cursor);
        }
        assert_eq!(Cursor::decode(&Bytes::from_static(b"x")), Cursor::default());
    }
}
