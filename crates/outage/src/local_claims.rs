//! Local claims: the claims that this process knows without a call to their store. Claims with waiting entries are always among
//! them; others are remembered for apps with the policy `local` only. All apps share one bound: when it is reached, the app that
//! uses the most memory loses claims, so no app loses claims because of others.

mod app;
mod local_claim;
#[cfg(test)]
mod tests;

use std::collections::BTreeMap;
use std::ops::Bound;
use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::Duration;

use hashbrown::{HashMap, HashSet};
use oncegate_core::attempt::Attempt;
use oncegate_core::claim::{
    self, ClaimRequest, ClaimResponse, Effect, OutcomeRequest, OutcomeResponse, RenewalRequest, RenewalResponse,
};
use oncegate_core::outage_policy::OutagePolicy;
use oncegate_core::record::{ClaimState, Contents, Key, LiveClaim, Record};
use oncegate_core::share::heaviest;
use oncegate_core::spool::SpoolFilter;
use oncegate_core::tenant::AppKey;
use oncegate_core::terms::{LeaseEnd, Retention, Terms};

use self::app::AppClaims;
use self::local_claim::ClaimAnswer;
use oncegate_core::outage::entry::{Entry, Seq};

pub(super) use self::local_claim::{LocalClaim, LocalEffect};

/// Bound on the approximate size of remembered claims without waiting entries: about 100 000 small ones. See
/// `docs/adr/0034-shares-of-apps.md`.
const REMEMBERED_BYTES_MAX: usize = 64 << 20;

/// The claims that this process knows. Instants are of its monotonic clock.
pub(super) struct LocalClaims {
    inner: Mutex<Inner>,
    waiting: AtomicUsize,
    has_local: AtomicBool,
}

struct Inner {
    apps: HashMap<AppKey, AppClaims>,
    /// The waiting entries, with the keys of their claims.
    waiting: BTreeMap<Seq, Key>,
    /// Approximate size of the remembered claims of all apps.
    bytes: usize,
    bytes_max: usize,
}

impl Default for LocalClaims {
    fn default() -> Self {
        Self::bounded(REMEMBERED_BYTES_MAX)
    }
}

impl LocalClaims {
    /// Creates local claims with this bound.
    fn bounded(bytes_max: usize) -> Self {
        let inner = Inner { apps: HashMap::new(), waiting: BTreeMap::new(), bytes: 0, bytes_max };
        Self { inner: Mutex::new(inner), waiting: AtomicUsize::new(0), has_local: AtomicBool::new(false) }
    }

    /// Reports whether any entry waits for the store. While the store is available, calls check nothing else.
    pub(super) fn has_waiting(&self) -> bool {
        self.waiting.load(Ordering::Acquire) > 0
    }

    /// Reports whether entries wait on this key.
    pub(super) fn has_waiting_on(&self, key: &Key) -> bool {
        self.has_waiting() && self.inner().app(key).is_some_and(|app| app.waiting(&key.id()).is_some())
    }

    /// Returns the entries that wait on this key, in order.
    pub(super) fn waiting_on(&self, key: &Key) -> Vec<(Seq, Arc<Entry>)> {
        let inner = self.inner();
        let waiting = inner.app(key).and_then(|app| app.waiting(&key.id()));
        waiting.map(|waiting| waiting.iter().cloned().collect()).unwrap_or_default()
    }

    /// Returns the keys with waiting entries: one key of each app after another, oldest entries first. So an app with
    /// many entries does not delay the others.
    pub(super) fn keys_waiting(&self) -> Vec<Key> {
        let inner = self.inner();
        let (mut seen, mut of_app) = (HashSet::new(), HashMap::new());
        let mut keys = Vec::new();
        for key in inner.waiting.values().filter(|key| seen.insert(*key)) {
            let place: &mut usize = of_app.entry(&key.app).or_default();
            keys.push((*place, key));
            *place += 1;
        }
        keys.sort_by_key(|(place, _)| *place);
        keys.into_iter().map(|(_, key)| key.clone()).collect()
    }

    /// Returns up to `limit` waiting entries that pass the filter, oldest first.
    pub(super) fn waiting(&self, filter: &SpoolFilter, limit: usize) -> Vec<(Seq, Arc<Entry>)> {
        let inner = self.inner();
        let after = filter.after.map_or(Bound::Unbounded, Bound::Excluded);
        let passing =
            inner.waiting.range((after, Bound::Unbounded)).filter(|(seq, key)| filter.passes(**seq, &key.app));
        let entry = |(seq, key): (&Seq, &Key)| {
            let waiting = inner.app(key)?.waiting(&key.id())?;
            let place = waiting.binary_search_by_key(seq, |(seq, _)| *seq).ok()?;
            waiting.get(place).cloned()
        };
        passing.filter_map(entry).take(limit).collect()
    }

    /// Returns the live claim of a key.
    pub(super) fn live_claim(&self, key: &Key, now: Duration) -> Option<LiveClaim> {
        self.inner().claim(key)?.live(now)
    }

    /// Returns the record of this attempt, even if it has ended.
    pub(super) fn record_of(&self, key: &Key, attempt: &Attempt) -> Option<Record> {
        let inner = self.inner();
        let claim = inner.app(key)?.claim_of(&key.id(), attempt)?;
        Some(claim.record.clone())
    }

    /// Reports whether an app has used the policy `local`.
    pub(super) fn decides_locally(&self, app: &AppKey) -> bool {
        self.has_local.load(Ordering::Acquire) && self.inner().decides_locally(app)
    }

