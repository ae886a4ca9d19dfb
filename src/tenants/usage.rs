//! What one process has seen of an app: kept while the app's settings change, lost with the process.

/// What this process has seen of an app.
#[derive(Debug, Default)]
pub struct Usage {}
