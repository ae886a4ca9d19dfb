//! Rule of ends: each call that answers about a record names the same instant, by the store's clock.

use std::time::Duration;

use super::requests::{DEADLINE, again, attempt, claim_of, long_terms, renew_of, settle_of, success};
use super::subject::{Subject, duplicate};
use crate::claim::{ClaimRequest, ClaimResponse, Outcome, OutcomeRequest, OutcomeResponse, RenewalResponse};
use crate::clock::Timestamp;
use crate::operator::{ListRequest, ReleaseRequest, ReleaseResponse};
use crate::record::{ClaimState, Realm};
use crate::terms::{LeaseEnd, Retention, Terms};

/// A claim, a renewal, an outcome and each later answer name the same end, until a call changes it. A new grant may
/// leave its end out.
pub async fn every_answer_about_a_record_names_one_end(on: &Subject) {
    for on_lease_end in [LeaseEnd::Release, LeaseEnd::Unknown] {
        let app = format!("ends{}", attempt().timestamp().as_micros());
        let request = ClaimRequest { terms: Terms { on_lease_end, ..long_terms() }, ..claim_of(&app, "1") };
        let granted = on.granted(&request).await.lease_ends_at;
        let claimed = on.one_end(&request, granted).await;
        let renew = async |lease| match on.engine.renew(&renew_of(&request, Some(lease)), DEADLINE).await {
            Ok(RenewalResponse::Renewed { ends_at, .. }) => ends_at.expect("a renewal names the end"),
            other => panic!("{other:?}"),
        };
        let renewed = renew(Duration::from_hours(9)).await;
        assert!(renewed > claimed, "{renewed} is not later than {claimed}");
        assert_eq!(renew(Duration::from_hours(1)).await, renewed, "a lease is never shortened");
        assert_eq!(on.one_end(&request, Some(renewed)).await, renewed);

        let unknown = settle_of(&request, Outcome::Unknown);
        let ends_at = on.settled_until(&unknown).await.expect("it ends");
        assert_eq!(on.settled_until(&unknown).await, Some(ends_at), "a repeat");
        on.one_end(&request, Some(ends_at)).await;

        let taker = ClaimRequest { take_over: true, ..again(&request) };
        let granted = on.granted(&taker).await.lease_ends_at;
        on.one_end(&taker, granted).await;

        let success = settle_of(&taker, success(Some("1")));
        let ends_at = on.settled_until(&success).await.expect("it ends");
        assert_eq!(on.settled_until(&success).await, Some(ends_at), "a repeat");
        on.one_end(&taker, Some(ends_at)).await;
        let replace =
            ReleaseRequest { key: taker.key.clone(), attempt: taker.attempt.clone(), result: Some("2".into()) };
        assert_eq!(on.released(&replace).await, ReleaseResponse::Done);
        on.one_end(&taker, Some(ends_at)).await;
    }
    let app = format!("ends{}", attempt().timestamp().as_micros());
    let late = claim_of(&app, "2");
    let ends_at = on.settled_until(&settle_of(&late, success(None))).await;
    on.one_end(&late, Some(ends_at.expect("it ends"))).await;

    let kept = claim_of(&app, "3");
    on.granted(&kept).await;
    let forever = Outcome::Success { result: None, retention: Some(Retention::Forever) };
    assert_eq!(on.settled_until(&settle_of(&kept, forever)).await, None);
    assert_eq!(on.ends_of(&kept).await.into_iter().find(|(_, end)| end.is_some()), None, "it has no end");
}

impl Subject {
    /// Settles a claim. Returns the end that the answer names.
    async fn settled_until(&self, request: &OutcomeRequest) -> Option<Timestamp> {
        match self.engine.settle(request, DEADLINE).await {
            Ok(OutcomeResponse::Done { ends_at, left, .. }) => {
                assert_eq!(ends_at.is_some(), left.is_some(), "an end and a remaining time, or neither");
                ends_at
            }
            other => panic!("{other:?}"),
        }
    }

    /// Checks that all answers about a record name one end, and that it is `named`, if some call has named it. Returns it.
    async fn one_end(&self, request: &ClaimRequest, named: Option<Timestamp>) -> Timestamp {
        let ends = self.ends_of(request).await;
        let one = ends[0].1;
        assert!(ends.iter().all(|(_, end)| *end == one), "different ends: {ends:?}");
        assert!(named.is_none_or(|named| Some(named) == one), "{named:?} was named, and then {one:?}");
        one.expect("it ends")
    }

    /// Returns the end that each kind of answer about a record names.
    async fn ends_of(&self, request: &ClaimRequest) -> Vec<(&'static str, Option<Timestamp>)> {
        let live = self.read(&request.key).await.expect("a live claim");
        let other = again(request);
        let waiting = ClaimRequest { waits: true, ..again(request) };
        let mut ends = vec![
            ("lookup", live.ends_at),
            ("duplicate", self.duplicate(&other).await.ends_at),
            ("duplicate of a call that waits", self.duplicate(&waiting).await.ends_at),
            // It may be answered by what an engine remembers.
            ("duplicate again", self.duplicate(&other).await.ends_at),
        ];
        for (_, answer) in self.claim_batch(vec![other]).await {
            ends.push(("duplicate in a batch", duplicate(answer).ends_at));
        }
        if live.record.state == ClaimState::InProgress {
            let ClaimResponse::Granted(grant) = self.claim(request).await else { panic!("its own nonce") };
            ends.push(("repeat by nonce", grant.lease_ends_at));
        }
        if self.engine.capabilities().lists {
            let (app, realm) = (request.key.app.clone(), Realm::Api);
            let listed = self.list(&ListRequest { app, realm, state: None, after: None, limit: 9 }).await;
            let listed = listed.into_iter().filter(|listed| listed.global_id == request.key.global_id);
            ends.extend(listed.map(|listed| ("list", listed.claim.ends_at)));
        }
        ends
    }
}
