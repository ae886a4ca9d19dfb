//! The rules of locks, each a test of the table.

use std::time::Duration;

use super::LockMode::{Exclusive, Shared};
use super::*;
use crate::attempt::Nonce;

/// A lock on a clock that a test moves.
struct Lock {
    record: LockRecord,
    now: Timestamp,
}

const LEASE: Duration = Duration::from_secs(30);
const SEC: Duration = Duration::from_secs(1);

fn nonce(name: &str) -> Nonce {
    format!("{:-<16}", name.replace('.', "_")).parse().unwrap()
}

fn attempt(name: &str) -> Attempt {
    Attempt::new(Timestamp::from_micros(1_700_000_000_000_000), nonce(name))
}

fn hash(name: &str) -> ShortHash {
    ShortHash::of_nonce(&nonce(name))
}

/// A request whose owner is the part of its name before the dot.
fn request(name: &str, mode: LockMode, fair: bool) -> AcquireRequest {
    let owner = ShortHash::of_owner(&nonce(name.split('.').next().unwrap()));
    AcquireRequest { attempt: attempt(name), owner, mode, limit: None, caller: None, lease: LEASE, fair }
}

impl Lock {
    fn new() -> Self {
        Self { record: LockRecord::default(), now: Timestamp::from_micros(1_700_000_000_000_000) }
    }

    fn pass(&mut self, time: Duration) {
        self.now = self.now.plus(time);
    }

    fn apply<Answer>(&mut self, transition: impl FnOnce(&mut LockState) -> Answer) -> Answer {
        let mut state = LockState::at(self.record.clone(), self.now);
        let answer = transition(&mut state);
        if let Some(change) = state.into_change() {
            assert!(self.now < change.before);
            assert_eq!(LockRecord::decode(&change.record.encode()).unwrap(), change.record);
            self.record = change.record;
        }
        answer
    }

    fn ask(&mut self, request: &AcquireRequest) -> AcquireResponse {
        self.apply(|state| state.acquire(request))
    }

    fn acquire(&mut self, name: &str, mode: LockMode) -> AcquireResponse {
        self.ask(&request(name, mode, false))
    }

    fn granted(&mut self, name: &str, mode: LockMode) -> LockGrant {
        match self.acquire(name, mode) {
            AcquireResponse::Granted(grant) => grant,
            other => panic!("{name}: {other:?}"),
        }
    }

    /// Asks fairly. Returns whether it is granted, or the position.
    fn fair(&mut self, name: &str, mode: LockMode) -> Result<u64, usize> {
        match self.ask(&request(name, mode, true)) {
            AcquireResponse::Granted(grant) => Ok(grant.fence),
            AcquireResponse::Held { position: Some(position) } => Err(position),
            other => panic!("{name}: {other:?}"),
        }
    }

    fn release(&mut self, name: &str) -> UnlockResponse {
        self.apply(|state| state.release(&attempt(name)))
    }

    fn released(&mut self, name: &str) -> usize {
        match self.release(name) {
            UnlockResponse::Done { holds, .. } => holds,
            other => panic!("{name}: {other:?}"),
        }
    }

    fn withdraw(&mut self, name: &str) -> UnlockResponse {
        self.apply(|state| state.withdraw(hash(name)))
    }

    fn renew(&mut self, name: &str, lease: Duration) -> RenewLockResponse {
        self.apply(|state| state.renew(&attempt(name), lease))
    }
}

impl Lock {
    fn permit(&mut self, name: &str, limit: u64) -> AcquireResponse {
        self.ask(&permit(name, limit, false))
    }
}

/// A request for one of so many permits.
fn permit(name: &str, limit: u64, fair: bool) -> AcquireRequest {
    AcquireRequest { limit: Permits::try_from(limit).ok(), ..request(name, Shared, fair) }
}

const HELD: AcquireResponse = AcquireResponse::Held { position: None };

#[test]
fn an_exclusive_hold_excludes_every_other_owner_and_shared_ones_exclude_exclusive_ones() {
    let mut lock = Lock::new();
    lock.granted("a", Exclusive);
    assert_eq!(lock.acquire("b", Exclusive), HELD);
    assert_eq!(lock.acquire("b", Shared), HELD);
    lock.released("a");
    lock.granted("b", Shared);
    lock.granted("c", Shared);
    assert_eq!(lock.acquire("a", Exclusive), HELD);
    lock.released("b");
    assert_eq!(lock.acquire("a", Exclusive), HELD, "another one still shares it");
    lock.released("c");
    lock.granted("a", Exclusive);
}

