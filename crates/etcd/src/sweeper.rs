//! Deletes what has ended. All gateways sweep together, a page at a time: how far they have come is a key.

use std::sync::Arc;
use std::time::Duration;

use bytes::{BufMut as _, Bytes, BytesMut};
use oncegate_core::attempt::{Entropy as _, SystemEntropy};
use oncegate_core::backoff::jittered;
use oncegate_core::clock::Timestamp;
use tokio::time::sleep;
use tokio_util::sync::CancellationToken;

use super::claims::StoredClaim;
use super::failure::Failure;
use super::lists::{after, range_of};
use super::proto::RangeRequest;
use super::records::StoredRecord;
use super::session::{Replied, Session, Store};
use super::step::{self, Guard, Stepped, Write};
use super::time::{self, Time};
use super::value::Found;

/// Records in one page: a million are looked at in ten minutes.
const PAGE: i64 = 500;
/// Time between two pages.
const BREAK: Duration = Duration::from_millis(250);
/// Deletions in one transaction.
const DELETIONS_MAX: usize = 100;

/// Sweeps until `closing` is cancelled.
pub(super) async fn run(store: Arc<Store>, closing: CancellationToken) {
    while closing.run_until_cancelled(sleep(pause(&store))).await.is_some() {
        let Some(Ok(session)) = closing.run_until_cancelled(Session::open(&store, 0)).await else { continue };
        let swept = closing.run_until_cancelled(sweep(&store, &session)).await;
        if let Some(Err(failure)) = swept {
            tracing::debug!(reason = failure.answer.reason(), "A sweep failed; trying again");
        }
    }
}

fn pause(store: &Store) -> Duration {
    let pause = BREAK.min(store.options.sweep_interval);
    jittered(pause, pause / 2, SystemEntropy.bits())
}

/// Sweeps for as long as the session is good.
async fn sweep(store: &Store, session: &Session) -> Result<(), Failure> {
    loop {
        step(store, session).await?;
        sleep(pause(store)).await;
    }
}

/// How far all gateways have come.
#[derive(Clone, PartialEq, Eq, Debug)]
struct Cursor {
    /// The next page is due at this instant.
    due: Timestamp,
    /// It begins at this key; empty: at the first one.
    from: Bytes,
}

impl Cursor {
    fn encode(&self) -> Bytes {
        let mut value = BytesMut::with_capacity(8 + self.from.len());
        value.put_slice(&time::encode(self.due));
        value.put_slice(&self.from);
        value.freeze()
    }

    /// Reads a cursor. A damaged one is that of the first page.
    fn decode(value: &Bytes) -> Self {
        let due = value.get(..8).and_then(time::decode).unwrap_or_default();
        Self { due, from: if value.len() > 8 { value.slice(8..) } else { Bytes::new() } }
    }
}

/// Sweeps the next page, if it is due.
async fn step(store: &Store, session: &Session) -> Result<(), Failure> {
    let keys = &store.keys;
    let Replied { time, responses, .. } = session.run(|| vec![step::read(&keys.sweep)]).await?;
    let Some(Ok(Stepped::Found(stored))) = responses.into_iter().next().map(step::result_of) else {
        return Err(Failure::lost("etcd's reply does not fit the request"));
    };
    let cursor = stored.as_ref().map(|stored| Cursor::decode(&stored.value));
    let cursor = cursor.unwrap_or(Cursor { due: Timestamp::default(), from: Bytes::new() });
    if time.clock < cursor.due {
        return Ok(());
    }
    let next = sweep_page(store, session, &cursor.from).await?;
    let pause = if next.is_some() { BREAK.min(store.options.sweep_interval) } else { store.options.sweep_interval };
    let cursor = Cursor { due: time.clock.plus(pause), from: next.unwrap_or_default() };
    let guard = stored.map_or(Guard::Absent, |stored| Guard::Revision(stored.mod_revision));
    let write = Write { guards: vec![guard], put: Some(cursor.encode()), is_remembered: false };
    // If another gateway was faster, its cursor stays.
    session.run(|| vec![step::conditional(keys, &keys.sweep, &write)]).await.map(drop)
}

/// Deletes what has ended in the page from this key on. Returns where the next one begins; `None` after the last one.
async fn sweep_page(store: &Store, session: &Session, from: &Bytes) -> Result<Option<Bytes>, Failure> {
    let ((first_claim, claims_end), (first_lock, locks_end)) = (store.keys.claims(None), store.keys.all_locks());
    let is_in_locks = *from >= first_lock;
    let first = if is_in_locks { first_lock.clone() } else { first_claim };
    let range = RangeRequest {
        key: first.max(from.clone()),
        range_end: if is_in_locks { locks_end } else { claims_end },
        limit: PAGE,
        ..RangeRequest::default()
    };
    let (time, found, is_last) = range_of(session, range).await?;
    let has_ended =
        |found: &Found| if is_in_locks { has_lock_ended(found, time) } else { has_claim_ended(found, time) };
    let ended: Vec<_> = found.iter().filter(|(_, found)| has_ended(found)).collect();
    for some in ended.chunks(DELETIONS_MAX) {
        let delete = |(key, found): &&(Bytes, Found)| {
            let write = Write { guards: vec![Guard::Revision(found.mod_revision)], put: None, is_remembered: false };
            step::conditional(&store.keys, key, &write)
        };
        session.run(|| some.iter().map(delete).collect()).await?;
    }
    Ok(match found.last() {
        Some((last, _)) if !is_last => Some(after(last)),
        _ if is_in_locks => None,
        _ => Some(first_lock),
    })
}

fn has_claim_ended(found: &Found, time: Time) -> bool {
    StoredClaim::read(found, time).is_ok_and(|stored| stored.is_over())
}

fn has_lock_ended(found: &Found, time: Time) -> bool {
    StoredRecord::read(found, time).is_ok_and(|stored| stored.record.is_none())
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
        assert_eq!(Cursor::decode(&Bytes::from_static(b"x")), Cursor { due: Timestamp::default(), from: Bytes::new() });
    }
}
