//! The retry rule: which failures of a store call are retried, how often, until when, and after which pause. A retry repeats the
//! call with the same arguments, so it is safe after an uncertain failure too.
//!
//! Connections are not retried here: `driver` opens them again with its own backoff.

use std::time::Duration;

use oncegate_core::backoff::jittered;
use oncegate_core::engine::EngineError;

use super::deadline_budget::{CHAIN_OPEN_TIMEOUT, GuardBudget, METADATA_TIMEOUT};

/// Limits of the retries of one call.
#[derive(Clone, Copy, Debug)]
pub struct RetryRule {
    failures: Failures,
    retries_max: u32,
    /// Time from the start of the first try after which no retry begins.
    until: Duration,
    /// Shortest pause before a retry.
    pause: Duration,
    /// Longest random addition to the pause.
    jitter: Duration,
}

/// Failures after which a call is retried.
#[derive(Clone, Copy, Debug)]
enum Failures {
    All,
    /// The store did not answer. One that lacks replicas has; the engine itself has waited for them.
    Unavailable,
    /// The call may have taken effect.
    Uncertain,
}

impl RetryRule {
    /// A metadata record of a store. A certain failure is left to the caller, which reads the record anyway.
    pub const METADATA_WRITE: Self = Self {
        failures: Failures::Uncertain,
        retries_max: 1,
        until: METADATA_TIMEOUT,
        pause: Duration::ZERO,
        jitter: Duration::ZERO,
    };

    /// The last step of a chain switch, on the new engine: a chain that stays closed grants nothing.
    pub const CHAIN_OPEN: Self = Self {
        failures: Failures::All,
        retries_max: u32::MAX,
        until: CHAIN_OPEN_TIMEOUT,
        pause: Duration::from_millis(250),
        jitter: Duration::ZERO,
    };

    /// Returns the rule of a call with a deadline. The call guard also limits its retries by a budget and by the breaker.
    pub fn of_call(budget: &GuardBudget) -> Self {
        Self {
            failures: Failures::Unavailable,
            retries_max: 1,
            until: budget.retry_until(),
            pause: Duration::ZERO,
            jitter: budget.retry_pause(),
        }
    }

    /// Returns whether a call is retried after this failure: `retries` were made, and its first try began `elapsed` ago.
    pub fn allows(&self, failure: &EngineError, retries: u32, elapsed: Duration) -> bool {
        let is_retried = match self.failures {
            Failures::All => true,
            Failures::Unavailable => failure.is_unavailable(),
            Failures::Uncertain => failure.is_uncertain(),
        };
        is_retried && retries < self.retries_max && elapsed <= self.until
    }

    /// Returns the pause before a retry. `bits` are random.
    pub fn pause(&self, bits: u64) -> Duration {
        jittered(self.pause, self.jitter, bits)
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use oncegate_core::engine::Determinate;

    const MS: Duration = Duration::from_millis(1);

    fn failures() -> [EngineError; 3] {
        [EngineError::indeterminate("lost"), EngineError::unavailable("out"), Determinate::Full("full".into()).into()]
    }

    fn retried(rule: RetryRule) -> [bool; 3] {
        failures().map(|failure| rule.allows(&failure, 0, Duration::ZERO))
    }

    #[test]
    fn a_call_is_retried_once_if_the_store_did_not_answer() {
        let rule = RetryRule::of_call(&GuardBudget::of(Duration::from_secs(1)));
        assert_eq!(retried(rule), [true, true, false]);
        let [lost, ..] = failures();
        assert!(!rule.allows(&lost, 1, Duration::ZERO));
        assert!(rule.allows(&lost, 0, 600 * MS), "a third of the time is left");
        assert!(!rule.allows(&lost, 0, 601 * MS));
    }

    #[test]
    fn the_pause_before_a_retry_is_random_and_at_most_50_ms() {
        let rule = RetryRule::of_call(&GuardBudget::of(Duration::from_secs(1)));
        assert_eq!((rule.pause(0), rule.pause(50_000)), (Duration::ZERO, 50 * MS));
        assert!((0..1000).all(|bits| rule.pause(bits * 7919) <= 50 * MS));
    }

    #[test]
    fn a_metadata_write_is_retried_once_and_only_if_it_may_have_happened() {
        assert_eq!(retried(RetryRule::METADATA_WRITE), [true, false, false]);
        assert!(!RetryRule::METADATA_WRITE.allows(&failures()[0], 1, Duration::ZERO));
        assert_eq!(RetryRule::METADATA_WRITE.pause(u64::MAX), Duration::ZERO);
    }

    #[test]
    fn the_opening_of_a_chain_is_retried_after_any_failure_for_five_seconds() {
        assert_eq!(retried(RetryRule::CHAIN_OPEN), [true; 3]);
        let [lost, ..] = failures();
        assert!(RetryRule::CHAIN_OPEN.allows(&lost, 1000, Duration::from_secs(5)));
        assert!(!RetryRule::CHAIN_OPEN.allows(&lost, 0, Duration::from_secs(5) + MS));
        assert_eq!(RetryRule::CHAIN_OPEN.pause(u64::MAX), 250 * MS);
    }
}