#[test]
fn a_hold_whose_lease_has_ended_is_absent() {
    let mut lock = Lock::new();
    lock.granted("a", Exclusive);
    lock.pass(LEASE.saturating_sub(Duration::from_micros(1)));
    assert_eq!(lock.acquire("b", Exclusive), HELD);
    lock.pass(Duration::from_micros(1));
    assert_eq!(lock.release("a"), UnlockResponse::NotHeld);
    assert_eq!(lock.renew("a", LEASE), RenewLockResponse::NotHeld);
    lock.granted("b", Exclusive);
}

#[test]
fn an_owner_gets_another_hold_at_once_and_keeps_the_lock_until_its_last_one_ends() {
    let mut lock = Lock::new();
    let first = lock.granted("a.1", Exclusive);
    let second = lock.granted("a.2", Exclusive);
    assert_eq!((first.holds, second.holds), (1, 2));
    assert_eq!(first.fence, second.fence, "holds that join share the fence");
    assert_eq!(lock.released("a.1"), 1);
    assert_eq!(lock.acquire("b", Exclusive), HELD);
    assert_eq!(lock.released("a.2"), 0);
    lock.granted("b", Exclusive);
}

#[test]
fn a_repeated_request_is_the_same_hold_and_a_repeated_release_takes_one_away() {
    let mut lock = Lock::new();
    let first = lock.granted("a.1", Exclusive);
    lock.granted("a.2", Exclusive);
    lock.pass(SEC);
    let again = AcquireRequest {
        attempt: Attempt::new(Timestamp::from_micros(1_700_000_000_000_009), nonce("a.1")),
        ..request("a.1", Exclusive, false)
    };
    let AcquireResponse::Granted(again) = lock.ask(&again) else { panic!("not granted") };
    assert_eq!(again, LockGrant { repeated: true, holds: 2, ..first.clone() }, "attempt and lease are unchanged");
    assert_eq!(lock.released("a.1"), 1);
    assert_eq!(lock.release("a.1"), UnlockResponse::NotHeld);
    assert_eq!(lock.record.holds.len(), 1, "a set, not a counter");
}

#[test]
fn a_nonce_is_not_reused_for_another_mode_or_owner() {
    let mut lock = Lock::new();
    lock.granted("a", Exclusive);
    assert_eq!(lock.acquire("a", Shared), AcquireResponse::NonceReused);
    let other = AcquireRequest { owner: hash("x"), ..request("a", Exclusive, false) };
    assert_eq!(lock.ask(&other), AcquireResponse::NonceReused);
    assert_eq!(lock.fair("b", Exclusive), Err(1));
    assert_eq!(lock.acquire("b", Shared), AcquireResponse::NonceReused);
}

#[test]
fn only_the_attempt_that_holds_releases_and_renews() {
    let mut lock = Lock::new();
    lock.granted("a", Exclusive);
    let same_nonce = Attempt::new(Timestamp::from_micros(1_700_000_000_000_001), nonce("a"));
    for other in [attempt("b"), same_nonce] {
        assert_eq!(lock.apply(|state| state.release(&other)), UnlockResponse::NotHeld);
        assert_eq!(lock.apply(|state| state.renew(&other, LEASE)), RenewLockResponse::NotHeld);
    }
    assert_eq!(lock.released("a"), 0);
}

#[test]
fn a_sole_sharer_is_upgraded_and_one_of_several_is_refused() {
    let mut lock = Lock::new();
    let shared = lock.granted("a.1", Shared);
    lock.granted("b", Shared);
    assert_eq!(lock.acquire("a.2", Exclusive), AcquireResponse::UpgradeRefused);
    lock.released("b");
    let exclusive = lock.granted("a.2", Exclusive);
    assert!(exclusive.fence > shared.fence, "the mode has changed");
    assert_eq!(lock.acquire("b", Shared), HELD);
}

#[test]
fn a_downgrade_is_granted_and_lets_others_share_with_a_new_fence() {
    let mut lock = Lock::new();
    let exclusive = lock.granted("a.1", Exclusive);
    let joined = lock.granted("a.2", Shared);
    assert_eq!(joined.fence, exclusive.fence, "the strongest mode is still exclusive");
    assert_eq!(lock.acquire("b", Shared), HELD);
    let UnlockResponse::Done { holds: 1, fence, .. } = lock.release("a.1") else { panic!("not released") };
    assert!(fence > exclusive.fence);
    assert_eq!(lock.granted("b", Shared).fence, fence, "it joins");
}

