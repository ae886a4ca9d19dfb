//! Deletes ended claims in small steps over a separate session, so that no call waits for it.

use std::sync::Arc;
use std::time::Duration;

use oncegate_core::attempt::{Entropy, SystemEntropy};
use oncegate_core::backoff::jittered;
use sqlx::{Row as _, query};
use tokio::time::{sleep, timeout};
use tokio_util::sync::CancellationToken;

use super::session::{Session, Store};

/// Rows in one step. It holds their locks for about as many tens of microseconds.
const STEP: i64 = 500;
/// Time between two steps while there is more to do.
const BREAK: Duration = Duration::from_millis(10);
/// Time of a step after which its session is closed.
const STEP_TIMEOUT: Duration = Duration::from_secs(30);

/// Sweeps until `closing` is cancelled.
pub(super) async fn run(store: Arc<Store>, closing: CancellationToken) {
    let mut is_first = true;
    while is_first || closing.run_until_cancelled(pause(&store)).await.is_some() {
        is_first = false;
        match closing.run_until_cancelled(Session::open(&store)).await {
            Some(Ok(session)) => sweep(&store, &closing, session).await,
            // The connection workers log it.
            Some(Err(_)) => {}
            None => return,
        }
    }
}

/// Sweeps for as long as the session is good. A step that was started is waited for.
async fn sweep(store: &Store, closing: &CancellationToken, mut session: Session) {
    while !closing.is_cancelled() {
        let checked = async {
            // A gateway that has become too old must not delete rows that it may not understand.
            session.check(store).await.map_err(|refused| refused.to_string())?;
            let steps = async {
                let claims = sweep_claims(&mut session).await?;
                Ok::<_, sqlx::Error>(claims.max(sweep_locks(&mut session).await?))
            };
            steps.await.map_err(|error| error.to_string())
        };
        let rows = match timeout(STEP_TIMEOUT, checked).await {
            Ok(Ok(rows)) => rows,
            Ok(Err(reason)) => {
                tracing::debug!(server = store.address.name(), reason, "A sweep failed; trying again");
                return;
            }
            Err(_elapsed) => return,
        };
        if rows < STEP {
            closing.run_until_cancelled(pause(store)).await;
        } else {
            closing.run_until_cancelled(sleep(BREAK)).await;
        }
    }
}

async fn sweep_claims(session: &mut Session) -> sqlx::Result<i64> {
    let rows = session.run(query(include_str!("sweep.sql")).bind(STEP)).await?;
    let row = rows.first().ok_or(sqlx::Error::RowNotFound)?;
    Ok(row.try_get::<i64, _>(0)? + row.try_get::<i64, _>(1)?)
}

async fn sweep_locks(session: &mut Session) -> sqlx::Result<i64> {
    let rows = session.run(query(include_str!("sweep_locks.sql")).bind(STEP)).await?;
    rows.first().ok_or(sqlx::Error::RowNotFound)?.try_get(0)
}

/// Waits for up to a half longer than the interval, so that gateways do not all sweep at the same time.
async fn pause(store: &Store) {
    let interval = store.options.sweep_interval;
    sleep(jittered(interval, interval / 2, SystemEntropy.bits())).await;
}
