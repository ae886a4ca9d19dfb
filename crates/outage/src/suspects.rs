//! The newest suspects, each once. At most 10 000 of an app are kept, the oldest are removed first.

use std::cmp::Reverse;
use std::sync::{Mutex, MutexGuard, PoisonError};

use hashbrown::{HashMap, HashSet};
use oncegate_core::attempt::AttemptHash;
use oncegate_core::clock::Timestamp;
use oncegate_core::record::ClaimId;
use oncegate_core::share::Newest;
use oncegate_core::suspect::{Check, Suspect, SuspectFilter, SuspectKind, UncheckedSuspects};
use oncegate_core::tenant::AppKey;

/// Most suspects that are kept of an app.
const APP_MAX: usize = 10_000;

/// Most suspects that are kept of all apps.
const MAX: usize = 100_000;

/// The newest suspects.
pub(super) struct Suspects(Mutex<Inner>);

struct Inner {
    suspects: Newest<Suspect>,
    known: HashSet<Identity>,
}

/// Two suspects with the same identity are one.
type Identity = (AppKey, ClaimId, AttemptHash, Option<AttemptHash>);

/// Effect of a new suspect on the list.
#[derive(PartialEq, Eq, Debug)]
pub(super) enum Added {
    /// Already in the list.
    Known,
    /// New, and has displaced this one, if any.
    New(Option<Suspect>),
}

impl Default for Suspects {
    fn default() -> Self {
        Self(Mutex::new(Inner { suspects: Newest::bounded(MAX, APP_MAX), known: HashSet::new() }))
    }
}

impl Suspects {
    pub(super) fn add(&self, suspect: Suspect) -> Added {
        let mut kept = self.lock();
        if !kept.known.insert(identity(&suspect)) {
            return Added::Known;
        }
        let app = suspect.app.clone();
        let gone = kept.suspects.push(&app, suspect);
        if let Some(gone) = &gone {
            kept.known.remove(&identity(gone));
        }
        Added::New(gone)
    }

    /// Returns at most so many suspects, in the order of the filter.
    pub(super) fn find(&self, filter: &SuspectFilter, limit: usize) -> Vec<Suspect> {
        let kept = self.lock();
        let wanted = |suspect: &&Suspect| {
            filter.app.as_ref().is_none_or(|app| suspect.app == *app)
                && filter
                    .after
                    .is_none_or(|after| if filter.oldest_first { suspect.id > after } else { suspect.id < after })
                && filter.checked.is_none_or(|checked| suspect.checked.is_some() == checked)
                && (filter.kinds.is_empty() || filter.kinds.contains(&suspect.cause.kind()))
        };
        let mut found: Vec<_> = kept.suspects.iter().filter(wanted).collect();
        found.sort_unstable_by_key(|suspect| Reverse(suspect.id));
        if filter.oldest_first {
            found.reverse();
        }
        found.into_iter().take(limit).cloned().collect()
    }

    /// Counts the suspects that no operator has checked, by app and kind.
    pub(super) fn unchecked(&self) -> Vec<UncheckedSuspects> {
        let kept = self.lock();
        let mut counts: HashMap<(&AppKey, SuspectKind), (usize, Timestamp)> = HashMap::new();
        for suspect in kept.suspects.iter().filter(|suspect| suspect.checked.is_none()) {
            let (count, oldest_at) =
                counts.entry((&suspect.app, suspect.cause.kind())).or_insert((0, suspect.noticed_at));
            *count += 1;
            *oldest_at = suspect.noticed_at.min(*oldest_at);
        }
        let counted = |((app, kind), (count, oldest_at)): ((&AppKey, _), _)| UncheckedSuspects {
            app: app.clone(),
            kind,
            count,
            oldest_at,
        };
        counts.into_iter().map(counted).collect()
    }

    /// Returns the suspect of a number.
    pub(super) fn get(&self, id: u64) -> Option<Suspect> {
        self.lock().suspects.iter().find(|suspect| suspect.id == id).cloned()
    }

    /// Sets the findings of an operator. Returns the suspect with them.
    pub(super) fn check(&self, id: u64, check: Check) -> Option<Suspect> {
        let mut kept = self.lock();
        let suspect = kept.suspects.iter_mut().find(|suspect| suspect.id == id)?;
        suspect.checked = Some(check);
        Some(suspect.clone())
    }

    fn lock(&self) -> MutexGuard<'_, Inner> {
        self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

/// The same two attempts are one overlap, in either order. An attempt is suspected of a double execution once.
fn identity(suspect: &Suspect) -> Identity {
    let (ours, theirs) = match (suspect.cause.kind(), suspect.theirs) {
        (SuspectKind::Overlap, Some(theirs)) if suspect.ours.timestamp <= theirs.timestamp => {
            (suspect.ours, Some(theirs))
        }
        (SuspectKind::Overlap, Some(theirs)) => (theirs, Some(suspect.ours)),
        _ => (suspect.ours, None),
    };
    let id = ClaimId { realm: suspect.realm, global_id: suspect.global_id };
    (suspect.app.clone(), id, ours.hash, theirs.map(|theirs| theirs.hash))
}

#[cfg(test)]
mod tests {
    use oncegate_core::engine::conformance::fresh_claim;
    use oncegate_core::outage_policy::OutagePolicy;
    use oncegate_core::record::ClaimState;
    use oncegate_core::suspect::{Cause, Found, MaskedAttempt, Superseded};