#[test]
fn the_end_of_an_exclusive_lease_weakens_the_mode_with_a_new_fence() {
    let mut lock = Lock::new();
    let exclusive = lock.granted("a.1", Exclusive);
    lock.pass(SEC);
    lock.granted("a.2", Shared);
    lock.pass(LEASE.saturating_sub(SEC));
    let joined = lock.granted("b", Shared);
    assert!(joined.fence > exclusive.fence);
}

#[test]
fn fences_rise_over_release_and_expiry_also_on_a_clock_that_stands_or_goes_back() {
    let mut lock = Lock::new();
    let mut last = 0;
    for round in 0..6 {
        let name = format!("a{round}");
        let grant = lock.granted(&name, Exclusive);
        assert!(grant.fence > last, "round {round}");
        last = grant.fence;
        match round % 3 {
            0 => assert_eq!(lock.released(&name), 0),
            1 => lock.pass(LEASE),
            _ => {
                lock.released(&name);
                lock.now = lock.now.minus(Duration::from_mins(5));
            }
        }
    }
}

#[test]
fn a_record_outlives_its_last_hold_by_ten_minutes() {
    let lasts = |transition: fn(&mut LockState)| {
        let mut state = LockState::at(Lock::new().record, Lock::new().now);
        transition(&mut state);
        state.into_change().unwrap().lasts
    };
    let acquire = |state: &mut LockState| {
        state.acquire(&request("a", Exclusive, false));
    };
    assert_eq!(lasts(acquire), LEASE + RECORD_GRACE);
    assert_eq!(
        lasts(|state| {
            state.acquire(&request("a", Exclusive, false));
            state.release(&attempt("a"));
        }),
        RECORD_GRACE
    );
}

#[test]
fn a_renewal_extends_and_never_shortens() {
    let mut lock = Lock::new();
    let ends_at = lock.granted("a", Exclusive).ends_at;
    assert_eq!(lock.renew("a", SEC), RenewLockResponse::Renewed(ends_at));
    lock.pass(10 * SEC);
    assert_eq!(lock.renew("a", LEASE), RenewLockResponse::Renewed(lock.now.plus(LEASE)));
    lock.pass(LEASE.saturating_sub(SEC));
    assert_eq!(lock.acquire("b", Exclusive), HELD);
}

#[test]
fn a_withdrawal_ends_hold_and_ticket_and_refuses_the_nonce_for_a_while() {
    let mut lock = Lock::new();
    lock.granted("a", Exclusive);
    assert_eq!(lock.fair("b", Exclusive), Err(1));
    assert!(matches!(lock.withdraw("b"), UnlockResponse::Done { holds: 0, .. }));
    assert!(lock.record.tickets.is_empty());
    assert!(matches!(lock.withdraw("a"), UnlockResponse::Done { holds: 0, .. }));
    assert!(matches!(lock.withdraw("a"), UnlockResponse::Done { holds: 0, .. }), "a repeat");
    assert_eq!(lock.withdraw("c"), UnlockResponse::NotHeld, "it was never asked for");
    for withdrawn in ["a", "b", "c"] {
        assert_eq!(lock.acquire(withdrawn, Exclusive), AcquireResponse::Withdrawn, "{withdrawn}");
    }
    lock.pass(TICKET_LEASE);
    lock.granted("c", Exclusive);
}

#[test]
fn fair_requests_are_granted_in_the_order_in_which_they_first_asked() {
    let mut lock = Lock::new();
    lock.granted("a", Exclusive);
    assert_eq!([lock.fair("b", Exclusive), lock.fair("c", Exclusive)], [Err(1), Err(2)]);
    assert_eq!([lock.fair("c", Exclusive), lock.fair("b", Exclusive)], [Err(2), Err(1)], "the nonce is the ticket");
    lock.released("a");
    assert_eq!(lock.fair("c", Exclusive), Err(2), "it is not its turn");
    lock.fair("b", Exclusive).unwrap();
    assert_eq!(lock.fair("c", Exclusive), Err(1));
    lock.released("b");
    lock.fair("c", Exclusive).unwrap();
}

#[test]
fn while_the_queue_is_not_empty_no_request_barges() {
    let mut lock = Lock::new();
    lock.granted("a", Exclusive);
    assert_eq!(lock.fair("b", Exclusive), Err(1));
    lock.released("a");
    assert_eq!(lock.acquire("x", Exclusive), HELD);
    assert_eq!(lock.acquire("x", Shared), HELD);
    lock.fair("b", Exclusive).unwrap();
}

#[test]
fn repeats_reentry_and_a_sole_sharers_upgrade_go_before_the_queue() {
    let mut lock = Lock::new();
    lock.granted("a.1", Shared);
    assert_eq!(lock.fair("b", Exclusive), Err(1));
    assert!(lock.granted("a.1", Shared).repeated);
    lock.granted("a.2", Shared);
    lock.granted("a.3", Exclusive);
}

