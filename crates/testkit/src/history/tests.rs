//! Histories written by hand: the checker accepts only the possible ones.

use std::time::Duration;

use oncegate_core::attempt::{Attempt, Nonce};
use oncegate_core::claim::Outcome;
use oncegate_core::clock::Timestamp;
use oncegate_core::record::ClaimState;
use oncegate_core::terms::{LeaseEnd, Retention, Terms};

use super::check::{check, with_echoes};
use super::record::{Answer, Call, Event, Reply};

const LEASE: u64 = 100;

fn ms(ms: u64) -> Duration {
    Duration::from_millis(ms)
}

fn terms() -> Terms {
    Terms {
        lease: ms(LEASE),
        retention: Retention::For(ms(1000)),
        unknown_retention: Retention::Forever,
        on_lease_end: LeaseEnd::Release,
    }
}

fn nonce(name: char) -> Nonce {
    name.to_string().repeat(16).parse().unwrap()
}

/// Returns the attempt with this name and timestamp.
fn attempt(name: char, number: u64) -> Attempt {
    Attempt::new(Timestamp::from_micros(1_700_000_000_000_000 + number), nonce(name))
}

fn timestamp(number: u64) -> u64 {
    1_700_000_000_000_000 + number
}

fn event(started: u64, answered: u64, call: Call, reply: Reply) -> Event {
    Event { caller: 0, service: 0, started: ms(started), answered: ms(answered), call, reply }
}

fn claim_call(started: u64, answered: u64, name: char, reply: Reply) -> Event {
    event(started, answered, Call::Claim { nonce: nonce(name), terms: terms(), take_over: false }, reply)
}

fn outcome_call(started: u64, answered: u64, by: &Attempt, outcome: Outcome, reply: Reply) -> Event {
    event(started, answered, Call::Settle { attempt: by.clone(), outcome, terms: terms() }, reply)
}

fn granted(attempt: &Attempt, lease: u64) -> Reply {
    granted_as(attempt, lease, None, false)
}

fn granted_as(attempt: &Attempt, lease: u64, fence: Option<u64>, repeated: bool) -> Reply {
    Reply::Answered(Answer::Granted { attempt: attempt.clone(), fence, repeated, taken_over: false, lease: ms(lease) })
}

fn duplicate(number: u64, state: ClaimState) -> Reply {
    Reply::Answered(Answer::Duplicate { timestamp: timestamp(number), state, result: None })
}

fn done(state: Option<ClaimState>, late: Option<bool>) -> Reply {
    Reply::Answered(Answer::Done { state, late })
}

fn success() -> Outcome {
    Outcome::Success { result: None, retention: None }
}

fn explained(events: &[Event]) -> bool {
    check(events, ms(2)).is_ok()
}

#[test]
fn a_history_without_faults_is_explained() {
    let a = attempt('a', 1);
    assert!(explained(&[
        claim_call(0, 5, 'a', granted(&a, 98)),
        claim_call(6, 9, 'b', duplicate(1, ClaimState::InProgress)),
        outcome_call(10, 12, &a, success(), done(Some(ClaimState::Succeeded), Some(false))),
        claim_call(13, 15, 'c', duplicate(1, ClaimState::Succeeded)),
        outcome_call(16, 17, &a, Outcome::Failure, Reply::Answered(Answer::AlreadySucceeded)),
    ]));
}

#[test]
fn two_grants_at_once_are_not_explained() {
    let (a, b) = (attempt('a', 1), attempt('b', 2));
    assert!(!explained(&[claim_call(0, 5, 'a', granted(&a, 98)), claim_call(1, 6, 'b', granted(&b, 98))]));
    // Also late in the lease, but not when the lease may have ended.
    assert!(!explained(&[claim_call(0, 5, 'a', granted(&a, 98)), claim_call(80, 97, 'b', granted(&b, 98))]));
    assert!(explained(&[claim_call(0, 5, 'a', granted(&a, 98)), claim_call(80, 99, 'b', granted(&b, 98))]));
}

