//! Tables of decisions: what is known, and what a policy answers.

use std::sync::Arc;
use std::time::Duration;

use super::*;
use crate::engine::conformance::fresh_claim;
use crate::outage::entry::{Entry, Seq};
use crate::record::{ClaimState, Contents, Record};
use crate::terms::Terms;

const SECOND: Duration = Duration::from_secs(1);
const NOON: Timestamp = Timestamp::from_micros(1_700_000_000_000_000);
const FAIL_CLOSED: OutcomeOnOutage = OutcomeOnOutage::FailClosed;
const SPOOL: OutcomeOnOutage = OutcomeOnOutage::Spool;

/// Entries of these policies, made at noon.
fn queue(operations: Vec<(OutagePolicy, JournaledOperation)>) -> Vec<(Seq, Arc<Entry>)> {
    let entry =
        |(seq, (policy, journaled))| (seq, Arc::new(Entry { chain: "default".into(), policy, at: NOON, journaled }));
    (1..).zip(operations).map(entry).collect()
}

fn known(queue: &Queue, local: Option<LiveClaim>) -> Known<'_> {
    Known { queue, local, granted_by: None, has_forgotten: false, is_unavailable: true, wall: NOON.plus(SECOND) }
}

fn live(claim: &ClaimRequest, state: ClaimState) -> LiveClaim {
    let record = Record { state, ..claim.record() };
    LiveClaim { record, left: Some(claim.terms.lease / 2), ends_at: None, fence: None }
}

fn report(claim: &ClaimRequest, outcome: Outcome) -> OutcomeRequest {
    let late = LateTerms { operation: None, contents: Contents::Unverified, terms: claim.terms };
    OutcomeRequest { key: claim.key.clone(), attempt: claim.attempt.clone(), outcome, late: Some(late) }
}

fn success() -> Outcome {
    Outcome::Success { result: None, retention: None }
}

/// Another attempt for the same key.
fn other(claim: &ClaimRequest) -> ClaimRequest {
    ClaimRequest { attempt: fresh_claim().attempt, ..claim.clone() }
}

/// Returns the kind of a decision, its policy, its effect and its answer, in words.
fn words<Answer>(decision: &Decision<Answer>, answer: impl Fn(&Answer) -> &'static str) -> String {
    match decision {
        Decision::Fail(None) => "fail".to_owned(),
        Decision::Fail(Some(_)) => "fail for a reason".to_owned(),
        Decision::Answer(policy, given) => format!("{}: {}", policy.name(), answer(given)),
        Decision::Record(recorded) => {
            let effect = match recorded.effect {
                Effect::Keep => "keeps",
                Effect::Put(..) => "puts",
                Effect::Extend(_) => "extends",
                Effect::Replace(_) => "replaces",
                Effect::Delete => "deletes",
            };
            format!("{}: {}, {effect}", recorded.policy.name(), answer(&recorded.answer))
        }
    }
}

fn of_claim(decision: &Decision<ClaimResponse>) -> String {
    words(decision, |answer| match answer {
        ClaimResponse::Granted(_) => "granted",
        ClaimResponse::Duplicate(_) => "duplicate",
        ClaimResponse::Mismatch(_) => "mismatch",
    })
}

fn of_outcome(decision: &Decision<OutcomeAnswer>) -> String {
    words(decision, |answer| match answer {
        OutcomeAnswer::Spooled => "spooled",
        OutcomeAnswer::Response(OutcomeResponse::Done { .. }) => "done",
        OutcomeAnswer::Response(OutcomeResponse::AlreadySucceeded) => "already succeeded",
        OutcomeAnswer::Response(OutcomeResponse::Superseded { .. }) => "superseded",
        OutcomeAnswer::Response(OutcomeResponse::Expired) => "expired",
    })
}

