//! Metrics of responses that clients do not read.

use metrics::{Counter, counter};

use super::UNREAD_RESPONSES_DROPPED;

/// Counts responses that were dropped because all unread ones took too much memory.
pub struct DroppedResponses(Counter);

impl Default for DroppedResponses {
    fn default() -> Self {
        Self(counter!(UNREAD_RESPONSES_DROPPED))
    }
}

impl DroppedResponses {
    /// Counts one.
    pub fn increment(&self) {
        self.0.increment(1);
    }
}
