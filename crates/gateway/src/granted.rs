//! The operations of granted claims whose outcomes have their own outage policy: an outcome call names its claim, but seldom
//! the operation.

use std::sync::{Mutex, MutexGuard, PoisonError};

use hashbrown::HashMap;
use oncegate_core::global_id::GlobalId;
use oncegate_core::record::{ClaimId, Key};
use oncegate_core::share::Newest;
use oncegate_core::tenant::Operation;

use crate::Gateway;
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

impl Gateway {
    /// Returns the operation of a claim of the API, if it was granted here and its outcomes have their own outage policy.
    pub fn granted_operation(&self, app: &App, global_id: GlobalId) -> Option<Operation> {
        self.granted.of(app, &Key::new(&app.key, ClaimId::of_api(global_id)))
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

#[cfg(test)]
mod tests {
    use std::time::Duration;

    use oncegate_core::engine::conformance::fresh_claim;
    use oncegate_core::terms::OutcomeOnOutage;

    use super::*;
    use crate::tenants::OperationTerms;

    #[test]
    fn an_operation_is_remembered_where_its_outcomes_have_their_own_policy() {
        let mut app = App::for_tests("shop", &[], fresh_claim().terms, Duration::from_secs(1));
        let [spooled, usual]: [Operation; 2] = ["spooled", "usual"].map(|name| name.parse().unwrap());
        let known = GrantedOperations::default();
        let [first, second] = [fresh_claim().key, fresh_claim().key];
        known.add(&app, &first, &usual);
        assert_eq!(known.of(&app, &first), None);
        let own = OperationTerms { outcome_on_outage: OutcomeOnOutage::Spool, ..app.terms };
        app.operations.insert(spooled.clone(), own);
        known.add(&app, &first, &spooled);
        known.add(&app, &second, &usual);
        assert_eq!((known.of(&app, &first), known.of(&app, &second)), (Some(spooled), None));
    }

    #[test]
    fn the_oldest_is_forgotten() {
        let mut app = App::for_tests("shop", &[], fresh_claim().terms, Duration::from_secs(1));
        let operation: Operation = "spooled".parse().unwrap();
        let own = OperationTerms { outcome_on_outage: OutcomeOnOutage::Spool, ..app.terms };
        app.operations.insert(operation.clone(), own);
        let known = GrantedOperations(Mutex::new(Known { by_key: HashMap::new(), newest: Newest::new(2) }));
        let keys: Vec<_> = (0..3).map(|_| fresh_claim().key).collect();
        for key in &keys {
            known.add(&app, key, &operation);
        }
        known.add(&app, &keys[2], &operation);
        let remembered: Vec<_> = keys.iter().map(|key| known.of(&app, key).is_some()).collect();
        assert_eq!(remembered, [false, true, true]);
    }
}
