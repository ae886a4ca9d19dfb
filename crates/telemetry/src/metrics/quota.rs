//! Names of quotas in metrics.

use super::labels;

labels! {
    /// Name of a quota.
    Quota {
        RequestsPerSecond = "requests_per_second",
        ClaimBytesPerSecond = "claim_bytes_per_second",
        RequestsInFlight = "requests_in_flight",
    }
}
