//! Histories of locks written by hand: possible ones are accepted, and each violation is found.

use std::time::Duration;

use oncegate_core::attempt::{Attempt, Nonce};
use oncegate_core::clock::Timestamp;
use oncegate_core::lock::LockMode::{self, Exclusive, Shared};

use super::{Acquire, LockAnswer, LockCall, LockEvent, LockReply, Oracle, Rule};

const LEASE: u64 = 1000;
const NONE: Duration = Duration::ZERO;

fn ms(ms: u64) -> Duration {
    Duration::from_millis(ms)
}

fn nonce(name: &str) -> Nonce {
    format!("{name:-<16}").parse().unwrap()
}

fn attempt(name: &str) -> Attempt {
    Attempt::new(Timestamp::from_micros(1_700_000_000_000_000), nonce(name))
}

fn event((started, answered): (u64, u64), call: LockCall, reply: LockReply) -> LockEvent {
    LockEvent { caller: 0, service: 0, started: ms(started), answered: ms(answered), call, reply }
}

/// Returns a request; its owner is the part of the name before the dot, if it has one.
fn request(name: &str, mode: LockMode, fair: bool) -> LockCall {
    let owner = name.split_once('.').map(|(owner, _)| nonce(owner));
    let nonce = nonce(&name.replace('.', "_"));
    LockCall::Acquire(Acquire { nonce, owner, mode, lease: ms(LEASE), wait: NONE, fair })
}

fn granted(times: (u64, u64), name: &str, mode: LockMode, fence: u64, holds: usize) -> LockEvent {
    let attempt = attempt(&name.replace('.', "_"));
    let lease = ms(LEASE);
    let answer = LockAnswer::Granted { attempt, fence, holds, lease, repeated: false, waited: NONE };
    event(times, request(name, mode, false), LockReply::Answered(answer))
}

fn held(times: (u64, u64), name: &str, position: Option<usize>) -> LockEvent {
    let answer = LockAnswer::Held { position, waited: NONE };
    event(times, request(name, Exclusive, position.is_some()), LockReply::Answered(answer))
}

fn released(times: (u64, u64), name: &str, holds: usize) -> LockEvent {
    let answer = LockAnswer::Released { holds, late: Some(false) };
    event(times, LockCall::Release(attempt(&name.replace('.', "_"))), LockReply::Answered(answer))
}

fn rule(events: &[LockEvent]) -> Option<Rule> {
    let oracle = Oracle { skew: ms(5), late: ms(100), slack: ms(100) };
    oracle.check(events).err().map(|violation| violation.rule)
}

#[test]
fn holds_one_after_another_are_accepted() {
    let first = granted((0, 2), "a", Exclusive, 1, 1);
    let second = granted((10, 20), "b", Exclusive, 2, 1);
    assert_eq!(rule(&[first.clone(), released((9, 11), "a", 0), second]), None);
    let after_the_lease = granted((LEASE, LEASE + 2), "b", Exclusive, 2, 1);
    assert_eq!(rule(&[first, after_the_lease]), None);
    let shared = [granted((0, 2), "a", Shared, 1, 1), granted((3, 4), "b", Shared, 1, 1)];
    assert_eq!(rule(&shared), None, "holds that join share the fence");
}

#[test]
fn two_owners_at_once_are_found() {
    for (one, other) in [(Exclusive, Exclusive), (Exclusive, Shared), (Shared, Exclusive)] {
        let events = [granted((0, 2), "a", one, 1, 1), granted((5, 7), "b", other, 2, 1)];
        assert_eq!(rule(&events), Some(Rule::Exclusion), "{one:?} {other:?}");
    }
    let same_owner = [granted((0, 2), "o.1", Exclusive, 1, 1), granted((5, 7), "o.2", Exclusive, 1, 2)];
    assert_eq!(rule(&same_owner), None);
}

#[test]
fn a_renewed_hold_that_another_owner_gets_is_found() {
    let renewed = event(
        (LEASE - 10, LEASE - 5),
        LockCall::Renew(attempt("a"), ms(LEASE)),
        LockReply::Answered(LockAnswer::Renewed { lease: ms(LEASE) }),
    );
    let other = granted((LEASE + 100, LEASE + 110), "b", Exclusive, 2, 1);
    assert_eq!(rule(&[granted((0, 2), "a", Exclusive, 1, 1), renewed, other]), Some(Rule::Exclusion));
}

