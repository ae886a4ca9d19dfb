//! Bodies of requests that end too early. The caller gets 400 for them, and no failure of the upstream is reported.

use std::sync::{Arc, OnceLock};

use oncegate_web::problem::Problem;

/// Reason why a body has ended early.
#[derive(Clone, Copy, Debug)]
pub(super) enum Reason {
    TooSlow,
    BrokenOff,
}

/// Record of a body that has ended early.
#[derive(Clone, Default)]
pub(super) struct Torn(Arc<OnceLock<Reason>>);

impl Torn {
    /// Records a reason. Returns whether it is the first one.
    pub(super) fn record(&self, reason: Reason) -> bool {
        self.0.set(reason).is_ok()
    }

    /// Returns the problem of the body, if it has ended early.
    pub(super) fn problem(&self) -> Option<Problem> {
        let detail = "The body arrived more slowly than 1 KiB per second, so the request was cut. Send it in one go.";
        Some(match self.0.get()? {
            Reason::TooSlow => Problem::invalid(detail),
            Reason::BrokenOff => broken_off(),
        })
    }
}

/// Returns the problem of a body that its sender has not sent to the end.
pub(super) fn broken_off() -> Problem {
    Problem::invalid("The body broke off; send as many bytes as the head says.")
}