#[test]
fn a_queued_exclusive_request_blocks_new_shared_ones() {
    let mut lock = Lock::new();
    lock.granted("a", Shared);
    assert_eq!(lock.fair("w", Exclusive), Err(1));
    assert_eq!(lock.acquire("b", Shared), HELD);
    assert_eq!(lock.fair("c", Shared), Err(2));
    lock.released("a");
    lock.fair("w", Exclusive).unwrap();
    lock.released("w");
    lock.fair("c", Shared).unwrap();
}

#[test]
fn a_head_that_could_go_and_is_not_there_loses_its_place_after_a_second() {
    let mut lock = Lock::new();
    lock.granted("a", Exclusive);
    for (name, position) in [("b", 1), ("c", 2), ("d", 3)] {
        assert_eq!(lock.fair(name, Exclusive), Err(position));
    }
    lock.pass(5 * SEC);
    assert_eq!(lock.fair("d", Exclusive), Err(3), "while the head cannot go, it need not be there");
    lock.released("a");
    lock.pass(HEAD_GRACE.saturating_sub(Duration::from_micros(1)));
    assert_eq!(lock.fair("d", Exclusive), Err(3));
    lock.pass(Duration::from_micros(1));
    lock.fair("d", Exclusive).expect("one second is enough for both");
    assert_eq!(lock.fair("b", Exclusive), Err(1), "it queues again, at the end");
}

#[test]
fn the_second_of_the_head_begins_at_the_end_of_the_lease_that_blocked_it() {
    let mut lock = Lock::new();
    lock.granted("a", Exclusive);
    lock.pass(LEASE.saturating_sub(SEC));
    assert_eq!([lock.fair("b", Exclusive), lock.fair("c", Exclusive)], [Err(1), Err(2)]);
    lock.pass(SEC + HEAD_GRACE / 2);
    assert_eq!(lock.fair("c", Exclusive), Err(2));
    lock.pass(HEAD_GRACE / 2);
    lock.fair("c", Exclusive).unwrap();
}

#[test]
fn a_ticket_ends_unless_its_request_asks_at_least_every_ticket_lease() {
    let mut lock = Lock::new();
    lock.granted("a", Exclusive);
    assert_eq!([lock.fair("b", Exclusive), lock.fair("c", Exclusive)], [Err(1), Err(2)]);
    lock.pass(TICKET_LEASE.saturating_sub(SEC));
    assert_eq!(lock.fair("c", Exclusive), Err(2));
    lock.pass(2 * SEC);
    assert_eq!(lock.fair("c", Exclusive), Err(1), "b did not ask again");
    lock.pass(TICKET_LEASE.saturating_sub(SEC));
    lock.released("a");
    lock.fair("c", Exclusive).unwrap();
}

#[test]
fn a_waiter_that_leaves_makes_way() {
    let mut lock = Lock::new();
    lock.granted("a", Exclusive);
    assert_eq!([lock.fair("b", Exclusive), lock.fair("c", Exclusive)], [Err(1), Err(2)]);
    assert!(lock.apply(|state| state.leave(hash("b"))));
    assert!(!lock.apply(|state| state.leave(hash("b"))));
    lock.released("a");
    lock.fair("c", Exclusive).unwrap();
}

#[test]
fn holds_tickets_and_withdrawn_nonces_are_bounded() {
    let mut lock = Lock::new();
    for number in 0..HOLDS_MAX {
        lock.granted(&format!("h{number}"), Shared);
    }
    assert_eq!(lock.acquire("one-more", Shared), AcquireResponse::Full(LockBound::Holds));
    for number in 0..TICKETS_MAX {
        lock.fair(&format!("t{number}"), Exclusive).unwrap_err();
    }
    let one_more = request("one-more", Exclusive, true);
    assert_eq!(lock.ask(&one_more), AcquireResponse::Full(LockBound::Tickets));
    for number in 0..WITHDRAWN_MAX {
        lock.withdraw(&format!("w{number}"));
    }
    assert_eq!(lock.withdraw("one-more"), UnlockResponse::Full);
    assert_eq!(lock.released("h7"), 0, "ending something always has room");
}

#[test]
fn a_change_holds_only_before_the_first_end_that_it_relied_on() {
    let mut lock = Lock::new();
    let ends_at = lock.granted("a", Shared).ends_at;
    lock.pass(SEC);
    let mut state = LockState::at(lock.record.clone(), lock.now);
    state.acquire(&request("b", Shared, false));
    assert_eq!(state.into_change().unwrap().before, ends_at);
}

