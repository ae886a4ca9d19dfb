//! Deletes what has ended, a page at a time.

use bytes::Bytes;
use oncegate_coordination::claims::StoredClaim;
use oncegate_coordination::records::StoredRecord;
use oncegate_coordination::step::{Guard, Write};
use oncegate_coordination::time::Time;
use oncegate_coordination::value::Found;

use super::failure::Failure;
use super::lists::{after, range_of};
use super::proto::RangeRequest;
use super::session::Session;
use super::step;

/// Deletions in one transaction.
const DELETIONS_MAX: usize = 100;

/// Deletes ended records in the page of this size from this key on. Returns where the next one begins, `None` after the last one, and
/// how many were deleted.
pub(super) async fn sweep_page(
    session: &Session,
    from: &Bytes,
    page: usize,
) -> Result<(Option<Bytes>, usize), Failure> {
    let store = session.store();
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