#[test]
fn a_free_key_is_granted_by_the_policy_that_the_call_has_chosen_if_the_store_is_unavailable() {
    let claim_request = fresh_claim();
    for (on_outage, is_unavailable, has_forgotten, expected) in [
        (ClaimOnOutage::FailClosed, true, false, "fail"),
        (ClaimOnOutage::Local, true, false, "local: granted, puts"),
        (ClaimOnOutage::FailOpen, true, false, "fail_open: granted, puts"),
        (ClaimOnOutage::Local, true, true, "fail for a reason"),
        (ClaimOnOutage::FailOpen, true, true, "fail_open: granted, puts"),
        (ClaimOnOutage::Local, false, false, "fail"),
        (ClaimOnOutage::Local, false, true, "fail"),
        (ClaimOnOutage::FailOpen, false, false, "fail"),
    ] {
        let known = Known { has_forgotten, is_unavailable, ..known(&[], None) };
        let decision = claim(&claim_request, on_outage, &known);
        assert_eq!(of_claim(&decision), expected, "{on_outage:?} {is_unavailable} {has_forgotten}");
        if let Decision::Record(recorded) = decision {
            assert_eq!(recorded.effect, Effect::Put(claim_request.record(), Some(claim_request.terms.lease)));
            assert!(
                matches!(recorded.journaled, JournaledOperation::Granted(own) if own.attempt == claim_request.attempt)
            );
        }
    }
}

#[test]
fn a_known_claim_is_answered_under_the_policy_of_the_call_or_of_what_waits() {
    let own = fresh_claim();
    let spooled = [(OutagePolicy::Spool, JournaledOperation::Reported(report(&own, success())))];
    let odd = ClaimRequest { fingerprint: Some([1; 32]), ..other(&own) };
    let granted_by = Some(OutagePolicy::Local);
    for (request, on_outage, state, granted_by, waiting, expected) in [
        (&own, ClaimOnOutage::FailClosed, ClaimState::InProgress, granted_by, &[][..], "local: granted"),
        (&own, ClaimOnOutage::FailOpen, ClaimState::InProgress, granted_by, &[][..], "local: granted"),
        (&own, ClaimOnOutage::FailOpen, ClaimState::InProgress, None, &[][..], "fail_open: granted"),
        (&other(&own), ClaimOnOutage::Local, ClaimState::InProgress, None, &[][..], "local: duplicate"),
        (&other(&own), ClaimOnOutage::FailClosed, ClaimState::InProgress, None, &[][..], "fail"),
        (&other(&own), ClaimOnOutage::FailClosed, ClaimState::Succeeded, None, &spooled[..], "spool: duplicate"),
        (&odd, ClaimOnOutage::FailOpen, ClaimState::InProgress, None, &[][..], "fail_open: mismatch"),
    ] {
        let queue = queue(waiting.to_vec());
        let known = Known { granted_by, ..known(&queue, Some(live(&own, state))) };
        assert_eq!(of_claim(&claim(request, on_outage, &known)), expected, "{on_outage:?} {state:?}");
        // A store that answers with another failure changes nothing of what is known.
        let known = Known { is_unavailable: false, ..known };
        assert_eq!(of_claim(&claim(request, on_outage, &known)), expected, "{on_outage:?} {state:?}");
    }
    let queue = queue(spooled.to_vec());
    let ended = claim(&other(&own), ClaimOnOutage::FailOpen, &known(&queue, None));
    assert_eq!(of_claim(&ended), "fail_open: duplicate", "its success waits");
}

