//! The table of transitions of a lock: pure functions of a record, an instant of the store, and requests. Several requests may be
//! applied before the result is stored, as one change.

use std::time::Duration;

use super::fit::Fit;
use super::{
    AcquireRequest, AcquireResponse, CALLERS_MAX, HEAD_GRACE, HOLDS_MAX, Hold, LockBound, LockGrant, LockRecord,
    RECORD_GRACE, RenewLockResponse, ShortHash, TICKET_LEASE, TICKETS_MAX, Ticket, UnlockResponse, WITHDRAWN_MAX,
    Withdrawn,
};
use crate::attempt::Attempt;
use crate::clock::Timestamp;

/// A lock at an instant of the store, without the holds and tickets that have ended.
#[derive(Clone, Debug)]
pub struct LockState {
    record: LockRecord,
    now: Timestamp,
    /// New leases are counted from here.
    leases_from: Timestamp,
    /// The grace for absent heads is counted from here, if it begins in this state.
    turns_from: Timestamp,
    /// Earliest end of anything that was found live.
    live_until: Timestamp,
    is_changed: bool,
    /// Something made way for requests that wait.
    makes_way: bool,
}

/// A change of a lock, for the store.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct LockChange {
    /// The record to store.
    pub record: LockRecord,
    /// Its duration.
    pub lasts: Duration,
    /// The change holds only before this instant: then something ends that it relied on.
    pub before: Timestamp,
    /// Gateways with callers that wait need a notification.
    pub notifies: bool,
}

/// Time that a ticket may count as waiting beyond the wait of its request.
const WAIT_TOLERANCE: Duration = Duration::from_millis(200);

/// An instant that never comes.
const NEVER: Timestamp = Timestamp::from_micros(u64::MAX);

impl LockState {
    /// Returns the lock of a record at this instant.
    pub fn at(record: LockRecord, now: Timestamp) -> Self {
        let mut state = Self {
            record,
            now,
            leases_from: now,
            turns_from: now,
            live_until: NEVER,
            is_changed: false,
            makes_way: false,
        };
        state.remove_ended();
        let ends = state.record.holds.iter().map(|hold| hold.ends_at);
        let ends = ends.chain(state.record.tickets.iter().map(|ticket| ticket.ends_at));
        state.live_until = ends.min().unwrap_or(state.live_until);
        state
    }

    /// Counts new leases from this instant, if it is later than now. For stores whose clock may run faster than real time.
    #[must_use]
    pub fn with_leases_from(self, instant: Timestamp) -> Self {
        Self { leases_from: instant.max(self.now), ..self }
    }

    /// Counts the grace for absent heads from this instant, if it is later than now. For an early now, with which the grace would
    /// begin before the lock is free.
    #[must_use]
    pub fn with_turns_from(self, instant: Timestamp) -> Self {
        Self { turns_from: instant.max(self.now), ..self }
    }

    /// Requests a hold.
    pub fn acquire(&mut self, request: &AcquireRequest) -> AcquireResponse {
        let nonce = ShortHash::of_nonce(request.attempt.nonce());
        let (owner, mode, limit) = (request.owner, request.mode, request.limit);
        if self.record.withdrawn.iter().any(|withdrawn| withdrawn.nonce == nonce) {
            return AcquireResponse::Withdrawn;
        }
        if let Some(hold) = self.record.holds.iter().find(|hold| hold.nonce == nonce) {
            let is_same = (hold.owner, hold.mode, self.record.limit) == (owner, mode, limit);
            return if is_same { self.granted(hold, true) } else { AcquireResponse::NonceReused };
        }
        let ticket = self.record.tickets.iter().find(|ticket| ticket.nonce == nonce);
        if ticket.is_some_and(|ticket| (ticket.owner, ticket.mode, ticket.limit) != (owner, mode, limit)) {
            return AcquireResponse::NonceReused;
        }
        let fit = self.record.fit(owner, mode, limit);
        match fit {
            Fit::Refused => return AcquireResponse::UpgradeRefused,
            Fit::LimitDiffers(used) => {
                self.leave(nonce);
                return AcquireResponse::LimitDiffers(used);
            }
            Fit::Yes | Fit::No => {}
        }
        self.skip_absent_heads(nonce);
        // An owner that holds the lock does not queue behind waiting requests. A permit is no re-entry.
        let is_reentry = limit.is_none() && self.record.holds_of(owner) > 0;
        let is_first = self.record.tickets.first().is_none_or(|head| head.nonce == nonce) || is_reentry;
        if fit == Fit::Yes && is_first {
            return self.grant(request, nonce);
        }
        self.queue(request, nonce)
    }

