//! Between records and rows: what the statements are given, as one array a column, and what is read from their rows.

use std::time::Duration;

use sqlx::Row as _;
use sqlx::postgres::{PgArguments, PgRow};
use sqlx::query::Query;
use sqlx::{Postgres, query};

use super::call::{Found, head};
use crate::domain::attempt::Attempt;
use crate::domain::global_id::GlobalId;
use crate::domain::record::{Key, LiveClaim, Record, State};
use crate::domain::tenant::AppKey;
use crate::domain::terms::Retention;
use crate::engine::{EngineError, millis, value};

/// The state of a row that stands for nothing.
pub(super) const RELEASED: i8 = ascii(b'r');

const LOOK: &str = include_str!("look.sql");
const CHANGE: &str = include_str!("change.sql");

/// `"char"` is one signed byte to the client library.
const fn ascii(letter: u8) -> i8 {
    letter.cast_signed()
}

/// What the first statement does for one key; the columns are those of `look.sql`.
pub(super) struct Question {
    app: String,
    global_id: Vec<u8>,
    kind: i8,
    state: i8,
    lasts_us: Option<i64>,
    retention_us: Option<i64>,
    sweep_us: Option<i64>,
    head: Vec<u8>,
    value: Vec<u8>,
    tail: Vec<u8>,
}

impl Question {
    pub(super) fn read(key: &Key) -> Self {
        Self {
            app: key.app.to_string(),
            global_id: key.global_id.as_bytes().to_vec(),
            kind: ascii(b'r'),
            state: RELEASED,
            lasts_us: None,
            retention_us: None,
            sweep_us: None,
            head: Vec::new(),
            value: Vec::new(),
            tail: Vec::new(),
        }
    }

    /// A record where none stands.
    pub(super) fn put(key: &Key, record: &Record, lasts: Option<Duration>, sweep_after: Option<Duration>) -> Self {
        Self {
            kind: ascii(b'p'),
            state: letter(record),
            lasts_us: lasts.map(micros),
            retention_us: record.terms.retention.duration().map(micros),
            sweep_us: sweep_after.map(micros),
            value: value::encode(record).into_bytes(),
            ..Self::read(key)
        }
    }

    pub(super) fn success(key: &Key, attempt: &Attempt, result: Option<&str>, retention: Option<Retention>) -> Self {
        Self {
            kind: ascii(b's'),
            lasts_us: retention.map(|retention| retention.duration().map_or(-1, micros)),
            head: head(attempt),
            value: retention.map(|retention| format!(" r={retention}").into_bytes()).unwrap_or_default(),
            tail: result.map(|result| format!("\n{result}").into_bytes()).unwrap_or_default(),
            ..Self::read(key)
        }
    }

    pub(super) fn failure(key: &Key, attempt: &Attempt) -> Self {
        Self { kind: ascii(b'f'), head: head(attempt), ..Self::read(key) }
    }
}

/// By what a row is recognised that was judged.
#[derive(Clone)]
pub(super) struct Was {
    app: String,
    global_id: Vec<u8>,
    fence: i64,
    pub(super) state: i8,
    /// Its end as the server writes it: exact, and only to be sent back.
    ends: Option<String>,
    over: bool,
}

/// What the second statement makes of a row; the columns are those of `change.sql`.
pub(super) struct Change {
    pub(super) was: Was,
    pub(super) state: i8,
    pub(super) fresh: bool,
    /// Nothing: the value stays.
    pub(super) value: Option<Vec<u8>>,
    /// Nothing: for ever.
    pub(super) lasts_us: Option<i64>,
    pub(super) retention_us: Option<i64>,
    /// Nothing: when to sweep stays.
    pub(super) sweep_us: Option<i64>,
}

/// Collects one column of all rows.
macro_rules! column {
    ($rows:expr, $($field:tt).+) => {
        $rows.iter().map(|row| row.$($field).+.clone()).collect::<Vec<_>>()
    };
}

/// The first statement, for these questions.
pub(super) fn look(asked: &[Question]) -> Query<'static, Postgres, PgArguments> {
    query(LOOK)
        .bind(column!(asked, app))
        .bind(column!(asked, global_id))
        .bind(column!(asked, kind))
        .bind(column!(asked, state))
        .bind(column!(asked, lasts_us))
        .bind(column!(asked, retention_us))
        .bind(column!(asked, sweep_us))
        .bind(column!(asked, head))
        .bind(column!(asked, value))
        .bind(column!(asked, tail))
}

