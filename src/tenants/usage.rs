//! What one process has seen of an app: kept while the app's settings change, lost with the process.

use super::quota::Drawn;

/// What this process has seen of an app.
#[derive(Debug, Default)]
pub struct Usage {
    /// What it has drawn of its quotas.
    pub(super) drawn: Drawn,
}
