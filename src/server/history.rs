//! Reads the metrics of this process for the history every ten seconds, and writes the history each minute and at the end.

use std::path::PathBuf;
use std::sync::Arc;
use std::time::Duration;

use oncegate_core::clock::Clock;
use oncegate_telemetry::history::History;
use oncegate_telemetry::metrics::Metrics;
use tokio_util::sync::CancellationToken;

/// Time between two readings: a point of the finest resolution.
const INTERVAL: Duration = Duration::from_secs(10);

/// Readings after which the history is written.
const SAVED_AFTER: u32 = 6;

/// Returns the file of the history in this data folder.
pub(super) fn file(data_dir: &std::path::Path) -> PathBuf {
    data_dir.join("history")
}

/// Keeps the history until `stop`.
pub(super) async fn run(
    history: Arc<History>,
    metrics: Arc<Metrics>,
    clock: Arc<dyn Clock>,
    file: PathBuf,
    stop: CancellationToken,
) {
    let mut interval = tokio::time::interval(INTERVAL);
    interval.set_missed_tick_behavior(tokio::time::MissedTickBehavior::Delay);
    let mut readings = 0_u32;
    loop {
        tokio::select! {
            _ = interval.tick() => {}
            () = stop.cancelled() => return save(history, file).await,
        }
        let (taken, metrics, clock) = (history.clone(), metrics.clone(), clock.clone());
        // The text may be long, and this thread serves callers.
        let reading = tokio::task::spawn_blocking(move || {
            taken.take(clock.wall().as_micros() / 1_000_000, clock.monotonic(), &metrics.render());
        });
        if reading.await.is_err() {
            tracing::error!("The metrics could not be read for the history, which ends here; report this");
            return;
        }
        readings += 1;
        if readings.is_multiple_of(SAVED_AFTER) {
            save(history.clone(), file.clone()).await;
        }
    }
}

async fn save(history: Arc<History>, file: PathBuf) {
    let saved = tokio::task::spawn_blocking(move || history.save(&file)).await;
    if let Ok(Err(error)) = saved {
        tracing::debug!(%error, "The history could not be written; a restart begins a new one");
    }
}