#[test]
fn an_outcome_is_spooled_if_its_call_has_chosen_that() {
    let own = fresh_claim();
    let waits = |outcome| (OutagePolicy::Spool, JournaledOperation::Reported(report(&own, outcome)));
    let of_another = (OutagePolicy::Spool, JournaledOperation::Reported(report(&other(&own), Outcome::Failure)));
    for (on_outage, is_unavailable, waiting, outcome, expected) in [
        (FAIL_CLOSED, true, vec![], success(), "fail"),
        (SPOOL, true, vec![], success(), "spool: spooled, puts"),
        (SPOOL, true, vec![], Outcome::Failure, "spool: spooled, keeps"),
        (SPOOL, true, vec![], Outcome::Unknown, "spool: spooled, puts"),
        (SPOOL, false, vec![], success(), "fail"),
        // Later ones wait behind it, even if the store answers again.
        (SPOOL, false, vec![of_another.clone()], success(), "spool: spooled, puts"),
        (FAIL_CLOSED, true, vec![of_another], success(), "fail"),
        (SPOOL, true, vec![waits(success())], success(), "spool: spooled"),
        (SPOOL, true, vec![waits(success())], Outcome::Failure, "spool: already succeeded"),
        (SPOOL, true, vec![waits(success())], Outcome::Unknown, "spool: already succeeded"),
        (SPOOL, true, vec![waits(Outcome::Failure)], Outcome::Failure, "spool: spooled"),
        (SPOOL, true, vec![waits(Outcome::Unknown)], success(), "spool: spooled, puts"),
    ] {
        let queue = queue(waiting);
        let known = Known { is_unavailable, ..known(&queue, None) };
        let decision = settle(&report(&own, outcome.clone()), on_outage, &known);
        assert_eq!(of_outcome(&decision), expected, "{on_outage:?} {is_unavailable} {outcome:?} {queue:?}");
    }
    let too_old = OutcomeRequest { late: None, ..report(&own, success()) };
    assert_eq!(of_outcome(&settle(&too_old, SPOOL, &known(&[], None))), "spool: expired");
    // The local claims have the terms that it lacks.
    let Decision::Record(recorded) = settle(&too_old, SPOOL, &known(&[], Some(live(&own, ClaimState::InProgress))))
    else {
        panic!("it is recorded")
    };
    assert!(matches!(recorded.journaled, JournaledOperation::Reported(own) if own.late.is_some()));
}

#[test]
fn the_outcome_of_a_local_grant_is_decided_by_the_local_claims() {
    let own = fresh_claim();
    let granted = |policy| queue(vec![(policy, JournaledOperation::Granted(own.clone()))]);
    for (policy, on_outage, state, outcome, expected) in [
        (OutagePolicy::Local, FAIL_CLOSED, ClaimState::InProgress, success(), "local: done, puts"),
        (OutagePolicy::Local, SPOOL, ClaimState::InProgress, Outcome::Failure, "local: done, deletes"),
        (OutagePolicy::Local, FAIL_CLOSED, ClaimState::Succeeded, success(), "local: done"),
        (OutagePolicy::Local, FAIL_CLOSED, ClaimState::Succeeded, Outcome::Failure, "local: already succeeded"),
        (OutagePolicy::FailOpen, FAIL_CLOSED, ClaimState::InProgress, success(), "fail"),
        (OutagePolicy::FailOpen, SPOOL, ClaimState::InProgress, success(), "spool: spooled, puts"),
    ] {
        let queue = granted(policy);
        let known = known(&queue, Some(live(&own, state)));
        let decision = settle(&report(&own, outcome.clone()), on_outage, &known);
        assert_eq!(of_outcome(&decision), expected, "{policy:?} {on_outage:?} {state:?} {outcome:?}");
    }
    // Another attempt of the same try counts as the one that was granted.
    let repeated = Attempt::new(own.attempt.timestamp().plus(SECOND), own.attempt.nonce().clone());
    let queue = granted(OutagePolicy::Local);
    let known = known(&queue, Some(live(&own, ClaimState::InProgress)));
    let request = OutcomeRequest { attempt: repeated.clone(), ..report(&own, success()) };
    assert_eq!(of_outcome(&settle(&request, FAIL_CLOSED, &known)), "local: done, puts");
    let renewal = RenewalRequest { key: own.key.clone(), attempt: repeated, lease: None };
    let Decision::Record(recorded) = renew(&renewal, &known) else { panic!("it is recorded") };
    assert_eq!((recorded.policy, &recorded.effect), (OutagePolicy::Local, &Effect::Extend(own.terms.lease)));
    assert!(matches!(recorded.journaled, JournaledOperation::Renewed(renewed)
        if renewed.attempt == own.attempt && renewed.lease == Some(own.terms.lease)));
}

