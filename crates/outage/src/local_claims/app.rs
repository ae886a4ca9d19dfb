//! Local claims of one app: the claims, their waiting entries, and which claim is forgotten first when there is no room.

use std::collections::{BTreeMap, BTreeSet, VecDeque};
use std::sync::Arc;
use std::time::Duration;

use hashbrown::HashMap;
use oncegate_core::attempt::Attempt;
use oncegate_core::record::{ClaimId, ClaimState, LiveClaim, Record};

use super::{LocalClaim, LocalEffect};
use oncegate_core::outage::entry::{Entry, Seq};

/// Approximate size of a remembered claim without its contents and its result.
pub(super) const CLAIM_BYTES: usize = 640;

/// Local claims of one app. Claims without waiting entries are *remembered*: their bytes count, and they can be
/// forgotten.
#[derive(Default)]
pub(super) struct AppClaims {
    by_id: HashMap<ClaimId, LocalEntry>,
    /// Remembered claims by when they end, the soonest first.
    ends: BTreeSet<(Duration, ClaimId)>,
    /// Remembered claims that are settled, the oldest first.
    settled: BTreeMap<u64, ClaimId>,
    settled_count: u64,
    /// Approximate size of all remembered claims.
    bytes: usize,
    /// Until this instant a forgotten claim may be in progress.
    forgotten_until: Duration,
    /// The app uses the policy `local`, so its claims are remembered.
    pub(super) decides_locally: bool,
}

/// A claim and its waiting entries.
#[derive(Default)]
struct LocalEntry {
    claim: Option<LocalClaim>,
    /// Entries that wait for the store, in order.
    waiting: VecDeque<(Seq, Arc<Entry>)>,
    /// Position among the settled claims of the app.
    settled: Option<u64>,
}

impl AppClaims {
    pub(super) fn bytes(&self) -> usize {
        self.bytes
    }

    /// Reports whether these can be removed without loss.
    pub(super) fn is_empty(&self) -> bool {
        self.by_id.is_empty() && !self.decides_locally
    }

    pub(super) fn has_forgotten(&self, now: Duration) -> bool {
        now < self.forgotten_until
    }

    pub(super) fn waiting(&self, id: &ClaimId) -> Option<&VecDeque<(Seq, Arc<Entry>)>> {
        self.by_id.get(id).map(|local| &local.waiting).filter(|waiting| !waiting.is_empty())
    }

    pub(super) fn claim(&self, id: &ClaimId) -> Option<&LocalClaim> {
        self.by_id.get(id)?.claim.as_ref()
    }

    /// Returns the claim if this attempt holds it or has settled it.
    pub(super) fn claim_of(&self, id: &ClaimId, attempt: &Attempt) -> Option<&LocalClaim> {
        self.claim(id).filter(|claim| claim.record.attempt == *attempt)
    }

    /// Adds a waiting entry, and applies its effect to the claim.
    pub(super) fn add(&mut self, seq: Seq, entry: Arc<Entry>, effect: LocalEffect, now: Duration) {
        let id = entry.key().id();
        self.change(id, |local| {
            local.waiting.push_back((seq, entry));
            match effect {
                LocalEffect::Put(claim) => local.learn(*claim, now),
                LocalEffect::EndAt(ends_at) => {
                    if let Some(claim) = local.claim.take() {
                        local.learn(LocalClaim { ends_at: Some(ends_at), ..claim }, now);
                    }
                }
                LocalEffect::Remove => local.claim = None,
                LocalEffect::Keep => {}
            }
        });
    }

    /// Removes delivered entries. `theirs` is the claim that the store holds instead.
    pub(super) fn remove_delivered(&mut self, id: ClaimId, seqs: &[Seq], theirs: Option<&LiveClaim>, now: Duration) {
        self.change(id, |local| {
            local.waiting.retain(|(seq, _)| !seqs.contains(seq));
            if !local.waiting.is_empty() {
                // Later entries remain valid until they are delivered, too.
                return;
            }
            if let Some(LiveClaim { record, left, .. }) = theirs {
                local.learn(LocalClaim::new(record.clone(), left.map(|left| now + left), None), now);
            }
            if let Some(claim) = &mut local.claim {
                claim.granted_by = None;
            }
        });
    }

