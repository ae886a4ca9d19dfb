//! Which requests and holds of a lock go together. `transitions` decides when a request is granted.

use super::{LockMode, LockRecord, Permits, ShortHash, Ticket};

/// Compatibility of a request with the holds of a lock.
#[derive(Clone, Copy, PartialEq, Eq)]
pub(super) enum Fit {
    Yes,
    No,
    /// Never, since others share the lock with its owner.
    Refused,
    /// Not while the holders share the lock with this limit.
    LimitDiffers(Permits),
}

impl LockRecord {
    /// Returns the number of holds of an owner.
    pub(super) fn holds_of(&self, owner: ShortHash) -> usize {
        self.holds.iter().filter(|hold| hold.owner == owner).count()
    }

    /// Returns whether the present holds permit a request.
    pub(super) fn fit(&self, owner: ShortHash, mode: LockMode, limit: Option<Permits>) -> Fit {
        match (self.limit, limit) {
            _ if self.holds.is_empty() => return Fit::Yes,
            (None, None) => {}
            (Some(used), Some(limit)) if used != limit => return Fit::LimitDiffers(used),
            (Some(used), Some(_)) if self.holds.len() < used.holds() => return Fit::Yes,
            // A hold with a limit and one without exclude each other, also of one owner.
            _ => return Fit::No,
        }
        let own = self.holds_of(owner);
        let are_others = self.holds.len() > own;
        match mode {
            _ if !are_others => Fit::Yes,
            LockMode::Exclusive if own > 0 => Fit::Refused,
            LockMode::Shared if self.mode == Some(LockMode::Shared) => Fit::Yes,
            LockMode::Exclusive | LockMode::Shared => Fit::No,
        }
    }

    /// Returns whether the head of the queue could be granted, or refused because of its limit.
    pub(super) fn head_may_go(&self) -> bool {
        self.tickets.first().is_some_and(|head| self.may_go(head))
    }

    /// Returns whether the request of a ticket could be granted, or refused because of its limit.
    pub(super) fn may_go(&self, ticket: &Ticket) -> bool {
        matches!(self.fit(ticket.owner, ticket.mode, ticket.limit), Fit::Yes | Fit::LimitDiffers(_))
    }
}