    /// Ends the hold of an attempt.
    pub fn release(&mut self, attempt: &Attempt) -> UnlockResponse {
        match self.record.holds.iter().position(|hold| hold.is_of(attempt)) {
            Some(at) => self.end_hold(at),
            None => UnlockResponse::NotHeld,
        }
    }

    /// Ends hold and ticket of a nonce, and refuses it for [`TICKET_LEASE`].
    pub fn withdraw(&mut self, nonce: ShortHash) -> UnlockResponse {
        let again = self.record.withdrawn.iter().any(|withdrawn| withdrawn.nonce == nonce);
        if again {
            return UnlockResponse::Done { holds: 0, fence: self.record.fence, held_for: None };
        }
        if self.record.withdrawn.len() >= WITHDRAWN_MAX {
            return UnlockResponse::Full;
        }
        self.record.withdrawn.push(Withdrawn { nonce, ends_at: self.now.plus(TICKET_LEASE) });
        self.is_changed = true;
        let had_ticket = self.leave(nonce);
        match self.record.holds.iter().position(|hold| hold.nonce == nonce) {
            Some(at) => self.end_hold(at),
            None if had_ticket => UnlockResponse::Done { holds: 0, fence: self.record.fence, held_for: None },
            None => UnlockResponse::NotHeld,
        }
    }

    /// Removes the ticket of a request that does not wait any more. Returns whether there was one.
    pub fn leave(&mut self, nonce: ShortHash) -> bool {
        let Some(at) = self.record.tickets.iter().position(|ticket| ticket.nonce == nonce) else { return false };
        let left = self.record.tickets.remove(at);
        // Those behind a head that could go have had the same time.
        if at == 0 && !self.record.may_go(&left) {
            self.record.turn_at = self.record.turn_at.max(self.turns_from);
        }
        self.is_changed = true;
        self.makes_way = true;
        true
    }

    /// Records how much longer the request of a ticket waits.
    pub fn wait(&mut self, nonce: ShortHash, rest: Duration) {
        let waits_until = self.now.plus(rest);
        let Some(ticket) = self.record.tickets.iter_mut().find(|ticket| ticket.nonce == nonce) else { return };
        let ends_early = ticket.waits_until <= self.now && self.now < waits_until;
        // Not written where it makes little difference.
        if ends_early || waits_until.plus(WAIT_TOLERANCE) < ticket.waits_until.min(ticket.ends_at) {
            ticket.waits_until = waits_until;
            self.is_changed = true;
        }
    }

    /// Records that callers wait for the lock, so that they are notified when it can be granted.
    pub fn watch(&mut self) {
        // Written only when half of it is over, as with tickets.
        if self.record.watched_until.since(self.now) <= TICKET_LEASE / 2 {
            self.record.watched_until = self.now.plus(TICKET_LEASE);
            self.is_changed = true;
        }
    }

    /// Extends the lease of an attempt's hold. Never shortens it.
    pub fn renew(&mut self, attempt: &Attempt, lease: Duration) -> RenewLockResponse {
        let ends_at = self.leases_from.plus(lease);
        let Some(hold) = self.record.holds.iter_mut().find(|hold| hold.is_of(attempt)) else {
            return RenewLockResponse::NotHeld;
        };
        if hold.ends_at < ends_at {
            hold.ends_at = ends_at;
            self.is_changed = true;
        }
        RenewLockResponse::Renewed(hold.ends_at)
    }

