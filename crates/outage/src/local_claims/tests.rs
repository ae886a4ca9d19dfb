//! Local claims: their lifetimes, and the order in which they are forgotten.

use oncegate_core::claim::{Grant, Outcome};
use oncegate_core::engine::conformance::fresh_claim;

use super::app::CLAIM_BYTES;
use super::*;

const LATER: Duration = Duration::from_secs(1);

fn granted(request: &ClaimRequest) -> ClaimResponse {
    let attempt = request.attempt.clone();
    ClaimResponse::Granted(Grant {
        attempt,
        fence: Some(1),
        repeated: false,
        taken_over: false,
        lease_left: None,
        lease_ends_at: None,
    })
}

fn success(request: &ClaimRequest) -> OutcomeRequest {
    OutcomeRequest {
        key: request.key.clone(),
        attempt: request.attempt.clone(),
        outcome: Outcome::Success { result: Some("1".into()), retention: None },
        late: None,
    }
}

#[test]
fn a_claim_answered_by_the_store_is_known_until_it_ends() {
    let (local_claims, request) = (LocalClaims::default(), fresh_claim());
    local_claims.remember_claim(&request, &granted(&request), Duration::ZERO, Duration::ZERO);
    let held = local_claims.live_claim(&request.key, LATER).unwrap();
    assert_eq!(
        (held.record.state, held.left, held.fence),
        (ClaimState::InProgress, request.terms.lease.checked_sub(LATER), None)
    );
    let renewed = RenewalResponse::Renewed { left: request.terms.lease * 2, ends_at: None };
    let renewal = RenewalRequest { key: request.key.clone(), attempt: request.attempt.clone(), lease: None };
    local_claims.remember_renewal(&renewal, &renewed, LATER);
    assert_eq!(local_claims.live_claim(&request.key, LATER).unwrap().left, Some(request.terms.lease * 2));
    let done = OutcomeResponse::Done {
        state: Some(ClaimState::Succeeded),
        left: Some(LATER),
        ends_at: None,
        late: Some(false),
    };
    local_claims.remember_outcome(&success(&request), &done, LATER);
    assert_eq!(local_claims.live_claim(&request.key, LATER).unwrap().record.result.as_deref(), Some("1"));
    assert!(local_claims.live_claim(&request.key, LATER * 2).is_none());
    let mut inner = local_claims.inner();
    inner.make_room(LATER * 2);
    assert_eq!(inner.bytes, 0);
}

#[test]
fn a_waiting_entry_stays_in_force_when_an_earlier_one_met_another_claim() {
    let (local_claims, first) = (LocalClaims::default(), fresh_claim());
    let second = ClaimRequest { attempt: fresh_claim().attempt, ..first.clone() };
    for (seq, request) in [(1, &first), (2, &second)] {
        let (policy, at) = (OutagePolicy::FailOpen, request.attempt.timestamp());
        let journaled = oncegate_core::outage::entry::JournaledOperation::Granted(request.clone());
        let claim = LocalClaim::new(request.record(), Some(LATER), Some(policy));
        let entry = Entry { chain: "default".into(), policy, at, journaled };
        local_claims.add(seq, Arc::new(entry), LocalEffect::Put(Box::new(claim)), Duration::ZERO);
    }
    let theirs = LiveClaim { record: fresh_claim().record(), left: Some(LATER), ends_at: None, fence: None };
    local_claims.remove_delivered(&first.key, &[1], Some(&theirs), Duration::ZERO);
    assert_eq!(local_claims.live_claim(&first.key, Duration::ZERO).unwrap().record.attempt, second.attempt);
}

/// The claim that a duplicate was answered with.
fn duplicate(record: Record, left: Option<Duration>) -> ClaimResponse {
    ClaimResponse::Duplicate(LiveClaim { record, left, ends_at: None, fence: None })
}

