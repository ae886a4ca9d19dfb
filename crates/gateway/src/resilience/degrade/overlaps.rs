//! The newest overlaps that were found, each once. Apps share the bound.

use std::cmp::Reverse;
use std::sync::{Mutex, PoisonError};

use hashbrown::HashSet;
use oncegate_core::attempt::AttemptHash;
use oncegate_core::overlap::Overlap;
use oncegate_core::record::ClaimId;
use oncegate_core::share::Newest;
use oncegate_core::tenant::AppKey;

use super::super::journal::OVERLAPS_MAX;

/// The newest overlaps.
pub(super) struct RecentOverlaps(Mutex<Inner>);

struct Inner {
    overlaps: Newest<Overlap>,
    known: HashSet<(AppKey, ClaimId, AttemptHash, AttemptHash)>,
}

impl Default for RecentOverlaps {
    fn default() -> Self {
        Self(Mutex::new(Inner { overlaps: Newest::new(OVERLAPS_MAX), known: HashSet::new() }))
    }
}

impl RecentOverlaps {
    /// Adds an overlap. Returns the numbers of those that made room for it, or `None` if it is known.
    pub(super) fn add(&self, overlap: Overlap) -> Option<Vec<u64>> {
        let mut kept = self.0.lock().unwrap_or_else(PoisonError::into_inner);
        if !kept.known.insert(identity(&overlap)) {
            return None;
        }
        let app = overlap.app.clone();
        let gone = kept.overlaps.push(&app, overlap);
        if let Some(gone) = &gone {
            kept.known.remove(&identity(gone));
        }
        Some(gone.map(|gone| gone.id).into_iter().collect())
    }

    /// Returns at most so many overlaps older than this number, the newest first.
    pub(super) fn newest(&self, app: Option<&AppKey>, before: Option<u64>, limit: usize) -> Vec<Overlap> {
        let kept = self.0.lock().unwrap_or_else(PoisonError::into_inner);
        let wanted = |overlap: &&Overlap| {
            app.is_none_or(|app| overlap.app == *app) && before.is_none_or(|before| overlap.id < before)
        };
        let mut found: Vec<_> = kept.overlaps.iter().filter(wanted).collect();
        found.sort_unstable_by_key(|overlap| Reverse(overlap.id));
        found.into_iter().take(limit).cloned().collect()
    }
}

/// Returns the identity of an overlap: the same two attempts are one overlap, in either order.
fn identity(overlap: &Overlap) -> (AppKey, ClaimId, AttemptHash, AttemptHash) {
    let id = ClaimId { realm: overlap.realm, global_id: overlap.global_id };
    let (ours, theirs) = (overlap.ours, overlap.theirs);
    let [one, other] = if ours.timestamp <= theirs.timestamp { [ours, theirs] } else { [theirs, ours] };
    (overlap.app.clone(), id, one.hash, other.hash)
}

#[cfg(test)]
mod tests {
    use super::*;
    use oncegate_core::engine::conformance::fresh_claim;
    use oncegate_core::outage_policy::OutagePolicy;
    use oncegate_core::overlap::MaskedAttempt;
    use oncegate_core::record::ClaimState;

    fn overlap(id: u64, app: &str) -> Overlap {
        let request = fresh_claim();
        Overlap {
            id,
            app: app.parse().unwrap(),
            operation: None,
            realm: request.key.realm,
            global_id: request.key.global_id,
            policy: OutagePolicy::Spool,
            ours: MaskedAttempt::from(&request.attempt),
            theirs: MaskedAttempt::from(&fresh_claim().attempt),
            state: ClaimState::InProgress,
            noticed_at: request.attempt.timestamp(),
        }
    }

    #[test]
    fn each_overlap_is_kept_once_and_listed_newest_first_in_pages() {
        let noticed = RecentOverlaps::default();
        let first = overlap(1, "shop");
        assert_eq!(noticed.add(first.clone()), Some(vec![]));
        assert_eq!(noticed.add(Overlap { id: 2, ..first }), None, "known");
        noticed.add(overlap(3, "bank"));
        noticed.add(overlap(4, "shop"));
        let ids = |app: Option<&str>, before, limit| {
            let app = app.map(|app| app.parse().unwrap());
            noticed.newest(app.as_ref(), before, limit).iter().map(|overlap| overlap.id).collect::<Vec<_>>()
        };
        assert_eq!(ids(None, None, 10), [4, 3, 1]);
        assert_eq!(ids(None, None, 2), [4, 3]);
        assert_eq!(ids(None, Some(3), 2), [1]);
        assert_eq!(ids(Some("shop"), None, 10), [4, 1]);
    }

    #[test]
    fn the_oldest_overlap_of_the_app_that_has_the_most_is_removed() {
        let noticed = RecentOverlaps::default();
        noticed.add(overlap(30_000, "bank"));
        for id in 1..OVERLAPS_MAX as u64 {
            assert_eq!(noticed.add(overlap(id, "shop")), Some(vec![]));
        }
        assert_eq!(noticed.add(overlap(20_000, "shop")), Some(vec![1]));
        let bank = "bank".parse().unwrap();
        assert_eq!(noticed.newest(Some(&bank), None, usize::MAX).len(), 1);
        assert_eq!(noticed.newest(None, None, usize::MAX).len(), OVERLAPS_MAX);
    }
}