    /// Ends the holds that match, for an operator. Returns their number.
    pub fn evict(&mut self, matches: impl Fn(&Hold) -> bool) -> usize {
        let before = self.record.holds.len();
        self.record.holds.retain(|hold| !matches(hold));
        let ended = before - self.record.holds.len();
        if ended > 0 {
            self.make_way();
        }
        ended
    }

    /// Returns the lock.
    pub fn record(&self) -> &LockRecord {
        &self.record
    }

    /// Returns the store's instant.
    pub fn now(&self) -> Timestamp {
        self.now
    }

    /// Returns the time until the first live hold ends, if there is one.
    pub fn held_for(&self) -> Option<Duration> {
        self.record.holds.iter().map(|hold| hold.ends_at.since(self.now)).min()
    }

    /// Returns the time until a waiting request should ask again without a notification: at the end of a hold, or of
    /// the grace for an absent head. It also asks once within that grace, to show that its caller is there.
    pub fn ask_again_in(&self) -> Option<Duration> {
        let grace = self.record.head_may_go().then(|| {
            let left = self.record.turn_at.plus(HEAD_GRACE).since(self.now);
            if left > HEAD_GRACE / 2 { left.saturating_sub(HEAD_GRACE / 2) } else { left }
        });
        self.held_for().into_iter().chain(grace).min()
    }

    /// Returns the change to store, if there is one.
    pub fn into_change(self) -> Option<LockChange> {
        if !self.is_changed {
            return None;
        }
        let record = self.record;
        let ends = record.holds.iter().map(|hold| hold.ends_at);
        let ends = ends.chain(record.tickets.iter().map(|ticket| ticket.ends_at));
        let ends = ends.chain(record.withdrawn.iter().map(|withdrawn| withdrawn.ends_at));
        let lasts = ends.max().unwrap_or(self.now).since(self.now) + RECORD_GRACE;
        let is_awaited = self.now < record.watched_until || !record.tickets.is_empty();
        Some(LockChange { lasts, before: self.live_until, notifies: self.makes_way && is_awaited, record })
    }

    fn remove_ended(&mut self) {
        let (now, record) = (self.now, &mut self.record);
        let mut turn_at = record.turn_at;
        record.holds.retain(|hold| {
            let is_live = now < hold.ends_at;
            if !is_live {
                turn_at = turn_at.max(hold.ends_at);
            }
            is_live
        });
        record.turn_at = turn_at;
        record.withdrawn.retain(|withdrawn| now < withdrawn.ends_at);
        self.follow_mode();
        while let Some(head) = self.record.tickets.first().filter(|head| head.ends_at <= now) {
            // Those behind a head that could go have had the same time.
            if !self.record.may_go(head) {
                self.record.turn_at = self.record.turn_at.max(head.ends_at);
            }
            self.record.tickets.remove(0);
        }
        self.record.tickets.retain(|ticket| now < ticket.ends_at);
    }

    /// Assigns a fence, if the lock is held now in another mode than the last fence is for.
    fn follow_mode(&mut self) {
        let mode = self.record.holds.iter().map(|hold| hold.mode).max();
        self.record.limit = self.record.limit.filter(|_| mode.is_some());
        if mode == self.record.mode {
            return;
        }
        self.record.mode = mode;
        if mode.is_some() {
            self.record.fence = self.now.as_micros().max(self.record.fence.saturating_add(1));
            // The answer must be stored.
            self.is_changed = true;
        }
    }

