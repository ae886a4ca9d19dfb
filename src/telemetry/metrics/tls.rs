//! The metrics of a listener that speaks TLS.

use metrics::{Counter, Gauge, counter, describe_counter, describe_gauge, gauge};

const TLS_RELOADS: &str = "oncegate_tls_reloads_total";
const TLS_HANDSHAKE_FAILURES: &str = "oncegate_tls_handshake_failures_total";
const TLS_CERTIFICATE_EXPIRY: &str = "oncegate_tls_certificate_expiry_timestamp_seconds";

pub(super) fn describe() {
    describe_counter!(TLS_RELOADS, "Times a listener's certificate was read again, by result");
    describe_counter!(TLS_HANDSHAKE_FAILURES, "Connections that ended before their TLS handshake did");
    describe_gauge!(
        TLS_CERTIFICATE_EXPIRY,
        "When the certificate that a listener shows ends, in seconds since the epoch"
    );
}

/// The handles of one listener.
#[derive(Clone)]
pub struct TlsMetrics {
    taken_up: Counter,
    failed: Counter,
    handshake_failures: Counter,
    expiry: Gauge,
}

impl TlsMetrics {
    /// The handles of the listener of this name.
    pub fn new(listener: &'static str) -> Self {
        let reloads = |result: &'static str| counter!(TLS_RELOADS, "listener" => listener, "result" => result);
        Self {
            taken_up: reloads("ok"),
            failed: reloads("failed"),
            handshake_failures: counter!(TLS_HANDSHAKE_FAILURES, "listener" => listener),
            expiry: gauge!(TLS_CERTIFICATE_EXPIRY, "listener" => listener),
        }
    }

    /// Counts a certificate that was read again and taken up.
    pub fn taken_up(&self) {
        self.taken_up.increment(1);
    }

    /// Counts one that was read again and cannot be used.
    pub fn failed(&self) {
        self.failed.increment(1);
    }

    /// Counts a connection that ended before its handshake did.
    pub fn handshake_failed(&self) {
        self.handshake_failures.increment(1);
    }

    /// Says when the certificate ends that is shown, in seconds since the epoch.
    #[expect(clippy::cast_precision_loss, reason = "seconds since the epoch stay far below 2^53")]
    pub fn set_expiry(&self, seconds: u64) {
        self.expiry.set(seconds as f64);
    }
}
