//! The local record: what is known, for how long, and what is forgotten first.

use super::*;
use crate::domain::claim::{Grant, Outcome};
use crate::engine::conformance::fresh_claim;

const LATER: Duration = Duration::from_secs(1);

fn granted(request: &ClaimRequest) -> ClaimResponse {
    let attempt = request.attempt.clone();
    ClaimResponse::Granted(Grant { attempt, fence: Some(1), repeated: false, taken_over: false, lease_left: None })
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
fn what_passed_through_is_known_until_it_ends() {
    let (book, request) = (Book::default(), fresh_claim());
    book.learn_claim(&request, &granted(&request), Duration::ZERO);
    let held = book.held(&request.key, LATER).unwrap();
    assert_eq!(
        (held.record.state, held.left, held.fence),
        (ClaimState::InProgress, request.terms.lease.checked_sub(LATER), None)
    );
    let renewed = RenewalResponse::Renewed { left: request.terms.lease * 2 };
    let renewal = RenewalRequest { key: request.key.clone(), attempt: request.attempt.clone(), lease: None };
    book.learn_renew(&renewal, &renewed, LATER);
    assert_eq!(book.held(&request.key, LATER).unwrap().left, Some(request.terms.lease * 2));
    let done = OutcomeResponse::Done { state: Some(ClaimState::Succeeded), left: Some(LATER), late: Some(false) };
    book.learn_settle(&success(&request), &done, LATER);
    assert_eq!(book.held(&request.key, LATER).unwrap().record.result.as_deref(), Some("1"));
    assert!(book.held(&request.key, LATER * 2).is_none());
    let mut pages = book.pages();
    pages.make_room(LATER * 2);
    assert_eq!(pages.bytes, 0);
}

#[test]
fn what_waits_stands_whatever_the_store_holds_instead_of_what_was_told_before_it() {
    let (book, first) = (Book::default(), fresh_claim());
    let second = ClaimRequest { attempt: fresh_claim().attempt, ..first.clone() };
    for (seq, request) in [(1, &first), (2, &second)] {
        let (policy, at) = (OutagePolicy::FailOpen, request.attempt.timestamp());
        let deed = super::super::super::journal::entry::Deed::Granted(request.clone());
        let standing = Standing::new(request.record(), Some(LATER), Some(policy));
        let entry = Entry { chain: "default".into(), policy, at, deed };
        book.add(seq, Arc::new(entry), Written::Stands(Box::new(standing)), Duration::ZERO);
    }
    let theirs = LiveClaim { record: fresh_claim().record(), left: Some(LATER), fence: None };
    book.delivered(&first.key, &[1], Some(&theirs), Duration::ZERO);
    assert_eq!(book.held(&first.key, Duration::ZERO).unwrap().record.attempt, second.attempt);
}

#[test]
fn a_response_that_arrives_late_hides_no_claim_that_lasts_longer() {
    let request = fresh_claim();
    let lease = request.terms.lease;
    for theirs in [fresh_claim(), request.clone()] {
        let book = Book::default();
        book.learn_claim(&request, &granted(&request), Duration::ZERO);
        let duplicate = |left| {
            let held = LiveClaim { record: theirs.record(), left: Some(left), fence: None };
            ClaimResponse::Duplicate(held)
        };
        book.learn_claim(&request, &duplicate(lease / 2), LATER);
        let held = book.held(&request.key, LATER).unwrap();
        assert_eq!((held.record.attempt, held.left), (request.attempt.clone(), lease.checked_sub(LATER)));
        book.learn_claim(&request, &duplicate(lease), LATER);
        let held = book.held(&request.key, LATER).unwrap();
        assert_eq!((held.record.attempt, held.left), (theirs.attempt.clone(), Some(lease)));
    }
}

#[test]
fn a_released_claim_is_forgotten_and_anothers_is_not() {
    let (book, request) = (Book::default(), fresh_claim());
    book.learn_claim(&request, &granted(&request), Duration::ZERO);
    let gone = OutcomeResponse::Done { state: None, left: None, late: Some(false) };
    let failure = |attempt| OutcomeRequest { attempt, outcome: Outcome::Failure, ..success(&request) };
    book.learn_settle(&failure(fresh_claim().attempt), &gone, LATER);
    assert!(book.held(&request.key, LATER).is_some());
    book.learn_settle(&failure(request.attempt.clone()), &gone, LATER);
    assert!(book.held(&request.key, LATER).is_none());
}

/// S1: a renewal may have gone through another gateway, so that the lease seemed to have ended here.
#[test]
fn a_lease_that_seemed_to_have_ended_is_in_progress_again_after_a_renewal() {
    let (book, request) = (Book::default(), fresh_claim());
    let request = ClaimRequest { terms: Terms { on_lease_end: LeaseEnd::Unknown, ..request.terms }, ..request };
    let (renewal, lease) = (renewal(&request), request.terms.lease);
    book.learn_claim(&request, &granted(&request), Duration::ZERO);
    let others = fresh_claim();
    book.learn_claim(&others, &granted(&others), lease + LATER);
    assert_eq!(book.held(&request.key, lease + LATER).unwrap().record.state, ClaimState::Unknown);
    book.learn_renew(&renewal, &RenewalResponse::Renewed { left: lease }, lease + LATER);
    let held = book.held(&request.key, lease + LATER).unwrap();
    assert_eq!((held.record.state, held.left), (ClaimState::InProgress, Some(lease)));
}

#[test]
fn a_renewal_that_arrives_late_does_not_undo_an_unknown_outcome() {
    let (book, request) = (Book::default(), fresh_claim());
    let request = ClaimRequest { terms: Terms { on_lease_end: LeaseEnd::Unknown, ..request.terms }, ..request };
    book.learn_claim(&request, &granted(&request), Duration::ZERO);
    let unknown = OutcomeRequest { outcome: Outcome::Unknown, ..success(&request) };
    let left = request.terms.unknown_retention.duration();
    book.learn_settle(
        &unknown,
        &OutcomeResponse::Done { state: Some(ClaimState::Unknown), left, late: Some(false) },
        LATER,
    );
    book.learn_renew(&renewal(&request), &RenewalResponse::Renewed { left: request.terms.lease }, LATER);
    assert_eq!(book.held(&request.key, LATER).unwrap().record.state, ClaimState::Unknown);
}

fn renewal(request: &ClaimRequest) -> RenewalRequest {
    RenewalRequest { key: request.key.clone(), attempt: request.attempt.clone(), lease: None }
}

/// Room for so many small claims.
fn room_for(claims: usize) -> Book {
    let bytes = Standing::new(fresh_claim().record(), None, None).bytes();
    Book::bounded(claims * bytes + bytes / 2)
}

/// A fresh claim of an app, for a lease of so many hours.
fn claim_of(app: &str, hours: u64) -> ClaimRequest {
    let request = fresh_claim();
    let key = Key { app: app.parse().unwrap(), ..request.key.clone() };
    ClaimRequest { key, terms: Terms { lease: Duration::from_hours(hours), ..request.terms }, ..request }
}

fn known(book: &Book, request: &ClaimRequest) -> bool {
    book.held(&request.key, LATER).is_some()
}

fn done() -> OutcomeResponse {
    OutcomeResponse::Done { state: Some(ClaimState::Succeeded), left: None, late: Some(false) }
}

/// A success that found no claim.
fn late_success(request: &ClaimRequest, result: &str) -> OutcomeRequest {
    let outcome = Outcome::Success { result: Some(result.into()), retention: None };
    let late = claim::LateTerms { operation: None, contents: Contents::Unverified, terms: request.terms };
    OutcomeRequest { outcome, late: Some(late), ..success(request) }
}

#[test]
fn beyond_the_bound_settled_claims_go_first_and_a_forgotten_claim_in_progress_makes_the_app_blind() {
    let book = room_for(3);
    let requests = [3, 1, 2].map(|hours| claim_of("shop", hours));
    for request in &requests {
        book.learn_claim(request, &granted(request), Duration::ZERO);
    }
    book.learn_settle(&success(&requests[0]), &done(), Duration::ZERO);
    let [fourth, fifth] = [5, 4].map(|hours| claim_of("shop", hours));
    book.learn_claim(&fourth, &granted(&fourth), Duration::ZERO);
    assert!(!known(&book, &requests[0]), "it was settled");
    assert!(!book.is_blind(&fourth.key.app, LATER));
    book.learn_claim(&fifth, &granted(&fifth), Duration::ZERO);
    assert_eq!(
        [&requests[1], &requests[2], &fourth, &fifth].map(|request| known(&book, request)),
        [false, true, true, true]
    );
    let ends_at = requests[1].terms.lease;
    assert!(book.is_blind(&fifth.key.app, ends_at.checked_sub(LATER).unwrap()), "the one that ends soonest is missing");
    assert!(!book.is_blind(&fifth.key.app, ends_at));
}

#[test]
fn an_app_that_settles_more_than_its_share_forgets_its_own_claims_only() {
    let book = room_for(100);
    let bank = claim_of("bank", 1);
    book.learn_claim(&bank, &granted(&bank), Duration::ZERO);
    book.learn_settle(&success(&bank), &done(), Duration::ZERO);
    let first = claim_of("shop", 1);
    book.learn_claim(&first, &granted(&first), Duration::ZERO);
    for _ in 0..1000 {
        let late = claim_of("shop", 1);
        book.learn_settle(&late_success(&late, "1"), &done(), Duration::ZERO);
    }
    assert!(known(&book, &bank));
    assert!(known(&book, &first), "in progress, and there are others to forget");
    book.learn_settle(&late_success(&claim_of("shop", 1), &"1".repeat(100_000)), &done(), Duration::ZERO);
    assert!(known(&book, &bank), "a large result is counted to its own app");
    assert!(!book.is_blind(&bank.key.app, LATER));
}

#[test]
fn an_app_that_claims_more_than_its_share_is_blind_alone() {
    let book = room_for(100);
    let [bank, settled] = [claim_of("bank", 1), claim_of("bank", 1)];
    for request in [&bank, &settled] {
        book.learn_claim(request, &granted(request), Duration::ZERO);
    }
    book.learn_settle(&success(&settled), &done(), Duration::ZERO);
    for _ in 0..1000 {
        let request = claim_of("shop", 24);
        book.learn_claim(&request, &granted(&request), Duration::ZERO);
    }
    let shop: AppKey = "shop".parse().unwrap();
    assert!(book.is_blind(&shop, LATER));
    assert!(known(&book, &bank) && known(&book, &settled) && !book.is_blind(&bank.key.app, LATER));
    // It gets its share also of what others had already.
    for _ in 0..40 {
        let request = claim_of("bank", 1);
        book.learn_claim(&request, &granted(&request), Duration::ZERO);
        assert!(known(&book, &request));
    }
    assert!(!book.is_blind(&bank.key.app, LATER));
}

#[test]
fn what_is_remembered_of_an_app_is_accounted_for_to_the_byte() {
    let book = room_for(4);
    for number in 0..200_u64 {
        let request = claim_of(["shop", "bank", "post"][usize::try_from(number % 3).unwrap()], number % 5 + 1);
        let now = Duration::from_mins(number);
        book.learn_claim(&request, &granted(&request), now);
        if number % 2 == 0 {
            let done = OutcomeResponse::Done {
                state: Some(ClaimState::Succeeded),
                left: Some(LATER * 600),
                late: Some(false),
            };
            book.learn_settle(&success(&request), &done, now);
        }
        let pages = book.pages();
        assert_eq!(pages.bytes, pages.apps.values().map(AppClaims::bytes).sum::<usize>());
        assert!(pages.bytes <= pages.bytes_max);
    }
    let mut pages = book.pages();
    pages.make_room(Duration::from_hours(1000));
    assert_eq!(pages.bytes, 0, "all has ended");
}

#[test]
fn apps_are_delivered_in_turn() {
    let book = Book::default();
    let requests: Vec<_> = ["shop", "shop", "shop", "bank"].map(|app| claim_of(app, 1)).into();
    for (seq, request) in (1..).zip(&requests) {
        let deed = super::super::super::journal::entry::Deed::Granted(request.clone());
        let entry =
            Entry { chain: "default".into(), policy: OutagePolicy::Spool, at: request.attempt.timestamp(), deed };
        book.add(seq, Arc::new(entry), Written::AsBefore, Duration::ZERO);
    }
    let keys: Vec<_> = [0, 3, 1, 2].map(|place: usize| requests[place].key.clone()).into();
    assert_eq!(book.keys_waiting(), keys);
}
