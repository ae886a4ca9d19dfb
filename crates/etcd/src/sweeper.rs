//! Deletes what has ended, and looks after the history. All gateways sweep together, a page at a time: how far they have come is a key.

use std::sync::Arc;

use bytes::Bytes;
use oncegate_coordination::claims::StoredClaim;
use oncegate_coordination::records::StoredRecord;
use oncegate_coordination::step::{Guard, Stepped, Write};
use oncegate_coordination::sweep::{self, Cursor, Pace};
use oncegate_coordination::time::Time;
use oncegate_coordination::value::Found;
use tokio::time::sleep;
use tokio_util::sync::CancellationToken;

use super::compaction::Compaction;
use super::failure::Failure;
use super::lists::{after, range_of};
use super::proto::RangeRequest;
use super::session::{Replied, Session};
use super::step;
use super::store::Store;

/// Deletions in one transaction.
const DELETIONS_MAX: usize = 100;

/// Sweeps until `closing` is cancelled.
pub(super) async fn run(store: Arc<Store>, closing: CancellationToken) {
    let (mut compaction, mut pace) = (Compaction::new(&store), Pace::default());
    while closing.run_until_cancelled(sleep(sweep::pause(store.state.options.sweep_interval))).await.is_some() {
        let Some(Ok(session)) = closing.run_until_cancelled(Session::open(&store, 0)).await else { continue };
        let swept = closing.run_until_cancelled(sweep(&store, &session, &mut compaction, &mut pace)).await;
        if let Some(Err(failure)) = swept {
            tracing::debug!(reason = failure.answer.reason(), "A sweep failed; trying again");
        }
    }
}

/// Sweeps for as long as the session is good.
async fn sweep(store: &Store, session: &Session, compaction: &mut Compaction, pace: &mut Pace) -> Result<(), Failure> {
    loop {
        let revision = sweep_next(store, session, pace).await?;
        compaction.advance(store, session, revision).await?;
        if !pace.goes_on() {
            sleep(sweep::pause(store.state.options.sweep_interval)).await;
        }
    }
}

/// Sweeps the next page, if it is due. Returns the revision of the store before that.
async fn sweep_next(store: &Store, session: &Session, pace: &mut Pace) -> Result<i64, Failure> {
    let keys = &store.keys;
    let Replied { time, revision, responses } = session.run(|| vec![step::read(&keys.sweep)]).await?;
    let Some(Ok(Stepped::Found(stored))) = responses.into_iter().next().map(|response| step::result_of(response, 0))
    else {
        return Err(Failure::lost("etcd's reply does not fit the request"));
    };
    let cursor = stored.as_ref().map(|stored| Cursor::decode(&stored.value));
    let cursor = cursor.unwrap_or_default();
    if time.clock < cursor.due && !pace.goes_on() {
        return Ok(revision);
    }
    let (next, deleted) = match sweep_page(store, session, &cursor.from, pace.page()).await {
        Ok(swept) => swept,
        Err(failure) => {
            if pace.failed() {
                let (server, reason) = (store.state.server.address(), failure.answer.reason());
                tracing::warn!(server, reason, "Sweeping fails again and again, so ended records stay and fill etcd");
            }
            return Err(failure);
        }
    };
    let is_last = next.is_none();
    let cursor = Cursor::after_page(time.clock, next, store.state.options.sweep_interval);
    let guard = stored.map_or(Guard::Absent, |stored| Guard::Unchanged(stored.mark));
    let write = Write { guards: vec![guard], put: Some(cursor.encode()), is_remembered: false };
    // If another gateway was faster, its cursor stays.
    let Replied { revision: moved_at, responses, .. } =
        session.run(|| vec![step::conditional(keys, &keys.sweep, &write)]).await?;
    let moved = responses.into_iter().next().map(|response| step::result_of(response, moved_at));
    pace.swept(deleted, !is_last && matches!(moved, Some(Ok(Stepped::Written(..)))));
    Ok(revision)
}

/// Deletes ended records in the page of this size from this key on. Returns where the next one begins, `None` after the last one, and
/// how many were deleted.
async fn sweep_page(
    store: &Store,
    session: &Session,
    from: &Bytes,
    page: usize,
) -> Result<(Option<Bytes>, usize), Failure> {
    let ranges = store.keys.ranges();
    let number = ranges.iter().rposition(|(first, _)| from >= first).unwrap_or(0);
    let (first, end) = ranges[number].clone();
    let limit = i64::try_from(page).unwrap_or(i64::MAX);
    let range = RangeRequest { key: first.max(from.clone()), range_end: end, limit, ..RangeRequest::default() };
    let (time, found, is_last) = range_of(session, range).await?;
    // The first range is that of the claims.
    let has_ended =
        |found: &Found| if number > 0 { has_record_ended(found, time) } else { has_claim_ended(found, time) };
    let ended: Vec<_> = found.iter().filter(|(_, found)| has_ended(found)).collect();
    for some in ended.chunks(DELETIONS_MAX) {
        let delete = |(key, found): &&(Bytes, Found)| {
            let write = Write { guards: vec![Guard::Unchanged(found.mark)], put: None, is_remembered: false };
            step::conditional(&store.keys, key, &write)
        };
        session.run(|| some.iter().map(delete).collect()).await?;
    }
    let next = match found.last() {
        Some((last, _)) if !is_last => Some(after(last)),
        _ => ranges.get(number + 1).map(|(first, _)| first.clone()),
    };
    Ok((next, ended.len()))
}

fn has_claim_ended(found: &Found, time: Time) -> bool {
    StoredClaim::read(found, time).is_ok_and(|stored| stored.is_over())
}

fn has_record_ended(found: &Found, time: Time) -> bool {
    StoredRecord::read(found, time).is_ok_and(|stored| stored.record.is_none())
}
