//! The rows that statements return, and their meaning.

use std::time::Duration;

use sqlx::Row as _;
use sqlx::postgres::PgRow;

use oncegate_core::clock::Timestamp;
use oncegate_core::engine::{EngineError, RecordView, SharedRecord, value};
use oncegate_core::global_id::GlobalId;
use oncegate_core::operator::ListedClaim;
use oncegate_core::record::{Key, LiveClaim, Realm};
use oncegate_core::tenant::AppKey;

use super::failure::Failure;

/// A claim that was found, and its row.
pub(super) struct Found {
    pub(super) held: LiveClaim,
    pub(super) row: RowVersion,
}

/// Identifies a version of a row: a change applies only to the version that was read.
#[derive(Clone)]
pub(super) struct RowVersion {
    pub(super) namespace: String,
    pub(super) global_id: Vec<u8>,
    pub(super) fence: i64,
    pub(super) state: i8,
    /// The end as the server writes it: exact, and only to be sent back.
    pub(super) ends: Option<String>,
    pub(super) over: bool,
}

/// Row that the first statement has written for a key.
#[derive(Clone, Copy)]
pub(super) struct Written {
    pub(super) fence: u64,
    /// The retention of a success; `None`: no end.
    pub(super) retention: Option<Duration>,
    /// The end that was stored, if there is one.
    pub(super) ends_at: Option<Timestamp>,
}

/// Meaning of a row of the first statement for its key.
pub(super) enum KeyResult {
    /// The statement has written all there is to write.
    Written(Written),
    /// The statement was about to settle it, unless another one was faster.
    Taken,
    /// This claim was found; `None`, if it ended while it was read.
    Found(Option<Box<Found>>),
    /// A claim was found that cannot be read.
    Unreadable(EngineError),
}

/// Reads a row of the first statement.
pub(super) fn result(row: &PgRow) -> sqlx::Result<(Key, KeyResult)> {
    let key = key(row, 1)?;
    let what: i8 = row.try_get(0)?;
    let result = match what.cast_unsigned() {
        b'w' => KeyResult::Written(Written {
            fence: fence(row, 3)?,
            retention: row.try_get::<Option<i64>, _>(5)?.map(duration),
            ends_at: instant(row, 8)?,
        }),
        b't' => KeyResult::Taken,
        _ => match found(row, &key)? {
            Ok(found) => KeyResult::Found(found.map(Box::new)),
            Err(unreadable) => KeyResult::Unreadable(unreadable),
        },
    };
    Ok((key, result))
}

/// Reads a row of `list.sql`; `None` if it cannot be read by this release, or has just ended.
pub(super) fn listed(row: &PgRow) -> sqlx::Result<Option<ListedClaim>> {
    let key = key(row, 1)?;
    let found = found(row, &key)?.ok().flatten();
    Ok(found.map(|found| ListedClaim { global_id: key.global_id, claim: found.held }))
}

/// Reads a claim, from a row of the form that `first.sql` and `list.sql` share.
fn found(row: &PgRow, key: &Key) -> sqlx::Result<Result<Option<Found>, EngineError>> {
    let left = row.try_get::<Option<i64>, _>(5)?.map(duration);
    let (fence, ends_at) = (fence(row, 3)?, instant(row, 8)?);
    let version = RowVersion {
        namespace: key.namespace().into_owned(),
        global_id: key.global_id.as_bytes().to_vec(),
        fence: row.try_get(3)?,
        state: row.try_get(4)?,
        ends: row.try_get(6)?,
        over: left == Some(Duration::ZERO),
    };
    let record = match value::decode(row.try_get(7)?) {
        Ok(record) => record,
        Err(unreadable) => return Ok(Err(unreadable.into())),
    };
    Ok(Ok(LiveClaim::of_stored(record, left, ends_at, Some(fence)).map(|held| Found { held, row: version })))
}

/// Reads a key: the namespace is in this column, the global ID in the next.
pub(super) fn key(row: &PgRow, at: usize) -> sqlx::Result<Key> {
    let unreadable = |what: &str| sqlx::Error::Decode(format!("a key with an unreadable {what}").into());
    let (realm, app) = Realm::of_namespace(row.try_get(at)?);
    let app: AppKey = app.parse().map_err(|_| unreadable("app"))?;
    let bytes: [u8; 16] = row.try_get::<&[u8], _>(at + 1)?.try_into().map_err(|_| unreadable("global ID"))?;
    Ok(Key { app, realm, global_id: GlobalId::from_bytes(bytes) })
}

/// Reads a fence. The table holds no negative ones.
pub(super) fn fence(row: &PgRow, at: usize) -> sqlx::Result<u64> {
    Ok(row.try_get::<i64, _>(at)?.unsigned_abs())
}

/// Reads an instant of the server's clock, in microseconds since the epoch.
pub(super) fn instant(row: &PgRow, at: usize) -> sqlx::Result<Option<Timestamp>> {
    let micros: Option<i64> = row.try_get(at)?;
    Ok(micros.map(|micros| Timestamp::from_micros(u64::try_from(micros).unwrap_or_default())))
}

/// Reads a remaining time: zero once it is over.
fn duration(micros: i64) -> Duration {
    Duration::from_micros(u64::try_from(micros).unwrap_or(0))
}

/// Reads the view of a shared record, whose columns begin at this position.
pub(super) fn view(row: &PgRow, at: usize) -> Result<RecordView, EngineError> {
    let record: Option<Vec<u8>> = row.try_get(at + 1).map_err(|error| Failure::from(&error).answer)?;
    let record = record.map(SharedRecord::from_stored).transpose()?;
    Ok(RecordView { now: now(row, at)?, record, clock_gain: Duration::ZERO })
}

/// Reads an instant.
pub(super) fn now(row: &PgRow, at: usize) -> Result<Timestamp, EngineError> {
    let micros: i64 = row.try_get(at).map_err(|error| Failure::from(&error).answer)?;
    Ok(Timestamp::from_micros(u64::try_from(micros).unwrap_or_default()))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_remaining_time_is_never_negative() {
        assert_eq!((duration(5), duration(-5)), (Duration::from_micros(5), Duration::ZERO));
    }
}