#[test]
fn a_fence_that_does_not_rise_is_found() {
    let first = [granted((0, 2), "a", Exclusive, 7, 1), released((9, 11), "a", 0)];
    for fence in [7, 6, 1] {
        let again = [&first[..], &[granted((20, 22), "b", Exclusive, fence, 1)]].concat();
        assert_eq!(rule(&again), Some(Rule::Fence), "{fence}");
    }
    let shared = [&first[..], &[granted((20, 22), "b", Shared, 7, 1)]].concat();
    assert_eq!(rule(&shared), Some(Rule::Fence), "after a release the lock was free");
}

#[test]
fn a_request_that_barges_is_found() {
    let start = [granted((0, 2), "a", Exclusive, 1, 1), held((10, 12), "q", Some(1)), released((20, 22), "a", 0)];
    let then = |grant: LockEvent| rule(&[&start[..], &[grant]].concat());
    assert_eq!(then(granted((30, 32), "q", Exclusive, 2, 1)), None, "it is its turn");
    assert_eq!(then(granted((30, 32), "x", Exclusive, 2, 1)), Some(Rule::Order));
    assert_eq!(then(granted((30, 32), "x", Shared, 2, 1)), Some(Rule::Order), "also a shared one");
    assert_eq!(then(granted((1200, 1202), "x", Exclusive, 2, 1)), None, "a head that is absent loses its place");
    let earlier = held((3, 9), "x", Some(1));
    assert_eq!(rule(&[&start[..], &[earlier, granted((30, 32), "x", Exclusive, 2, 1)]].concat()), None);
    let gone = event((15, 18), request("q", Exclusive, true), LockReply::Unknown);
    assert_eq!(rule(&[&start[..], &[gone, granted((30, 32), "x", Exclusive, 2, 1)]].concat()), None, "it hung up");
}

#[test]
fn an_owner_that_holds_the_lock_does_not_barge() {
    let start = [granted((0, 2), "o.1", Exclusive, 1, 1), held((10, 12), "q", Some(1))];
    assert_eq!(rule(&[&start[..], &[granted((30, 32), "o.2", Exclusive, 1, 2)]].concat()), None);
}

#[test]
fn a_counter_instead_of_a_set_of_nonces_is_found() {
    let first = granted((0, 2), "o.1", Exclusive, 1, 1);
    let mut again = granted((5, 7), "o.1", Exclusive, 1, 2);
    assert_eq!(rule(&[first.clone(), again.clone()]), Some(Rule::Holds), "one nonce is one hold");
    if let LockReply::Answered(LockAnswer::Granted { holds, repeated, .. }) = &mut again.reply {
        (*holds, *repeated) = (1, true);
    }
    assert_eq!(rule(&[first.clone(), again.clone(), released((10, 12), "o.1", 0)]), None);
    assert_eq!(rule(&[first.clone(), again, released((10, 12), "o.1", 1)]), Some(Rule::Holds));
    let second = granted((5, 7), "o.2", Exclusive, 1, 2);
    assert_eq!(rule(&[first, second, released((10, 12), "o.1", 0)]), Some(Rule::Holds), "another one is left");
}

#[test]
fn a_lock_that_nobody_can_hold_and_is_refused_is_found() {
    let start = [granted((0, 2), "a", Exclusive, 1, 1), held((10, 12), "q", Some(1)), released((20, 22), "a", 0)];
    let refused = |at| rule(&[&start[..], &[held((at, at + 2), "x", None)]].concat());
    assert_eq!(refused(1000), None, "a ticket blocks for a second");
    assert_eq!(refused(5000), Some(Rule::Progress));
    let gave_up = |number: u64| held((10 + number, 12 + number), &format!("q{number}"), Some(1));
    let dead: Vec<_> = (1..=5).map(gave_up).collect();
    let refused_behind =
        |more: &[LockEvent], at| rule(&[&start[..], &dead, more, &[held((at, at + 2), "x", None)]].concat());
    assert_eq!(refused_behind(&[], 1100), None);
    assert_eq!(refused_behind(&[], 1300), Some(Rule::Progress), "a second for all of them together");
    let asked = [held((500, 502), "q1", Some(2))];
    assert_eq!(refused_behind(&asked, 1300), None, "one that asked within that second has its own");
    assert_eq!(refused_behind(&asked, 2300), Some(Rule::Progress));
    let crashed = [granted((0, 2), "a", Exclusive, 1, 1), held((LEASE + 500, LEASE + 502), "x", None)];
    assert_eq!(rule(&crashed), None, "the lease may have ended just before");
    let uncertain = event((0, 2), request("a", Exclusive, false), LockReply::Unknown);
    assert_eq!(rule(&[uncertain, held((LEASE, LEASE + 2), "x", None)]), None, "it may be held");
}
