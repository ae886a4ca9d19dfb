//! Metric of the disk that holds the data folder.

use metrics::{Gauge, gauge};

use super::DATA_DIR_FREE;

/// Metric of the disk of the data folder.
pub struct DiskMetrics {
    free: Gauge,
}

impl Default for DiskMetrics {
    fn default() -> Self {
        Self { free: gauge!(DATA_DIR_FREE) }
    }
}

impl DiskMetrics {
    /// Sets the free bytes.
    #[expect(clippy::cast_precision_loss, reason = "a gauge of many bytes needs no exact digits")]
    pub fn set_free(&self, bytes: u64) {
        self.free.set(bytes as f64);
    }
}
