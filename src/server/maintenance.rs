//! Periodic work of a running gateway: metrics, summaries of the log, health checks of the engines, lookups of unknown claims.

use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::time::Duration;

use oncegate_gateway::Gateway;
use oncegate_outage::OutageJournal;
use oncegate_telemetry::Telemetry;
use oncegate_telemetry::metrics::Metrics;
use oncegate_telemetry::metrics::disk::DiskMetrics;
use oncegate_telemetry::metrics::log::LogMetrics;
use oncegate_telemetry::metrics::traces::TraceMetrics;
use tokio_util::sync::CancellationToken;

use super::clock_watch::ClockWatch;

/// Interval of the engines' health checks, which keep `engine_up` current without traffic.
const PROBE_INTERVAL: Duration = Duration::from_secs(5);

/// Period of the limits on log lines.
const LOG_SUMMARY_INTERVAL: Duration = Duration::from_secs(10);

/// Runs the periodic work until `stop`.
pub(super) async fn run(
    gateway: Arc<Gateway>,
    journal: Arc<OutageJournal>,
    metrics: Arc<Metrics>,
    telemetry: Telemetry,
    data_dir: PathBuf,
    mut clock: ClockWatch,
    stop: CancellationToken,
) {
    let mut upkeep = tokio::time::interval(Duration::from_secs(1));
    let mut summary = tokio::time::interval(LOG_SUMMARY_INTERVAL);
    let mut probe = tokio::time::interval(PROBE_INTERVAL);
    let Telemetry { log, traces } = telemetry;
    let disk_metrics = DiskMetrics::default();
    let log_metrics = LogMetrics::default();
    let trace_metrics = traces.counts().map(|_| TraceMetrics::default());
    loop {
        tokio::select! {
            _ = upkeep.tick() => {
                journal.update_gauges();
                clock.check();
                log_metrics.set_dropped(log.dropped());
                if let (Some(metrics), Some(counts)) = (&trace_metrics, traces.counts()) {
                    metrics.set(counts);
                }
                metrics.run_upkeep();
            }
            _ = summary.tick() => log.summarize(),
            _ = probe.tick() => {
                gateway.engines_health().await;
                gateway.look_up_met_unknowns().await;
                if let Some(bytes) = free_bytes(&data_dir).await {
                    disk_metrics.set_free(bytes);
                }
            }
            () = stop.cancelled() => return,
        }
    }
}

/// Free bytes of the disk of a folder, or of the nearest folder above it that exists.
async fn free_bytes(folder: &Path) -> Option<u64> {
    let folder = std::path::absolute(folder).ok()?;
    let disk = move || folder.ancestors().find_map(|folder| rustix::fs::statvfs(folder).ok());
    let disk = tokio::task::spawn_blocking(disk).await.ok()??;
    Some(disk.f_bavail.saturating_mul(disk.f_frsize))
}
