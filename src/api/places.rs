//! The places of requests in flight. The last ones are for outcomes and renewals alone: they end what others wait for, so
//! under overload what is new is turned away first.

use tokio::sync::{Semaphore, SemaphorePermit};

use crate::tenants::quota::{Purpose, reserved_permits};

/// Places for requests in flight.
pub struct Places {
    all: Semaphore,
    /// For what is new; fewer than all.
    new: Semaphore,
}

/// A place among those in flight, until it is dropped.
pub struct Place<'a> {
    _one: SemaphorePermit<'a>,
    _of_new: Option<SemaphorePermit<'a>>,
}

impl Places {
    /// As many places as this.
    pub fn new(most: usize) -> Self {
        Self { all: Semaphore::new(most), new: Semaphore::new(most - reserved_permits(most)) }
    }

    /// Takes a place; nothing if there is none for this.
    pub fn take(&self, purpose: Purpose) -> Option<Place<'_>> {
        let of_new = match purpose {
            Purpose::New => Some(self.new.try_acquire().ok()?),
            Purpose::Settle => None,
        };
        Some(Place { _one: self.all.try_acquire().ok()?, _of_new: of_new })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_last_eighth_is_for_what_ends_something() {
        let places = Places::new(16);
        let mut kept: Vec<_> = (0..14).map(|_| places.take(Purpose::New).unwrap()).collect();
        assert!(places.take(Purpose::New).is_none());
        kept.extend((0..2).map(|_| places.take(Purpose::Settle).unwrap()));
        assert!(places.take(Purpose::Settle).is_none(), "all are taken");
        // Whoever is refused takes nothing.
        kept.truncate(13);
        assert!(places.take(Purpose::New).is_some());
    }

    #[test]
    fn outcomes_may_take_all_of_the_places() {
        let places = Places::new(16);
        let kept: Vec<_> = (0..16).map(|_| places.take(Purpose::Settle).unwrap()).collect();
        assert!(places.take(Purpose::New).is_none());
        drop(kept);
        assert!(places.take(Purpose::New).is_some());
    }

    #[test]
    fn a_few_places_are_for_everybody() {
        let places = Places::new(2);
        let _kept = [places.take(Purpose::New).unwrap(), places.take(Purpose::New).unwrap()];
        assert!(places.take(Purpose::Settle).is_none());
    }
}
