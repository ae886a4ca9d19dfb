//! A primary that was killed while its commits waited for a synchronous standby. After its restart it shows data that
//! no standby has. No call may be answered from that: a promoted standby does not have it.

use std::sync::Arc;
use std::time::Duration;

use oncegate_core::claim::{ClaimRequest, ClaimResponse, Outcome};
use oncegate_core::clock::Timestamp;
use oncegate_core::engine::conformance::{DEADLINE, fresh_claim};
use oncegate_core::engine::{
    ChangePurpose, Claims as _, EngineError, RecordChange, RecordName, Records as _, SharedRecord, Topology as _,
};
use oncegate_core::operator::{ListRequest, LockListRequest, ReleaseRequest};
use oncegate_core::record::Realm;
use oncegate_postgres::{Options, Postgres};
use oncegate_testkit::calls::{again, is_duplicate, is_uncertain, renew, settle, success};
use oncegate_testkit::pgbouncer::PgBouncer;
use oncegate_testkit::postgres_server::PostgresServer;
use sqlx::Executor as _;

use super::{options, serves, soon};

/// A primary with one synchronous standby.
struct Pair {
    primary: PostgresServer,
    standby: PostgresServer,
}

/// Kind of crash of the primary.
#[derive(Clone, Copy)]
enum Crash {
    /// All its processes are killed, and it is started again.
    Server,
    /// One session is killed; the server then restarts all of them.
    Session,
}

impl Pair {
    async fn start() -> Option<Self> {
        let primary = PostgresServer::start().await?;
        let standby = primary.standby(&[]).await;
        primary.execute("ALTER SYSTEM SET synchronous_standby_names = '*'").await;
        primary.execute("SELECT pg_reload_conf()").await;
        let pair = Self { primary, standby };
        pair.is_synchronous().await;
        Some(pair)
    }

    async fn is_synchronous(&self) {
        soon("the standby is synchronous", async || {
            self.primary.query("SELECT sync_state FROM pg_stat_replication LIMIT 1").await == "sync"
        })
        .await;
    }

    async fn crash(&mut self, crash: Crash) {
        match crash {
            Crash::Server => self.primary.restart().await,
            Crash::Session => {
                self.primary.kill_session().await;
                soon("it has restarted its sessions", async || {
                    PostgresServer::connect(&self.primary.url()).await.is_ok()
                })
                .await;
            }
        }
    }
}

/// Options with which a waiting commit is noticed soon.
fn impatient() -> Options {
    Options {
        connect_timeout: Duration::from_secs(1),
        response_timeout: Duration::from_millis(500),
        sweep_interval: Duration::from_hours(1),
        ..options()
    }
}

/// Calls whose commits wait for the standby, and the keys of these calls.
struct Unacknowledged {
    claimed: ClaimRequest,
    settled: ClaimRequest,
    released: ClaimRequest,
    lock: RecordName,
}

impl Unacknowledged {
    /// Makes calls that are answered, stops the standby, and makes calls that get no answer.
    async fn make(engine: &Arc<Postgres>, standby: &mut PostgresServer) -> Self {
        let made = Self {
            claimed: fresh_claim(),
            settled: fresh_claim(),
            released: fresh_claim(),
            lock: RecordName::Lock("shop".parse().unwrap(), "a-lock".parse().unwrap()),
        };
        for request in [&made.settled, &made.released] {
            soon("it is granted", async || is_granted(engine, request).await).await;
        }
        standby.kill();
        let (settles, releases) = (settle(&made.settled, success("1")), settle(&made.released, Outcome::Failure));
        let locks = change(&made.lock);
        let (claim, outcome, release, change) = tokio::join!(
            within(engine.claim(&made.claimed, DEADLINE)),
            within(engine.settle(&settles, DEADLINE)),
            within(engine.settle(&releases, DEADLINE)),
            within(engine.change_record(&locks, DEADLINE)),
        );
        assert!(is_uncertain(&claim), "no standby has it: {claim:?}");
        assert!(outcome.is_err(), "no standby has it: {outcome:?}");
        assert!(release.is_err(), "no standby has it: {release:?}");
        assert!(change.is_err(), "no standby has it: {change:?}");
        made
    }

