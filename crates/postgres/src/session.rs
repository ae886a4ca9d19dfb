//! A session with the server: how it is opened and checked, and how statements are run in it.

use std::sync::{Arc, LazyLock};
use std::time::Duration;

use oncegate_core::engine::Determinate;
use oncegate_database::address::begin_with_settings;
use oncegate_database::{Address, connect, schema};
use oncegate_driver::Server;
use sqlx::postgres::{PgArguments, PgConnection, PgRow};
use sqlx::query::Query;
use sqlx::{Connection as _, Executor as _, Postgres, Row as _, query};

use super::failure::{Failure, determinate};
use super::options::Options;

/// The newest migration that this engine needs.
const NEEDED: i64 = 4;

/// State that all sessions of an engine share.
pub(super) struct Store {
    pub(super) address: Address,
    pub(super) options: Options,
    pub(super) server: Arc<Server>,
}

/// Lifts the fences to the time in microseconds, if they lie more than an hour behind: so they keep rising after a
/// backup was restored. One session lifts at a time: otherwise the lower of two values could be set last. An hour is
/// more than the fences that are taken while this runs.
const LIFT_FENCES: &str = "BEGIN; \
    SELECT pg_advisory_xact_lock(1869505383, 1); \
    SELECT setval('oncegate_fence', now.us) \
    FROM oncegate_fence, LATERAL (SELECT (extract(epoch FROM clock_timestamp()) * 1000000)::bigint AS us) AS now \
    WHERE last_value < now.us - 3600000000 AND now.us < 9007199254740991; \
    COMMIT";

/// Returns whether a statement of a gateway waits for a synchronous standby, and began before the interval that is
/// appended. Each attempt to connect would add one: its process stays after the gateway has stopped waiting, and they
/// would fill the server.
const IS_WAITING: &str = "SELECT EXISTS (SELECT FROM pg_stat_activity WHERE wait_event = 'SyncRep' \
     AND datname = current_database() AND usename = current_user AND application_name = current_setting('application_name') \
     AND query_start < clock_timestamp() - interval";

/// A write that is only in the log. It needs no table and no special right. Its commit waits until a synchronous
/// standby has all that is before it.
const BARRIER: &str = "SELECT pg_logical_emit_message(true, 'oncegate', '')::text";

/// The time of its start, to the microsecond, is the name of a server. The identifier of its cluster is also that of its copies.
const FITNESS: &str = "SELECT current_setting('fsync') = 'on' AND current_setting('full_page_writes') = 'on', marker::text, \
                       oldest_build, extract(epoch FROM pg_postmaster_start_time())::text FROM oncegate_schema";

/// A connection to the primary that has passed the health check.
pub(super) struct Session {
    connection: PgConnection,
    /// A pooler gives each transaction another server connection, so nothing may stay in the session.
    pooled: bool,
}

impl Session {
    /// Connects to the primary, and checks that all is there.
    pub(super) async fn open(store: &Store) -> Result<Self, Determinate> {
        let limit = store.options.connect_timeout;
        let (connection, schema) = connect(&store.address, NEEDED, limit).await.map_err(determinate)?;
        let mut session = Self { connection, pooled: store.address.is_pooled() };
        let mut is_committing = false;
        let preparing = async {
            session.check_commits(limit / 2).await?;
            is_committing = true;
            session.pass_barrier().await.map_err(|error| unchanged(&error))?;
            is_committing = false;
            session.check(store).await
        };
        let prepared = tokio::time::timeout(limit, preparing).await;
        prepared.unwrap_or_else(|_| {
            let what = if is_committing { "no commit of" } else { "no connection to" };
            Err(Determinate::Unavailable(format!("{what} the PostgreSQL server within {limit:?}")))
        })?;
        store.server.set_marker(Some(schema.marker.as_bytes()));
        Ok(session)
    }

    /// Checks that commits of gateways have not been waiting for a standby for this long.
    async fn check_commits(&mut self, for_long: Duration) -> Result<(), Determinate> {
        // In one message, and not in `run`: it must not wait for a commit itself.
        let sql = sqlx::AssertSqlSafe(format!("{IS_WAITING} '{} milliseconds')", for_long.as_millis()));
        let is_waiting = self.connection.fetch_one(sqlx::raw_sql(sql)).await.and_then(|row| row.try_get(0));
        if is_waiting.map_err(|error| unchanged(&error))? {
            let why = "commits of the PostgreSQL server wait for a synchronous standby (synchronous_standby_names)";
            return Err(Determinate::Unavailable(why.into()));
        }
        Ok(())
    }

    /// Commits a write, which waits for a synchronous standby. A server that has recovered from a crash shows commits that no
    /// standby has; none of them may be read before a standby has them.
    async fn pass_barrier(&mut self) -> sqlx::Result<()> {
        self.connection.execute(sqlx::raw_sql(LIFT_FENCES)).await?;
        self.run(query(BARRIER)).await.map(drop)
    }

    /// Checks the fitness of the server, and the presence of its data. After an error the session must not be used
    /// again.
    pub(super) async fn check(&mut self, store: &Store) -> Result<(), Determinate> {
        let rows = self.run(query(FITNESS)).await;
        let oldest_build = rows.and_then(|rows| {
            let row = rows.first().ok_or(sqlx::Error::RowNotFound)?;
            store.server.set_durable(row.try_get(0)?);
            store.server.set_marker(Some(row.try_get::<&str, _>(1)?.as_bytes()));
            store.server.set_name(row.try_get(3)?);
            row.try_get(2)
        });
        schema::check_build(oldest_build.map_err(|error| unchanged(&error))?).map_err(determinate)
    }

    /// Runs one statement to its end, its commit included.
    pub(super) async fn run(&mut self, query: Query<'static, Postgres, PgArguments>) -> sqlx::Result<Vec<PgRow>> {
        if !self.pooled {
            // The answer is complete only when the server is ready for the next statement: then it has committed.
            return query.fetch_all(&mut self.connection).await;
        }
        let mut transaction = self.connection.begin_with(begin_pooled()).await?;
        let rows = query.persistent(false).fetch_all(&mut *transaction).await?;
        transaction.commit().await?;
        Ok(rows)
    }
}

/// Returns the SQL that begins a transaction behind a pooler. Its commit waits for the standby even if it only reads: the pooler may
/// have opened its connection just now, after a crash of the server.
fn begin_pooled() -> &'static str {
    static BEGIN: LazyLock<String> = LazyLock::new(|| format!("{}; {BARRIER}", begin_with_settings()));
    &BEGIN
}

/// Returns the failure of a statement that changes nothing.
fn unchanged(error: &sqlx::Error) -> Determinate {
    Failure::from(error).answer.without_effect()
}
