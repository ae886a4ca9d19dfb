//! The local record: what this process knows of claims without asking their store. What waits for the store is always in it;
//! what passed through is remembered for apps with the policy `local` only. All apps share one bound: where it is reached, the
//! app that has the most in memory gives way, so an app loses nothing by what others do.

mod app;
#[cfg(test)]
mod tests;

use std::collections::BTreeMap;
use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::Duration;

use hashbrown::{HashMap, HashSet};

use self::app::{AppClaims, CLAIM_BYTES};
use super::super::journal::entry::{Entry, Seq};
use crate::domain::attempt::Attempt;
use crate::domain::claim::{
    self, ClaimRequest, ClaimResponse, Effect, OutcomeRequest, OutcomeResponse, RenewalRequest, RenewalResponse,
};
use crate::domain::outage_policy::OutagePolicy;
use crate::domain::record::{ClaimState, Contents, Key, LiveClaim, Record};
use crate::domain::share::heaviest;
use crate::domain::tenant::AppKey;
use crate::domain::terms::{LeaseEnd, Retention, Terms};

/// Approximate size of all claims that are remembered and no entry waits for: about 100 000 small ones. Why, in
/// `docs/adr/0034-shares-of-apps.md`.
const REMEMBERED_BYTES_MAX: usize = 64 << 20;

/// The claims that this process knows of. Instants are those of its own monotonic clock.
pub(super) struct Book {
    pages: Mutex<Pages>,
    waiting: AtomicUsize,
    has_local: AtomicBool,
}

struct Pages {
    apps: HashMap<AppKey, AppClaims>,
    /// Every entry that waits, and whose claim it is of.
    waiting: BTreeMap<Seq, Key>,
    /// Approximate size of what is remembered of all apps.
    bytes: usize,
    bytes_max: usize,
}

/// A claim that stands as far as this process knows.
#[derive(Clone, Debug)]
pub(super) struct Standing {
    record: Record,
    ends_at: Option<Duration>,
    /// The policy that granted it, until the store has been told.
    pub(super) granted_by: Option<OutagePolicy>,
}

impl Standing {
    /// A claim that ends at this instant, or never by itself.
    pub(super) fn new(record: Record, ends_at: Option<Duration>, granted_by: Option<OutagePolicy>) -> Self {
        Self { record, ends_at, granted_by }
    }

    fn held(&self, now: Duration) -> Option<LiveClaim> {
        let left = self.ends_at.map(|ends_at| ends_at.saturating_sub(now));
        LiveClaim::judge(self.record.clone(), left, None)
    }

    /// Whether the claim may still be in progress in the store: it is here, or its lease ended here, which may have been
    /// extended through another gateway. A claim that was reported as unknown has an end.
    fn is_in_progress_elsewhere(&self) -> bool {
        let Record { state, terms, .. } = &self.record;
        let lease_ended =
            *state == ClaimState::Unknown && terms.on_lease_end == LeaseEnd::Unknown && self.ends_at.is_none();
        *state == ClaimState::InProgress || lease_ended
    }

    fn bytes(&self) -> usize {
        let result = self.record.result.as_ref().map_or(0, |result| result.len());
        CLAIM_BYTES + usize::try_from(self.record.contents.stored_bytes()).unwrap_or(usize::MAX / 2) + result
    }
}

impl Default for Book {
    fn default() -> Self {
        Self::bounded(REMEMBERED_BYTES_MAX)
    }
}

impl Book {
    /// A record that remembers about so many bytes.
    fn bounded(bytes_max: usize) -> Self {
        let pages = Pages { apps: HashMap::new(), waiting: BTreeMap::new(), bytes: 0, bytes_max };
        Self { pages: Mutex::new(pages), waiting: AtomicUsize::new(0), has_local: AtomicBool::new(false) }
    }

    /// Whether anything waits for the store. The one thing a call looks at while all is well.
    pub(super) fn has_waiting(&self) -> bool {
        self.waiting.load(Ordering::Acquire) > 0
    }

    /// Whether something waits on this key.
    pub(super) fn waits(&self, key: &Key) -> bool {
        self.has_waiting() && self.pages().app(key).is_some_and(|app| app.waiting(&key.global_id).is_some())
    }

    /// What waits on this key, in order.
    pub(super) fn queue(&self, key: &Key) -> Vec<(Seq, Arc<Entry>)> {
        let pages = self.pages();
        let waiting = pages.app(key).and_then(|app| app.waiting(&key.global_id));
        waiting.map(|waiting| waiting.iter().cloned().collect()).unwrap_or_default()
    }

