//! The deadline of a call, divided among the layers that wait for one another.
//!
//! All shares are of the deadline that a layer is given, and each layer answers before the one above stops waiting: the
//! journal's disk, a retry and the reply need time, too. The share of the outage policies is in `oncegate_outage::deadline`. The page
//! is `docs/adr/0044-one-deadline-budget.md`.

use std::time::Duration;

/// Calls that take less are never held against the store: a caller may ask for the impossible.
pub const LATE_MIN: Duration = Duration::from_millis(100);

/// Timeout of a probe: a store that takes longer counts as unavailable.
pub const PROBE_TIMEOUT: Duration = Duration::from_millis(500);

/// Timeout of a list, which reads many claims for operators.
pub const LIST_TIMEOUT: Duration = Duration::from_secs(5);

/// Timeout of a call for a metadata record, its retry included.
pub const METADATA_TIMEOUT: Duration = Duration::from_millis(600);

/// Timeout of a chain's call for a metadata record. A read of the chain state and a write together end before the state that was
/// read is too old for a grant.
pub const CHAIN_METADATA_TIMEOUT: Duration = Duration::from_millis(700);

/// Time that a call waits for the chain state: right after the start, or after this process was suspended.
pub const CHAIN_STATE_WAIT: Duration = Duration::from_millis(800);

/// Time that a chain switch waits for the new engine to store that the chain is open.
pub const CHAIN_OPEN_TIMEOUT: Duration = Duration::from_secs(5);

/// Longest pause before a retry.
const RETRY_PAUSE_MAX: Duration = Duration::from_millis(50);

/// Returns the deadline of a claim call: at least half of the lease is left when it is answered.
pub fn of_claim(deadline: Duration, lease: Duration) -> Duration {
    deadline.min(lease / 2)
}

/// The shares of a deadline at the call guard of an engine.
#[derive(Clone, Copy, Debug)]
pub struct GuardBudget {
    /// Time of the first try before the breaker's opening can end it.
    pub undisturbed: Duration,
    /// Time of the first try before a hedged request. It is longer than an engine waits for its own connection:
    /// otherwise both tries could fail for the same reason.
    pub first_try: Duration,
    /// Time of the first try beyond that, while the hedged request is in flight.
    pub overtime: Duration,
    /// Time of all tries together.
    pub all_tries: Duration,
    /// Time after which an answer counts as slow.
    pub slow: Duration,
}

impl GuardBudget {
    /// Divides the deadline of a call.
    pub fn of(deadline: Duration) -> Self {
        let (first_try, all_tries) = (deadline * 11 / 20, deadline * 9 / 10);
        Self {
            undisturbed: LATE_MIN.min(first_try),
            first_try,
            overtime: deadline * 7 / 20,
            all_tries,
            slow: (deadline * 3 / 4).max(LATE_MIN),
        }
    }

    /// Divides the deadline of a call whose answer may wait for replicas. A late answer says nothing about the store then, and a
    /// hedged request would only wait as well.
    pub fn of_waiting(deadline: Duration) -> Self {
        let budget = Self::of(deadline);
        Self { first_try: budget.all_tries, overtime: Duration::ZERO, slow: Duration::MAX, ..budget }
    }

    /// Time after which no retry begins.
    pub fn retry_until(&self) -> Duration {
        self.all_tries * 2 / 3
    }

    /// Longest pause before a retry.
    pub fn retry_pause(&self) -> Duration {
        RETRY_PAUSE_MAX.min(self.all_tries / 10)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_chain_waits_longer_than_the_call_guard_for_metadata() {
        assert!(PROBE_TIMEOUT < METADATA_TIMEOUT && METADATA_TIMEOUT < CHAIN_METADATA_TIMEOUT);
        assert!(CHAIN_METADATA_TIMEOUT < CHAIN_STATE_WAIT && CHAIN_STATE_WAIT < Duration::from_secs(1));
        assert!(2 * CHAIN_METADATA_TIMEOUT < crate::resilience::chain::Times::default().fresh);
    }

    #[test]
    fn each_layer_answers_before_the_one_above_stops_waiting() {
        for ms in [10, 100, 1000, 30_000] {
            let deadline = Duration::from_millis(ms);
            let guard = GuardBudget::of(deadline);
            assert!(guard.undisturbed <= guard.first_try, "{guard:?}");
            for guard in [guard, GuardBudget::of_waiting(deadline)] {
                assert_eq!(guard.first_try + guard.overtime, guard.all_tries);
            }
            assert!(
                guard.retry_until() + guard.retry_pause() < guard.all_tries && guard.all_tries < deadline,
                "{guard:?}"
            );
        }
    }

    #[test]
    fn half_of_the_lease_is_left_when_a_claim_is_answered() {
        assert_eq!(
            (
                of_claim(Duration::from_secs(1), Duration::from_millis(1500)),
                of_claim(Duration::from_secs(1), Duration::from_secs(9))
            ),
            (Duration::from_millis(750), Duration::from_secs(1))
        );
    }
}
