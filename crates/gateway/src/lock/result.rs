//! The labels of answers in the metrics of locks.

use oncegate_core::engine::Determinate;
use oncegate_telemetry::metrics::locks::LockResult;

use super::AcquireAnswer;
use crate::Failure;

/// Returns the label of the answer to a request for a hold.
pub(super) fn lock_result(answer: &Result<AcquireAnswer, Failure>) -> LockResult {
    match answer {
        Ok(AcquireAnswer::Granted(granted)) if granted.repeated => LockResult::Repeated,
        Ok(AcquireAnswer::Granted(_)) => LockResult::Granted,
        Ok(AcquireAnswer::Held(_)) => LockResult::Held,
        Ok(AcquireAnswer::UpgradeRefused) => LockResult::UpgradeRefused,
        Ok(AcquireAnswer::Withdrawn) => LockResult::Withdrawn,
        Ok(AcquireAnswer::NonceReused) => LockResult::NonceReused,
        Ok(AcquireAnswer::Full(_)) => LockResult::QuotaExceeded,
        Err(failure) => failed(failure),
    }
}

/// Returns the label of a call without an answer.
pub(super) fn failed(failure: &Failure) -> LockResult {
    match failure {
        Failure::Store(Determinate::Full(_)) => LockResult::StoreFull,
        Failure::Store(Determinate::Incompatible(_)) => LockResult::StoreIncompatible,
        Failure::Store(Determinate::Unavailable(_) | Determinate::Paused(_)) => LockResult::StoreUnavailable,
        Failure::QuotaExceeded(_) | Failure::TooManyLocks(_) => LockResult::QuotaExceeded,
        _ => LockResult::OutcomeUnknown,
    }
}
