//! The share of a call's deadline that the outage policies give to the store. The shares of all layers are described in
//! `docs/adr/0044-one-deadline-budget.md`.

use std::time::Duration;

/// Deadline of a call that delivers an entry of the journal: its own caller was answered long ago.
pub const DELIVERY_DEADLINE: Duration = Duration::from_secs(1);

/// The shares of a deadline at the outage policies.
#[derive(Clone, Copy, Debug)]
pub struct PolicyBudget {
    /// Deadline that the store is given. The rest is for the policy and its journal.
    pub store: Duration,
    /// Time that the policies wait for the store: a little longer, since the store's own failure says more.
    pub wait: Duration,
}

impl PolicyBudget {
    /// Divides the deadline of a call.
    pub fn of(deadline: Duration) -> Self {
        Self { store: deadline * 4 / 5, wait: deadline * 17 / 20 }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_deadline_is_shared_between_the_store_and_the_policy() {
        let budget = PolicyBudget::of(Duration::from_secs(1));
        assert_eq!((budget.store, budget.wait), (Duration::from_millis(800), Duration::from_millis(850)));
        for ms in [10, 100, 1000, 30_000] {
            let deadline = Duration::from_millis(ms);
            let policy = PolicyBudget::of(deadline);
            assert!(policy.store < policy.wait && policy.wait < deadline, "{policy:?}");
        }
    }
}
