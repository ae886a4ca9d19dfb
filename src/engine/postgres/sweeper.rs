//! Takes away claims that have ended, in small steps over a connection of its own, so that no call ever waits for it.

use std::sync::Arc;
use std::time::Duration;

use sqlx::{Row as _, query};
use tokio::time::{sleep, timeout};
use tokio_util::sync::CancellationToken;

use super::lane::pause;
use super::session::{self, Shared};
use super::work::Link;
use crate::domain::attempt::{Entropy, SystemEntropy};

/// Rows that one step looks at. A step holds their locks for about as many tens of microseconds.
const STEP: i64 = 500;
/// Between two steps while there is more to do.
const BREATH: Duration = Duration::from_millis(10);
/// How long a step may take before its connection is given up.
const PATIENCE: Duration = Duration::from_secs(30);

/// Sweeps until `closing` is cancelled.
pub(super) async fn run(shared: Arc<Shared>, closing: CancellationToken) {
    let mut failures = 0;
    while closing.run_until_cancelled(rest(&shared, failures)).await.is_some() {
        let link = closing.run_until_cancelled(session::open(&shared)).await;
        // That there is no connection is told by the lanes.
        if let Some(Ok(link)) = link {
            sweep(&shared, &closing, link).await;
            failures = 0;
        }
        failures = 5.min(failures + 1);
    }
}

async fn rest(shared: &Shared, failures: u32) {
    if failures > 0 {
        sleep(shared.options.sweep_interval + pause(failures)).await;
    }
}

/// Sweeps for as long as the connection is good. A step that was begun is waited for.
async fn sweep(shared: &Shared, closing: &CancellationToken, mut link: Link) {
    while !closing.is_cancelled() {
        let checked = async {
            // A gateway that is too old by now must not touch rows that it may not understand.
            session::probe(&mut link, shared).await.map_err(|refused| refused.to_string())?;
            step(&mut link).await.map_err(|error| error.to_string())
        };
        let rows = match timeout(PATIENCE, checked).await {
            Ok(Ok(rows)) => rows,
            Ok(Err(error)) => {
                tracing::debug!(postgres.servers = shared.address.name(), %error, "a sweep failed; trying on");
                return;
            }
            Err(_elapsed) => return,
        };
        let wait = if rows < STEP { jittered(shared.options.sweep_interval) } else { BREATH };
        closing.run_until_cancelled(sleep(wait)).await;
    }
}

async fn step(link: &mut Link) -> sqlx::Result<i64> {
    let rows = link.run(query(include_str!("sweep.sql")).bind(STEP)).await?;
    let row = rows.first().ok_or(sqlx::Error::RowNotFound)?;
    Ok(row.try_get::<i64, _>(0)? + row.try_get::<i64, _>(1)?)
}

/// Up to a half more, so that gateways do not all look at once.
fn jittered(span: Duration) -> Duration {
    let half = u64::try_from(span.as_millis() / 2).unwrap_or(0);
    span + Duration::from_millis(SystemEntropy.bits() % (half + 1))
}
