//! Terms of one claim.

use std::error::Error as StdError;
use std::time::Duration;

use crate::contents::Contents;
use crate::error::Harmless;

/// Terms of one claim.
#[derive(Clone, Default, Debug)]
#[must_use]
pub struct Terms {
    pub(crate) fingerprint: Option<Contents>,
    pub(crate) lease: Option<Duration>,
    pub(crate) retention: Option<Duration>,
    pub(crate) take_over: bool,
    pub(crate) unknown_on_lease_end: bool,
    pub(crate) wait: Duration,
    pub(crate) harmless: Harmless,
}

impl Terms {
    /// Returns the operator's choice of everything.
    pub fn new() -> Self {
        Self::default()
    }

    /// Sets what else must be equal on a repeat, without being part of the identity.
    pub fn fingerprint(mut self, fingerprint: impl Into<Contents>) -> Self {
        self.fingerprint = Some(fingerprint.into());
        self
    }

    /// Sets how long to hold the claim while in progress.
    pub fn lease(mut self, lease: Duration) -> Self {
        self.lease = Some(lease);
        self
    }

    /// Sets how long a success is kept against repeats; [`crate::FOREVER`] is possible.
    pub fn retention(mut self, retention: Duration) -> Self {
        self.retention = Some(retention);
        self
    }

    /// Takes over a claim that is unknown. Only after its effect was looked up.
    pub fn take_over(mut self) -> Self {
        self.take_over = true;
        self
    }

    /// Makes the claim unknown if its lease ends without an outcome, also where the term of the operation releases it.
    pub fn unknown_on_lease_end(mut self) -> Self {
        self.unknown_on_lease_end = true;
        self
    }

    /// Declares errors of the work that had no effect: the operation is released, and the error is returned unchanged.
    /// The error of the work counts, its causes do not.
    pub fn nothing_happened_if<E: StdError + 'static>(
        mut self,
        is_harmless: impl Fn(&E) -> bool + Send + Sync + 'static,
    ) -> Self {
        self.harmless.add(is_harmless);
        self
    }

    /// Waits up to this time for an operation that is in progress.
    pub fn wait(mut self, wait: Duration) -> Self {
        self.wait = wait;
        self
    }
}