    /// The keys on which something waits, by their oldest entry, apps in turn: one with many entries holds nobody up.
    pub(super) fn keys_waiting(&self) -> Vec<Key> {
        let pages = self.pages();
        let (mut seen, mut of_app) = (HashSet::new(), HashMap::new());
        let mut keys = Vec::new();
        for key in pages.waiting.values().filter(|key| seen.insert(*key)) {
            let place: &mut usize = of_app.entry(&key.app).or_default();
            keys.push((*place, key));
            *place += 1;
        }
        keys.sort_by_key(|(place, _)| *place);
        keys.into_iter().map(|(_, key)| key.clone()).collect()
    }

    /// The claim that stands.
    pub(super) fn held(&self, key: &Key, now: Duration) -> Option<LiveClaim> {
        self.pages().standing(key)?.held(now)
    }

    /// The record of this attempt, whether or not its time has ended.
    pub(super) fn last_of(&self, key: &Key, attempt: &Attempt) -> Option<Record> {
        let pages = self.pages();
        let standing = pages.app(key)?.standing_of(&key.global_id, attempt)?;
        Some(standing.record.clone())
    }

    /// Whether an app decides locally, as far as was seen.
    pub(super) fn is_local(&self, app: &AppKey) -> bool {
        self.has_local.load(Ordering::Acquire) && self.pages().decides_locally(app)
    }

    /// The policy that granted the claim that stands, if the store does not know of it.
    pub(super) fn granted_by(&self, key: &Key) -> Option<OutagePolicy> {
        self.pages().standing(key)?.granted_by
    }

    /// Whether some claim of the app may stand that there was no room to remember.
    pub(super) fn is_blind(&self, app: &AppKey, now: Duration) -> bool {
        self.pages().apps.get(app).is_some_and(|app| app.is_blind(now))
    }

    /// Adds an entry that the journal has, and what stands after it.
    pub(super) fn add(&self, seq: Seq, entry: Arc<Entry>, effect: Written, now: Duration) {
        let mut pages = self.pages();
        let key = entry.key().clone();
        if entry.policy == OutagePolicy::Local {
            // What was granted here has to be remembered after the store was told of it, as it may go again.
            self.has_local.store(true, Ordering::Release);
        }
        pages.change(&key.app, now, |app| {
            app.decides_locally |= entry.policy == OutagePolicy::Local;
            app.add(seq, entry, effect);
        });
        pages.waiting.insert(seq, key);
        self.count(&pages);
    }

    /// Takes entries away that the store has been told of. `theirs` is what the store was found to hold instead.
    pub(super) fn delivered(&self, key: &Key, seqs: &[Seq], theirs: Option<&LiveClaim>, now: Duration) {
        let mut pages = self.pages();
        for seq in seqs {
            pages.waiting.remove(seq);
        }
        pages.change(&key.app, now, |app| app.delivered(key.global_id, seqs, theirs, now));
        self.count(&pages);
    }

    /// Remembers what the store said to a claim of an app that decides locally.
    pub(super) fn learn_claim(&self, request: &ClaimRequest, answer: &ClaimResponse, now: Duration) {
        self.has_local.store(true, Ordering::Release);
        self.pages().change(&request.key.app, now, |app| {
            app.decides_locally = true;
            match answer {
                ClaimResponse::Granted(grant) => {
                    let record = Record { attempt: grant.attempt.clone(), ..request.record() };
                    let left = grant.lease_left.unwrap_or(request.terms.lease);
                    app.remember(request.key.global_id, record, Some(left), now);
                }
                // Responses may arrive out of order: one from before a grant or a renewal must not hide it.
                ClaimResponse::Duplicate(held) if is_outlasted(held, app.standing(&request.key.global_id), now) => {}
                ClaimResponse::Duplicate(held) => {
                    app.remember(request.key.global_id, held.record.clone(), held.left, now);
                }
                ClaimResponse::Mismatch(_) => {}
            }
        });
    }

    /// Remembers what the store said to an outcome, where its app decides locally.
    pub(super) fn learn_settle(&self, request: &OutcomeRequest, answer: &OutcomeResponse, now: Duration) {
        let mut pages = self.pages();
        if !pages.decides_locally(&request.key.app) {
            return;
        }
        let id = request.key.global_id;
        pages.change(&request.key.app, now, |app| {
            let own = app.standing_of(&id, &request.attempt);
            match (answer, own.and_then(|standing| standing.held(now))) {
                (OutcomeResponse::Done { state: None, .. }, Some(_)) => app.forget(id),
                (OutcomeResponse::Done { state: Some(_), left, .. }, held) => {
                    let record = match claim::settle(held.as_ref(), request).0 {
                        Effect::Put(record, _) => Some(record),
                        _ => held.map(|held| held.record),
                    };
                    if let Some(record) = record {
                        app.remember(id, record, *left, now);
                    }
                }
                _ => {}
            }
        });
    }

