//! The local record: what this process knows of claims without asking their store. What waits for the store is always in it;
//! what passed through is remembered for the policy `local` only, and up to a bound.

use std::collections::{BTreeMap, BTreeSet, VecDeque};
use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::Duration;

use hashbrown::{HashMap, HashSet};

use super::super::journal::entry::{Entry, Seq};
use crate::domain::attempt::Attempt;
use crate::domain::claim::{self, Claim, Claimed, Effect, Renew, Renewed, Settle, Settled};
use crate::domain::degraded::Degraded;
use crate::domain::record::{Contents, Held, Key, Record, State};
use crate::domain::tenant::AppKey;
use crate::domain::terms::{LeaseEnd, Retention, Terms};

/// How many claims are remembered that no entry waits for, and how many bytes they may take, about. Why, in
/// `docs/adr/0018-policies.md`.
pub(super) const REMEMBERED_MAX: usize = 100_000;
const REMEMBERED_BYTES_MAX: usize = 64 << 20;

/// What a page takes beyond its record's texts, about.
const PAGE_BYTES: usize = 400;

/// The claims that this process knows of. Instants are those of its own monotonic clock.
#[derive(Default)]
pub(super) struct Book {
    pages: Mutex<Pages>,
    waiting: AtomicUsize,
    has_local: AtomicBool,
}

#[derive(Default)]
struct Pages {
    by_key: HashMap<Key, Page>,
    /// When each claim ends that does so by itself, soonest first.
    ends: BTreeSet<(Duration, Key)>,
    /// Every entry that waits, and whose page it is on.
    waiting: BTreeMap<Seq, Key>,
    /// Settled claims, oldest first: they go first. Holds stale keys too.
    settled: VecDeque<Key>,
    /// Pages that no entry waits on, and what all pages take, in bytes.
    remembered: usize,
    bytes: usize,
    /// Until then some claim may stand that there was no room to remember.
    blind_until: Duration,
    /// Apps that decide locally.
    local_apps: HashSet<AppKey>,
}

/// What is known of one claim.
#[derive(Default)]
struct Page {
    standing: Option<Standing>,
    /// What the store has not been told, in order.
    waiting: VecDeque<(Seq, Arc<Entry>)>,
    /// Whether it is remembered when nothing waits on it any more.
    remembered: bool,
}

/// A claim that stands as far as this process knows.
#[derive(Clone, Debug)]
pub(super) struct Standing {
    record: Record,
    ends_at: Option<Duration>,
    /// The policy that granted it, until the store has been told.
    pub(super) granted_by: Option<Degraded>,
}

impl Standing {
    /// A claim that ends at this instant, or never by itself.
    pub(super) fn new(record: Record, ends_at: Option<Duration>, granted_by: Option<Degraded>) -> Self {
        Self { record, ends_at, granted_by }
    }

    fn held(&self, now: Duration) -> Option<Held> {
        let left = self.ends_at.map(|ends_at| ends_at.saturating_sub(now));
        Held::judge(self.record.clone(), left, None)
    }

    fn bytes(&self) -> usize {
        let result = self.record.result.as_ref().map_or(0, |result| result.len());
        PAGE_BYTES + usize::try_from(self.record.contents.stored_bytes()).unwrap_or(usize::MAX / 2) + result
    }
}

impl Book {
    /// Whether anything waits for the store. The one thing a call looks at while all is well.
    pub(super) fn has_waiting(&self) -> bool {
        self.waiting.load(Ordering::Acquire) > 0
    }

    /// Whether something waits on this key.
    pub(super) fn waits(&self, key: &Key) -> bool {
        self.has_waiting() && self.pages().by_key.get(key).is_some_and(|page| !page.waiting.is_empty())
    }

    /// What waits on this key, in order.
    pub(super) fn queue(&self, key: &Key) -> Vec<(Seq, Arc<Entry>)> {
        self.pages().by_key.get(key).map(|page| page.waiting.iter().cloned().collect()).unwrap_or_default()
    }