/// An answer that was on its way while the outcome was reported would otherwise let a policy grant the operation again.
#[test]
fn an_answer_from_before_an_outcome_does_not_hide_the_outcome() {
    let request = fresh_claim();
    let day = Some(Duration::from_hours(24));
    let unknown = OutcomeRequest { outcome: Outcome::Unknown, ..success(&request) };
    for (report, state) in [(success(&request), ClaimState::Succeeded), (unknown.clone(), ClaimState::Unknown)] {
        let local_claims = LocalClaims::default();
        local_claims.remember_claim(&request, &granted(&request), Duration::ZERO, Duration::ZERO);
        let done = OutcomeResponse::Done { state: Some(state), left: Some(LATER), ends_at: None, late: Some(false) };
        local_claims.remember_outcome(&report, &done, Duration::ZERO);
        for late in [duplicate(request.record(), day), granted(&request)] {
            local_claims.remember_claim(&request, &late, Duration::ZERO, Duration::ZERO);
            let held = local_claims.live_claim(&request.key, Duration::ZERO).unwrap();
            assert_eq!((held.record.state, held.left), (state, Some(LATER)), "{late:?}");
        }
    }
    // Nor does the answer to another outcome: the store replaces no success.
    let local_claims = LocalClaims::default();
    local_claims.remember_claim(&request, &granted(&request), Duration::ZERO, Duration::ZERO);
    local_claims.remember_outcome(&success(&request), &done(), Duration::ZERO);
    let failure = OutcomeRequest { outcome: Outcome::Failure, ..unknown.clone() };
    for (report, state) in [(failure, None), (unknown, Some(ClaimState::Unknown))] {
        let late = OutcomeResponse::Done { state, left: Some(LATER), ends_at: None, late: Some(false) };
        local_claims.remember_outcome(&report, &late, Duration::ZERO);
        let held = local_claims.live_claim(&request.key, LATER).expect("it lasts longer");
        assert_eq!(held.record.state, ClaimState::Succeeded);
    }
    let replaced = Record { state: ClaimState::Succeeded, result: Some("2".into()), ..request.record() };
    local_claims.remember_claim(&request, &duplicate(replaced, Some(LATER)), Duration::ZERO, Duration::ZERO);
    let held = local_claims.live_claim(&request.key, Duration::ZERO).unwrap();
    assert_eq!(
        (held.record.result.as_deref(), held.left),
        (Some("2"), Some(LATER)),
        "an operator may replace a result"
    );
}

#[test]
fn an_answer_that_was_under_way_does_not_hide_what_was_learned_since() {
    let (own, theirs) = (fresh_claim(), fresh_claim());
    let theirs = ClaimRequest { key: own.key.clone(), ..theirs };
    let lease = own.terms.lease;
    let (known_since, now) = (LATER, LATER * 2);
    for (sent_at, is_uncertain) in [(Duration::ZERO, true), (LATER, true), (now, false)] {
        let learn = |answer: &ClaimResponse| {
            let local_claims = LocalClaims::default();
            local_claims.remember_claim(&own, &granted(&own), known_since, known_since);
            local_claims.remember_claim(&theirs, answer, sent_at, now);
            local_claims.live_claim(&own.key, now).unwrap().record.attempt == own.attempt
        };
        // The unknown outcome that this grant has taken over, a success before it, or a claim that was released.
        for state in [ClaimState::Unknown, ClaimState::Succeeded, ClaimState::InProgress] {
            let record = || Record { state, ..theirs.record() };
            for left in [Some(lease / 2), Some(lease * 2)] {
                assert_eq!(learn(&duplicate(record(), left)), is_uncertain, "{state:?} {left:?} {sent_at:?}");
            }
        }
        // Only this process knows of the grant.
        assert!(!learn(&granted(&theirs)));
        // Of two answers about one lease, the longer one stays.
        for (left, lasts) in [(lease / 2, lease.saturating_sub(LATER)), (lease * 2, lease * 2)] {
            let local_claims = LocalClaims::default();
            local_claims.remember_claim(&own, &granted(&own), known_since, known_since);
            local_claims.remember_claim(&own, &duplicate(own.record(), Some(left)), sent_at, now);
            assert_eq!(local_claims.live_claim(&own.key, now).unwrap().left, Some(lasts), "{sent_at:?}");
        }
    }
}

