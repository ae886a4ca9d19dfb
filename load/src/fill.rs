//! Fills a store with live claims, to measure a store in use or the size of a claim.

use std::{
    sync::{
        Arc,
        atomic::{AtomicU64, Ordering},
    },
    time::Duration,
};

use anyhow::{Context as _, anyhow, ensure};
use tokio::{
    task::JoinSet,
    time::{sleep, timeout},
};

use crate::{
    client::{Connection, Target},
    proc::Watched,
    report,
    wire::{BatchReply, Terms},
};

/// CPU time, in microseconds, and period below which a store counts as idle after it was filled.
const AT_REST_US: u64 = 50_000;
const AT_REST_FOR: Duration = Duration::from_secs(2);
/// Longest wait for that.
const AT_REST_WITHIN: Duration = Duration::from_mins(3);

/// Lease and retention of these claims: longer than any run.
pub(crate) const KEPT: &str = "6h";

/// Claims per request.
const BATCH: u64 = 500;

/// Requests in flight at once.
const CONNECTIONS: usize = 16;

/// Makes this many claims, each for another order; without `kept`, on the gateway's terms.
pub(crate) async fn fill(target: Target, claims: u64, kept: Option<&str>) -> anyhow::Result<()> {
    let terms = Arc::new(Terms::new(&target.app, "load.unique", kept));
    let target = Arc::new(target);
    let next = Arc::new(AtomicU64::new(0));
    let bar = report::progress(claims, "claims");
    let mut fillers = JoinSet::new();
    for _ in 0..CONNECTIONS {
        let (terms, next, bar) = (Arc::clone(&terms), Arc::clone(&next), bar.clone());
        let mut connection = Connection::new(Arc::clone(&target));
        fillers.spawn(async move {
            loop {
                let first = next.fetch_add(BATCH, Ordering::Relaxed);
                if first >= claims {
                    return anyhow::Ok(());
                }
                let last = claims.min(first + BATCH);
                claim(&mut connection, &terms, first..last).await?;
                bar.inc(last - first);
            }
        });
    }
    while let Some(filled) = fillers.join_next().await {
        filled??;
    }
    Ok(())
}

/// Waits until a store has finished its background work. No real caller makes millions of claims in a minute, so this
/// work would distort the measurement.
pub(crate) async fn rest(watched: &[Watched]) -> anyhow::Result<()> {
    let used = || watched.iter().map(Watched::cpu_us).sum::<anyhow::Result<u64>>();
    let at_rest = async {
        let mut before = used()?;
        loop {
            sleep(AT_REST_FOR).await;
            let now = used()?;
            if now - before <= AT_REST_US {
                return Ok(());
            }
            before = now;
        }
    };
    timeout(AT_REST_WITHIN, at_rest).await.context("the store is still busy after it was filled")?
}

async fn claim(connection: &mut Connection, terms: &Terms, orders: std::ops::Range<u64>) -> anyhow::Result<()> {
    let orders: Vec<_> = orders.collect();
    let answer = connection.post("/v1/claims/batch", &terms.batch(&orders)).await;
    let answer = answer.map_err(|why| anyhow!("the store cannot be filled: {why}"))?;
    let said = || String::from_utf8_lossy(answer.body).chars().take(300).collect::<String>();
    ensure!(answer.status == 200, "the store cannot be filled: {} {}", answer.status, said());
    let batch: BatchReply<'_> = serde_json::from_slice(answer.body)?;
    let granted = batch.items.iter().filter(|item| item.status == 201).count();
    ensure!(granted == orders.len(), "the store cannot be filled: {granted} of {} granted: {}", orders.len(), said());
    Ok(())
}