    /// The keys on which something waits, by their oldest entry.
    pub(super) fn keys_waiting(&self) -> Vec<Key> {
        let pages = self.pages();
        let mut seen = HashSet::new();
        pages.waiting.values().filter(|key| seen.insert(*key)).cloned().collect()
    }

    /// The claim that stands.
    pub(super) fn held(&self, key: &Key, now: Duration) -> Option<Held> {
        self.pages().by_key.get(key)?.standing.as_ref()?.held(now)
    }

    /// The record of this attempt, whether or not its time has ended.
    pub(super) fn last_of(&self, key: &Key, attempt: &Attempt) -> Option<Record> {
        let pages = self.pages();
        let standing = pages.standing(key).filter(|standing| standing.record.attempt == *attempt)?;
        Some(standing.record.clone())
    }

    /// Whether an app decides locally, as far as was seen.
    pub(super) fn is_local(&self, app: &AppKey) -> bool {
        self.has_local.load(Ordering::Acquire) && self.pages().local_apps.contains(app)
    }

    /// The policy that granted the claim that stands, if the store does not know of it.
    pub(super) fn granted_by(&self, key: &Key) -> Option<Degraded> {
        self.pages().by_key.get(key)?.standing.as_ref()?.granted_by
    }

    /// Whether some claim may stand that there was no room to remember.
    pub(super) fn is_blind(&self, now: Duration) -> bool {
        now < self.pages().blind_until
    }

    /// Adds an entry that the journal has, and what stands after it.
    pub(super) fn add(&self, seq: Seq, entry: Arc<Entry>, effect: Written, now: Duration) {
        let mut pages = self.pages();
        let key = entry.key().clone();
        if entry.policy == Degraded::Local {
            // What was granted here has to be remembered after the store was told of it, as it may go again.
            self.decides_locally(&mut pages, &key.app);
        }
        pages.change(&key, |page| {
            page.waiting.push_back((seq, entry));
            match effect {
                Written::Stands(standing) => page.standing = Some(*standing),
                Written::EndsAt(ends_at) => {
                    if let Some(standing) = &mut page.standing {
                        standing.ends_at = Some(ends_at);
                    }
                }
                Written::Gone => page.standing = None,
                Written::AsBefore => {}
            }
        });
        pages.waiting.insert(seq, key);
        pages.sweep(now);
        self.count(&pages);
    }

    /// Takes entries away that the store has been told of. `theirs` is what the store was found to hold instead.
    pub(super) fn delivered(&self, key: &Key, seqs: &[Seq], theirs: Option<&Held>, now: Duration) {
        let mut pages = self.pages();
        for seq in seqs {
            pages.waiting.remove(seq);
        }
        pages.change(key, |page| {
            page.waiting.retain(|(seq, _)| !seqs.contains(seq));
            // What waits behind it stands until it is told in its turn.
            if let Some(Held { record, left, .. }) = theirs.filter(|_| page.waiting.is_empty()) {
                page.standing = Some(Standing::new(record.clone(), left.map(|left| now + left), None));
            }
            if page.waiting.is_empty()
                && let Some(standing) = &mut page.standing
            {
                standing.granted_by = None;
            }
        });
        pages.sweep(now);
        self.count(&pages);
    }

    /// Remembers what the store said to a claim of an app that decides locally.
    pub(super) fn learn_claim(&self, ask: &Claim, answer: &Claimed, now: Duration) {
        let mut pages = self.pages();
        self.decides_locally(&mut pages, &ask.key.app);
        match answer {
            Claimed::Granted(grant) => {
                let record = Record { attempt: grant.attempt.clone(), ..ask.record() };
                pages.remember(&ask.key, record, Some(grant.lease_left.unwrap_or(ask.terms.lease)), now);
            }
            Claimed::Duplicate(held) => pages.remember(&ask.key, held.record.clone(), held.left, now),
            Claimed::Mismatch(_) | Claimed::Degraded(..) => {}
        }
    }