#[test]
fn a_released_claim_is_forgotten_and_anothers_is_not() {
    let (local_claims, request) = (LocalClaims::default(), fresh_claim());
    local_claims.remember_claim(&request, &granted(&request), Duration::ZERO, Duration::ZERO);
    let gone = OutcomeResponse::Done { state: None, left: None, ends_at: None, late: Some(false) };
    let failure = |attempt| OutcomeRequest { attempt, outcome: Outcome::Failure, ..success(&request) };
    local_claims.remember_outcome(&failure(fresh_claim().attempt), &gone, LATER);
    assert!(local_claims.live_claim(&request.key, LATER).is_some());
    local_claims.remember_outcome(&failure(request.attempt.clone()), &gone, LATER);
    assert!(local_claims.live_claim(&request.key, LATER).is_none());
}

/// S1: a renewal may have used another gateway, so that the lease seemed to have ended here.
#[test]
fn a_lease_that_seemed_to_have_ended_is_in_progress_again_after_a_renewal() {
    let (local_claims, request) = (LocalClaims::default(), fresh_claim());
    let request = ClaimRequest { terms: Terms { on_lease_end: LeaseEnd::Unknown, ..request.terms }, ..request };
    let (renewal, lease) = (renewal(&request), request.terms.lease);
    local_claims.remember_claim(&request, &granted(&request), Duration::ZERO, Duration::ZERO);
    let others = fresh_claim();
    local_claims.remember_claim(&others, &granted(&others), lease + LATER, lease + LATER);
    assert_eq!(local_claims.live_claim(&request.key, lease + LATER).unwrap().record.state, ClaimState::Unknown);
    local_claims.remember_renewal(&renewal, &RenewalResponse::Renewed { left: lease, ends_at: None }, lease + LATER);
    let held = local_claims.live_claim(&request.key, lease + LATER).unwrap();
    assert_eq!((held.record.state, held.left), (ClaimState::InProgress, Some(lease)));
}

/// S1: the store holds the attempt of another gateway that granted the same nonce.
#[test]
fn a_renewal_under_the_other_attempt_of_a_nonce_extends_the_local_claim() {
    let (local_claims, request) = (LocalClaims::default(), fresh_claim());
    local_claims.remember_claim(&request, &granted(&request), Duration::ZERO, Duration::ZERO);
    let stored = Attempt::new(request.attempt.timestamp().plus(LATER), request.attempt.nonce().clone());
    let renewal = RenewalRequest { attempt: stored.clone(), ..renewal(&request) };
    let left = request.terms.lease * 2;
    local_claims.remember_renewal(&renewal, &RenewalResponse::Renewed { left, ends_at: None }, LATER);
    let held = local_claims.live_claim(&request.key, LATER).unwrap();
    assert_eq!((held.record.attempt, held.left), (stored, Some(left)));
}

#[test]
fn a_renewal_that_arrives_late_does_not_undo_an_unknown_outcome() {
    let (local_claims, request) = (LocalClaims::default(), fresh_claim());
    let request = ClaimRequest { terms: Terms { on_lease_end: LeaseEnd::Unknown, ..request.terms }, ..request };
    local_claims.remember_claim(&request, &granted(&request), Duration::ZERO, Duration::ZERO);
    let unknown = OutcomeRequest { outcome: Outcome::Unknown, ..success(&request) };
    let left = request.terms.unknown_retention.duration();
    local_claims.remember_outcome(
        &unknown,
        &OutcomeResponse::Done { state: Some(ClaimState::Unknown), left, ends_at: None, late: Some(false) },
        LATER,
    );
    local_claims.remember_renewal(
        &renewal(&request),
        &RenewalResponse::Renewed { left: request.terms.lease, ends_at: None },
        LATER,
    );
    assert_eq!(local_claims.live_claim(&request.key, LATER).unwrap().record.state, ClaimState::Unknown);
}

fn renewal(request: &ClaimRequest) -> RenewalRequest {
    RenewalRequest { key: request.key.clone(), attempt: request.attempt.clone(), lease: None }
}

/// Room for so many small claims.
fn room_for(claims: usize) -> LocalClaims {
    let bytes = LocalClaim::new(fresh_claim().record(), None, None).bytes();
    LocalClaims::bounded(claims * bytes + bytes / 2)
}

/// A fresh claim of an app, for a lease of so many hours.
fn claim_of(app: &str, hours: u64) -> ClaimRequest {
    let request = fresh_claim();
    let key = Key { app: app.parse().unwrap(), ..request.key.clone() };
    ClaimRequest { key, terms: Terms { lease: Duration::from_hours(hours), ..request.terms }, ..request }
}