#[test]
fn the_order_of_concurrent_events_is_found() {
    let (a, b) = (attempt('a', 1), attempt('b', 2));
    // Answered as a duplicate of a claim that was granted after a release, while the call waited.
    let events = [
        claim_call(0, 20, 'a', granted(&a, 80)),
        claim_call(0, 50, 'c', duplicate(2, ClaimState::InProgress)),
        outcome_call(21, 40, &a, Outcome::Failure, done(None, Some(false))),
        claim_call(21, 45, 'b', granted(&b, 80)),
    ];
    assert!(explained(&events));
    let mut events = events;
    // Not if it was answered before that claim.
    events[1].answered = ms(20);
    assert!(!explained(&events));
}

#[test]
fn an_unknown_call_takes_effect_at_any_time_or_never() {
    let (a, b) = (attempt('a', 1), attempt('b', 2));
    let unknown = claim_call(0, 50, 'a', Reply::Unknown);
    assert!(explained(&[unknown.clone(), claim_call(60, 70, 'b', granted(&b, 98))]), "never");
    assert!(
        explained(&[unknown.clone(), claim_call(60, 70, 'b', duplicate(1, ClaimState::InProgress))]),
        "immediately"
    );
    assert!(
        explained(&[
            unknown.clone(),
            claim_call(60, 70, 'b', granted(&b, 98)),
            outcome_call(70, 75, &b, Outcome::Failure, done(None, Some(false))),
            claim_call(400, 410, 'a', granted_as(&a, 90, None, true)),
        ]),
        "long afterwards"
    );
    assert!(
        !explained(&[
            unknown,
            claim_call(60, 70, 'b', granted(&b, 98)),
            claim_call(80, 90, 'c', duplicate(1, ClaimState::InProgress)),
        ]),
        "not during another claim"
    );
}

#[test]
fn an_unknown_timestamp_is_the_first_one_that_an_answer_shows() {
    let unknown = claim_call(0, 50, 'a', Reply::Unknown);
    let shown = claim_call(60, 65, 'b', duplicate(1, ClaimState::InProgress));
    let other = attempt('a', 2);
    assert!(!explained(&[unknown.clone(), shown.clone(), claim_call(66, 70, 'a', granted_as(&other, 20, None, true))]));
    let same = attempt('a', 1);
    assert!(explained(&[unknown, shown, claim_call(66, 70, 'a', granted_as(&same, 20, None, true))]));
}

#[test]
fn a_refused_call_took_no_effect() {
    assert!(!explained(&[
        claim_call(0, 5, 'a', Reply::Refused),
        claim_call(6, 9, 'b', duplicate(1, ClaimState::InProgress)),
    ]));
}

#[test]
fn a_duplicate_without_a_claim_is_not_explained() {
    assert!(!explained(&[claim_call(0, 5, 'a', duplicate(1, ClaimState::InProgress))]));
    let a = attempt('a', 1);
    assert!(!explained(&[
        claim_call(0, 5, 'a', granted(&a, 98)),
        outcome_call(6, 8, &a, Outcome::Failure, done(None, Some(false))),
        claim_call(9, 12, 'b', duplicate(1, ClaimState::InProgress)),
    ]));
}

#[test]
fn a_success_is_sticky_until_its_retention_ends() {
    let (a, b) = (attempt('a', 1), attempt('b', 2));
    let mut events = vec![
        claim_call(0, 5, 'a', granted(&a, 98)),
        outcome_call(6, 8, &a, success(), done(Some(ClaimState::Succeeded), Some(false))),
        claim_call(500, 505, 'b', granted(&b, 98)),
    ];
    assert!(!explained(&events));
    (events[2].started, events[2].answered) = (ms(1000), ms(1010));
    assert!(explained(&events));
}

#[test]
fn a_renewal_never_shortens() {
    let (a, b) = (attempt('a', 1), attempt('b', 2));
    let renewal = |lease| Call::Renew { attempt: a.clone(), lease: ms(lease) };
    let renewed = |lease| Reply::Answered(Answer::Renewed { lease: ms(lease) });
    assert!(!explained(&[
        claim_call(0, 2, 'a', granted(&a, 98)),
        event(3, 5, renewal(20), renewed(90)),
        claim_call(30, 40, 'b', granted(&b, 98)),
    ]));
    // And it extends.
    assert!(!explained(&[
        claim_call(0, 2, 'a', granted(&a, 98)),
        event(50, 55, renewal(100), renewed(98)),
        claim_call(120, 125, 'b', granted(&b, 98)),
    ]));
}

