//! Lists of claims and locks.

use std::collections::VecDeque;

use bytes::{Bytes, BytesMut};
use oncegate_coordination::claims::StoredClaim;
use oncegate_coordination::records::StoredRecord;
use oncegate_coordination::step::Stepped;
use oncegate_coordination::time::Time;
use oncegate_coordination::value::Found;
use oncegate_core::operator::{ListRequest, ListedClaim, LockListRequest, LockPage};
use oncegate_core::record::Key;

use super::failure::Failure;
use super::proto::{RangeRequest, Request, RequestOp, Response};
use super::session::{Replied, Session};
use super::step;

/// Keys of claims in one request. The claims of all apps are read, in the order of their IDs.
const KEYS: i64 = 4000;

/// Values in one request.
const VALUES: u8 = 100;

/// Lists claims. An unreadable claim is left out; a lookup of it reports why.
pub(super) async fn claims(session: &Session, request: ListRequest) -> Result<Vec<ListedClaim>, Failure> {
    let keys = &session.store().keys;
    let (mut from, end) = keys.claims(request.after);
    let mut listed = Vec::new();
    loop {
        let range =
            RangeRequest { key: from, range_end: end.clone(), limit: KEYS, keys_only: true, ..RangeRequest::default() };
        let page = session.range(range).await?;
        let next = page.kvs.last().map(|last| after(&last.key));
        let mut own: VecDeque<Key> = page.kvs.iter().filter_map(|pair| keys.claim_of(&pair.key)).collect();
        own.retain(|key| key.app == request.app && key.realm == request.realm);
        while !own.is_empty() {
            let some: Vec<Key> = own.drain(..own.len().min(VALUES.into())).collect();
            for claim in read(session, &some).await? {
                let is_wanted = request.state.is_none_or(|state| claim.claim.record.state == state);
                if is_wanted && listed.len() < request.limit {
                    listed.push(claim);
                }
            }
            if listed.len() >= request.limit {
                return Ok(listed);
            }
        }
        // A page without keys would come again and again.
        from = match next {
            Some(next) if page.more => next,
            _ => return Ok(listed),
        };
    }
}

/// Reads claims.
async fn read(session: &Session, keys: &[Key]) -> Result<Vec<ListedClaim>, Failure> {
    let reads = || keys.iter().map(|key| step::read(&session.store().keys.claim(key))).collect();
    let Replied { time, responses, .. } = session.run(reads).await?;
    let mut claims = Vec::new();
    for (key, response) in keys.iter().zip(responses) {
        let Stepped::Found(Some(found)) = step::result_of(response, 0)? else { continue };
        let live = StoredClaim::read(&found, time).ok().and_then(|stored| stored.live(time));
        claims.extend(live.map(|claim| ListedClaim { global_id: key.global_id, claim }));
    }
    Ok(claims)
}

/// Lists locks.
pub(super) async fn locks(session: &Session, request: LockListRequest) -> Result<LockPage, Failure> {
    let keys = &session.store().keys;
    let (mut from, end) = keys.locks(&request.app, request.after.as_ref());
    let mut page = LockPage { records: Vec::new(), now: session.store().state.time.seen() };
    loop {
        let range =
            RangeRequest { key: from.clone(), range_end: end.clone(), limit: VALUES.into(), ..RangeRequest::default() };
        let (time, kvs, is_last) = range_of(session, range).await?;
        page.now = time.clock;
        for (key, found) in &kvs {
            let record = StoredRecord::read(found, time).ok().and_then(|stored| stored.record);
            if page.records.len() < request.limit {
                page.records.extend(keys.lock_of(key).zip(record));
            }
        }
        match kvs.last() {
            Some((last, _)) if !is_last && page.records.len() < request.limit => from = after(last),
            _ => return Ok(page),
        }
    }
}

/// Reads a range, together with the time. Returns whether it is complete.
pub(super) async fn range_of(
    session: &Session,
    range: RangeRequest,
) -> Result<(Time, Vec<(Bytes, Found)>, bool), Failure> {
    let operation = || vec![RequestOp { request: Some(Request::Range(range.clone())) }];
    let Replied { time, responses, .. } = session.run(operation).await?;
    match responses.into_iter().next().and_then(|response| response.response) {
        Some(Response::Range(range)) => {
            let found = |pair: super::proto::KeyValue| (pair.key.clone(), step::found(pair));
            Ok((time, range.kvs.into_iter().map(found).collect(), !range.more))
        }
        _ => Err(Failure::unfit_reply()),
    }
}

/// Returns the first key after this one.
pub(super) fn after(key: &Bytes) -> Bytes {
    let mut next = BytesMut::from(&key[..]);
    next.extend_from_slice(&[0]);
    next.freeze()
}
