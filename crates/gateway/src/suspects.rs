//! Attempts that were counted as suspected double executions, so that a repeated outcome is counted once.

use hashbrown::HashSet;

use oncegate_core::attempt::Attempt;
use oncegate_core::share::Newest;
use oncegate_core::tenant::AppKey;

/// Number of remembered attempts. All apps share the bound.
const SUSPECTS_MAX: usize = 4096;

/// The newest suspected attempts.
pub(super) struct Suspects {
    known: HashSet<(AppKey, Attempt)>,
    newest: Newest<(AppKey, Attempt)>,
}

impl Default for Suspects {
    fn default() -> Self {
        Self { known: HashSet::new(), newest: Newest::new(SUSPECTS_MAX) }
    }
}

impl Suspects {
    /// Adds an attempt. Returns false if it is known.
    pub(super) fn add(&mut self, app: &AppKey, attempt: &Attempt) -> bool {
        let suspect = (app.clone(), attempt.clone());
        let is_new = self.known.insert(suspect.clone());
        if is_new && let Some(oldest) = self.newest.push(app, suspect) {
            self.known.remove(&oldest);
        }
        is_new
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use oncegate_core::engine::conformance::fresh_claim;

    #[test]
    fn an_app_with_many_suspects_does_not_displace_those_of_another() {
        let [shop, bank] = ["shop", "bank"].map(|app| app.parse::<AppKey>().unwrap());
        let mut suspects = Suspects::default();
        let attempt = fresh_claim().attempt;
        assert!(suspects.add(&bank, &attempt) && suspects.add(&shop, &attempt), "of two apps");
        for _ in 0..2 * SUSPECTS_MAX {
            suspects.add(&shop, &fresh_claim().attempt);
        }
        assert!(!suspects.add(&bank, &attempt));
        assert_eq!(suspects.known.len(), SUSPECTS_MAX);
    }
}