#[test]
fn no_answer_promises_more_lease_than_there_is() {
    let a = attempt('a', 1);
    assert!(!explained(&[claim_call(0, 5, 'a', granted(&a, 101))]));
    assert!(!explained(&[
        claim_call(0, 5, 'a', granted(&a, 98)),
        claim_call(50, 55, 'a', granted_as(&a, 90, None, true))
    ]));
    assert!(explained(&[
        claim_call(0, 5, 'a', granted(&a, 98)),
        claim_call(50, 55, 'a', granted_as(&a, 48, None, true))
    ]));
}

#[test]
fn fences_rise() {
    let (a, b) = (attempt('a', 1), attempt('b', 2));
    let history = |fence| {
        [
            claim_call(0, 5, 'a', granted_as(&a, 98, Some(7), false)),
            outcome_call(6, 8, &a, Outcome::Failure, done(None, Some(false))),
            claim_call(9, 12, 'b', granted_as(&b, 98, Some(fence), false)),
        ]
    };
    assert!(explained(&history(8)));
    assert!(!explained(&history(7)));
    assert!(!explained(&history(6)));
}

#[test]
fn a_lease_that_ends_as_unknown_blocks_until_taken_over() {
    let (a, b) = (attempt('a', 1), attempt('b', 2));
    let terms = Terms { on_lease_end: LeaseEnd::Unknown, ..terms() };
    let claim = |name, take_over| Call::Claim { nonce: nonce(name), terms, take_over };
    let first = event(0, 5, claim('a', false), granted(&a, 98));
    assert!(explained(&[first.clone(), event(120, 125, claim('b', false), duplicate(1, ClaimState::Unknown))]));
    assert!(!explained(&[first.clone(), event(120, 125, claim('b', false), granted(&b, 98))]));
    let taken = Answer::Granted { attempt: b, fence: None, repeated: false, taken_over: true, lease: ms(98) };
    assert!(explained(&[first, event(120, 125, claim('b', true), Reply::Answered(taken))]));
}

#[test]
fn a_late_outcome_is_recorded() {
    let a = attempt('a', 1);
    let late = outcome_call(200, 205, &a, success(), done(Some(ClaimState::Succeeded), Some(true)));
    let first = claim_call(0, 5, 'a', granted(&a, 98));
    assert!(explained(&[first.clone(), late.clone(), claim_call(210, 215, 'b', duplicate(1, ClaimState::Succeeded))]));
    let b = attempt('b', 2);
    assert!(!explained(&[first, late, claim_call(210, 215, 'b', granted(&b, 98))]), "not dropped");
}

#[test]
fn a_degraded_grant_may_reach_the_store_later() {
    let (a, b) = (attempt('a', 1), attempt('b', 2));
    let Reply::Answered(answer) = granted(&a, 98) else { unreachable!() };
    let local = claim_call(0, 5, 'a', Reply::Degraded("local".into(), answer));
    assert!(explained(&[local.clone(), claim_call(10, 15, 'b', granted(&b, 98))]));
    assert!(explained(&[local, claim_call(10, 15, 'b', duplicate(1, ClaimState::InProgress))]));
}

/// A grant by a policy, for a claim call with this nonce.
fn granted_by_policy(started: u64, answered: u64, attempt: &Attempt, name: char) -> Event {
    let Reply::Answered(answer) = granted(attempt, 98) else { unreachable!() };
    claim_call(started, answered, name, Reply::Degraded("local".into(), answer))
}

/// The store granted the nonce at one gateway, and a policy granted it at another one, which delivers its lease.
#[test]
fn a_grant_by_a_policy_extends_the_lease_of_its_nonce_in_the_store() {
    let first = claim_call(0, 5, 'a', granted(&attempt('a', 1), 98));
    let seen = |started| claim_call(started, started + 5, 'b', duplicate(1, ClaimState::InProgress));
    let again = granted_by_policy(30, 35, &attempt('a', 2), 'a');
    assert!(!explained(&[first.clone(), seen(120)]), "its lease ended before 107 ms");
    assert!(explained(&[first.clone(), again.clone(), seen(120)]));
    // Delivered at the end of the first lease at the latest, and for one lease at most.
    assert!(!explained(&[first.clone(), again, seen(210)]));
    let other = granted_by_policy(30, 35, &attempt('c', 2), 'c');
    assert!(!explained(&[first.clone(), other, seen(120)]), "another nonce");
}