#[test]
fn leases_are_counted_from_a_later_instant_where_the_clock_may_gain() {
    let mut lock = Lock::new();
    let later = lock.now.plus(SEC);
    let mut state = LockState::at(lock.record.clone(), lock.now).with_leases_from(later);
    let AcquireResponse::Granted(grant) = state.acquire(&request("a", Exclusive, false)) else { panic!("it is free") };
    assert_eq!(grant.ends_at, later.plus(LEASE));
    assert_eq!(state.renew(&attempt("a"), LEASE * 2), RenewLockResponse::Renewed(later.plus(LEASE * 2)));
    assert_eq!(state.now(), lock.now, "what has ended is decided by now");
    lock.pass(SEC * 2);
    let state = LockState::at(lock.record.clone(), lock.now).with_leases_from(later);
    assert_eq!(state.now(), lock.now);
}

/// A way in which the head of a queue becomes able to go.
type Free = (&'static str, fn(&mut LockState));

#[test]
fn an_absent_head_has_a_full_second_from_when_the_lock_was_certainly_free() {
    let frees: [Free; 3] = [
        ("the hold is released", |state| _ = state.release(&attempt("a"))),
        ("the hold is withdrawn", |state| _ = state.withdraw(hash("a"))),
        ("the head leaves, which could not go", |state| _ = state.leave(hash("head"))),
    ];
    for (way, free) in frees {
        let mut lock = Lock::new();
        let head = if way.starts_with("the head") {
            lock.granted("a", Shared);
            lock.fair("head", Exclusive).unwrap_err();
            "next"
        } else {
            lock.granted("a", Exclusive);
            "head"
        };
        lock.fair(head, Shared).unwrap_err();
        lock.pass(2 * SEC);
        let late = lock.now.plus(SEC / 4);
        let mut state = LockState::at(lock.record.clone(), lock.now).with_turns_from(late);
        free(&mut state);
        lock.record = state.into_change().unwrap().record;
        lock.pass(SEC / 4 + HEAD_GRACE.saturating_sub(Duration::from_micros(1)));
        assert_eq!(lock.acquire("barger", Shared), HELD, "{way}");
        lock.pass(Duration::from_micros(1));
        assert!(matches!(lock.acquire("barger", Shared), AcquireResponse::Granted(_)), "{way}");
    }
}

#[test]
fn only_a_change_that_makes_way_for_a_caller_that_waits_notifies() {
    let mut lock = Lock::new();
    let notifies = |lock: &mut Lock, transition: &dyn Fn(&mut LockState)| {
        let mut state = LockState::at(lock.record.clone(), lock.now);
        transition(&mut state);
        let change = state.into_change().unwrap();
        lock.record = change.record;
        change.notifies
    };
    let acquire = |name: &'static str| {
        move |state: &mut LockState| {
            state.acquire(&request(name, Exclusive, false));
        }
    };
    let release = |name: &'static str| {
        move |state: &mut LockState| {
            state.release(&attempt(name));
        }
    };
    assert!(!notifies(&mut lock, &acquire("a")));
    assert!(!notifies(&mut lock, &release("a")), "no caller waits");
    assert!(!notifies(&mut lock, &acquire("a")));
    assert!(!notifies(&mut lock, &|state| state.watch()), "to wait makes way for nothing");
    assert!(notifies(&mut lock, &release("a")));
    lock.granted("b", Exclusive);
    lock.pass(TICKET_LEASE);
    assert!(!notifies(&mut lock, &release("b")), "the wait is over");
    lock.granted("c", Exclusive);
    lock.fair("d", Exclusive).unwrap_err();
    assert!(notifies(&mut lock, &release("c")), "a ticket waits");
}

#[test]
fn an_operator_ends_holds() {
    let mut lock = Lock::new();
    lock.granted("a", Shared);
    lock.granted("b", Shared);
    assert_eq!(lock.apply(|state| state.evict(|hold| hold.nonce == hash("a"))), 1);
    assert_eq!(lock.release("a"), UnlockResponse::NotHeld);
    assert_eq!(lock.apply(|state| state.evict(|_| true)), 1);
    lock.granted("c", Exclusive);
}

#[test]
fn a_withdrawn_nonce_refuses_no_other_one() {
    let mut lock = Lock::new();
    assert_eq!(lock.withdraw("a"), UnlockResponse::NotHeld);
    lock.granted("b", Exclusive);
}