    /// Remembers what the store said to an outcome, where its app decides locally.
    pub(super) fn learn_settle(&self, ask: &Settle, answer: &Settled, now: Duration) {
        let mut pages = self.pages();
        if !pages.local_apps.contains(&ask.key.app) {
            return;
        }
        let own = pages.standing(&ask.key).filter(|standing| standing.record.attempt == ask.attempt);
        match (answer, own.and_then(|standing| standing.held(now))) {
            (Settled::Done { state: None, .. }, Some(_)) => pages.forget(&ask.key),
            (Settled::Done { state: Some(_), left, .. }, held) => {
                let record = match claim::settle(held.as_ref(), ask).0 {
                    Effect::Put(record, _) => Some(record),
                    _ => held.map(|held| held.record),
                };
                if let Some(record) = record {
                    pages.remember(&ask.key, record, *left, now);
                }
            }
            _ => {}
        }
    }

    /// Remembers what the store said to a renewal, where its app decides locally.
    pub(super) fn learn_renew(&self, ask: &Renew, answer: &Renewed, now: Duration) {
        let Renewed::Renewed { left } = answer else { return };
        let mut pages = self.pages();
        if !pages.local_apps.contains(&ask.key.app) {
            return;
        }
        let record = match pages.standing(&ask.key) {
            Some(own) if own.record.attempt == ask.attempt && own.record.state == State::InProgress => {
                own.record.clone()
            }
            // Another has claimed since this answer was given, or the outcome has come.
            Some(other) if other.held(now).is_some() => return,
            _ => only_renewed(ask, *left),
        };
        pages.remember(&ask.key, record, Some(*left), now);
    }

    /// From now on remembers the claims of an app.
    fn decides_locally(&self, pages: &mut Pages, app: &AppKey) {
        if !pages.local_apps.contains(app) {
            pages.local_apps.insert(app.clone());
            self.has_local.store(true, Ordering::Release);
        }
    }

    fn count(&self, pages: &Pages) {
        self.waiting.store(pages.waiting.len(), Ordering::Release);
    }

