//! Content of the store, as an operator reads it with GET and PTTL, and as the next release must read it.

use std::time::Duration;

use oncegate_core::claim::{ClaimRequest, ClaimResponse, Outcome, OutcomeResponse, RenewalResponse};
use oncegate_core::clock::Timestamp;
use oncegate_core::engine::Claims as _;
use oncegate_core::engine::conformance::{DEADLINE, fresh_claim};
use oncegate_core::record::ClaimState;
use oncegate_core::terms::{LeaseEnd, Retention, Terms};

use super::{RedisServer, again, granted, is_duplicate, name, open, renew, settle, success};

const GRACE_MS: i64 = 3_155_760_000_000;

/// Checks that PTTL is at most two seconds below the promised time, and never above.
fn assert_left(server: &RedisServer, name: &str, promised_ms: i64) {
    let left: i64 = server.query(&format!("PTTL {name}"));
    assert!(left <= promised_ms && left > promised_ms - 2000, "{left} of {promised_ms}");
}

#[tokio::test]
async fn a_claim_can_be_read_with_get_and_begins_with_its_attempt() {
    let Some(server) = RedisServer::start().await else { return };
    let redis = open(&server.url());
    let request = fresh_claim();
    granted(&redis, &request).await;
    let value: String = server.query(&format!("GET {}", name(&request)));
    assert_eq!(value, format!("{} 1p l=1h c={}", request.attempt, request.contents.as_str()));
    redis.settle(&settle(&request, success("{\"a\":\n1}")), DEADLINE).await.unwrap();
    let value: String = server.query(&format!("GET {}", name(&request)));
    assert_eq!(value, format!("{} 1s l=1h c={}\n{{\"a\":\n1}}", request.attempt, request.contents.as_str()));
}

#[tokio::test]
async fn every_key_begins_with_the_prefix() {
    let Some(server) = RedisServer::start().await else { return };
    let redis = open(&format!("{}/0?prefix=shop:", server.url()));
    let plain = open(&server.url());
    let request = fresh_claim();
    granted(&redis, &request).await;
    let mut keys: Vec<String> = server.query("KEYS shop:*");
    keys.sort();
    assert_eq!(keys, ["shop:og:marker".to_owned(), format!("shop:{}", name(&request))]);
    granted(&plain, &again(&request)).await;
}

#[tokio::test]
async fn records_live_as_long_as_was_promised() {
    let Some(server) = RedisServer::start().await else { return };
    let redis = open(&server.url());
    let hour = 3_600_000;

    let request = fresh_claim();
    granted(&redis, &request).await;
    assert_left(&server, &name(&request), hour);
    let renewed = redis.renew(&renew(&request, Some(Duration::from_hours(2))), DEADLINE).await;
    let Ok(RenewalResponse::Renewed { left, ends_at }) = renewed else { panic!("{renewed:?}") };
    let expires_ms: u64 = server.query(&format!("PEXPIRETIME {}", name(&request)));
    assert_eq!((left, ends_at), (Duration::from_hours(2), Some(Timestamp::from_micros(expires_ms * 1000))));
    assert_left(&server, &name(&request), 2 * hour);
    redis.settle(&settle(&request, Outcome::Unknown), DEADLINE).await.unwrap();
    assert_left(&server, &name(&request), 7 * 24 * hour);
    redis.settle(&settle(&request, success("1")), DEADLINE).await.unwrap();
    assert_left(&server, &name(&request), 24 * hour);

    for (retention, left) in [(Retention::Forever, -1), (Retention::For(Duration::from_hours(30 * 24)), 30 * 24 * hour)]
    {
        // As a term of the claim, as the outcome's own, and on a late record.
        let of_the_claim = ClaimRequest { terms: Terms { retention, ..request.terms }, ..fresh_claim() };
        granted(&redis, &of_the_claim).await;
        redis.settle(&settle(&of_the_claim, success("1")), DEADLINE).await.unwrap();
        let of_the_outcome = fresh_claim();
        let outcome = Outcome::Success { result: None, retention: Some(retention) };
        granted(&redis, &of_the_outcome).await;
        redis.settle(&settle(&of_the_outcome, outcome.clone()), DEADLINE).await.unwrap();
        let late = fresh_claim();
        let settled = redis.settle(&settle(&late, outcome), DEADLINE).await;
        assert!(matches!(settled, Ok(OutcomeResponse::Done { late: Some(true), .. })));
        for request in [of_the_claim, of_the_outcome, late] {
            match left {
                -1 => assert_eq!(server.query::<i64>(&format!("PTTL {}", name(&request))), -1),
                left => assert_left(&server, &name(&request), left),
            }
            assert_eq!(redis.read(&request.key).await.unwrap().unwrap().record.terms.retention, retention);
        }
    }
}