/// A name, and what happens.
type Way = (&'static str, fn(&mut Lock));

#[test]
fn absent_heads_cost_one_second_together_and_however_they_go() {
    let ways: [Way; 4] = [
        ("all are absent", |_| ()),
        ("one leaves within the second", |lock| _ = lock.apply(|state| state.leave(hash("dead1")))),
        ("one is withdrawn within the second", |lock| _ = lock.withdraw("dead1")),
        ("one that asked long ago ends within the second", |lock| lock.record.tickets[0].ends_at = lock.now),
    ];
    for (way, happens) in ways {
        for behind in [1, 12, 900] {
            let mut lock = Lock::new();
            lock.granted("a", Exclusive);
            for number in 1..=behind {
                lock.fair(&format!("dead{number}"), Exclusive).unwrap_err();
            }
            lock.fair("live", Exclusive).unwrap_err();
            lock.pass(2 * SEC);
            lock.released("a");
            lock.pass(HEAD_GRACE / 2);
            happens(&mut lock);
            let is_early = lock.fair("live", Exclusive).is_ok();
            assert!(!is_early || behind == 1 && way != "all are absent", "{way}: {behind}");
            lock.pass((HEAD_GRACE / 2).saturating_sub(Duration::from_micros(1)));
            let is_early = lock.fair("live", Exclusive).is_ok();
            assert!(!is_early || behind == 1 && way != "all are absent", "{way}: {behind}");
            lock.pass(Duration::from_micros(1));
            assert!(matches!(lock.acquire("live", Exclusive), AcquireResponse::Granted(_)), "{way}: {behind}");
        }
    }
}

#[test]
fn those_that_asked_within_the_second_keep_their_order() {
    let mut lock = Lock::new();
    lock.granted("a", Exclusive);
    for name in ["dead1", "dead2", "b", "dead3", "c"] {
        lock.fair(name, Exclusive).unwrap_err();
    }
    lock.pass(2 * SEC);
    lock.released("a");
    lock.pass(HEAD_GRACE / 2);
    assert_eq!([lock.fair("b", Exclusive), lock.fair("c", Exclusive)], [Err(3), Err(5)]);
    lock.pass(HEAD_GRACE / 2);
    assert_eq!(lock.fair("c", Exclusive), Err(3), "b has asked, and has a second of its own");
    assert_eq!(lock.acquire("x", Exclusive), HELD);
    lock.fair("b", Exclusive).unwrap();
    assert_eq!(lock.fair("c", Exclusive), Err(2));
    lock.released("b");
    lock.pass(HEAD_GRACE);
    lock.fair("c", Exclusive).unwrap();
}

#[test]
fn one_that_asked_and_is_not_there_when_it_could_go_loses_its_place_a_second_later() {
    let mut lock = Lock::new();
    lock.granted("a", Exclusive);
    for name in ["dead", "b", "c"] {
        lock.fair(name, Exclusive).unwrap_err();
    }
    lock.released("a");
    lock.pass(HEAD_GRACE / 2);
    assert_eq!([lock.fair("b", Exclusive), lock.fair("c", Exclusive)], [Err(2), Err(3)]);
    lock.pass(HEAD_GRACE / 2);
    assert_eq!(lock.fair("c", Exclusive), Err(2));
    lock.pass(HEAD_GRACE.saturating_sub(Duration::from_micros(1)));
    assert_eq!(lock.fair("c", Exclusive), Err(2));
    lock.pass(Duration::from_micros(1));
    lock.fair("c", Exclusive).unwrap();
}

#[test]
fn the_second_of_a_head_that_could_not_go_before_begins_when_the_one_before_it_makes_way() {
    let ways: [Way; 2] = [
        ("leaves", |lock| assert!(lock.apply(|state| state.leave(hash("w"))))),
        ("ends", |lock| lock.record.tickets[0].ends_at = lock.now),
    ];
    for (way, goes) in ways {
        let mut lock = Lock::new();
        lock.granted("a", Shared);
        for (name, mode) in [("w", Exclusive), ("s", Shared), ("t", Shared)] {
            lock.fair(name, mode).unwrap_err();
        }
        lock.pass(3 * SEC);
        goes(&mut lock);
        assert_eq!(lock.fair("t", Shared), Err(2), "{way}: s could not go while w was before it");
        lock.pass(HEAD_GRACE);
        lock.fair("t", Shared).expect(way);
    }
}

#[test]
fn a_ticket_counts_as_waiting_until_the_wait_of_its_request_ends() {
    let mut lock = Lock::new();
    let counts = |lock: &Lock| {
        let record = LockState::at(lock.record.clone(), lock.now).record().clone();
        (record.waiting(lock.now), record.tickets.len())
    };
    lock.granted("a", Exclusive);
    for name in ["polls", "waits", "waits-long"] {
        lock.fair(name, Exclusive).unwrap_err();
    }
    let rest = [("polls", TICKET_LEASE), ("waits", 2 * SEC), ("waits-long", 30 * SEC), ("unfair", SEC)];
    let wait = |lock: &mut Lock, rest: &[(&str, Duration)]| {
        lock.apply(|state| rest.iter().for_each(|(name, rest)| state.wait(hash(name), *rest)));
    };
    wait(&mut lock, &rest);
    assert_eq!(counts(&lock), (3, 3));
    lock.pass(2 * SEC);
    assert_eq!(counts(&lock), (2, 3), "it keeps its place");
    wait(&mut lock, &[("waits", SEC)]);
    assert_eq!(counts(&lock), (3, 3), "it asked again");
    wait(&mut lock, &[("waits", Duration::ZERO)]);
    assert_eq!(counts(&lock), (2, 3));
    lock.pass(TICKET_LEASE.saturating_sub(4 * SEC));
    for name in ["waits-long", "polls"] {
        lock.fair(name, Exclusive).unwrap_err();
    }
    lock.pass(4 * SEC);
    assert_eq!(counts(&lock), (2, 2), "both have asked within the lease of a ticket");
    lock.pass(TICKET_LEASE);
    assert_eq!(counts(&lock), (0, 0));
}

#[test]
fn those_that_wait_ask_within_the_grace_of_the_head_and_at_its_end() {
    let mut lock = Lock::new();
    let again_in = |lock: &Lock| LockState::at(lock.record.clone(), lock.now).ask_again_in();
    assert_eq!(again_in(&lock), None);
    lock.granted("a", Exclusive);
    lock.fair("dead", Exclusive).unwrap_err();
    assert_eq!(again_in(&lock), Some(LEASE), "until the lease ends");
    lock.released("a");
    assert_eq!(again_in(&lock), Some(HEAD_GRACE / 2));
    lock.pass(HEAD_GRACE / 2);
    assert_eq!(again_in(&lock), Some(HEAD_GRACE / 2));
    lock.pass(HEAD_GRACE / 4);
    assert_eq!(again_in(&lock), Some(HEAD_GRACE / 4));
}

#[test]
fn what_changes_nothing_is_not_written() {
    let mut lock = Lock::new();
    let changes = |lock: &Lock, transition: &dyn Fn(&mut LockState)| {
        let mut state = LockState::at(lock.record.clone(), lock.now);
        transition(&mut state);
        state.into_change().is_some()
    };
    lock.granted("a", Exclusive);
    let poll = |state: &mut LockState| {
        state.acquire(&request("b", Exclusive, true));
    };
    assert!(changes(&lock, &poll) && changes(&lock, &|state| state.watch()));
    lock.fair("b", Exclusive).unwrap_err();
    lock.apply(LockState::watch);
    assert!(!changes(&lock, &poll) && !changes(&lock, &|state| state.watch()));
    for lease in [LEASE, SEC] {
        assert!(!changes(&lock, &|state| _ = state.renew(&attempt("a"), lease)), "its lease is as long already");
    }
    assert!(!changes(&lock, &|state| assert_eq!(state.evict(|_| false), 0)));
    lock.pass(TICKET_LEASE / 2);
    assert!(changes(&lock, &poll) && changes(&lock, &|state| state.watch()), "half of it is over");
}

#[test]
fn a_repeated_request_keeps_its_ticket_and_one_that_has_ended_is_gone() {
    let mut lock = Lock::new();
    lock.granted("a", Exclusive);
    assert_eq!([lock.fair("b", Exclusive), lock.fair("c", Exclusive)], [Err(1), Err(2)]);
    lock.pass(TICKET_LEASE / 2);
    assert_eq!(lock.fair("b", Exclusive), Err(1));
    lock.pass(TICKET_LEASE / 2);
    assert_eq!(lock.fair("d", Exclusive), Err(2), "b has extended its ticket, that of c ends at this instant");
}

#[test]
fn a_state_says_when_it_is_and_how_long_the_lock_is_held() {
    let mut lock = Lock::new();
    let held_for = |lock: &Lock| LockState::at(lock.record.clone(), lock.now).held_for();
    assert_eq!(held_for(&lock), None);
    lock.granted("a", Shared);
    lock.pass(SEC);
    lock.granted("b", Shared);
    assert_eq!(held_for(&lock), Some(LEASE.saturating_sub(SEC)), "until the first lease ends");
    assert_eq!(LockState::at(lock.record.clone(), lock.now).now(), lock.now);
}

#[test]
fn there_are_as_many_permits_as_the_limit_says_and_an_owner_has_no_more() {
    let mut lock = Lock::new();
    let granted = |answer: AcquireResponse| matches!(answer, AcquireResponse::Granted(_));
    assert!(granted(lock.permit("a.1", 2)) && granted(lock.permit("a.2", 2)));
    assert!(granted(lock.permit("a.1", 2)), "a repeat is the same hold");
    for name in ["a.3", "b"] {
        assert_eq!(lock.permit(name, 2), HELD, "{name}");
    }
    assert_eq!(lock.released("a.1"), 1);
    assert!(granted(lock.permit("b", 2)));
    lock.pass(LEASE);
    assert!(granted(lock.permit("c", 2)) && granted(lock.permit("d", 2)), "permits whose leases have ended are free");
    assert_eq!(lock.permit("e", 2), HELD);
}

#[test]
fn all_holders_name_the_same_limit_until_the_lock_is_free() {
    let mut lock = Lock::new();
    let two = Permits::try_from(2).unwrap();
    assert!(matches!(lock.permit("a", 2), AcquireResponse::Granted(_)));
    for name in ["a.1", "b"] {
        assert_eq!(lock.permit(name, 3), AcquireResponse::LimitDiffers(two), "{name}");
    }
    assert_eq!(lock.permit("a", 3), AcquireResponse::NonceReused);
    assert_eq!(lock.acquire("a", Shared), AcquireResponse::NonceReused);
    lock.released("a");
    assert_eq!(lock.record.limit, None, "a free lock has none");
    assert!(matches!(lock.permit("b", 3), AcquireResponse::Granted(_)));
    assert_eq!(lock.permit("a.1", 2), AcquireResponse::LimitDiffers(Permits::try_from(3).unwrap()));
}

#[test]
fn a_hold_with_a_limit_and_one_without_exclude_each_other() {
    for mode in [Shared, Exclusive] {
        let mut lock = Lock::new();
        assert!(matches!(lock.permit("a", 2), AcquireResponse::Granted(_)));
        for name in ["a.1", "b"] {
            assert_eq!(lock.acquire(name, mode), HELD, "{name}");
        }
        lock.released("a");
        lock.granted("a", mode);
        for name in ["a.1", "b"] {
            assert_eq!(lock.permit(name, 2), HELD, "{name}");
        }
    }
}

#[test]
fn permits_are_granted_in_the_order_of_the_queue_also_to_those_that_have_one() {
    let mut lock = Lock::new();
    for name in ["a.1", "b"] {
        assert!(matches!(lock.permit(name, 2), AcquireResponse::Granted(_)));
    }
    let queued = |lock: &mut Lock, name| match lock.ask(&permit(name, 2, true)) {
        AcquireResponse::Held { position } => position,
        other => panic!("{name}: {other:?}"),
    };
    assert_eq!((queued(&mut lock, "c"), queued(&mut lock, "d")), (Some(1), Some(2)));
    lock.released("b");
    assert_eq!(lock.permit("a.2", 2), HELD, "a permit is no re-entry");
    assert_eq!(queued(&mut lock, "d"), Some(2));
    assert!(matches!(lock.ask(&permit("c", 2, true)), AcquireResponse::Granted(_)));
    lock.released("a.1");
    assert!(matches!(lock.ask(&permit("d", 2, true)), AcquireResponse::Granted(_)));
}

#[test]
fn a_request_in_the_queue_with_another_limit_leaves_it_and_blocks_others_for_a_second_at_most() {
    let mut lock = Lock::new();
    lock.granted("a", Exclusive);
    for (name, limit) in [("b", 2), ("c", 3), ("d", 2)] {
        assert!(matches!(lock.ask(&permit(name, limit, true)), AcquireResponse::Held { .. }));
    }
    lock.released("a");
    assert!(matches!(lock.ask(&permit("b", 2, true)), AcquireResponse::Granted(_)));
    let mut there = Lock { record: lock.record.clone(), now: lock.now };
    assert_eq!(there.ask(&permit("c", 3, true)), AcquireResponse::LimitDiffers(Permits::try_from(2).unwrap()));
    assert!(matches!(there.ask(&permit("d", 2, true)), AcquireResponse::Granted(_)));
    assert!(matches!(lock.ask(&permit("d", 2, true)), AcquireResponse::Held { position: Some(2) }), "c may still ask");
    lock.pass(SEC);
    assert!(matches!(lock.ask(&permit("d", 2, true)), AcquireResponse::Granted(_)), "c is not there");
}