/// The second statement, for these changes.
pub(super) fn change(changes: &[&Change]) -> Query<'static, Postgres, PgArguments> {
    query(CHANGE)
        .bind(column!(changes, was.app))
        .bind(column!(changes, was.global_id))
        .bind(column!(changes, was.fence))
        .bind(column!(changes, was.state))
        .bind(column!(changes, was.ends))
        .bind(column!(changes, was.over))
        .bind(column!(changes, state))
        .bind(column!(changes, fresh))
        .bind(column!(changes, value))
        .bind(column!(changes, lasts_us))
        .bind(column!(changes, retention_us))
        .bind(column!(changes, sweep_us))
}

/// What a row of the first statement tells of its key.
pub(super) enum Line {
    /// The statement has done all there is to do. The fence, and what a success got as its retention.
    Written(u64, Option<Duration>),
    /// It was to be settled, if nobody was faster.
    Taken,
    /// This stands; nothing, if its time ended while it was looked at.
    Held(Option<Box<Found>>),
    /// This stands, and cannot be read.
    Unreadable(EngineError),
}

/// Reads a row of the first statement.
pub(super) fn line(row: &PgRow) -> Result<(Key, Line), sqlx::Error> {
    let key = key(row, 1)?;
    let what: i8 = row.try_get(0)?;
    let line = match what.cast_unsigned() {
        b'w' => Line::Written(fence(row, 3)?, row.try_get::<Option<i64>, _>(5)?.map(duration)),
        b't' => Line::Taken,
        _ => match found(row, &key)? {
            Ok(found) => Line::Held(found.map(Box::new)),
            Err(unreadable) => Line::Unreadable(unreadable),
        },
    };
    Ok((key, line))
}

/// Reads what stands, from a row of the form that `look.sql` and `list.sql` share.
pub(super) fn found(row: &PgRow, key: &Key) -> Result<Result<Option<Found>, EngineError>, sqlx::Error> {
    let left = row.try_get::<Option<i64>, _>(5)?.map(duration);
    let fence = fence(row, 3)?;
    let was = Was {
        app: key.app.to_string(),
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
    Ok(Ok(LiveClaim::judge(record, left, Some(fence)).map(|held| Found { held, was })))
}

/// Reads the app and the global ID, the first of which stands there.
pub(super) fn key(row: &PgRow, at: usize) -> Result<Key, sqlx::Error> {
    let unreadable = |what: &str| sqlx::Error::Decode(format!("a key with an unreadable {what}").into());
    let app: AppKey = row.try_get::<&str, _>(at)?.parse().map_err(|_| unreadable("app"))?;
    let bytes: [u8; 16] = row.try_get::<&[u8], _>(at + 1)?.try_into().map_err(|_| unreadable("global ID"))?;
    Ok(Key { app, global_id: GlobalId::from_bytes(bytes) })
}

/// Reads a fence; the table holds none that is negative.
pub(super) fn fence(row: &PgRow, at: usize) -> Result<u64, sqlx::Error> {
    Ok(row.try_get::<i64, _>(at)?.unsigned_abs())
}

/// The letter of a record's state in the table. One that outlives its lease has a letter of its own, so that the server can
/// tell what the end of its time means.
pub(super) fn letter(record: &Record) -> i8 {
    ascii(match record.state {
        State::InProgress if record.outlives_lease() => b'q',
        State::InProgress => b'p',
        State::Succeeded => b's',
        State::Unknown => b'u',
    })
}

/// The letter by which `list.sql` is asked for a state.
pub(super) fn asked_letter(state: Option<State>) -> i8 {
    ascii(match state {
        None => b'a',
        Some(State::InProgress) => b'p',
        Some(State::Succeeded) => b's',
        Some(State::Unknown) => b'u',
    })
}

/// A duration in whole milliseconds, as all stores keep them, told in the server's microseconds.
pub(super) fn micros(duration: Duration) -> i64 {
    i64::try_from(millis(duration).saturating_mul(1000)).unwrap_or(i64::MAX)
}

/// What the server leaves of a time: nothing once it is over.
fn duration(micros: i64) -> Duration {
    Duration::from_micros(u64::try_from(micros).unwrap_or(0))
}