fn known(local_claims: &LocalClaims, request: &ClaimRequest) -> bool {
    local_claims.live_claim(&request.key, LATER).is_some()
}

fn done() -> OutcomeResponse {
    OutcomeResponse::Done { state: Some(ClaimState::Succeeded), left: None, ends_at: None, late: Some(false) }
}

/// A success that found no claim.
fn late_success(request: &ClaimRequest, result: &str) -> OutcomeRequest {
    let outcome = Outcome::Success { result: Some(result.into()), retention: None };
    let late = claim::LateTerms { operation: None, contents: Contents::Unverified, terms: request.terms };
    OutcomeRequest { outcome, late: Some(late), ..success(request) }
}

#[test]
fn beyond_the_bound_settled_claims_are_forgotten_first_and_then_claims_in_progress() {
    let local_claims = room_for(3);
    let requests = [3, 1, 2].map(|hours| claim_of("shop", hours));
    for request in &requests {
        local_claims.remember_claim(request, &granted(request), Duration::ZERO, Duration::ZERO);
    }
    local_claims.remember_outcome(&success(&requests[0]), &done(), Duration::ZERO);
    let [fourth, fifth] = [5, 4].map(|hours| claim_of("shop", hours));
    local_claims.remember_claim(&fourth, &granted(&fourth), Duration::ZERO, Duration::ZERO);
    assert!(!known(&local_claims, &requests[0]), "it was settled");
    assert!(!local_claims.has_forgotten(&fourth.key.app, LATER));
    local_claims.remember_claim(&fifth, &granted(&fifth), Duration::ZERO, Duration::ZERO);
    assert_eq!(
        [&requests[1], &requests[2], &fourth, &fifth].map(|request| known(&local_claims, request)),
        [false, true, true, true]
    );
    let ends_at = requests[1].terms.lease;
    assert!(
        local_claims.has_forgotten(&fifth.key.app, ends_at.checked_sub(LATER).unwrap()),
        "the one that ends soonest is missing"
    );
    assert!(!local_claims.has_forgotten(&fifth.key.app, ends_at));
}

#[test]
fn an_app_that_settles_more_than_its_share_forgets_its_own_claims_only() {
    let local_claims = room_for(100);
    let bank = claim_of("bank", 1);
    local_claims.remember_claim(&bank, &granted(&bank), Duration::ZERO, Duration::ZERO);
    local_claims.remember_outcome(&success(&bank), &done(), Duration::ZERO);
    let first = claim_of("shop", 1);
    local_claims.remember_claim(&first, &granted(&first), Duration::ZERO, Duration::ZERO);
    for _ in 0..1000 {
        let late = claim_of("shop", 1);
        local_claims.remember_outcome(&late_success(&late, "1"), &done(), Duration::ZERO);
    }
    assert!(known(&local_claims, &bank));
    assert!(known(&local_claims, &first), "in progress, and there are others to forget");
    local_claims.remember_outcome(&late_success(&claim_of("shop", 1), &"1".repeat(100_000)), &done(), Duration::ZERO);
    assert!(known(&local_claims, &bank), "a large result is counted to its own app");
    assert!(!local_claims.has_forgotten(&bank.key.app, LATER));
}

#[test]
fn an_app_that_claims_more_than_its_share_forgets_alone() {
    let local_claims = room_for(100);
    let [bank, settled] = [claim_of("bank", 1), claim_of("bank", 1)];
    for request in [&bank, &settled] {
        local_claims.remember_claim(request, &granted(request), Duration::ZERO, Duration::ZERO);
    }
    local_claims.remember_outcome(&success(&settled), &done(), Duration::ZERO);
    for _ in 0..1000 {
        let request = claim_of("shop", 24);
        local_claims.remember_claim(&request, &granted(&request), Duration::ZERO, Duration::ZERO);
    }
    let shop: AppKey = "shop".parse().unwrap();
    assert!(local_claims.has_forgotten(&shop, LATER));
    assert!(
        known(&local_claims, &bank)
            && known(&local_claims, &settled)
            && !local_claims.has_forgotten(&bank.key.app, LATER)
    );
    // It gets its share although others had used it.
    for _ in 0..40 {
        let request = claim_of("bank", 1);
        local_claims.remember_claim(&request, &granted(&request), Duration::ZERO, Duration::ZERO);
        assert!(known(&local_claims, &request));
    }
    assert!(!local_claims.has_forgotten(&bank.key.app, LATER));
}