#[test]
fn a_renewal_is_accepted_if_a_policy_granted_the_claim() {
    let own = fresh_claim();
    let renewal = |claim: &ClaimRequest, lease| RenewalRequest {
        key: claim.key.clone(),
        attempt: claim.attempt.clone(),
        lease: Some(lease),
    };
    let queue = queue(vec![(OutagePolicy::FailOpen, JournaledOperation::Granted(own.clone()))]);
    for (request, local, expected) in [
        (renewal(&own, own.terms.lease), Some(live(&own, ClaimState::InProgress)), "fail_open: renewed, extends"),
        (renewal(&own, SECOND), Some(live(&own, ClaimState::InProgress)), "fail_open: renewed"),
        (renewal(&own, SECOND), None, "fail_open: lost"),
        (renewal(&other(&own), SECOND), Some(live(&own, ClaimState::InProgress)), "fail"),
    ] {
        let answer = |answer: &RenewalResponse| match answer {
            RenewalResponse::Renewed { .. } => "renewed",
            _ => "lost",
        };
        assert_eq!(words(&renew(&request, &known(&queue, local)), answer), expected, "{request:?}");
    }
}

#[test]
fn an_outcome_that_waits_counts_after_the_end_of_its_claim() {
    use JournaledOperation::{Granted, Reported};

    let reported = |operations: &[JournaledOperation]| {
        let spooled = operations.iter().map(|operation| (OutagePolicy::Spool, operation.clone()));
        reported_after_end(&queue(spooled.collect()), NOON.plus(SECOND))
    };
    let (claim, other) = (fresh_claim(), fresh_claim());
    let success = |claim: &ClaimRequest| report(claim, success());
    let found = reported(&[Reported(success(&claim))]).unwrap();
    let retention = claim.terms.retention.duration().unwrap();
    assert_eq!((found.record.attempt, found.left), (claim.attempt.clone(), retention.checked_sub(SECOND)));
    let failure = |claim: &ClaimRequest| Reported(report(claim, Outcome::Failure));
    for (operations, counts) in [
        (vec![], false),
        (vec![failure(&claim)], false),
        (vec![Reported(success(&claim)), failure(&claim)], false),
        (vec![Reported(success(&claim)), failure(&other)], true),
        (vec![Reported(success(&claim)), Granted(other.clone())], false),
        // The local claims have this one.
        (vec![Granted(claim.clone()), Reported(success(&claim))], false),
        (vec![Granted(other), Reported(success(&claim))], true),
    ] {
        assert_eq!(reported(&operations).is_some(), counts, "{operations:?}");
    }
}

#[test]
fn a_claim_that_is_known_by_a_renewal_alone_takes_the_terms_of_its_outcome() {
    let claim = fresh_claim();
    let held = |operation| {
        let record = Record { operation, ..claim.record() };
        Some(LiveClaim { record, left: Some(SECOND), ends_at: None, fence: None })
    };
    let terms = Terms { lease: SECOND * 99, ..claim.terms };
    let mut request = report(&claim, success());
    request.late = request.late.map(|late| LateTerms { terms, ..late });
    let lease = |held, request: &OutcomeRequest| with_terms_of_outcome(held, request).unwrap().record.terms.lease;
    assert_eq!(lease(held(None), &request), terms.lease);
    assert_eq!(lease(held(Some(claim.operation.clone())), &request), claim.terms.lease);
    let other = OutcomeRequest { attempt: fresh_claim().attempt, ..request };
    assert_eq!(lease(held(None), &other), claim.terms.lease);
}
