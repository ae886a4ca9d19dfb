//! The operations of claims that events have named: an outcome or a renewal names its claim, but seldom the operation.

use std::collections::HashMap;

use oncegate_core::global_id::GlobalId;
use oncegate_core::share::Newest;
use oncegate_core::tenant::{AppKey, Operation};

use super::Event;

/// Claims whose operation is remembered.
const REMEMBERED_MAX: usize = 20_000;

/// A claim of an app.
type Claim = (AppKey, GlobalId);

/// The newest of these claims, each with its operation.
pub(super) struct Operations {
    by_claim: HashMap<Claim, Operation>,
    newest: Newest<Claim>,
}

impl Operations {
    /// Returns a list without a claim.
    pub(super) fn new() -> Self {
        Self { by_claim: HashMap::new(), newest: Newest::new(REMEMBERED_MAX) }
    }

    /// Remembers the operation that an event names for its claim, or completes the event.
    pub(super) fn complete(&mut self, event: &mut Event) {
        let Some(global_id) = event.global_id else { return };
        let claim = (event.app.clone(), global_id);
        let known = self.by_claim.get(&claim);
        match (&event.operation, known) {
            (None, known) => event.operation = known.cloned(),
            // The operation is part of the global ID.
            (Some(_), Some(_)) => {}
            (Some(operation), None) => {
                self.by_claim.insert(claim.clone(), operation.clone());
                if let Some(oldest) = self.newest.push(&event.app, claim) {
                    self.by_claim.remove(&oldest);
                }
            }
        }
    }
}