#[test]
fn remembered_claims_are_counted_to_the_byte() {
    let local_claims = room_for(4);
    for number in 0..200_u64 {
        let request = claim_of(["shop", "bank", "post"][usize::try_from(number % 3).unwrap()], number % 5 + 1);
        let now = Duration::from_mins(number);
        local_claims.remember_claim(&request, &granted(&request), now, now);
        if number % 2 == 0 {
            let done = OutcomeResponse::Done {
                state: Some(ClaimState::Succeeded),
                left: Some(LATER * 600),
                ends_at: None,
                late: Some(false),
            };
            local_claims.remember_outcome(&success(&request), &done, now);
        }
        let inner = local_claims.inner();
        assert_eq!(inner.bytes, inner.apps.values().map(AppClaims::bytes).sum::<usize>());
        assert!(inner.bytes <= inner.bytes_max);
    }
    let mut inner = local_claims.inner();
    inner.make_room(Duration::from_hours(1000));
    assert_eq!(inner.bytes, 0, "all has ended");
}

#[test]
fn apps_are_delivered_in_turn() {
    let local_claims = LocalClaims::default();
    let requests: Vec<_> = ["shop", "shop", "shop", "bank"].map(|app| claim_of(app, 1)).into();
    for (seq, request) in (1..).zip(&requests) {
        let journaled = oncegate_core::outage::entry::JournaledOperation::Granted(request.clone());
        let entry =
            Entry { chain: "default".into(), policy: OutagePolicy::Spool, at: request.attempt.timestamp(), journaled };
        local_claims.add(seq, Arc::new(entry), LocalEffect::Keep, Duration::ZERO);
    }
    let keys: Vec<_> = [0, 3, 1, 2].map(|place: usize| requests[place].key.clone()).into();
    assert_eq!(local_claims.keys_waiting(), keys);
}

fn entry_of(request: &ClaimRequest, policy: OutagePolicy) -> Arc<Entry> {
    let journaled = oncegate_core::outage::entry::JournaledOperation::Granted(request.clone());
    Arc::new(Entry { chain: "default".into(), policy, at: request.attempt.timestamp(), journaled })
}

#[test]
fn what_waits_for_the_store_is_known_by_its_key_and_its_policy() {
    let (local_claims, request, other) = (LocalClaims::default(), fresh_claim(), fresh_claim());
    let claim = LocalClaim::new(request.record(), Some(LATER), Some(OutagePolicy::FailOpen));
    let entry = entry_of(&request, OutagePolicy::FailOpen);
    local_claims.add(1, entry, LocalEffect::Put(Box::new(claim)), Duration::ZERO);
    assert!(local_claims.has_waiting_on(&request.key) && !local_claims.has_waiting_on(&other.key));
    assert_eq!(local_claims.granted_by(&request.key), Some(OutagePolicy::FailOpen));
    assert!(local_claims.record_of(&request.key, &request.attempt).is_some(), "also after its end");
    assert!(local_claims.record_of(&request.key, &other.attempt).is_none());
    assert!(!local_claims.decides_locally(&request.key.app));
    local_claims.remove_delivered(&request.key, &[1], None, Duration::ZERO);
    assert!(!local_claims.has_waiting_on(&request.key));
}

#[test]
fn an_app_decides_locally_once_its_policy_did() {
    let (local_claims, request) = (LocalClaims::default(), claim_of("shop", 1));
    let bank = claim_of("bank", 1);
    local_claims.add(1, entry_of(&request, OutagePolicy::Local), LocalEffect::Keep, Duration::ZERO);
    assert!(local_claims.decides_locally(&request.key.app));
    local_claims.add(2, entry_of(&bank, OutagePolicy::Spool), LocalEffect::Keep, Duration::ZERO);
    assert!(local_claims.decides_locally(&request.key.app) && !local_claims.decides_locally(&bank.key.app));
    // Answers of the store about claims are remembered for such an app only.
    local_claims.remember_renewal(
        &renewal(&bank),
        &RenewalResponse::Renewed { left: LATER, ends_at: None },
        Duration::ZERO,
    );
    assert!(local_claims.live_claim(&bank.key, Duration::ZERO).is_none());
}

