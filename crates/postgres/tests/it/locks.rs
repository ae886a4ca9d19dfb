//! Calls on locks that arrive together: they share only a statement and its commit.

use std::time::Duration;

use futures_util::future::{join, join_all};
use oncegate_core::clock::Timestamp;
use oncegate_core::engine::conformance::DEADLINE;
use oncegate_core::engine::{
    ChangePurpose, ChangeResponse, Determinate, EngineError, Metadata, RecordChange, RecordName, Records as _,
    SharedRecord,
};
use oncegate_postgres::Postgres;
use oncegate_testkit::postgres_server::PostgresServer;

use super::{open, serves};

const COUNT: u64 = 300;

const NEXT_TRANSACTION: &str = "SELECT pg_snapshot_xmax(pg_current_snapshot())";

fn lock(number: u64) -> RecordName {
    RecordName::Lock("shop".parse().unwrap(), format!("shelf-{number}").parse().unwrap())
}

fn record(version: u64) -> SharedRecord {
    SharedRecord::versioned(version, format!("value {version}").as_bytes()).unwrap()
}

fn change(number: u64, expected: Option<SharedRecord>, new: SharedRecord) -> RecordChange {
    RecordChange {
        name: lock(number),
        expected,
        new,
        lasts: Some(Duration::from_mins(number + 1)),
        from: Timestamp::default(),
        before: Timestamp::from_micros(u64::MAX),
        purpose: ChangePurpose::Keep,
        lease_max: Duration::from_mins(1),
        notifies: false,
    }
}

/// Makes a change of each lock at once.
async fn all(engine: &Postgres, change: impl Fn(u64) -> RecordChange) -> Vec<Result<ChangeResponse, EngineError>> {
    let changes: Vec<_> = (0..COUNT).map(change).collect();
    join_all(changes.iter().map(|change| engine.change_record(change, DEADLINE))).await
}

fn is_stored(answer: &Result<ChangeResponse, EngineError>) -> bool {
    matches!(answer, Ok(ChangeResponse::Stored(_)))
}

#[tokio::test]
async fn calls_that_arrive_together_share_a_commit_and_each_gets_its_own_answer() {
    let Some(server) = PostgresServer::start().await else { return };
    let engine = open(&format!("{}&connections=1", server.url()));
    serves(&engine).await;
    let next = async || server.query(NEXT_TRANSACTION).await.parse::<u64>().unwrap();
    let before = next().await;
    let made = all(&engine, |number| change(number, None, record(number))).await;
    assert!(made.iter().all(is_stored), "{made:?}");
    let transactions = next().await - before;
    assert!(transactions < COUNT / 10, "{COUNT} changes took {transactions} transactions");

    // Each third one knows the record, the next one expects another version, and the next one none; all are read as well.
    let expected = |number: u64| match number % 3 {
        0 => Some(record(number)),
        1 => Some(record(number + 1)),
        _ => None,
    };
    let new = |number: u64| record(number + 10_000);
    let reads = join_all((0..COUNT).map(|number| {
        let engine = &engine;
        async move { engine.get_record(&lock(number), DEADLINE).await }
    }));
    let (answers, views) = join(all(&engine, |number| change(number, expected(number), new(number))), reads).await;
    for ((number, answer), view) in (0..COUNT).zip(answers).zip(views) {
        let stands = view.unwrap().record;
        match answer.unwrap() {
            ChangeResponse::Stored(_) => {
                assert_eq!(number % 3, 0);
                assert!(stands == Some(record(number)) || stands == Some(new(number)), "{stands:?}");
            }
            ChangeResponse::Refused { view, .. } => {
                assert_ne!(number % 3, 0);
                assert_eq!((&view.record, &stands), (&Some(record(number)), &Some(record(number))));
            }
        }
    }
}

#[tokio::test]
async fn locks_that_have_ended_are_made_together_and_each_lasts_for_its_own_time() {
    let Some(server) = PostgresServer::start().await else { return };
    let engine = open(&server.url());
    serves(&engine).await;
    let made = all(&engine, |number| change(number, None, record(number))).await;
    assert!(made.iter().all(is_stored), "{made:?}");
    server.execute("UPDATE oncegate_locks SET ends_at = clock_timestamp()").await;
    let made = all(&engine, |number| change(number, None, record(number + 10_000))).await;
    assert!(made.iter().all(is_stored), "{made:?}");
    let wrong = server
        .query(
            "SELECT count(*) FROM oncegate_locks, LATERAL (SELECT substring(name FROM 7)::int AS number) AS its \
             WHERE abs(extract(epoch FROM ends_at - clock_timestamp()) - 60 * (number + 1)) > 30 \
                OR convert_from(substring(value FROM 10), 'UTF8') <> 'value ' || (number + 10000)",
        )
        .await;
    assert_eq!(wrong, "0");
}

#[tokio::test]
async fn a_bad_record_does_not_fail_its_neighbours() {
    let Some(server) = PostgresServer::start().await else { return };
    let engine = open(&format!("{}&connections=1", server.url()));
    serves(&engine).await;
    // Shorter than a version: the table refuses it.
    let short = SharedRecord::plain(&Metadata::new("short").unwrap());
    let new = |number| if number == 7 { short.clone() } else { record(number) };
    let answers = all(&engine, |number| change(number, None, new(number))).await;
    for (number, answer) in (0..COUNT).zip(answers) {
        let is_refused = matches!(answer, Err(EngineError::Determinate(Determinate::Incompatible(_))));
        assert_eq!((is_stored(&answer), is_refused), (number != 7, number == 7), "{number}: {answer:?}");
    }
}
