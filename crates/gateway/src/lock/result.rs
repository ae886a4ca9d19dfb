//! The labels of answers in the metrics of locks.

use oncegate_telemetry::metrics::locks::LockResult;

use super::AcquireAnswer;
use crate::{Failure, StoreResult};

/// Returns the label of the answer to a request for a hold.
pub(super) fn lock_result(answer: &Result<AcquireAnswer, Failure>) -> LockResult {
    match answer {
        Ok(AcquireAnswer::Granted(granted)) if granted.repeated => LockResult::Repeated,
        Ok(AcquireAnswer::Granted(_)) => LockResult::Granted,
        Ok(AcquireAnswer::Held(_)) => LockResult::Held,
        Ok(AcquireAnswer::UpgradeRefused) => LockResult::UpgradeRefused,
        Ok(AcquireAnswer::LimitDiffers(_)) => LockResult::LimitDiffers,
        Ok(AcquireAnswer::Withdrawn) => LockResult::Withdrawn,
        Ok(AcquireAnswer::NonceReused) => LockResult::NonceReused,
        Ok(AcquireAnswer::Full(_)) => LockResult::QuotaExceeded,
        Err(failure) => failed(failure),
    }
}

/// Returns the label of a call without an answer.
pub(super) fn failed(failure: &Failure) -> LockResult {
    if matches!(failure, Failure::QuotaExceeded(_) | Failure::TooManyLocks(_)) {
        return LockResult::QuotaExceeded;
    }
    match failure.store_result() {
        StoreResult::Full => LockResult::StoreFull,
        StoreResult::Incompatible => LockResult::StoreIncompatible,
        StoreResult::Unavailable => LockResult::StoreUnavailable,
        StoreResult::Unknown => LockResult::OutcomeUnknown,
    }
}

#[cfg(test)]
mod tests {
    use std::time::Duration;

    use oncegate_core::clock::Timestamp;
    use oncegate_core::engine::Determinate;
    use oncegate_core::engine::conformance::fresh_claim;
    use oncegate_core::lock::LockMode;

    use super::*;
    use crate::lock::GrantedLock;

    fn granted(repeated: bool) -> AcquireAnswer {
        AcquireAnswer::Granted(GrantedLock {
            name: "a".parse().unwrap(),
            mode: LockMode::Exclusive,
            attempt: fresh_claim().attempt,
            fence: 1,
            holds: 1,
            lease_ms: 1000,
            lease_expires_at: Timestamp::default(),
            repeated,
            waited: Duration::ZERO,
        })
    }

    #[test]
    fn a_repeated_grant_has_its_own_label() {
        assert_eq!(lock_result(&Ok(granted(false))), LockResult::Granted);
        assert_eq!(lock_result(&Ok(granted(true))), LockResult::Repeated);
    }

    #[test]
    fn each_reason_of_a_failure_has_its_label() {
        let why = || "full".into();
        for (failure, label) in [
            (Failure::Store(Determinate::Full(why())), LockResult::StoreFull),
            (Failure::Store(Determinate::Incompatible(why())), LockResult::StoreIncompatible),
            (Failure::Store(Determinate::Unavailable(why())), LockResult::StoreUnavailable),
            (Failure::Store(Determinate::Paused(why())), LockResult::StoreUnavailable),
            (Failure::TooManyLocks(1), LockResult::QuotaExceeded),
            (Failure::OutcomeUnknown(None), LockResult::OutcomeUnknown),
        ] {
            assert_eq!(lock_result(&Err(failure)), label);
        }
    }
}