#[test]
fn a_claim_is_remembered_under_the_attempt_that_the_store_holds() {
    let (local_claims, request, theirs) = (LocalClaims::default(), fresh_claim(), fresh_claim().attempt);
    let grant = Grant {
        attempt: theirs.clone(),
        fence: None,
        repeated: true,
        taken_over: false,
        lease_left: None,
        lease_ends_at: None,
    };
    local_claims.remember_claim(&request, &ClaimResponse::Granted(grant), Duration::ZERO, Duration::ZERO);
    assert_eq!(local_claims.live_claim(&request.key, Duration::ZERO).unwrap().record.attempt, theirs);
}

#[test]
fn a_renewal_of_a_claim_that_is_not_known_or_has_ended_is_remembered() {
    let (local_claims, request) = (LocalClaims::default(), fresh_claim());
    local_claims.remember_claim(&request, &granted(&request), Duration::ZERO, Duration::ZERO);
    let (lease, next) = (request.terms.lease, fresh_claim().attempt);
    let renewal = RenewalRequest { attempt: next.clone(), ..renewal(&request) };
    let renewed = RenewalResponse::Renewed { left: lease, ends_at: None };
    local_claims.remember_renewal(&renewal, &renewed, lease / 2);
    assert_eq!(local_claims.live_claim(&request.key, lease / 2).unwrap().record.attempt, request.attempt);
    local_claims.remember_renewal(&renewal, &renewed, lease);
    let held = local_claims.live_claim(&request.key, lease).unwrap();
    assert_eq!((held.record.attempt, held.left), (next, Some(lease)));
}

#[test]
fn only_an_unknown_claim_whose_lease_ended_may_be_in_progress_elsewhere() {
    let record = |state, on_lease_end| {
        let record = fresh_claim().record();
        Record { state, terms: Terms { on_lease_end, ..record.terms }, ..record }
    };
    for (state, on_lease_end, ends_at, expected) in [
        (ClaimState::InProgress, LeaseEnd::Release, Some(LATER), true),
        (ClaimState::Unknown, LeaseEnd::Unknown, None, true),
        (ClaimState::Unknown, LeaseEnd::Unknown, Some(LATER), false),
        (ClaimState::Unknown, LeaseEnd::Release, None, false),
        (ClaimState::Succeeded, LeaseEnd::Unknown, None, false),
    ] {
        let claim = LocalClaim::new(record(state, on_lease_end), ends_at, None);
        assert_eq!(claim.is_in_progress_elsewhere(), expected, "{state:?} {on_lease_end:?} {ends_at:?}");
    }
}

#[test]
fn the_bound_itself_is_within_the_bound() {
    let (first, second) = (claim_of("shop", 1), claim_of("shop", 2));
    let bytes = |request: &ClaimRequest| LocalClaim::new(request.record(), None, None).bytes();
    let text = first.contents.as_str().len();
    assert_eq!(bytes(&first), CLAIM_BYTES + text, "its contents count, and its result if there is one");
    let local_claims = LocalClaims::bounded(bytes(&first) + bytes(&second));
    for request in [&first, &second] {
        local_claims.remember_claim(request, &granted(request), Duration::ZERO, Duration::ZERO);
    }
    assert!(known(&local_claims, &first) && known(&local_claims, &second));
    let third = claim_of("shop", 3);
    local_claims.remember_claim(&third, &granted(&third), Duration::ZERO, Duration::ZERO);
    assert_eq!([&first, &second, &third].map(|request| known(&local_claims, request)), [false, true, true]);
}

#[test]
fn of_two_answers_that_last_as_long_the_later_is_kept() {
    let (request, theirs) = (fresh_claim(), fresh_claim());
    let lease = request.terms.lease;
    let local_claims = LocalClaims::default();
    local_claims.remember_claim(&request, &granted(&request), Duration::ZERO, Duration::ZERO);
    let held = LiveClaim { record: theirs.record(), left: lease.checked_sub(LATER), ends_at: None, fence: None };
    local_claims.remember_claim(&request, &ClaimResponse::Duplicate(held), LATER, LATER);
    assert_eq!(local_claims.live_claim(&request.key, LATER).unwrap().record.attempt, theirs.attempt);
}

