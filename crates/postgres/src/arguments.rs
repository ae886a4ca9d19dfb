//! The arguments of the statements on claims: one array for each column.

use std::time::Duration;

use sqlx::postgres::PgArguments;
use sqlx::query::Query;
use sqlx::{Postgres, query};

use oncegate_core::attempt::Attempt;
use oncegate_core::claim::Effect;
use oncegate_core::engine::{millis, value};
use oncegate_core::record::{ClaimState, Key, Record};
use oncegate_core::terms::Retention;

use super::row::{Found, RowVersion};

/// Time for which the row of a released claim is kept.
pub(super) const TOMBSTONE: Duration = Duration::from_mins(1);

/// Lifetime of a change that keeps the end of its row.
const END_STAYS: i64 = -1;

/// The state of the row of a released claim.
const RELEASED: i8 = ascii(b'r');

const FIRST: &str = include_str!("first.sql");
const SECOND: &str = include_str!("second.sql");

/// `"char"` is one signed byte to the client library.
const fn ascii(letter: u8) -> i8 {
    letter.cast_signed()
}

/// Arguments of the first statement for one key; the columns are those of `first.sql`.
#[derive(Default)]
#[cfg_attr(test, derive(PartialEq, Debug))]
pub(super) struct FirstStep {
    namespace: String,
    global_id: Vec<u8>,
    kind: i8,
    state: i8,
    lifetime_us: Option<i64>,
    retention_us: Option<i64>,
    sweep_us: Option<i64>,
    head: Vec<u8>,
    value: Vec<u8>,
    tail: Vec<u8>,
}

impl FirstStep {
    /// Only reads.
    pub(super) fn read(key: &Key) -> Self {
        Self {
            namespace: key.namespace().into_owned(),
            global_id: key.global_id.as_bytes().to_vec(),
            kind: ascii(b'r'),
            state: RELEASED,
            ..Self::default()
        }
    }

    /// Stores a record where none is stored.
    pub(super) fn put(
        key: &Key,
        record: &Record,
        value: String,
        lifetime: Option<Duration>,
        sweep_after: Option<Duration>,
    ) -> Self {
        Self {
            kind: ascii(b'p'),
            state: letter(record),
            lifetime_us: lifetime.map(micros),
            retention_us: record.terms.retention.duration().map(micros),
            sweep_us: sweep_after.map(micros),
            value: value.into_bytes(),
            ..Self::read(key)
        }
    }

    /// Settles a success.
    pub(super) fn success(key: &Key, attempt: &Attempt, result: Option<&str>, retention: Option<Retention>) -> Self {
        Self {
            kind: ascii(b's'),
            lifetime_us: retention.map(|retention| retention.duration().map_or(-1, micros)),
            head: head(attempt),
            value: retention.map(|retention| format!(" r={retention}").into_bytes()).unwrap_or_default(),
            tail: result.map(|result| format!("\n{result}").into_bytes()).unwrap_or_default(),
            ..Self::read(key)
        }
    }

    /// Settles a failure.
    pub(super) fn failure(key: &Key, attempt: &Attempt) -> Self {
        Self { kind: ascii(b'f'), head: head(attempt), ..Self::read(key) }
    }
}

/// Change of a row by the second statement; the columns are those of `second.sql`.
pub(super) struct Change {
    row: RowVersion,
    state: i8,
    fresh: bool,
    /// `None`: the value stays.
    value: Option<Vec<u8>>,
    /// `None`: no end; [`END_STAYS`]: that of the row.
    lifetime_us: Option<i64>,
    retention_us: Option<i64>,
    /// `None`: the time to sweep stays.
    sweep_us: Option<i64>,
}

impl Change {
    /// Returns the change that applies an effect to a claim that was found.
    pub(super) fn of(effect: &Effect, found: &Found) -> Self {
        let row = found.row.clone();
        let state = row.state;
        let same =
            Self { row, state, fresh: false, value: None, lifetime_us: None, retention_us: None, sweep_us: None };
        match effect {
            Effect::Put(record, lifetime) => {
                let fresh = record.state == ClaimState::InProgress;
                Self {
                    state: letter(record),
                    fresh,
                    value: Some(value::encode(record).into_bytes()),
                    lifetime_us: lifetime.map(micros),
                    retention_us: record.terms.retention.duration().map(micros),
                    sweep_us: fresh.then(|| micros(sweep_after(record))),
                    ..same
                }
            }
            Effect::Extend(lifetime) => Self { lifetime_us: Some(micros(*lifetime)), ..same },
            Effect::Replace(record) => Self {
                value: Some(value::encode(record).into_bytes()),
                lifetime_us: Some(END_STAYS),
                retention_us: record.terms.retention.duration().map(micros),
                ..same
            },
            Effect::Delete | Effect::Keep => Self {
                state: RELEASED,
                value: Some(Vec::new()),
                lifetime_us: Some(0),
                sweep_us: Some(micros(TOMBSTONE)),
                ..same
            },
        }
    }
}