    /// Removes tickets from the head of the queue if they could have been granted for [`HEAD_GRACE`] and their requests
    /// were not repeated in that time. Removes all of them at once, up to the first ticket with a repeated request. The
    /// request of this nonce asks now.
    fn skip_absent_heads(&mut self, nonce: ShortHash) {
        while let Some(head) = self.record.tickets.first() {
            let (turn_at, asked_at) = (self.record.turn_at, head.asked_at());
            let lost_at = turn_at.plus(HEAD_GRACE);
            if head.nonce == nonce || self.now < lost_at || !self.record.head_may_go() {
                return;
            }
            let is_absent =
                |ticket: &&Ticket| ticket.nonce != nonce && ticket.asked_at() <= turn_at && self.record.may_go(ticket);
            let absent = self.record.tickets.iter().take_while(is_absent).count();
            self.record.tickets.drain(..absent);
            // A head whose request did ask gets a full second from then on.
            self.record.turn_at = if absent > 0 { lost_at } else { lost_at.max(asked_at) };
            self.is_changed |= absent > 0;
            self.makes_way |= absent > 0;
        }
    }

    fn grant(&mut self, request: &AcquireRequest, nonce: ShortHash) -> AcquireResponse {
        if self.record.holds.len() >= HOLDS_MAX {
            return AcquireResponse::Full(LockBound::Holds);
        }
        self.leave(nonce);
        let hold = Hold {
            nonce,
            owner: request.owner,
            mode: request.mode,
            caller: request.caller.clone().filter(|_| self.record.holds.len() < CALLERS_MAX),
            attempted_at: request.attempt.timestamp(),
            claimed_at: self.now,
            ends_at: self.leases_from.plus(request.lease),
        };
        self.record.holds.push(hold.clone());
        self.record.limit = request.limit;
        self.follow_mode();
        self.is_changed = true;
        self.granted(&hold, false)
    }

    fn granted(&self, hold: &Hold, repeated: bool) -> AcquireResponse {
        AcquireResponse::Granted(LockGrant {
            attempted_at: hold.attempted_at,
            fence: self.record.fence,
            holds: self.record.holds_of(hold.owner),
            ends_at: hold.ends_at,
            repeated,
        })
    }

    fn queue(&mut self, request: &AcquireRequest, nonce: ShortHash) -> AcquireResponse {
        let at = self.record.tickets.iter().position(|ticket| ticket.nonce == nonce);
        let ends_at = self.now.plus(TICKET_LEASE);
        let turn_at = self.record.turn_at;
        // A request that waits at the head is granted before that. So this adds a write only if the request is absent.
        let is_head_late = self.record.head_may_go() && turn_at.plus(HEAD_GRACE / 4) <= self.now;
        match at {
            // Written only after half of its time, or if the head is absent, so that not every poll is a write.
            Some(at) => {
                let ticket = &mut self.record.tickets[at];
                let is_unseen = is_head_late && ticket.asked_at() <= turn_at;
                if is_unseen || ticket.ends_at.since(self.now) <= TICKET_LEASE / 2 {
                    (ticket.ends_at, ticket.waits_until) = (ends_at, ends_at);
                    self.is_changed = true;
                }
            }
            None if !request.fair => return AcquireResponse::Held { position: None },
            None if self.record.tickets.len() >= TICKETS_MAX => return AcquireResponse::Full(LockBound::Tickets),
            None => {
                if self.record.tickets.is_empty() {
                    self.record.turn_at = self.record.turn_at.max(self.turns_from);
                }
                let AcquireRequest { owner, mode, limit, .. } = *request;
                let ticket = Ticket { nonce, owner, mode, limit, queued_at: self.now, ends_at, waits_until: ends_at };
                self.record.tickets.push(ticket);
                self.is_changed = true;
            }
        }
        AcquireResponse::Held { position: Some(at.unwrap_or(self.record.tickets.len() - 1) + 1) }
    }

    fn end_hold(&mut self, at: usize) -> UnlockResponse {
        let hold = self.record.holds.remove(at);
        self.make_way();
        let held_for = Some(self.now.since(hold.claimed_at));
        UnlockResponse::Done { holds: self.record.holds_of(hold.owner), fence: self.record.fence, held_for }
    }

    /// Follows the end of holds: the head of the queue may go now.
    fn make_way(&mut self) {
        self.record.turn_at = self.record.turn_at.max(self.turns_from);
        self.follow_mode();
        self.is_changed = true;
        self.makes_way = true;
    }
}