    /// Remembers what the store said to a renewal, where its app decides locally.
    pub(super) fn learn_renew(&self, request: &RenewalRequest, answer: &RenewalResponse, now: Duration) {
        let RenewalResponse::Renewed { left } = answer else { return };
        let mut pages = self.pages();
        if !pages.decides_locally(&request.key.app) {
            return;
        }
        let id = request.key.global_id;
        pages.change(&request.key.app, now, |app| {
            let record = match app.standing(&id) {
                Some(own) if own.record.attempt == request.attempt && own.is_in_progress_elsewhere() => {
                    Record { state: ClaimState::InProgress, ..own.record.clone() }
                }
                // Another has claimed since this answer was given, or the outcome has come.
                Some(other) if other.held(now).is_some() => return,
                _ => only_renewed(request, *left),
            };
            app.remember(id, record, Some(*left), now);
        });
    }

    fn count(&self, pages: &Pages) {
        self.waiting.store(pages.waiting.len(), Ordering::Release);
    }

    /// Poisoned: some call panicked, in code that leaves the pages whole at every step.
    fn pages(&self) -> MutexGuard<'_, Pages> {
        self.pages.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

impl Pages {
    fn app(&self, key: &Key) -> Option<&AppClaims> {
        self.apps.get(&key.app)
    }

    fn standing(&self, key: &Key) -> Option<&Standing> {
        self.app(key)?.standing(&key.global_id)
    }

    fn decides_locally(&self, app: &AppKey) -> bool {
        self.apps.get(app).is_some_and(|app| app.decides_locally)
    }

    /// Changes what is known of an app, and makes room where that is too much.
    fn change(&mut self, key: &AppKey, now: Duration, change: impl FnOnce(&mut AppClaims)) {
        let app = self.apps.entry_ref(key).or_default();
        let before = app.bytes();
        change(app);
        app.sweep(now);
        self.bytes = self.bytes - before + app.bytes();
        if app.is_empty() {
            self.apps.remove(key);
        }
        if self.bytes > self.bytes_max {
            self.make_room(now);
        }
    }

    /// Forgets what has ended, and then claims of the app that has the most, until the rest is within the bound.
    fn make_room(&mut self, now: Duration) {
        self.apps.values_mut().for_each(|app| app.sweep(now));
        self.bytes = self.apps.values().map(AppClaims::bytes).sum();
        while self.bytes > self.bytes_max {
            let largest = heaviest(self.apps.iter().map(|(key, app)| (key, app.bytes()))).cloned();
            let Some(app) = largest.and_then(|key| self.apps.get_mut(&key)) else { return };
            let before = app.bytes();
            app.forget_one();
            self.bytes = self.bytes - before + app.bytes();
        }
    }
}

/// A claim of which nothing has passed through but a renewal, or of which the lease seemed to have ended: what it is about
/// is not known here, nor its terms. They say nothing while it is in progress, and its outcome brings its own.
fn only_renewed(request: &RenewalRequest, left: Duration) -> Record {
    let day = Retention::For(Duration::from_hours(24));
    Record {
        attempt: request.attempt.clone(),
        state: ClaimState::InProgress,
        operation: None,
        contents: Contents::Unverified,
        fingerprint: None,
        terms: Terms { lease: left, retention: day, unknown_retention: day, on_lease_end: LeaseEnd::Release },
        result: None,
        late: true,
    }
}

/// Whether a claim in progress is known that lasts longer than this one.
fn is_outlasted(held: &LiveClaim, standing: Option<&Standing>, now: Duration) -> bool {
    let is_in_progress = |claim: &LiveClaim| claim.record.state == ClaimState::InProgress;
    let known = standing.and_then(|standing| standing.held(now)).filter(is_in_progress);
    is_in_progress(held) && known.is_some_and(|known| known.left > held.left)
}

/// What an entry does to the claim that stands.
#[derive(Debug)]
pub(super) enum Written {
    /// This stands now.
    Stands(Box<Standing>),
    /// What stands ends then.
    EndsAt(Duration),
    /// Nothing stands.
    Gone,
    /// What stood.
    AsBefore,
}