/// The store executed the call before a policy answered it: then it receives the grant twice.
#[test]
fn a_grant_by_a_policy_may_reach_the_store_by_its_call_and_by_its_delivery() {
    let local = granted_by_policy(0, 60, &attempt('a', 1), 'a');
    let seen = |started, state| claim_call(started, started + 5, 'b', duplicate(1, state));
    let events = [local, seen(10, ClaimState::InProgress), seen(150, ClaimState::InProgress)];
    assert!(!explained(&events), "once: its lease ended before 117 ms");
    assert!(explained(&with_echoes(&events, ms(1000))));
    assert!(!explained(&with_echoes(&events[1..], ms(1000))), "others have no echo");
}

/// An unknown outcome reached the store twice: before its claim was taken over, and by its delivery after the other has failed.
#[test]
fn an_outcome_by_a_policy_may_reach_the_store_by_its_call_and_by_its_delivery() {
    let (a, b) = (attempt('a', 1), attempt('b', 2));
    let Reply::Answered(spooled) = done(None, None) else { unreachable!() };
    let taken = Answer::Granted { attempt: b.clone(), fence: None, repeated: false, taken_over: true, lease: ms(98) };
    let take_over = Call::Claim { nonce: nonce('b'), terms: terms(), take_over: true };
    let events = [
        claim_call(0, 5, 'a', granted(&a, 98)),
        outcome_call(6, 10, &a, Outcome::Unknown, Reply::Degraded("spool".into(), spooled)),
        claim_call(11, 15, 'c', duplicate(1, ClaimState::Unknown)),
        event(16, 20, take_over, Reply::Answered(taken)),
        outcome_call(21, 25, &b, Outcome::Failure, done(None, Some(false))),
        claim_call(30, 35, 'c', duplicate(1, ClaimState::Unknown)),
    ];
    assert!(explained(&events[..5]));
    assert!(!explained(&events), "once");
    assert!(explained(&with_echoes(&events, ms(1000))));
}

/// The second sending of the claim arrives after the failure. The caller's attempt holds the claim again then.
#[test]
fn a_claim_that_was_sent_twice_is_found_by_a_further_outcome_of_its_attempt() {
    let (a, b) = (attempt('a', 1), attempt('b', 2));
    let unknown_by = |attempt: &Attempt| {
        outcome_call(61, 70, attempt, Outcome::Unknown, done(Some(ClaimState::Unknown), Some(false)))
    };
    let released = outcome_call(50, 60, &a, Outcome::Failure, done(None, Some(false)));
    let events = [claim_call(0, 40, 'a', granted(&a, 80)), released, unknown_by(&a)];
    assert!(!explained(&events), "once");
    assert!(explained(&with_echoes(&events, ms(20))));
    assert!(!explained(&with_echoes(&events, ms(50))), "it was fast, so it was not sent twice");
    let [claimed, released, _] = events;
    assert!(!explained(&with_echoes(&[claimed, released, unknown_by(&b)], ms(20))), "of another attempt");
}

#[test]
fn a_failure_whose_first_reply_was_lost_may_meet_another_claim() {
    let (a, b) = (attempt('a', 1), attempt('b', 2));
    assert!(explained(&[
        claim_call(0, 5, 'a', granted(&a, 98)),
        outcome_call(6, 40, &a, Outcome::Failure, done(None, None)),
        claim_call(10, 20, 'b', granted(&b, 98)),
    ]));
}

#[test]
fn the_report_ends_with_the_impossible_event() {
    let (a, b) = (attempt('a', 1), attempt('b', 2));
    let unexplained = check(
        &[
            claim_call(0, 5, 'a', granted(&a, 98)),
            claim_call(6, 9, 'b', granted(&b, 98)),
            outcome_call(10, 12, &a, success(), done(Some(ClaimState::Succeeded), Some(false))),
            claim_call(13, 15, 'c', duplicate(1, ClaimState::Succeeded)),
        ],
        ms(2),
    )
    .unwrap_err();
    assert_eq!(unexplained.event_count(), 2, "{unexplained}");
    let text = unexplained.to_string();
    assert!(text.contains("granted to 1700000000000002"), "{text}");
    assert!(text.contains("the store would have answered Claimed(Duplicate"), "{text}");
}