    /// Poisoned: some call panicked, in code that leaves the pages whole at every step.
    fn pages(&self) -> MutexGuard<'_, Pages> {
        self.pages.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

/// A claim of which nothing has passed through but a renewal, or of which the lease seemed to have ended: what it is about
/// is not known here, nor its terms. They say nothing while it is in progress, and its outcome brings its own.
fn only_renewed(ask: &Renew, left: Duration) -> Record {
    let day = Retention::For(Duration::from_hours(24));
    Record {
        attempt: ask.attempt.clone(),
        state: State::InProgress,
        operation: None,
        contents: Contents::Unverified,
        fingerprint: None,
        terms: Terms { lease: left, retention: day, unknown_retention: day, on_lease_end: LeaseEnd::Release },
        result: None,
        late: true,
    }
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

impl Pages {
    fn standing(&self, key: &Key) -> Option<&Standing> {
        self.by_key.get(key)?.standing.as_ref()
    }

    /// Changes a page, which is made if it is not there and taken away if nothing is left on it, and keeps account of it.
    fn change(&mut self, key: &Key, change: impl FnOnce(&mut Page)) {
        let mut page = self.by_key.remove(key).map_or_else(Page::default, |page| {
            self.bytes -= page.bytes();
            self.remembered -= usize::from(page.waiting.is_empty());
            if let Some(ends_at) = page.ends_at() {
                self.ends.remove(&(ends_at, key.clone()));
            }
            page
        });
        let was_settled = page.is_settled();
        change(&mut page);
        page.remembered |= self.local_apps.contains(&key.app);
        if page.waiting.is_empty() && (page.standing.is_none() || !page.remembered) {
            return;
        }
        self.bytes += page.bytes();
        self.remembered += usize::from(page.waiting.is_empty());
        if let Some(ends_at) = page.ends_at() {
            self.ends.insert((ends_at, key.clone()));
        }
        if page.is_settled() && !was_settled {
            self.settled.push_back(key.clone());
        }
        self.by_key.insert(key.clone(), page);
    }

    /// Remembers a claim as its store told of it, if there is room: what waits for the store is never overwritten by what
    /// it says of another.
    fn remember(&mut self, key: &Key, record: Record, left: Option<Duration>, now: Duration) {
        let known = self.by_key.get(key);
        if known.is_some_and(|page| !page.waiting.is_empty()) {
            return;
        }
        let ends_at = left.map(|left| now + left);
        if known.is_none() && !self.has_room(now) {
            if record.state == State::InProgress {
                self.blind_until = self.blind_until.max(ends_at.unwrap_or(Duration::MAX));
            }
            return;
        }
        self.change(key, |page| page.standing = Some(Standing::new(record, ends_at, None)));
    }

    fn forget(&mut self, key: &Key) {
        if self.by_key.get(key).is_some_and(|page| page.waiting.is_empty()) {
            self.change(key, |page| page.standing = None);
        }
    }

    /// Whether one more can be remembered, after what has ended and then the oldest settled claims have made room. A claim
    /// in progress never makes room for another.
    fn has_room(&mut self, now: Duration) -> bool {
        self.sweep(now);
        while self.remembered >= REMEMBERED_MAX || self.bytes >= REMEMBERED_BYTES_MAX {
            let Some(key) = self.settled.pop_front() else { return false };
            if self.by_key.get(&key).is_some_and(Page::is_settled) {
                self.forget(&key);
            }
        }
        // Claims that ended before they made room.
        if self.settled.len() > 2 * REMEMBERED_MAX {
            let by_key = &self.by_key;
            self.settled.retain(|key| by_key.get(key).is_some_and(Page::is_settled));
        }
        true
    }

    /// Takes away what has ended and nothing waits on.
    fn sweep(&mut self, now: Duration) {
        while let Some((ends_at, key)) = self.ends.first().cloned()
            && ends_at <= now
        {
            self.ends.pop_first();
            let waits = self.by_key.get(&key).is_some_and(|page| !page.waiting.is_empty());
            if waits {
                // It goes when nothing waits any more.
                continue;
            }
            let held = self.standing(&key).and_then(|standing| standing.held(now));
            // One that outlives its lease is kept as what it has become.
            let standing = held.map(|held| Standing::new(held.record, held.left.map(|left| now + left), None));
            self.change(&key, |page| page.standing = standing);
        }
    }
}

impl Page {
    fn bytes(&self) -> usize {
        self.standing.as_ref().map_or(0, Standing::bytes)
    }

    fn ends_at(&self) -> Option<Duration> {
        self.standing.as_ref()?.ends_at
    }

    fn is_settled(&self) -> bool {
        self.standing.as_ref().is_some_and(|standing| standing.record.state != State::InProgress)
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::domain::claim::{Grant, Outcome};
    use crate::engine::conformance::fresh_claim;

    const LATER: Duration = Duration::from_secs(1);

    fn granted(ask: &Claim) -> Claimed {
        let attempt = ask.attempt.clone();
        Claimed::Granted(Grant { attempt, fence: Some(1), repeated: false, taken_over: false, lease_left: None })
    }

    fn success(ask: &Claim) -> Settle {
        Settle {
            key: ask.key.clone(),
            attempt: ask.attempt.clone(),
            outcome: Outcome::Success { result: Some("1".into()), retention: None },
            late: None,
            deadline: LATER,
            on_outage: crate::domain::terms::OutcomeOnOutage::FailClosed,
        }
    }

    #[test]
    fn what_passed_through_is_known_until_it_ends() {
        let (book, ask) = (Book::default(), fresh_claim());
        book.learn_claim(&ask, &granted(&ask), Duration::ZERO);
        let held = book.held(&ask.key, LATER).unwrap();
        assert_eq!(
            (held.record.state, held.left, held.fence),
            (State::InProgress, ask.terms.lease.checked_sub(LATER), None)
        );
        let renewed = Renewed::Renewed { left: ask.terms.lease * 2 };
        let renewal = Renew { key: ask.key.clone(), attempt: ask.attempt.clone(), lease: None, deadline: LATER };
        book.learn_renew(&renewal, &renewed, LATER);
        assert_eq!(book.held(&ask.key, LATER).unwrap().left, Some(ask.terms.lease * 2));
        let done = Settled::Done { state: Some(State::Succeeded), left: Some(LATER), late: Some(false) };
        book.learn_settle(&success(&ask), &done, LATER);
        assert_eq!(book.held(&ask.key, LATER).unwrap().record.result.as_deref(), Some("1"));
        assert!(book.held(&ask.key, LATER * 2).is_none());
        let mut pages = book.pages();
        pages.sweep(LATER * 2);
        assert!(pages.by_key.is_empty() && pages.ends.is_empty());
        assert_eq!((pages.bytes, pages.remembered), (0, 0));
    }

    #[test]
    fn what_waits_stands_whatever_the_store_holds_instead_of_what_was_told_before_it() {
        let (book, first) = (Book::default(), fresh_claim());
        let second = Claim { attempt: fresh_claim().attempt, ..first.clone() };
        for (seq, ask) in [(1, &first), (2, &second)] {
            let (policy, at) = (Degraded::FailOpen, ask.attempt.timestamp());
            let deed = super::super::super::journal::entry::Deed::Granted(ask.clone());
            let standing = Standing::new(ask.record(), Some(LATER), Some(policy));
            let entry = Entry { chain: "default".into(), policy, at, deed };
            book.add(seq, Arc::new(entry), Written::Stands(Box::new(standing)), Duration::ZERO);
        }
        let theirs = Held { record: fresh_claim().record(), left: Some(LATER), fence: None };
        book.delivered(&first.key, &[1], Some(&theirs), Duration::ZERO);
        assert_eq!(book.held(&first.key, Duration::ZERO).unwrap().record.attempt, second.attempt);
    }

    #[test]
    fn a_released_claim_is_forgotten_and_anothers_is_not() {
        let (book, ask) = (Book::default(), fresh_claim());
        book.learn_claim(&ask, &granted(&ask), Duration::ZERO);
        let gone = Settled::Done { state: None, left: None, late: Some(false) };
        let failure = |attempt| Settle { attempt, outcome: Outcome::Failure, ..success(&ask) };
        book.learn_settle(&failure(fresh_claim().attempt), &gone, LATER);
        assert!(book.held(&ask.key, LATER).is_some());
        book.learn_settle(&failure(ask.attempt.clone()), &gone, LATER);
        assert!(book.held(&ask.key, LATER).is_none());
    }

    #[test]
    fn beyond_the_bound_grants_stay_and_what_is_not_remembered_is_known_to_be_missing() {
        let book = Book::default();
        let asks: Vec<_> = (0..REMEMBERED_MAX).map(|_| fresh_claim()).collect();
        for ask in &asks {
            book.learn_claim(ask, &granted(ask), Duration::ZERO);
        }
        let beyond = fresh_claim();
        book.learn_claim(&beyond, &granted(&beyond), LATER);
        assert!(book.held(&asks[0].key, LATER).is_some() && book.held(&beyond.key, LATER).is_none());
        assert!(book.is_blind(beyond.terms.lease) && !book.is_blind(LATER + beyond.terms.lease));
        // A settled claim makes room.
        let done = Settled::Done { state: Some(State::Succeeded), left: None, late: Some(false) };
        book.learn_settle(&success(&asks[7]), &done, LATER);
        book.learn_claim(&beyond, &granted(&beyond), LATER);
        assert!(book.held(&beyond.key, LATER).is_some() && book.held(&asks[7].key, LATER).is_none());
    }
}
