//! The retry rule: the failures after which a store call is retried, the latest time, and the pause. A call is retried
//! once; only the opening of a chain is retried more often. A retry repeats the call with the same arguments, so it is
//! safe after an uncertain failure too.
//!
//! Connections are not retried here: `driver` opens them again with its own backoff.

use std::time::Duration;

use oncegate_core::backoff::jittered;
use oncegate_core::engine::EngineError;

use super::deadline_budget::{CHAIN_OPEN_TIMEOUT, GuardBudget, METADATA_TIMEOUT};

/// Limits of the retries of one call.
#[derive(Clone, Copy, Debug)]
pub struct RetryRule {
    /// Returns whether a call is retried after this failure.
    is_retried: fn(&EngineError) -> bool,
    /// Time from the start of the first try after which no retry begins.
    until: Duration,
    /// Shortest pause before a retry.
    pause: Duration,
    /// Longest random addition to the pause.
    jitter: Duration,
}

impl RetryRule {
    /// A metadata record of a store. A certain failure is left to the caller, which reads the record anyway.
    pub const METADATA_WRITE: Self = Self {
        is_retried: EngineError::is_uncertain,
        until: METADATA_TIMEOUT,
        pause: Duration::ZERO,
        jitter: Duration::ZERO,
    };

    /// The last step of a chain switch, on the new engine: a chain that stays closed grants nothing.
    pub const CHAIN_OPEN: Self = Self {
        is_retried: |_| true,
        until: CHAIN_OPEN_TIMEOUT,
        pause: Duration::from_millis(250),
        jitter: Duration::ZERO,
    };

    /// Returns the rule of a call with a deadline. The call guard also limits its retries by a budget and by the breaker.
    pub fn of_call(budget: &GuardBudget) -> Self {
        Self {
            // A store that lacks replicas has answered; the engine itself has waited for them.
            is_retried: EngineError::is_unavailable,
            until: budget.retry_until(),
            pause: Duration::ZERO,
            jitter: budget.retry_pause(),
        }
    }

    /// Returns whether a call is retried after this failure. Its first try began `elapsed` ago.
    pub fn allows(&self, failure: &EngineError, elapsed: Duration) -> bool {
        (self.is_retried)(failure) && elapsed <= self.until
    }

    /// Returns the pause before a retry. `bits` are random.
    pub fn pause(&self, bits: u64) -> Duration {
        jittered(self.pause, self.jitter, bits)
    }
}

#[cfg(test)]
mod tests {
    use oncegate_core::engine::Determinate;

    use super::*;

    const MS: Duration = Duration::from_millis(1);

    fn failures() -> [EngineError; 3] {
        [EngineError::indeterminate("lost"), EngineError::unavailable("out"), Determinate::Full("full".into()).into()]
    }

    fn retried(rule: RetryRule) -> [bool; 3] {
        failures().map(|failure| rule.allows(&failure, Duration::ZERO))
    }

    #[test]
    fn a_call_is_retried_if_the_store_did_not_answer() {
        let rule = RetryRule::of_call(&GuardBudget::of(Duration::from_secs(1)));
        assert_eq!(retried(rule), [true, true, false]);
        let [lost, ..] = failures();
        assert!(rule.allows(&lost, 600 * MS), "a third of the time is left");
        assert!(!rule.allows(&lost, 601 * MS));
    }

    #[test]
    fn the_pause_before_a_retry_is_random_and_at_most_50_ms() {
        let rule = RetryRule::of_call(&GuardBudget::of(Duration::from_secs(1)));
        assert_eq!((rule.pause(0), rule.pause(50_000)), (Duration::ZERO, 50 * MS));
        assert!((0..1000).all(|bits| rule.pause(bits * 7919) <= 50 * MS));
    }

    #[test]
    fn a_metadata_write_is_retried_only_if_it_may_have_happened() {
        assert_eq!(retried(RetryRule::METADATA_WRITE), [true, false, false]);
        assert_eq!(RetryRule::METADATA_WRITE.pause(u64::MAX), Duration::ZERO);
    }

    #[test]
    fn the_opening_of_a_chain_is_retried_after_any_failure_for_five_seconds() {
        assert_eq!(retried(RetryRule::CHAIN_OPEN), [true; 3]);
        let [lost, ..] = failures();
        assert!(RetryRule::CHAIN_OPEN.allows(&lost, Duration::from_secs(5)));
        assert!(!RetryRule::CHAIN_OPEN.allows(&lost, Duration::from_secs(5) + MS));
        assert_eq!(RetryRule::CHAIN_OPEN.pause(u64::MAX), 250 * MS);
    }
}
