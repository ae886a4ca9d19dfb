//! Local claims of one app: what stands, what waits for the store, and which claim is forgotten first when there is no room.

use std::collections::{BTreeMap, BTreeSet, VecDeque};
use std::sync::Arc;
use std::time::Duration;

use hashbrown::HashMap;

use super::super::super::journal::entry::{Entry, Seq};
use super::{Standing, Written};
use crate::domain::attempt::Attempt;
use crate::domain::global_id::GlobalId;
use crate::domain::record::{ClaimState, LiveClaim, Record};

/// Approximate size of a remembered claim without its contents and its result.
pub(super) const CLAIM_BYTES: usize = 640;

/// Local claims of one app. Claims on which nothing waits are *remembered*: they count as bytes, and can be forgotten.
#[derive(Default)]
pub(super) struct AppClaims {
    by_id: HashMap<GlobalId, LocalClaim>,
    /// Remembered claims by when they end, the soonest first.
    ends: BTreeSet<(Duration, GlobalId)>,
    /// Remembered claims that are settled, the oldest first.
    settled: BTreeMap<u64, GlobalId>,
    settled_count: u64,
    /// Approximate size of all remembered claims.
    bytes: usize,
    /// Until then a claim of the app may be in progress that was forgotten.
    blind_until: Duration,
    /// The app uses the policy `local`, so its claims are remembered.
    pub(super) decides_locally: bool,
}

/// One claim, as far as this process knows it.
#[derive(Default)]
struct LocalClaim {
    standing: Option<Standing>,
    /// Entries that wait for the store, in order.
    waiting: VecDeque<(Seq, Arc<Entry>)>,
    /// Place among the settled claims of the app.
    settled: Option<u64>,
}

impl AppClaims {
    pub(super) fn bytes(&self) -> usize {
        self.bytes
    }

    /// Whether nothing would be lost with this.
    pub(super) fn is_empty(&self) -> bool {
        self.by_id.is_empty() && !self.decides_locally
    }

    pub(super) fn is_blind(&self, now: Duration) -> bool {
        now < self.blind_until
    }

    pub(super) fn waiting(&self, id: &GlobalId) -> Option<&VecDeque<(Seq, Arc<Entry>)>> {
        self.by_id.get(id).map(|claim| &claim.waiting).filter(|waiting| !waiting.is_empty())
    }

    pub(super) fn standing(&self, id: &GlobalId) -> Option<&Standing> {
        self.by_id.get(id)?.standing.as_ref()
    }

    /// The claim that stands, if this attempt holds it or has settled it.
    pub(super) fn standing_of(&self, id: &GlobalId, attempt: &Attempt) -> Option<&Standing> {
        self.standing(id).filter(|standing| standing.record.attempt == *attempt)
    }

    /// Adds an entry that waits for the store, and what it does to the claim that stands.
    pub(super) fn add(&mut self, seq: Seq, entry: Arc<Entry>, effect: Written) {
        let id = entry.key().global_id;
        self.change(id, |claim| {
            claim.waiting.push_back((seq, entry));
            match effect {
                Written::Stands(standing) => claim.standing = Some(*standing),
                Written::EndsAt(ends_at) => {
                    if let Some(standing) = &mut claim.standing {
                        standing.ends_at = Some(ends_at);
                    }
                }
                Written::Gone => claim.standing = None,
                Written::AsBefore => {}
            }
        });
    }

    /// Removes entries that were delivered. `theirs` is what the store was found to hold instead.
    pub(super) fn delivered(&mut self, id: GlobalId, seqs: &[Seq], theirs: Option<&LiveClaim>, now: Duration) {
        self.change(id, |claim| {
            claim.waiting.retain(|(seq, _)| !seqs.contains(seq));
            if !claim.waiting.is_empty() {
                // What waits behind it stands until it is delivered in its turn.
                return;
            }
            if let Some(LiveClaim { record, left, .. }) = theirs {
                claim.standing = Some(Standing::new(record.clone(), left.map(|left| now + left), None));
            }
            if let Some(standing) = &mut claim.standing {
                standing.granted_by = None;
            }
        });
    }

    /// Remembers a claim as its store described it. What waits for the store is never overwritten.
    pub(super) fn remember(&mut self, id: GlobalId, record: Record, left: Option<Duration>, now: Duration) {
        if self.waiting(&id).is_none() {
            let standing = Standing::new(record, left.map(|left| now + left), None);
            self.change(id, |claim| claim.standing = Some(standing));
        }
    }

    /// Forgets a claim, unless entries of it wait for the store.
    pub(super) fn forget(&mut self, id: GlobalId) {
        if self.by_id.contains_key(&id) && self.waiting(&id).is_none() {
            self.change(id, |claim| claim.standing = None);
        }
    }

    /// Forgets the settled claim that is the oldest; else the claim in progress that ends soonest, and is blind until then.
    pub(super) fn forget_one(&mut self) {
        let settled = self.settled.first_key_value().map(|(_, id)| *id);
        let in_progress = || self.ends.first().copied();
        if let Some(id) = settled {
            self.forget(id);
        } else if let Some((ends_at, id)) = in_progress() {
            self.blind_until = self.blind_until.max(ends_at);
            self.forget(id);
        }
    }

    /// Forgets the remembered claims that have ended.
    pub(super) fn sweep(&mut self, now: Duration) {
        while let Some((ends_at, id)) = self.ends.first().copied()
            && ends_at <= now
        {
            let held = self.standing(&id).and_then(|standing| standing.held(now));
            // A claim that outlives its lease is kept as what it has become.
            let standing = held.map(|held| Standing::new(held.record, held.left.map(|left| now + left), None));
            self.change(id, |claim| claim.standing = standing);
        }
    }

    /// Changes a claim, which is created if it is new and removed if nothing is left of it. The only place that keeps the
    /// indexes and the account of bytes.
    fn change(&mut self, id: GlobalId, change: impl FnOnce(&mut LocalClaim)) {
        let mut claim = self.by_id.remove(&id).unwrap_or_default();
        if let Some((bytes, ends_at)) = claim.remembered() {
            self.bytes -= bytes;
            ends_at.map(|ends_at| self.ends.remove(&(ends_at, id)));
            claim.settled.map(|place| self.settled.remove(&place));
        }
        change(&mut claim);
        if claim.waiting.is_empty() && (claim.standing.is_none() || !self.decides_locally) {
            return;
        }
        if !claim.is_settled() {
            claim.settled = None;
        } else if claim.settled.is_none() {
            self.settled_count += 1;
            claim.settled = Some(self.settled_count);
        }
        if let Some((bytes, ends_at)) = claim.remembered() {
            self.bytes += bytes;
            ends_at.map(|ends_at| self.ends.insert((ends_at, id)));
            claim.settled.map(|place| self.settled.insert(place, id));
        }
        self.by_id.insert(id, claim);
    }
}

impl LocalClaim {
    /// Size and end of a remembered claim. A claim in progress always has an end to be found by.
    fn remembered(&self) -> Option<(usize, Option<Duration>)> {
        let standing = self.standing.as_ref().filter(|_| self.waiting.is_empty())?;
        let never = if self.is_settled() { None } else { Some(Duration::MAX) };
        Some((standing.bytes(), standing.ends_at.or(never)))
    }

    fn is_settled(&self) -> bool {
        self.standing.as_ref().is_some_and(|standing| standing.record.state != ClaimState::InProgress)
    }
}
