//! Metrics of a TLS listener.

use metrics::{Counter, Gauge, counter, gauge};

use super::{TLS_CERTIFICATE_EXPIRY, TLS_HANDSHAKE_FAILURES, TLS_RELOADS};

/// Metrics of one listener.
#[derive(Clone)]
pub struct TlsMetrics {
    taken_up: Counter,
    failed: Counter,
    handshake_failures: Counter,
    expiry: Gauge,
}

impl TlsMetrics {
    /// Returns the metrics of the listener of this name.
    pub fn new(listener: &'static str) -> Self {
        let reloads = |result: &'static str| counter!(TLS_RELOADS, "listener" => listener, "result" => result);
        Self {
            taken_up: reloads("ok"),
            failed: reloads("failed"),
            handshake_failures: counter!(TLS_HANDSHAKE_FAILURES, "listener" => listener),
            expiry: gauge!(TLS_CERTIFICATE_EXPIRY, "listener" => listener),
        }
    }

    /// Counts a certificate that was reloaded and is in use.
    pub fn taken_up(&self) {
        self.taken_up.increment(1);
    }

    /// Counts a certificate that was reloaded and cannot be used.
    pub fn failed(&self) {
        self.failed.increment(1);
    }

    /// Counts a connection that ended during its handshake.
    pub fn handshake_failed(&self) {
        self.handshake_failures.increment(1);
    }

    /// Sets the expiry of the certificate in use, in seconds since the epoch.
    #[expect(clippy::cast_precision_loss, reason = "seconds since the epoch stay far below 2^53")]
    pub fn set_expiry(&self, seconds: u64) {
        self.expiry.set(seconds as f64);
    }
}
