//! The operations of granted claims whose outcomes have their own outage policy: an outcome call names its claim, but seldom
//! the operation.

use std::sync::{Mutex, MutexGuard, PoisonError};

use hashbrown::HashMap;
use oncegate_core::record::Key;
use oncegate_core::share::Newest;
use oncegate_core::tenant::Operation;

use crate::tenants::App;

/// Number of remembered claims, about 100 bytes each. All apps share the bound.
const REMEMBERED_MAX: usize = 100_000;

/// The newest of these claims. Outcomes of all others take the app's policy.
pub(super) struct GrantedOperations(Mutex<Known>);

struct Known {
    by_key: HashMap<Key, Operation>,
    newest: Newest<Key>,
}

impl Default for GrantedOperations {
    fn default() -> Self {
        Self(Mutex::new(Known { by_key: HashMap::new(), newest: Newest::new(REMEMBERED_MAX) }))
    }
}

impl GrantedOperations {
    /// Remembers the operation of a claim if its outcomes have another policy than the app's.
    pub(super) fn add(&self, app: &App, key: &Key, operation: &Operation) {
        if !has_own_policy(app, operation) {
            return;
        }
        let known = &mut *self.known();
        if known.by_key.contains_key(key) {
            // The operation is part of the key.
            return;
        }
        known.by_key.insert(key.clone(), operation.clone());
        if let Some(oldest) = known.newest.push(&key.app, key.clone()) {
            known.by_key.remove(&oldest);
        }
    }

    /// Returns the operation of a claim, if it is known.
    pub(super) fn of(&self, app: &App, key: &Key) -> Option<Operation> {
        if app.operations.values().all(|own| own.outcome_on_outage == app.terms.outcome_on_outage) {
            return None;
        }
        self.known().by_key.get(key).cloned()
    }

    fn known(&self) -> MutexGuard<'_, Known> {
        // A panic cannot leave the two parts inconsistent.
        self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

fn has_own_policy(app: &App, operation: &Operation) -> bool {
    app.terms_of(operation).outcome_on_outage != app.terms.outcome_on_outage
}