#[test]
fn an_app_without_local_claims_is_forgotten() {
    let (local_claims, request) = (LocalClaims::default(), fresh_claim());
    local_claims.add(1, entry_of(&request, OutagePolicy::Spool), LocalEffect::Keep, Duration::ZERO);
    assert_eq!(local_claims.inner().apps.len(), 1);
    local_claims.remove_delivered(&request.key, &[1], None, Duration::ZERO);
    assert!(local_claims.inner().apps.is_empty());
    let request = claim_of("shop", 1);
    local_claims.remember_claim(&request, &granted(&request), Duration::ZERO, Duration::ZERO);
    local_claims.inner().change(&request.key.app, request.terms.lease, |_| ());
    assert_eq!(local_claims.inner().apps.len(), 1, "it decides locally");
}

#[test]
fn a_success_that_was_delivered_is_known_also_where_the_app_does_not_decide_locally() {
    for (state, is_known) in
        [(ClaimState::Succeeded, true), (ClaimState::InProgress, false), (ClaimState::Unknown, false)]
    {
        let (local_claims, request) = (LocalClaims::default(), fresh_claim());
        let claim = LocalClaim::new(Record { state, ..request.record() }, None, Some(OutagePolicy::Spool));
        let entry = entry_of(&request, OutagePolicy::Spool);
        local_claims.add(1, entry, LocalEffect::Put(Box::new(claim)), Duration::ZERO);
        local_claims.remove_delivered(&request.key, &[1], None, Duration::ZERO);
        assert_eq!(known(&local_claims, &request), is_known, "{state:?}");
        assert_eq!(local_claims.granted_by(&request.key), None);
    }
}

#[test]
fn of_settled_claims_the_oldest_is_forgotten_first() {
    let local_claims = room_for(2);
    let requests = [1, 2, 3].map(|hours| claim_of("shop", hours));
    for request in &requests[..2] {
        local_claims.remember_claim(request, &granted(request), Duration::ZERO, Duration::ZERO);
        local_claims.remember_outcome(&late_success(request, "1"), &done(), Duration::ZERO);
    }
    local_claims.remember_claim(&requests[2], &granted(&requests[2]), Duration::ZERO, Duration::ZERO);
    let known = requests.each_ref().map(|request| known(&local_claims, request));
    assert!(!known[0] && known[2], "{known:?}");
}

#[test]
fn a_claim_that_outlives_its_lease_is_kept_as_unknown() {
    let request = claim_of("shop", 1);
    let terms = Terms { on_lease_end: LeaseEnd::Unknown, ..request.terms };
    let request = ClaimRequest { terms, ..request };
    let local_claims = LocalClaims::default();
    local_claims.remember_claim(&request, &granted(&request), Duration::ZERO, Duration::ZERO);
    let after = request.terms.lease + LATER;
    local_claims.inner().change(&request.key.app, after, |_| ());
    let held = local_claims.live_claim(&request.key, after).unwrap();
    assert_eq!(held.record.state, ClaimState::Unknown);
    let claim = local_claims.inner().claim(&request.key).unwrap().ends_at;
    assert!(claim.is_none_or(|ends_at| ends_at > after));
}

#[test]
fn an_effect_ends_at_an_instant_of_this_process() {
    let record = Record { state: ClaimState::Succeeded, ..fresh_claim().record() };
    let at = |lasts| LATER * 5 + lasts;
    let put = LocalEffect::of(Effect::Put(record, Some(LATER)), None, at);
    assert!(matches!(put, LocalEffect::Put(_)));
    assert!(matches!(LocalEffect::of(Effect::Extend(LATER), None, at), LocalEffect::EndAt(at) if at == LATER * 6));
    assert!(matches!(LocalEffect::of(Effect::Delete, None, at), LocalEffect::Remove));
    assert!(matches!(LocalEffect::of(Effect::Keep, None, at), LocalEffect::Keep));
}
