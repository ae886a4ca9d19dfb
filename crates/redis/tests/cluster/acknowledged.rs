//! Answers that replicas acknowledge, on one primary without Sentinels.

use std::time::Duration;

use oncegate_core::claim::{ClaimRequest, ClaimResponse};
use oncegate_core::engine::conformance::fresh_claim;
use oncegate_core::engine::{Claims as _, EngineError, RecordName, Records as _, Topology as _};
use oncegate_redis::Redis;
use oncegate_testkit::redis_server::RedisServer;
use oncegate_testkit::wait::in_time;

use super::{DEADLINE, again, batch, is_duplicate, now, open, renew, settle, since, soon, success};

/// A deadline that is long compared with the delays of a busy machine.
const LONG: Duration = Duration::from_secs(6);

/// A primary and its replica, with an append-only file that is synced at once.
pub(super) async fn pair() -> Option<(RedisServer, RedisServer)> {
    let config = ["appendonly yes", "appendfsync always", "repl-diskless-sync-delay 0"];
    let (primary, replica) = (RedisServer::start_with(&config).await?, RedisServer::start_with(&config).await?);
    replica.query::<()>(&format!("REPLICAOF 127.0.0.1 {}", primary.address().port()));
    soon("the replica is in step", async || primary.query::<String>("INFO replication").contains("state=online")).await;
    Some((primary, replica))
}

#[tokio::test]
async fn a_primary_that_is_cut_off_acknowledges_nothing() {
    let Some((primary, replica)) = pair().await else { return };
    let redis = open(&format!("{}?replicas=1", primary.url()));
    let (held, done, new) = (fresh_claim(), fresh_claim(), fresh_claim());
    soon("the replica acknowledges", async || redis.claim(&held, DEADLINE).await.is_ok()).await;
    soon("another one", async || redis_grants(&redis, &done).await).await;
    let outcome = settle(&done, success("1"));
    soon("it is acknowledged", async || redis.settle(&outcome, DEADLINE).await.is_ok()).await;
    // It is promoted elsewhere, and the former primary keeps answering.
    replica.query::<()>("REPLICAOF NO ONE");
    let is_short = async |ask| redis.claim(&ask, DEADLINE).await.is_err_and(|failure| failure.is_shortfall());
    assert!(is_short(new.clone()).await, "a grant");
    assert!(is_short(new.clone()).await, "its repeat, which writes nothing");
    assert!(is_short(held.clone()).await, "the repeat of one that was acknowledged");
    assert!(is_short(again(&done)).await, "a success");
    let answers = batch(&redis, &[again(&done), again(&held), fresh_claim()]).await;
    assert!(answers[0].as_ref().is_err_and(EngineError::is_shortfall), "{answers:?}");
    assert!(matches!(answers[1], Ok(ClaimResponse::Duplicate(_))), "in progress: {answers:?}");
    assert!(answers[2].as_ref().is_err_and(EngineError::is_shortfall), "{answers:?}");
    let other = ClaimRequest { fingerprint: Some([7; 32]), ..again(&held) };
    for at_once in [again(&held), other] {
        let started = now();
        let answer = redis.claim(&at_once, LONG).await;
        assert!(matches!(answer, Ok(ClaimResponse::Duplicate(_) | ClaimResponse::Mismatch(_))), "{answer:?}");
        in_time("what does not wait for replicas", since(started), LONG / 2);
    }
    let outcome = redis.settle(&settle(&held, success("1")), DEADLINE).await;
    assert!(outcome.is_err_and(|failure| failure.is_shortfall()));
    let renewal = redis.renew(&renew(&new, None), DEADLINE).await;
    assert!(renewal.is_err_and(|failure| failure.is_shortfall()));
    assert!(redis.read(&held.key).await.is_err_and(|failure| failure.is_shortfall()));
    assert!(
        redis
            .get_record(&RecordName::Metadata("a".into()), DEADLINE)
            .await
            .is_err_and(|failure| failure.is_shortfall())
    );
    redis.probe().await.expect("it answers");

    // It is a replica of the new one now: writes that only it had received are lost, and were never acknowledged.
    primary.query::<()>(&format!("REPLICAOF 127.0.0.1 {}", replica.address().port()));
    soon("the new primary is in step", async || replica.query::<String>("INFO replication").contains("state=online"))
        .await;
    let promoted = open(&format!("{}?replicas=1", replica.url()));
    soon("what was acknowledged stands", async || is_duplicate(&promoted, &again(&held)).await).await;
    let new = again(&new);
    soon("what was never acknowledged is free", async || redis_grants(&promoted, &new).await).await;
}

async fn redis_grants(redis: &Redis, ask: &ClaimRequest) -> bool {
    matches!(redis.claim(ask, DEADLINE).await, Ok(ClaimResponse::Granted(_)))
}

#[tokio::test(flavor = "multi_thread")]
async fn write_and_wait_are_repeated_until_the_deadline() {
    let Some((primary, replica)) = pair().await else { return };
    let redis = open(&format!("{}?replicas=1", primary.url()));
    soon("the replica acknowledges", async || redis.claim(&fresh_claim(), DEADLINE).await.is_ok()).await;
    replica.freeze();
    let started = now();
    // Many more than go out at once: none waits for others until its time is over.
    let claims: Vec<_> = (0..300).map(|_| fresh_claim()).collect();
    let answers = futures_util::future::join_all(
        claims.iter().map(|claim| async { (redis.claim(claim, LONG).await, since(started)) }),
    );
    for (answer, took) in answers.await {
        assert!(answer.as_ref().is_err_and(EngineError::is_shortfall), "{answer:?}");
        assert!(took > LONG * 7 / 10, "{took:?}");
        in_time("a claim that waits for replicas", took, LONG);
    }

    let (claim, thaw) = (fresh_claim(), async {
        tokio::time::sleep(LONG / 10).await;
        replica.thaw();
    });
    let (answer, ()) = tokio::join!(redis.claim(&claim, LONG), thaw);
    assert!(matches!(answer, Ok(ClaimResponse::Granted(_))), "{answer:?}");
    assert!(redis_grants(&redis, &claims[0]).await, "the claim has stayed, and is the same one");
}

#[tokio::test]
async fn an_acknowledgement_of_the_disks_needs_version_7_2() {
    let Some((primary, _replica)) = pair().await else { return };
    let redis = open(&format!("{}?replicas=1&aof=1&replica_timeout=400ms", primary.url()));
    let info: String = primary.query("INFO server");
    let version = info.lines().find_map(|line| line.strip_prefix("redis_version:")).unwrap().to_owned();
    let mut numbers = version.split('.').map(|number| number.parse::<u32>().unwrap());
    if (numbers.next().unwrap(), numbers.next().unwrap()) >= (7, 2) {
        soon("the disks acknowledge", async || redis.claim(&fresh_claim(), DEADLINE).await.is_ok()).await;
        primary.query::<()>("CONFIG SET appendfsync everysec");
        soon("it is refused", async || {
            redis.claim(&fresh_claim(), DEADLINE).await.is_err_and(|why| why.to_string().contains("appendfsync always"))
        })
        .await;
    } else {
        let why = redis.claim(&fresh_claim(), DEADLINE).await.unwrap_err().to_string();
        assert!(why.contains("7.2 or later"), "{why}");
    }
}
