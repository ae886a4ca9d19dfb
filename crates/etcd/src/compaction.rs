//! The history of the store. With `compact` in the URL gateways compact it. Without, they warn if nothing compacts it.

use std::time::Duration;

use bytes::Bytes;
use oncegate_coordination::sweep::Cursor;
use oncegate_core::engine::{Determinate, EngineError};

use super::failure::Failure;
use super::proto::{RangeRequest, RangeResponse};
use super::session::Session;
use super::store::Store;

/// Compacts the history, or checks whether it is compacted, if that is due.
pub(super) async fn advance(store: &Store, session: &Session) -> Result<(), Failure> {
    let now = store.state.time.monotonic();
    let mut history = store.history.lock().await;
    let Some(old) = history.due(now, store.state.newest()) else { return Ok(()) };
    if store.url.compact.is_some() {
        if let Err(reason) = compact(store, session, old, history.age).await?
            && history.is_warning_due(now)
        {
            tracing::warn!(
                server = store.state.server.address(),
                reason,
                "etcd refuses to compact its history, which grows until no room is left. Give the user of the URL the role root, \
                 or start every member with --auto-compaction-mode=periodic --auto-compaction-retention=1m and leave compact out \
                 of the URL"
            );
        }
        return Ok(());
    }
    if !is_compacted(session.range(range_at(&store.keys.clock, old)).await)? && history.is_warning_due(now) {
        tracing::warn!(
            server = store.state.server.address(),
            "etcd keeps history that is older than ten minutes, so its database grows with each claim until no room is left. Start \
             every member with --auto-compaction-mode=periodic --auto-compaction-retention=1m; or, if nothing else uses this \
             etcd, write ?compact=1m into the URL"
        );
    }
    Ok(())
}

/// Compacts the history before a revision, unless another gateway has done it lately. Returns the reason of a refusal.
async fn compact(store: &Store, session: &Session, old: i64, age: Duration) -> Result<Result<(), String>, Failure> {
    let keys = &store.keys;
    let (time, stored) = session.read(&keys.compact).await?;
    if stored.as_ref().is_some_and(|stored| time.clock < Cursor::decode(&stored.value).due) {
        return Ok(Ok(()));
    }
    let next = Cursor { due: time.clock.plus(age / 2), from: Bytes::new() };
    if !session.move_cursor(&keys.compact, stored.map(|stored| stored.mark), next.encode()).await? {
        return Ok(Ok(()));
    }
    match session.compact(old).await {
        Err(Failure { answer: EngineError::Determinate(Determinate::Incompatible(reason)), .. }) => Ok(Err(reason)),
        Err(failure) if says_compacted(&failure) => Ok(Ok(())),
        compacted => compacted.map(Ok),
    }
}

/// Returns the request that reads a key at an old revision. It fails after that revision was compacted.
pub(super) fn range_at(key: &Bytes, revision: i64) -> RangeRequest {
    RangeRequest { key: key.clone(), revision, serializable: true, keys_only: true, ..RangeRequest::default() }
}

/// Returns whether the revision of a request of [`range_at`] is compacted.
pub(super) fn is_compacted(answer: Result<RangeResponse, Failure>) -> Result<bool, Failure> {
    match answer {
        Ok(_) => Ok(false),
        Err(failure) if says_compacted(&failure) => Ok(true),
        Err(failure) => Err(failure),
    }
}

fn says_compacted(failure: &Failure) -> bool {
    failure.answer.reason().contains("has been compacted")
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn only_a_compacted_revision_counts_as_compacted() {
        assert_eq!(is_compacted(Ok(RangeResponse::default())), Ok(false));
        let why = "OutOfRange: etcdserver: mvcc: required revision has been compacted";
        assert_eq!(is_compacted(Err(Failure::lost(why))), Ok(true));
        assert!(is_compacted(Err(Failure::lost("etcdserver: request timed out"))).is_err());
    }
}