    /// Makes every kind of call on them, and returns the answers of those that got one.
    async fn answers(&self, engine: &Postgres) -> Vec<String> {
        let Self { claimed, settled, released, lock } = self;
        let mut answers = Vec::new();
        let mut add = |what: &str, answer: Result<String, EngineError>| {
            answers.extend(answer.map(|answer| format!("{what}: {answer}")));
        };
        let shown = |answer: ClaimResponse| format!("{answer:?}");
        add("a repeat", within(engine.claim(claimed, DEADLINE)).await.map(shown));
        add("a duplicate", within(engine.claim(&again(claimed), DEADLINE)).await.map(shown));
        add("a duplicate of a success", within(engine.claim(&again(settled), DEADLINE)).await.map(shown));
        add("a claim after a release", within(engine.claim(&again(released), DEADLINE)).await.map(shown));
        add("a lookup", within(engine.read(&claimed.key)).await.map(|found| format!("{found:?}")));
        add("a lookup of a success", within(engine.read(&settled.key)).await.map(|found| format!("{found:?}")));
        let outcome = settle(claimed, Outcome::Unknown);
        add("an outcome", within(engine.settle(&outcome, DEADLINE)).await.map(|answer| format!("{answer:?}")));
        let repeated = settle(settled, success("1"));
        add("a repeated outcome", within(engine.settle(&repeated, DEADLINE)).await.map(|answer| format!("{answer:?}")));
        let renewal = renew(claimed, None);
        add("a renewal", within(engine.renew(&renewal, DEADLINE)).await.map(|answer| format!("{answer:?}")));
        let (key, attempt) = (settled.key.clone(), again(settled).attempt);
        let release = ReleaseRequest { key, attempt, result: None };
        add("a release", within(engine.release(&release)).await.map(|answer| format!("{answer:?}")));
        let app = claimed.key.app.clone();
        let list = ListRequest { app: app.clone(), realm: Realm::Api, state: None, after: None, limit: 10 };
        add("a list", within(engine.list(&list)).await.map(|answer| format!("{answer:?}")));
        add("a lock", within(engine.get_record(lock, DEADLINE)).await.map(|answer| format!("{answer:?}")));
        let locks = LockListRequest { app, after: None, limit: 10 };
        add("a list of locks", within(engine.list_records(&locks)).await.map(|answer| format!("{answer:?}")));
        let metadata = RecordName::Metadata("chain".into());
        add("metadata", within(engine.get_record(&metadata, DEADLINE)).await.map(|answer| format!("{answer:?}")));
        answers
    }
}

/// Makes a claim call. On a busy machine it may come too late, and its repeat is the same claim.
async fn is_granted(engine: &Postgres, request: &ClaimRequest) -> bool {
    matches!(engine.claim(request, DEADLINE).await, Ok(ClaimResponse::Granted(_)))
}

/// Waits for an answer for as long as the gateway would.
async fn within<Answer>(call: impl Future<Output = Result<Answer, EngineError>>) -> Result<Answer, EngineError> {
    let late = |_| Err(EngineError::indeterminate("no answer within the deadline"));
    tokio::time::timeout(Duration::from_secs(1), call).await.unwrap_or_else(late)
}

fn change(name: &RecordName) -> RecordChange {
    RecordChange {
        name: name.clone(),
        expected: None,
        new: SharedRecord::versioned(7, b"value").unwrap(),
        lasts: Some(Duration::from_hours(1)),
        from: Timestamp::default(),
        before: Timestamp::from_micros(u64::MAX >> 2),
        purpose: ChangePurpose::Keep,
        lease_max: Duration::ZERO,
        notifies: false,
    }
}