    /// Returns the policy that granted the claim, until the grant is delivered.
    pub(super) fn granted_by(&self, key: &Key) -> Option<OutagePolicy> {
        self.inner().claim(key)?.granted_by
    }

    /// Reports whether a live claim of the app may have been forgotten for lack of room.
    pub(super) fn has_forgotten(&self, app: &AppKey, now: Duration) -> bool {
        self.inner().apps.get(app).is_some_and(|app| app.has_forgotten(now))
    }

    /// Adds an entry that is in the journal, and its effect on the claim.
    pub(super) fn add(&self, seq: Seq, entry: Arc<Entry>, effect: LocalEffect, now: Duration) {
        let mut inner = self.inner();
        let key = entry.key().clone();
        if entry.policy == OutagePolicy::Local {
            // Grants of this gateway are remembered after delivery, since the store may become unavailable again.
            self.has_local.store(true, Ordering::Release);
        }
        inner.change(&key.app, now, |app| {
            app.decides_locally |= entry.policy == OutagePolicy::Local;
            app.add(seq, entry, effect, now);
        });
        inner.waiting.insert(seq, key);
        self.count(&inner);
    }

    /// Removes delivered entries. `theirs` is the claim that the store holds instead.
    pub(super) fn remove_delivered(&self, key: &Key, seqs: &[Seq], theirs: Option<&LiveClaim>, now: Duration) {
        let mut inner = self.inner();
        for seq in seqs {
            inner.waiting.remove(seq);
        }
        inner.change(&key.app, now, |app| app.remove_delivered(key.id(), seqs, theirs, now));
        self.count(&inner);
    }

    /// Remembers the store's response to a claim call of an app with the policy `local`, and when the call was sent.
    pub(super) fn remember_claim(
        &self,
        request: &ClaimRequest,
        answer: &ClaimResponse,
        sent_at: Duration,
        now: Duration,
    ) {
        self.has_local.store(true, Ordering::Release);
        self.inner().change(&request.key.app, now, |app| {
            app.decides_locally = true;
            let id = request.key.id();
            let Some(answer) = ClaimAnswer::new(request, answer, sent_at) else { return };
            if !app.claim(&id).is_some_and(|known| known.outlives(&answer, now)) {
                app.remember(id, answer.record, answer.left, now);
            }
        });
    }

    /// Remembers the store's response to an outcome, if its app uses the policy `local`.
    pub(super) fn remember_outcome(&self, request: &OutcomeRequest, answer: &OutcomeResponse, now: Duration) {
        let mut inner = self.inner();
        if !inner.decides_locally(&request.key.app) {
            return;
        }
        let id = request.key.id();
        inner.change(&request.key.app, now, |app| {
            let own = app.claim_of(&id, &request.attempt);
            match (answer, own.and_then(|claim| claim.live(now))) {
                // A success was accepted after this answer: the store replaces none.
                (OutcomeResponse::Done { state, .. }, Some(LiveClaim { record, .. }))
                    if record.state == ClaimState::Succeeded && *state != Some(ClaimState::Succeeded) => {}
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

    /// Remembers the store's response to a renewal, if its app uses the policy `local`.
    pub(super) fn remember_renewal(&self, request: &RenewalRequest, answer: &RenewalResponse, now: Duration) {
        let RenewalResponse::Renewed { left, .. } = answer else { return };
        let mut inner = self.inner();
        if !inner.decides_locally(&request.key.app) {
            return;
        }
        let id = request.key.id();
        inner.change(&request.key.app, now, |app| {
            let record = match app.claim(&id) {
                // The store may hold the attempt of another gateway that granted the same nonce.
                Some(own)
                    if own.record.attempt.nonce() == request.attempt.nonce() && own.is_in_progress_elsewhere() =>
                {
                    let attempt = request.attempt.clone();
                    Record { attempt, state: ClaimState::InProgress, ..own.record.clone() }
                }
                // Another attempt has claimed since this response, or the outcome was reported.
                Some(other) if other.live(now).is_some() => return,
                _ => only_renewed(request, *left),
            };
            app.remember(id, record, Some(*left), now);
        });
    }

    fn count(&self, inner: &Inner) {
        self.waiting.store(inner.waiting.len(), Ordering::Release);
    }

    /// Ignores poisoning: the state is consistent at every step, also where a call panics.
    fn inner(&self) -> MutexGuard<'_, Inner> {
        self.inner.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

impl Inner {
    fn app(&self, key: &Key) -> Option<&AppClaims> {
        self.apps.get(&key.app)
    }

    fn claim(&self, key: &Key) -> Option<&LocalClaim> {
        self.app(key)?.claim(&key.id())
    }

    fn decides_locally(&self, app: &AppKey) -> bool {
        self.apps.get(app).is_some_and(|app| app.decides_locally)
    }

    /// Changes the claims of an app, and makes room if the bound is exceeded.
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

    /// Forgets ended claims, and then claims of the app that uses the most memory, until the rest is within the bound.
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

/// Returns the record of a claim that is known here only by a renewal. Its contents and terms are unknown: they do not matter
/// while it is in progress, and its outcome carries its own.
fn only_renewed(request: &RenewalRequest, left: Duration) -> Record {
    let day = Retention::For(Duration::from_hours(24));
    Record {
        attempt: request.attempt.clone(),
        state: ClaimState::InProgress,
        operation: None,
        caller: None,
        contents: Contents::Unverified,
        fingerprint: None,
        terms: Terms { lease: left, retention: day, unknown_retention: day, on_lease_end: LeaseEnd::Release },
        result: None,
        late: true,
        taken_over: false,
    }
}