    use super::*;

    fn overlap(id: u64, app: &str) -> Suspect {
        let request = fresh_claim();
        Suspect {
            id,
            cause: Cause::Overlap(OutagePolicy::Spool),
            app: app.parse().unwrap(),
            operation: None,
            realm: request.key.realm,
            global_id: request.key.global_id,
            ours: MaskedAttempt::from(&request.attempt),
            theirs: Some(MaskedAttempt::from(&fresh_claim().attempt)),
            state: Some(ClaimState::InProgress),
            noticed_at: request.attempt.timestamp(),
            checked: None,
        }
    }

    fn double(id: u64, app: &str) -> Suspect {
        Suspect { cause: Cause::Double(Superseded::SupersededSuccess), theirs: None, state: None, ..overlap(id, app) }
    }

    #[test]
    fn each_suspect_is_kept_once_and_listed_newest_first_in_pages() {
        let suspects = Suspects::default();
        let first = overlap(1, "shop");
        assert_eq!(suspects.add(first.clone()), Added::New(None));
        let (ours, theirs) = (first.ours, first.theirs.unwrap());
        let turned = Suspect { id: 2, ours: theirs, theirs: Some(ours), ..first.clone() };
        assert_eq!(suspects.add(turned), Added::Known);
        let also = Suspect { id: 3, cause: double(0, "shop").cause, ..first };
        assert_eq!(suspects.add(also.clone()), Added::New(None), "of another kind");
        assert_eq!(suspects.add(Suspect { id: 4, theirs: None, ..also }), Added::Known, "reported again");
        suspects.add(overlap(5, "bank"));
        suspects.add(double(6, "shop"));
        let check = Check {
            found: Found::Once,
            reason: "x".into(),
            who: "alice".into(),
            checked_at: Timestamp::from_micros(1),
        };
        assert_eq!(suspects.check(6, check.clone()).unwrap().checked, Some(check.clone()));
        assert_eq!(suspects.check(7, check), None);
        assert_eq!(suspects.get(5).unwrap().app.as_ref(), "bank");
        let ids = |filter: &SuspectFilter, limit| {
            suspects.find(filter, limit).iter().map(|suspect| suspect.id).collect::<Vec<_>>()
        };
        let all = SuspectFilter::default();
        assert_eq!((ids(&all, 10), ids(&all, 2)), (vec![6, 5, 3, 1], vec![6, 5]));
        assert_eq!(ids(&SuspectFilter { after: Some(5), ..all.clone() }, 2), [3, 1]);
        let oldest = SuspectFilter { oldest_first: true, ..all.clone() };
        assert_eq!(ids(&oldest, 2), [1, 3]);
        assert_eq!(ids(&SuspectFilter { after: Some(3), ..oldest }, 2), [5, 6]);
        assert_eq!(ids(&SuspectFilter { app: Some("shop".parse().unwrap()), ..all.clone() }, 10), [6, 3, 1]);
        assert_eq!(ids(&SuspectFilter { kinds: vec![SuspectKind::Double], ..all.clone() }, 10), [6, 3]);
        assert_eq!(ids(&SuspectFilter { checked: Some(true), ..all.clone() }, 10), [6]);
        assert_eq!(ids(&SuspectFilter { checked: Some(false), ..all }, 10), [5, 3, 1]);
    }

    #[test]
    fn what_nobody_has_checked_is_counted_by_app_and_kind() {
        let suspects = Suspects::default();
        let at = |micros| Timestamp::from_micros(micros);
        for (id, noticed_at, suspect) in [
            (1, 20, overlap(1, "shop")),
            (2, 10, overlap(2, "shop")),
            (3, 30, double(3, "shop")),
            (4, 40, overlap(4, "bank")),
        ] {
            suspects.add(Suspect { id, noticed_at: at(noticed_at), ..suspect });
        }
        let check = Check { found: Found::Once, reason: "x".into(), who: "alice".into(), checked_at: at(50) };
        suspects.check(4, check).unwrap();
        let mut counted: Vec<_> =
            suspects.unchecked().into_iter().map(|of| (of.count, of.oldest_at, of.kind)).collect();
        counted.sort_unstable_by_key(|(count, ..)| *count);
        assert_eq!(counted, [(1, at(30), SuspectKind::Double), (2, at(10), SuspectKind::Overlap)]);
    }

    #[test]
    fn the_oldest_suspect_of_an_app_with_too_many_is_removed() {
        let suspects = Suspects::default();
        suspects.add(overlap(30_000, "bank"));
        for id in 1..=APP_MAX as u64 {
            assert_eq!(suspects.add(overlap(id, "shop")), Added::New(None));
        }
        let Added::New(Some(gone)) = suspects.add(overlap(20_000, "shop")) else { panic!("it has too many") };
        assert_eq!(gone.id, 1);
        assert_eq!(suspects.find(&SuspectFilter::default(), usize::MAX).len(), APP_MAX + 1);
    }
}
