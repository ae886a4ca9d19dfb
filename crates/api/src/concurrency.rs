//! The limit of concurrent requests. Outcomes and renewals have reserved permits: they end what other callers wait for, so
//! under overload new requests are refused first.

use std::sync::{Mutex, PoisonError};

use oncegate_gateway::tenants::quota::{Purpose, reserved_permits};
use tokio::sync::{Semaphore, SemaphorePermit};

/// Limit of the requests in flight.
pub struct ConcurrencyLimit {
    all: Semaphore,
    /// Permits for new requests: fewer than all.
    new: Semaphore,
}

/// Permit of one request, until it is dropped.
pub(super) struct Permit<'a> {
    _one: SemaphorePermit<'a>,
    _one_of_new: Option<SemaphorePermit<'a>>,
}

/// A permit that is released with its request, or before, when the request begins to wait.
pub(super) struct Held<Permit>(Mutex<Option<Permit>>);

impl<Permit> Held<Permit> {
    pub(super) fn new(permit: Permit) -> Self {
        Self(Mutex::new(Some(permit)))
    }

    /// Releases the permit.
    pub(super) fn release(&self) {
        self.0.lock().unwrap_or_else(PoisonError::into_inner).take();
    }
}

impl ConcurrencyLimit {
    /// Returns a limit with this many permits.
    pub fn new(permits: usize) -> Self {
        Self { all: Semaphore::new(permits), new: Semaphore::new(permits - reserved_permits(permits)) }
    }

    /// Takes a permit, if there is one for this purpose.
    pub(super) fn acquire(&self, purpose: Purpose) -> Option<Permit<'_>> {
        let one_of_new = match purpose {
            Purpose::New => Some(self.new.try_acquire().ok()?),
            Purpose::Settle => None,
        };
        Some(Permit { _one: self.all.try_acquire().ok()?, _one_of_new: one_of_new })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn an_eighth_is_reserved_for_outcomes_and_renewals() {
        let limit = ConcurrencyLimit::new(16);
        let mut permits: Vec<_> = (0..14).map(|_| limit.acquire(Purpose::New).unwrap()).collect();
        assert!(limit.acquire(Purpose::New).is_none());
        permits.extend((0..2).map(|_| limit.acquire(Purpose::Settle).unwrap()));
        assert!(limit.acquire(Purpose::Settle).is_none(), "all are taken");
        // A refused request takes nothing.
        permits.truncate(13);
        assert!(limit.acquire(Purpose::New).is_some());
    }

    #[test]
    fn outcomes_may_take_all_permits() {
        let limit = ConcurrencyLimit::new(16);
        let permits: Vec<_> = (0..16).map(|_| limit.acquire(Purpose::Settle).unwrap()).collect();
        assert!(limit.acquire(Purpose::New).is_none());
        drop(permits);
        assert!(limit.acquire(Purpose::New).is_some());
    }

    #[test]
    fn of_a_few_permits_none_is_reserved() {
        let limit = ConcurrencyLimit::new(2);
        let _permits = [limit.acquire(Purpose::New).unwrap(), limit.acquire(Purpose::New).unwrap()];
        assert!(limit.acquire(Purpose::Settle).is_none());
    }
}