#[tokio::test]
async fn a_claim_whose_lease_end_means_unknown_outlives_its_lease() {
    let Some(server) = RedisServer::start().await else { return };
    let redis = open(&server.url());
    let terms = Terms { lease: Duration::from_secs(2), on_lease_end: LeaseEnd::Unknown, ..fresh_claim().terms };
    let request = ClaimRequest { terms, ..fresh_claim() };
    granted(&redis, &request).await;
    assert_left(&server, &name(&request), GRACE_MS + 2000);
    let held = redis.read(&request.key).await.unwrap().unwrap();
    assert_eq!(held.record.state, ClaimState::InProgress);
    assert!(held.left.unwrap() <= Duration::from_secs(2));
    let renewal = renew(&request, Some(Duration::from_secs(3)));
    redis.renew(&renewal, DEADLINE).await.unwrap();
    assert_left(&server, &name(&request), GRACE_MS + 3000);
    tokio::time::sleep(Duration::from_millis(3100)).await;
    let held = redis.read(&request.key).await.unwrap().unwrap();
    assert_eq!((held.record.state, held.left), (ClaimState::Unknown, None));
    assert_eq!(redis.renew(&renewal, DEADLINE).await, Ok(RenewalResponse::LeaseLost));
    // The holder's word ends it, and from then on its time is its own.
    redis.settle(&settle(&request, success("1")), DEADLINE).await.unwrap();
    assert_left(&server, &name(&request), 24 * 3_600_000);
}

#[tokio::test]
async fn many_who_would_take_over_at_once_leave_one_holder() {
    let Some(server) = RedisServer::start().await else { return };
    let redis = std::sync::Arc::new(open(&server.url()));
    let request = fresh_claim();
    granted(&*redis, &request).await;
    redis.settle(&settle(&request, Outcome::Unknown), DEADLINE).await.unwrap();
    let racers = (0..50).map(|_| {
        let (redis, request) = (redis.clone(), ClaimRequest { take_over: true, ..again(&request) });
        tokio::spawn(async move { redis.claim(&request, DEADLINE).await })
    });
    let mut grants = 0;
    for racer in racers.collect::<Vec<_>>() {
        match racer.await.unwrap().unwrap() {
            ClaimResponse::Granted(grant) if grant.taken_over => grants += 1,
            ClaimResponse::Duplicate(held) => assert_eq!(held.record.state, ClaimState::InProgress),
            other => panic!("unexpected {other:?}"),
        }
    }
    assert_eq!(grants, 1);
}

/// Values that an operator or a newer release may have left. Words in contents and results are not fields.
#[tokio::test]
async fn only_words_before_the_contents_count() {
    let Some(server) = RedisServer::start().await else { return };
    let redis = open(&server.url());
    let request = fresh_claim();
    let contents = r#"{"a":"x c=1 r=1s e=u late"}"#;
    let value = format!("{} 1p new x=9 c={contents}", request.attempt);
    server.query_words::<String>(&["SET", &name(&request), &value, "PX", "60000"]);
    redis.settle(&settle(&request, success("\n 1s r=1s\n")), DEADLINE).await.unwrap();
    let held = redis.read(&request.key).await.unwrap().unwrap();
    assert!(!held.record.late);
    assert_eq!(held.record.result.as_deref(), Some("\n 1s r=1s\n"));
    assert_left(&server, &name(&request), 24 * 3_600_000);
    let stored: String = server.query(&format!("GET {}", name(&request)));
    assert_eq!(stored, format!("{} 1s new x=9 c={contents}\n\n 1s r=1s\n", request.attempt));
}

/// An unknown record that was recorded late, with its own retention: a second success does not add to it.
#[tokio::test]
async fn a_late_record_stays_late_when_it_is_settled() {
    let Some(server) = RedisServer::start().await else { return };
    let redis = open(&server.url());
    let request = fresh_claim();
    redis.settle(&settle(&request, Outcome::Unknown), DEADLINE).await.unwrap();
    let outcome = Outcome::Success { result: None, retention: Some(Retention::Forever) };
    let settled = redis.settle(&settle(&request, outcome), DEADLINE).await;
    let state = Some(ClaimState::Succeeded);
    assert_eq!(settled, Ok(OutcomeResponse::Done { state, left: None, ends_at: None, late: Some(true) }));
    assert!(is_duplicate(&redis, &again(&request)).await);
    let value: String = server.query(&format!("GET {}", name(&request)));
    assert_eq!(value, format!("{} 1s r=forever l=1h o= late", request.attempt));
}
