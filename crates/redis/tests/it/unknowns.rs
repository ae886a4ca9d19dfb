//! The index of unknown claims: its entries, and that no answer depends on it.

use std::time::Duration;

use oncegate_core::claim::{ClaimRequest, ClaimResponse, Outcome, RenewalResponse};
use oncegate_core::clock::{Clock as _, SystemClock};
use oncegate_core::engine::conformance::{DEADLINE, fresh_claim};
use oncegate_core::engine::{BatchClaim, Claims as _};
use oncegate_core::operator::{UnknownClaim, UnknownsPage, UnknownsRequest};
use oncegate_core::record::{ClaimState, Key, Realm};
use oncegate_core::terms::{LeaseEnd, Terms};
use oncegate_redis::Redis;

use super::{RedisServer, again, granted, is_duplicate, open, renew, settle, soon, success};

const LONG: Duration = Duration::from_mins(10);

/// A claim that turns unknown at the end of this lease.
fn turning(lease: Duration) -> ClaimRequest {
    let claim = fresh_claim();
    ClaimRequest { terms: Terms { lease, on_lease_end: LeaseEnd::Unknown, ..claim.terms }, ..claim }
}

async fn page(redis: &Redis, claim: &ClaimRequest, limit: usize) -> UnknownsPage {
    redis.unknowns(&UnknownsRequest { app: claim.key.app.clone(), limit }).await.unwrap()
}

async fn listed(redis: &Redis, claim: &ClaimRequest) -> Option<UnknownClaim> {
    let found = page(redis, claim, 1000).await.found;
    found.into_iter().find(|found| (found.realm, found.global_id) == (claim.key.realm, claim.key.global_id))
}

/// Returns the number of all entries.
fn entries(server: &RedisServer) -> usize {
    let sets: Vec<String> = server.query("KEYS og:unknowns:*");
    sets.iter().map(|set| server.query::<usize>(&format!("ZCARD {set}"))).sum()
}

#[tokio::test]
async fn an_unknown_outcome_is_listed_until_it_is_settled() {
    let Some(server) = RedisServer::start().await else { return };
    let redis = open(&server.url());
    let (began_at, claim) = (SystemClock::new().wall(), fresh_claim());
    let of_proxy = ClaimRequest { key: Key { realm: Realm::Proxy, ..claim.key.clone() }, ..fresh_claim() };
    for claim in [&claim, &of_proxy] {
        granted(&redis, claim).await;
        assert_eq!(entries(&server), 0, "a claim that turns free again has none");
    }
    for claim in [&claim, &of_proxy] {
        redis.settle(&settle(claim, Outcome::Unknown), DEADLINE).await.unwrap();
        // At once, and by any gateway.
        let found = listed(&open(&server.url()), claim).await.unwrap();
        assert_eq!((found.claim.record.state, &found.claim.record.attempt), (ClaimState::Unknown, &claim.attempt));
        assert!(found.since >= began_at.minus(Duration::from_millis(1)));
        redis.settle(&settle(claim, Outcome::Unknown), DEADLINE).await.unwrap();
        assert_eq!(listed(&redis, claim).await.unwrap().since, found.since, "a repeat makes it no younger");
    }
    redis.settle(&settle(&claim, success("1")), DEADLINE).await.unwrap();
    redis.settle(&settle(&of_proxy, Outcome::Failure), DEADLINE).await.unwrap();
    assert_eq!(page(&redis, &claim, 10).await, UnknownsPage { found: Vec::new(), more: false });
    soon("no entry is left", async || entries(&server) == 0).await;
}

#[tokio::test]
async fn a_claim_whose_holder_is_gone_is_listed_after_its_lease_and_one_that_is_renewed_is_not() {
    let Some(server) = RedisServer::start().await else { return };
    let redis = open(&server.url());
    let began_at = SystemClock::new().wall();
    let (gone, mut renewed) = (turning(Duration::from_millis(300)), turning(Duration::from_secs(1)));
    granted(&redis, &gone).await;
    soon("one is renewed before its lease ends", async || {
        renewed = turning(Duration::from_secs(1));
        granted(&redis, &renewed).await;
        let renewal = redis.renew(&renew(&renewed, Some(Duration::from_secs(5))), DEADLINE).await;
        matches!(renewal, Ok(RenewalResponse::Renewed { .. }))
    })
    .await;
    drop(redis);
    let redis = open(&server.url());
    soon("it is listed", async || listed(&redis, &gone).await.is_some()).await;
    let since = listed(&redis, &gone).await.unwrap().since;
    assert!(since.plus(Duration::from_millis(1)) >= began_at.plus(gone.terms.lease), "{since} after {began_at}");
    soon("the other one was in progress for longer than its entry said", async || {
        let is_listed = listed(&redis, &renewed).await.is_some();
        let state = redis.read(&renewed.key).await.unwrap().map(|live| live.record.state);
        assert!(!is_listed || state == Some(ClaimState::Unknown), "it is listed, and {state:?}");
        is_listed
    })
    .await;
    // A repeat finds it unknown, and does not make it younger.
    assert!(is_duplicate(&redis, &ClaimRequest { terms: gone.terms, ..again(&gone) }).await);
    assert_eq!(listed(&redis, &gone).await.unwrap().since, since);
    let taken = ClaimRequest { take_over: true, terms: Terms { lease: LONG, ..gone.terms }, ..again(&gone) };
    assert!(granted(&redis, &taken).await.taken_over);
    assert_eq!(listed(&redis, &gone).await, None);
}

