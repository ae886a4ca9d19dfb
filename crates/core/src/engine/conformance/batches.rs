//! Rules of concurrent calls and batches: each call gets its own answer.

use futures_util::future::join_all;

use super::requests::{DEADLINE, again, fresh_claim, issuer, settle_of, success};
use super::subject::Subject;
use crate::canonical::Canonical;
use crate::claim::{ClaimRequest, ClaimResponse, Mismatch, OutcomeResponse};
use crate::record::ClaimState;

/// Concurrent calls, which an engine may batch, each get their own answer.
pub async fn concurrent_calls_each_get_their_own_answer(on: &Subject) {
    let first: Vec<_> = (0..50).map(|_| fresh_claim()).collect();
    for (request, grant) in first.iter().zip(join_all(first.iter().map(|request| on.granted(request))).await) {
        assert_eq!(grant.attempt, request.attempt);
    }
    let mut requests: Vec<_> = (0..50).map(|_| fresh_claim()).collect();
    requests.push(again(&first[0]));
    requests.push(ClaimRequest { attempt: issuer().issue(Some(first[1].attempt.nonce().clone())), ..first[1].clone() });
    requests.push(ClaimRequest { contents: Canonical::trusted("1"), ..again(&first[2]) });
    let answers = join_all(requests.iter().map(|request| on.engine.claim(request, DEADLINE))).await;
    for (index, answer) in answers.iter().enumerate() {
        match (index, answer.as_ref().expect("the engine answers")) {
            (0..50, ClaimResponse::Granted(grant)) => assert_eq!(grant.attempt, requests[index].attempt),
            (50, ClaimResponse::Duplicate(live)) => assert_eq!(live.record.attempt, first[0].attempt),
            (51, ClaimResponse::Granted(grant)) => assert!(grant.repeated && grant.attempt == first[1].attempt),
            (52, ClaimResponse::Mismatch(mismatch)) => assert_eq!(*mismatch, Mismatch::Contents),
            (_, other) => panic!("item {index}: unexpected {other:?}"),
        }
    }
    let settles: Vec<_> = first.iter().map(|request| settle_of(request, success(None))).collect();
    for answer in join_all(settles.iter().map(|settle| on.engine.settle(settle, DEADLINE))).await {
        assert!(matches!(answer, Ok(OutcomeResponse::Done { state: Some(ClaimState::Succeeded), .. })), "{answer:?}");
    }
}

/// Two batches race for the same keys. Some keys are claimed before, one of them by an attempt of the second batch.
pub async fn claims_of_a_batch_are_each_answered_once(on: &Subject) {
    let first: Vec<_> = (0..300).map(|_| fresh_claim()).collect();
    let second: Vec<_> = first.iter().rev().map(again).collect();
    for request in [&first[0], &first[1], &second[2]] {
        on.granted(request).await;
    }
    let [first, second] =
        join_all([first, second].map(|requests| on.claim_batch(requests))).await.try_into().expect("two");
    let mut granted = 0;
    for (one, other) in first.iter().zip(second.iter().rev()) {
        assert_eq!(one.0.key, other.0.key);
        let grants = [one, other].into_iter().filter_map(|(request, answer)| match answer {
            ClaimResponse::Granted(grant) => Some((request, grant)),
            ClaimResponse::Duplicate(_) => None,
            answer @ ClaimResponse::Mismatch(_) => panic!("unexpected {answer:?}"),
        });
        for (request, grant) in grants {
            assert_eq!(grant.attempt, request.attempt, "each gets its own attempt");
            granted += 1;
        }
    }
    assert_eq!(granted, 300, "each key is granted once");
    on.claim_batch(Vec::new()).await;
}