    /// Remembers a claim as its store described it, unless entries of it wait.
    pub(super) fn remember(&mut self, id: ClaimId, record: Record, left: Option<Duration>, now: Duration) {
        if self.waiting(&id).is_none() {
            let claim = LocalClaim::new(record, left.map(|left| now + left), None);
            self.change(id, |local| local.learn(claim, now));
        }
    }

    /// Forgets a claim, unless entries of it wait for the store.
    pub(super) fn forget(&mut self, id: ClaimId) {
        if self.waiting(&id).is_none() {
            self.change(id, |local| local.claim = None);
        }
    }

    /// Forgets the oldest settled claim. If there is none, forgets the claim in progress that ends first; until that
    /// end, a live claim is missing.
    pub(super) fn forget_one(&mut self) {
        let settled = self.settled.first_key_value().map(|(_, id)| *id);
        let in_progress = || self.ends.first().copied();
        if let Some(id) = settled {
            self.forget(id);
        } else if let Some((ends_at, id)) = in_progress() {
            self.forgotten_until = self.forgotten_until.max(ends_at);
            self.forget(id);
        }
    }

    /// Forgets the remembered claims that have ended.
    pub(super) fn sweep(&mut self, now: Duration) {
        while let Some((ends_at, id)) = self.ends.first().copied()
            && ends_at <= now
        {
            let held = self.claim(&id).and_then(|claim| Some((claim.known_since, claim.live(now)?)));
            // A claim that outlives its lease is kept as unknown.
            let claim = held.map(|(known_since, LiveClaim { record, left, .. })| LocalClaim {
                known_since,
                ..LocalClaim::new(record, left.map(|left| now + left), None)
            });
            self.change(id, |local| local.claim = claim);
        }
    }

    /// Changes a claim, which is created if it is new and removed if nothing is left of it. The only place that updates the
    /// indexes and the count of bytes.
    fn change(&mut self, id: ClaimId, change: impl FnOnce(&mut LocalEntry)) {
        let mut local = self.by_id.remove(&id).unwrap_or_default();
        if let Some((bytes, ends_at)) = local.remembered() {
            self.bytes -= bytes;
            ends_at.map(|ends_at| self.ends.remove(&(ends_at, id)));
            local.settled.map(|place| self.settled.remove(&place));
        }
        change(&mut local);
        // A success that was delivered over one connection is still known while another one is not back: a policy must not grant
        // it again.
        let is_kept = |claim: &LocalClaim| self.decides_locally || claim.record.state == ClaimState::Succeeded;
        if local.waiting.is_empty() && !local.claim.as_ref().is_some_and(is_kept) {
            return;
        }
        if !local.is_settled() {
            local.settled = None;
        } else if local.settled.is_none() {
            self.settled_count += 1;
            local.settled = Some(self.settled_count);
        }
        if let Some((bytes, ends_at)) = local.remembered() {
            self.bytes += bytes;
            ends_at.map(|ends_at| self.ends.insert((ends_at, id)));
            local.settled.map(|place| self.settled.insert(place, id));
        }
        self.by_id.insert(id, local);
    }
}

impl LocalEntry {
    /// Replaces the claim by what is known of it now.
    fn learn(&mut self, claim: LocalClaim, now: Duration) {
        self.claim = Some(LocalClaim { known_since: now, ..claim });
    }

    /// Size and end of a remembered claim. A claim in progress always has an end to be found by.
    fn remembered(&self) -> Option<(usize, Option<Duration>)> {
        let claim = self.claim.as_ref().filter(|_| self.waiting.is_empty())?;
        let never = if self.is_settled() { None } else { Some(Duration::MAX) };
        Some((claim.bytes(), claim.ends_at.or(never)))
    }

    fn is_settled(&self) -> bool {
        self.claim.as_ref().is_some_and(|claim| claim.record.state != ClaimState::InProgress)
    }
}