/// Returns when to check whether a claim's row can be deleted: when a success reported at the last moment has ended, and
/// then a minute. One without an end is checked once its lease is over, and then not again if it does.
pub(super) fn sweep_after(record: &Record) -> Duration {
    let kept = record.terms.retention.duration().unwrap_or_default();
    record.terms.lease.saturating_add(kept).saturating_add(TOMBSTONE)
}

/// Returns how a stored value begins: with the attempt and the version of the layout.
fn head(attempt: &Attempt) -> Vec<u8> {
    format!("{attempt} 1").into_bytes()
}

/// Collects one column of all rows.
macro_rules! column {
    ($rows:expr, $($field:tt).+) => {
        $rows.iter().map(|item| item.$($field).+.clone()).collect::<Vec<_>>()
    };
}

/// Returns the first statement.
pub(super) fn first(steps: &[FirstStep]) -> Query<'static, Postgres, PgArguments> {
    query(FIRST)
        .bind(column!(steps, namespace))
        .bind(column!(steps, global_id))
        .bind(column!(steps, kind))
        .bind(column!(steps, state))
        .bind(column!(steps, lifetime_us))
        .bind(column!(steps, retention_us))
        .bind(column!(steps, sweep_us))
        .bind(column!(steps, head))
        .bind(column!(steps, value))
        .bind(column!(steps, tail))
}

/// Returns the second statement.
pub(super) fn second(changes: &[&Change]) -> Query<'static, Postgres, PgArguments> {
    query(SECOND)
        .bind(column!(changes, row.namespace))
        .bind(column!(changes, row.global_id))
        .bind(column!(changes, row.fence))
        .bind(column!(changes, row.state))
        .bind(column!(changes, row.ends))
        .bind(column!(changes, row.over))
        .bind(column!(changes, state))
        .bind(column!(changes, fresh))
        .bind(column!(changes, value))
        .bind(column!(changes, lifetime_us))
        .bind(column!(changes, retention_us))
        .bind(column!(changes, sweep_us))
}

/// Returns the letter of a record's state in the table. A claim that outlives its lease has its own letter: it gives
/// the server the meaning of the lease's end.
fn letter(record: &Record) -> i8 {
    ascii(match record.state {
        ClaimState::InProgress if record.outlives_lease() => b'q',
        ClaimState::InProgress => b'p',
        ClaimState::Succeeded => b's',
        ClaimState::Unknown => b'u',
    })
}

/// Returns the letter by which `list.sql` selects a state.
pub(super) fn listed_letter(state: Option<ClaimState>) -> i8 {
    ascii(match state {
        None => b'a',
        Some(ClaimState::InProgress) => b'p',
        Some(ClaimState::Succeeded) => b's',
        Some(ClaimState::Unknown) => b'u',
    })
}

/// Returns a duration in microseconds, rounded to the milliseconds that all stores use.
fn micros(duration: Duration) -> i64 {
    i64::try_from(millis(duration).saturating_mul(1000)).unwrap_or(i64::MAX)
}

#[cfg(test)]
mod tests {
    use oncegate_core::engine::conformance::fresh_claim;
    use oncegate_core::record::LiveClaim;
    use oncegate_core::terms::{LeaseEnd, Terms};

    use super::*;

    const SECOND: Duration = Duration::from_secs(1);

    fn found(record: Record) -> Found {
        let row = RowVersion {
            namespace: "shop".into(),
            global_id: vec![1],
            fence: 3,
            state: ascii(b'p'),
            ends: Some("later".into()),
            over: false,
        };
        Found { held: LiveClaim { record, left: Some(SECOND), ends_at: None, fence: Some(3) }, row }
    }