#[tokio::test]
async fn what_ends_well_leaves_no_entry_behind() {
    let Some(server) = RedisServer::start().await else { return };
    let redis = open(&server.url());
    let claims: Vec<_> = (0..40).map(|_| turning(LONG)).collect();
    let batch: Vec<_> = claims[20..].iter().map(|request| BatchClaim { request, deadline: DEADLINE }).collect();
    redis.claim_batch(&batch, &|_, answer| assert!(answer.is_ok())).await;
    for claim in &claims[..20] {
        granted(&redis, claim).await;
    }
    assert_eq!(entries(&server), 40);
    assert_eq!(page(&redis, &claims[0], 10).await.found, [], "none is due");
    for (number, claim) in claims.iter().enumerate() {
        let outcome = if number % 2 == 0 { success("1") } else { Outcome::Failure };
        redis.settle(&settle(claim, outcome), DEADLINE).await.unwrap();
    }
    soon("all are removed, without a reader", async || entries(&server) == 0).await;
    for claim in claims.iter().step_by(2) {
        assert!(is_duplicate(&redis, &ClaimRequest { terms: claim.terms, ..again(claim) }).await);
    }
    soon("repeats of a success leave none", async || entries(&server) == 0).await;
    let repeats: Vec<_> =
        claims.iter().step_by(2).map(|claim| ClaimRequest { terms: claim.terms, ..again(claim) }).collect();
    let batch: Vec<_> = repeats.iter().map(|request| BatchClaim { request, deadline: DEADLINE }).collect();
    redis.claim_batch(&batch, &|_, answer| assert!(matches!(answer, Ok(ClaimResponse::Duplicate(_))))).await;
    soon("nor do they in a batch", async || entries(&server) == 0).await;
}

#[tokio::test]
async fn stale_entries_are_removed_when_they_are_read_and_sets_are_bounded() {
    let Some(server) = RedisServer::start().await else { return };
    let redis = open(&server.url());
    let claim = turning(Duration::from_millis(50));
    let app = claim.key.app.clone();
    for digit in ["0", "7", "f"] {
        let members: Vec<_> = (0..200).map(|number| format!("1 {digit}{number:031x}")).collect();
        server.query::<usize>(&format!("ZADD og:unknowns:{{{app}/{digit}}} {}", members.join(" ")));
    }
    server.query::<usize>(&format!("ZADD og:unknowns:{{{app}/7}} 1 of-a-later-release"));
    granted(&redis, &claim).await;
    soon("the claim is behind the entries that are stale", async || {
        let page = page(&redis, &claim, 20).await;
        !page.found.is_empty() && !page.more
    })
    .await;
    assert_eq!(entries(&server), 2, "one is not of this release");

    // A full set loses the claims that become unknown last.
    let late = 9_000_000_000_000_000_u64;
    let members: Vec<_> = (0..2000).map(|number| format!("{} 1{number:031x}", late + number)).collect();
    let set = format!("og:unknowns:{{{app}/1}}");
    server.query::<usize>(&format!("ZADD {set} {}", members.join(" ")));
    let is_trimmed = async || {
        for _ in 0..50 {
            granted(&redis, &turning(LONG)).await;
        }
        server.query::<usize>(&format!("ZCARD {set}")) < 700
    };
    soon("it is trimmed", is_trimmed).await;
    let first: Vec<String> = server.query(&format!("ZRANGE {set} 0 0 WITHSCORES"));
    assert!(first[1].parse::<u64>().unwrap() < late, "the claims are due earlier: {first:?}");
}

#[tokio::test]
async fn a_list_is_of_one_app_the_oldest_first_and_says_that_there_are_more() {
    let Some(server) = RedisServer::start().await else { return };
    let redis = open(&server.url());
    let claims: Vec<_> = (0..30).map(|_| fresh_claim()).collect();
    for claim in &claims {
        granted(&redis, claim).await;
        redis.settle(&settle(claim, Outcome::Unknown), DEADLINE).await.unwrap();
        tokio::time::sleep(Duration::from_millis(2)).await;
    }
    let ids: Vec<_> = claims.iter().map(|claim| claim.key.global_id).collect();
    for (limit, more) in [(7, true), (29, true), (30, false), (1000, false)] {
        let page = page(&redis, &claims[0], limit).await;
        let found: Vec<_> = page.found.iter().map(|found| found.global_id).collect();
        assert_eq!((&found[..], page.more), (&ids[..limit.min(30)], more));
    }
    let other = UnknownsRequest { app: "other".parse().unwrap(), limit: 10 };
    assert_eq!(redis.unknowns(&other).await.unwrap(), UnknownsPage { found: Vec::new(), more: false });
}

#[tokio::test]
async fn claims_need_no_right_to_the_index_and_no_room_for_it() {
    let Some(server) = RedisServer::start().await else { return };
    server.query::<String>("ACL SETUSER default -zadd -zrem -zrange -zremrangebyrank");
    let redis = open(&server.url());
    let (claim, unknown) = (turning(LONG), fresh_claim());
    for claim in [&claim, &unknown] {
        granted(&redis, claim).await;
    }
    redis.settle(&settle(&claim, success("1")), DEADLINE).await.unwrap();
    redis.settle(&settle(&unknown, Outcome::Unknown), DEADLINE).await.unwrap();
    let refused = redis.unknowns(&UnknownsRequest { app: claim.key.app.clone(), limit: 10 }).await;
    assert!(refused.is_err(), "{refused:?}");
}