/// The whole scenario: nothing is answered after the crash, until the standby has it or is the primary.
async fn nothing_is_answered_that_a_standby_lacks(crash: Crash, pooled: bool) {
    let Some(mut pair) = Pair::start().await else { return };
    let bouncer = if pooled {
        // The tables: a pooler carries no migrations.
        let engine = Postgres::open(&pair.primary.url(), options()).unwrap();
        serves(&engine).await;
        engine.close().await;
        // Enough connections that some are free while others wait, and no pause after the server was away.
        let config = ["default_pool_size = 40", "server_login_retry = 0.1"];
        let Some(bouncer) = PgBouncer::start_with(pair.primary.address(), "postgres", &config).await else { return };
        Some(bouncer)
    } else {
        None
    };
    let url = match &bouncer {
        Some(bouncer) => bouncer.url("postgres", "&pooler=transaction"),
        None => pair.primary.url(),
    };
    let engine = Arc::new(Postgres::open(&url, impatient()).unwrap());
    serves(&engine).await;
    let made = Unacknowledged::make(&engine, &mut pair.standby).await;
    pair.crash(crash).await;
    if let Some(bouncer) = &bouncer {
        soon("the pooler reaches the server again", async || {
            let Ok(mut connection) = bouncer.connect("postgres").await else { return false };
            connection.execute(sqlx::raw_sql("SELECT 1")).await.is_ok()
        })
        .await;
    }
    // The same gateway, which opens its connections again, and a new one.
    let other = Postgres::open(&url, impatient()).unwrap();
    for engine in [&*engine, &other] {
        for _ in 0..3 {
            let answers = made.answers(engine).await;
            assert!(answers.is_empty(), "no standby has what this rests on:\n{}", answers.join("\n"));
        }
    }
    let waiting = "SELECT count(*) FROM pg_stat_activity WHERE application_name = 'oncegate'";
    let waiting: usize = pair.primary.query(waiting).await.parse().unwrap();
    assert!(waiting <= 20, "{waiting} connections wait, and more come with each attempt");

    // The standby comes back, and has all of it.
    pair.standby.restart().await;
    serves(&engine).await;
    // Some connections still wait for abandoned calls until they are opened again. An error is no answer, and is
    // repeated.
    soon("the repeat is recognised", async || match engine.claim(&made.claimed, DEADLINE).await {
        Ok(ClaimResponse::Granted(grant)) => grant.attempt == made.claimed.attempt,
        Ok(other) => panic!("the holder is no longer recognised: {other:?}"),
        Err(_) => false,
    })
    .await;
    soon("another gateway recognises a duplicate", async || match other.claim(&again(&made.claimed), DEADLINE).await {
        Ok(ClaimResponse::Duplicate(_)) => true,
        Ok(other) => panic!("it is granted twice: {other:?}"),
        Err(_) => false,
    })
    .await;
}

#[tokio::test]
async fn after_a_crash_nothing_is_answered_that_a_standby_lacks() {
    nothing_is_answered_that_a_standby_lacks(Crash::Server, false).await;
}

#[tokio::test]
async fn after_a_crash_of_a_session_nothing_is_answered_that_a_standby_lacks() {
    nothing_is_answered_that_a_standby_lacks(Crash::Session, false).await;
}

/// A pooler keeps the connections of its clients, and opens new ones to the server.
#[tokio::test]
async fn behind_a_pooler_nothing_is_answered_after_a_crash_that_a_standby_lacks() {
    nothing_is_answered_that_a_standby_lacks(Crash::Server, true).await;
}

/// A claim gets no answer, the standby is promoted without it, and another caller gets the key.
#[tokio::test]
async fn a_key_is_granted_once_when_the_primary_crashes_and_the_standby_is_promoted_without_its_last_commit() {
    let Some(mut pair) = Pair::start().await else { return };
    let both =
        format!("postgres://postgres@{},{}/postgres?sslmode=disable", pair.primary.address(), pair.standby.address());
    let engine = Arc::new(Postgres::open(&both, impatient()).unwrap());
    serves(&engine).await;
    let made = Unacknowledged::make(&engine, &mut pair.standby).await;
    pair.primary.restart().await;
    // As its caller does, with the same nonce.
    for _ in 0..20 {
        let repeat = within(engine.claim(&made.claimed, DEADLINE)).await;
        assert!(repeat.is_err(), "the first holder, of a grant that no standby has: {repeat:?}");
        tokio::time::sleep(Duration::from_millis(50)).await;
    }
    pair.primary.kill();
    pair.standby.restart().await;
    pair.standby.promote().await;
    serves(&engine).await;
    // Keys of calls without an answer are free.
    let other = again(&made.claimed);
    soon("another one is granted", async || is_granted(&engine, &other).await).await;
    soon("the one holder is another one", async || is_duplicate(&*engine, &made.claimed).await).await;
}