    #[test]
    fn each_first_step_has_its_letter_and_its_columns() {
        let claim = fresh_claim();
        let (key, record) = (&claim.key, claim.record());
        let read = FirstStep::read(key);
        assert_eq!(
            (read.namespace.as_str(), read.global_id.as_slice()),
            (key.app.as_ref(), &key.global_id.as_bytes()[..])
        );
        assert_eq!((read.kind, read.state), (ascii(b'r'), RELEASED));
        let put = FirstStep::put(key, &record, "value".into(), Some(SECOND), Some(SECOND * 2));
        assert_eq!((put.kind, put.state, put.value.as_slice()), (ascii(b'p'), ascii(b'p'), &b"value"[..]));
        let retention = record.terms.retention.duration().map(micros);
        assert_eq!((put.lifetime_us, put.retention_us, put.sweep_us), (Some(1_000_000), retention, Some(2_000_000)));
        let retention = Some(Retention::For(SECOND * 3));
        let success = FirstStep::success(key, &claim.attempt, Some("1"), retention);
        assert_eq!((success.kind, success.lifetime_us), (ascii(b's'), Some(3_000_000)));
        assert_eq!(
            (success.head, success.value, success.tail),
            (head(&claim.attempt), b" r=3s".to_vec(), b"\n1".to_vec())
        );
        let forever = FirstStep::success(key, &claim.attempt, None, Some(Retention::Forever));
        assert_eq!((forever.lifetime_us, forever.tail.len()), (Some(-1), 0));
        let failure = FirstStep::failure(key, &claim.attempt);
        assert_eq!((failure.kind, failure.head), (ascii(b'f'), head(&claim.attempt)));
    }

    #[test]
    fn each_effect_changes_its_columns_of_the_row_that_was_found() {
        let record = fresh_claim().record();
        let found = found(record.clone());
        let put = Change::of(&Effect::Put(record.clone(), Some(SECOND)), &found);
        assert_eq!((put.state, put.fresh, put.lifetime_us), (ascii(b'p'), true, Some(1_000_000)));
        assert_eq!(put.retention_us, record.terms.retention.duration().map(micros));
        assert_eq!((put.sweep_us, put.row.fence), (Some(micros(sweep_after(&record))), 3));
        assert_eq!(put.value, Some(value::encode(&record).into_bytes()));
        let settled = Record { state: ClaimState::Succeeded, ..record };
        let put = Change::of(&Effect::Put(settled, None), &found);
        assert_eq!((put.state, put.fresh, put.lifetime_us, put.sweep_us), (ascii(b's'), false, None, None));
        let extended = Change::of(&Effect::Extend(SECOND * 5), &found);
        assert_eq!((extended.state, extended.fresh, extended.value), (ascii(b'p'), false, None));
        assert_eq!((extended.lifetime_us, extended.sweep_us), (Some(5_000_000), None));
        let replaced = Change::of(&Effect::Replace(found.held.record.clone()), &found);
        assert_eq!((replaced.state, replaced.fresh, replaced.lifetime_us), (ascii(b'p'), false, Some(END_STAYS)));
        let deleted = Change::of(&Effect::Delete, &found);
        assert_eq!((deleted.state, deleted.value, deleted.lifetime_us), (RELEASED, Some(vec![]), Some(0)));
        assert_eq!(deleted.sweep_us, Some(micros(TOMBSTONE)));
    }

    #[test]
    fn a_row_is_swept_a_minute_after_the_last_end_that_its_claim_can_have() {
        let record = fresh_claim().record();
        let terms = Terms { lease: SECOND * 2, retention: Retention::For(SECOND * 3), ..record.terms };
        assert_eq!(sweep_after(&Record { terms, ..record.clone() }), SECOND * 5 + TOMBSTONE);
        let terms = Terms { retention: Retention::Forever, ..terms };
        assert_eq!(sweep_after(&Record { terms, ..record }), SECOND * 2 + TOMBSTONE);
    }

    #[test]
    fn states_have_letters_and_a_claim_that_outlives_its_lease_has_its_own() {
        let letters = |on_lease_end| {
            [ClaimState::InProgress, ClaimState::Succeeded, ClaimState::Unknown].map(|state| {
                let record = fresh_claim().record();
                letter(&Record { state, terms: Terms { on_lease_end, ..record.terms }, ..record }).cast_unsigned()
            })
        };
        assert_eq!(letters(LeaseEnd::Release), *b"psu");
        assert_eq!(letters(LeaseEnd::Unknown), *b"qsu");
        let listed = [None, Some(ClaimState::InProgress), Some(ClaimState::Succeeded), Some(ClaimState::Unknown)];
        assert_eq!(listed.map(|state| listed_letter(state).cast_unsigned()), *b"apsu");
    }

    #[test]
    fn durations_are_sent_as_whole_milliseconds() {
        assert_eq!((micros(Duration::from_micros(1_999)), micros(Duration::ZERO)), (1_000, 1_000));
    }
}
