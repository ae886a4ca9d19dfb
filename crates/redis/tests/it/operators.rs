//! Actions of operators on a running server: changes of its memory, role and passwords, and a flush. Each is reported
//! correctly, and once it is corrected, service is back without a restart.

use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::Duration;

use oncegate_core::claim::{ClaimRequest, ClaimResponse, Outcome, OutcomeResponse, RenewalResponse};
use oncegate_core::engine::conformance::{DEADLINE, fresh_claim};
use oncegate_core::engine::{Channel, Claims as _, Determinate, EngineError, Records as _, Topology as _};
use oncegate_core::record::{ClaimState, Key, Realm};
use oncegate_redis::{Options, Redis};

use super::{
    RedisServer, again, granted, is_duplicate, is_uncertain, open, options, renew, serves_again, settle, soon, success,
    unavailable,
};

#[tokio::test]
async fn a_full_server_grants_nothing_new_and_does_all_the_rest() {
    let Some(server) = RedisServer::start().await else { return };
    let redis = open(&server.url());
    let (held, unknown, done) = (fresh_claim(), fresh_claim(), fresh_claim());
    for request in [&held, &unknown, &done] {
        granted(&redis, request).await;
    }
    redis.settle(&settle(&unknown, Outcome::Unknown), DEADLINE).await.unwrap();
    server.query::<String>("CONFIG SET maxmemory 1");

    let refused = redis.claim(&fresh_claim(), DEADLINE).await;
    assert!(matches!(refused, Err(EngineError::Determinate(Determinate::Full(_)))), "{refused:?}");
    assert!(is_duplicate(&redis, &again(&held)).await, "what is there is found");
    assert!(granted(&redis, &held).await.lease_left.is_some(), "its holder recognises itself");
    assert!(granted(&redis, &ClaimRequest { take_over: true, ..again(&unknown) }).await.taken_over);
    let renewal = renew(&held, None);
    assert!(matches!(redis.renew(&renewal, DEADLINE).await, Ok(RenewalResponse::Renewed { .. })));
    let settled = redis.settle(&settle(&done, success(&format!("\"{}\"", "x".repeat(10_000)))), DEADLINE).await;
    assert!(matches!(settled, Ok(OutcomeResponse::Done { state: Some(ClaimState::Succeeded), .. })), "{settled:?}");
    let late = redis.settle(&settle(&fresh_claim(), success("1")), DEADLINE).await;
    assert!(matches!(late, Ok(OutcomeResponse::Done { late: Some(true), .. })), "{late:?}");
    assert!(redis.read(&held.key).await.unwrap().is_some());
    redis.probe().await.unwrap();

    // A new gateway can do all of that as well.
    let newcomer = open(&server.url());
    assert!(is_duplicate(&newcomer, &again(&held)).await);

    server.query::<String>("CONFIG SET maxmemory 0");
    granted(&redis, &fresh_claim()).await;
}

#[tokio::test]
async fn a_server_that_may_evict_gets_no_claims_until_it_is_put_right() {
    let Some(server) = RedisServer::start().await else { return };
    let redis = open(&server.url());
    let request = fresh_claim();
    granted(&redis, &request).await;
    server.query::<String>("CONFIG SET maxmemory 1gb");
    server.query::<String>("CONFIG SET maxmemory-policy allkeys-lru");
    soon("claims are refused", async || redis.claim(&fresh_claim(), DEADLINE).await.is_err()).await;
    // A new gateway refuses from its first call on.
    for redis in [&redis, &open(&server.url())] {
        for refused in [redis.claim(&fresh_claim(), DEADLINE).await.map(drop), redis.probe().await] {
            match refused {
                Err(EngineError::Determinate(Determinate::Incompatible(why))) => {
                    assert!(
                        why.contains("CONFIG SET maxmemory-policy noeviction") && why.contains("allow_eviction=true")
                    );
                }
                other => panic!("{other:?}"),
            }
        }
        assert!(redis.read(&request.key).await.unwrap().is_some());
        let renewal = renew(&request, None);
        assert!(matches!(redis.renew(&renewal, DEADLINE).await, Ok(RenewalResponse::Renewed { .. })));
    }
    redis.settle(&settle(&request, success("1")), DEADLINE).await.unwrap();
    granted(&open(&format!("{}?allow_eviction=true", server.url())), &fresh_claim()).await;

    server.query::<String>("CONFIG SET maxmemory-policy noeviction");
    serves_again(&redis).await;
    redis.probe().await.unwrap();
}

#[tokio::test]
async fn a_demoted_server_is_left_and_found_again() {
    let Some(server) = RedisServer::start().await else { return };
    // No health check in between: the refused call itself must report it.
    let redis = Redis::open(&server.url(), Options::default()).unwrap();
    let request = fresh_claim();
    granted(&redis, &request).await;
    server.query::<String>("REPLICAOF 127.0.0.1 1");
    for why in [
        // First of all: a replica's word is not the store's.
        unavailable(redis.read(&request.key).await),
        unavailable(redis.claim(&fresh_claim(), DEADLINE).await),
        unavailable(redis.settle(&settle(&request, success("1")), DEADLINE).await),
    ] {
        assert!(why.contains("READONLY"), "{why}");
    }
    server.query::<String>("REPLICAOF NO ONE");
    serves_again(&redis).await;
    assert!(is_duplicate(&redis, &again(&request)).await);
}

#[tokio::test]
async fn a_demoted_server_is_detected_without_calls() {
    let Some(server) = RedisServer::start().await else { return };
    let redis = open(&server.url());
    redis.probe().await.unwrap();
    server.query::<String>("REPLICAOF 127.0.0.1 1");
    soon("the probe reports it", async || redis.probe().await.is_err_and(|why| why.to_string().contains("READONLY")))
        .await;
    server.query::<String>("REPLICAOF NO ONE");
    serves_again(&redis).await;
}

#[tokio::test]
async fn a_revoked_password_is_reported_and_never_shown() {
    let Some(server) = RedisServer::start().await else { return };
    let admin = server.url();
    server.query::<String>("ACL SETUSER gateway on >hunter2 ~og:* +@all");
    let redis = open(&format!("redis://gateway:hunter2@{}", server.address()));
    granted(&redis, &fresh_claim()).await;

    server.query::<String>("ACL SETUSER gateway resetpass >changed");
    server.query::<i64>("CLIENT KILL USER gateway");
    let mut why = String::new();
    // The first calls may fail with the connection that was closed.
    soon("the reason is reported", async || {
        if let Err(EngineError::Determinate(Determinate::Unavailable(reason))) =
            redis.claim(&fresh_claim(), DEADLINE).await
        {
            assert!(!reason.contains("hunter2"), "{reason}");
            why = reason;
        }
        why.contains("WRONGPASS")
    })
    .await;
    assert!(!format!("{why} {redis:?}").contains("hunter2"));

    server.query::<String>("ACL SETUSER gateway resetpass >hunter2");
    serves_again(&redis).await;

    // A server that requires a password; the engine does not have it.
    let bare = open(&admin);
    granted(&bare, &fresh_claim()).await;
    server.query::<String>("CONFIG SET requirepass hunter3");
    let with_password = format!("redis://:hunter3@{}", server.address());
    RedisServer::try_query::<i64>(&with_password, &["CLIENT", "KILL", "TYPE", "normal", "SKIPME", "yes"]).unwrap();
    soon("it is refused", async || {
        matches!(bare.claim(&fresh_claim(), DEADLINE).await, Err(EngineError::Determinate(Determinate::Unavailable(why))) if why.contains("NOAUTH"))
    })
    .await;
    granted(&open(&with_password), &fresh_claim()).await;
    RedisServer::try_query::<String>(&with_password, &["CONFIG", "SET", "requirepass", ""]).unwrap();
    serves_again(&bare).await;
}

#[tokio::test]
async fn a_user_with_the_least_rights_can_do_everything() {
    let Some(server) = RedisServer::start().await else { return };
    server.query::<String>(
        "ACL SETUSER least on >hunter2 resetkeys ~og:* ~ogp:* resetchannels &og:* &ogp:* nocommands +set +get +del +pttl +pexpire +pexpiretime +multi +exec +evalsha +eval +script|load \
         +info +echo +ping +time +hello +ssubscribe +sunsubscribe +spublish",
    );
    let redis = open(&format!("redis://least:hunter2@{}", server.address()));
    for realm in [Realm::Api, Realm::Proxy] {
        let request = fresh_claim();
        let request = ClaimRequest { key: Key { realm, ..request.key.clone() }, ..request };
        granted(&redis, &request).await;
        assert!(is_duplicate(&redis, &again(&request)).await);
        redis.renew(&renew(&request, None), DEADLINE).await.unwrap();
        redis.settle(&settle(&request, Outcome::Failure), DEADLINE).await.unwrap();
        soon("notifications", async || redis.subscribe(&Channel::of_claim(&request.key)).await.is_live()).await;
    }
    redis.probe().await.unwrap();
    assert!(!redis.capabilities().durable, "CONFIG is forbidden, so nothing is promised");
}

#[tokio::test]
async fn the_rights_of_the_page_are_accepted_and_enough() {
    let Some(server) = RedisServer::start().await else { return };
    let page = include_str!("../../../../docs/engines/redis.md");
    let lines: Vec<_> = page.lines().filter(|line| line.starts_with("ACL SETUSER oncegate ")).collect();
    assert_eq!(lines.len(), 4, "{lines:?}");
    for line in lines {
        let words: Vec<_> = line.split(' ').collect();
        let applied = RedisServer::try_query::<String>(&server.url(), &words);
        // An older server does not know the command of `aof=1`, which is in a separate line.
        assert!(applied.is_ok() || words[3..] == ["+waitaof"], "{line}: {applied:?}");
    }
    let redis = open(&format!("redis://oncegate:PASSWORD@{}", server.address()));
    let request = fresh_claim();
    granted(&redis, &request).await;
    redis.settle(&settle(&request, Outcome::Failure), DEADLINE).await.unwrap();
    redis.probe().await.unwrap();
}

#[tokio::test]
async fn scripts_that_were_flushed_are_taught_again() {
    let Some(server) = RedisServer::start().await else { return };
    let redis = open(&server.url());
    let request = fresh_claim();
    granted(&redis, &request).await;
    for _ in 0..2 {
        server.query::<String>("SCRIPT FLUSH");
        assert!(is_duplicate(&redis, &again(&request)).await);
        server.query::<String>("SCRIPT FLUSH");
        redis.renew(&renew(&request, None), DEADLINE).await.unwrap();
    }
    server.query::<String>("SCRIPT FLUSH");
    redis.settle(&settle(&request, Outcome::Unknown), DEADLINE).await.unwrap();
    server.query::<String>("SCRIPT FLUSH");
    assert!(granted(&redis, &ClaimRequest { take_over: true, ..again(&request) }).await.taken_over);
}

#[tokio::test]
async fn a_flushed_server_is_noticed() {
    let Some(mut server) = RedisServer::start().await else { return };
    let response = Arc::new(AtomicU64::new(0));
    let hook = {
        let response = response.clone();
        Arc::new(move || {
            response.fetch_add(1, Ordering::SeqCst);
        })
    };
    // By the heartbeats of its connections, and not only at the next health check.
    let hour = Duration::from_hours(1);
    let options = Options { on_data_loss: Some(hook), health_check_interval: hour, ..options() };
    let redis = Redis::open(&server.url(), options).unwrap();
    granted(&redis, &fresh_claim()).await;
    assert_eq!(redis.data_lost(), 0);
    server.query::<String>("FLUSHALL");
    soon("it is noticed", async || redis.data_lost() == 1).await;
    // Started again without its data, it comes back with the service.
    server.restart_empty().await;
    serves_again(&redis).await;
    soon("it is noticed", async || redis.data_lost() >= 2).await;
    assert_eq!(response.load(Ordering::SeqCst), redis.data_lost());
}

#[tokio::test]
async fn a_server_that_cannot_save_is_unavailable() {
    let Some(server) = RedisServer::start().await else { return };
    let redis = open(&server.url());
    granted(&redis, &fresh_claim()).await;
    // A failed snapshot stops all writes; this is Redis' default.
    server.query_words::<String>(&["CONFIG", "SET", "save", "3600 1"]);
    server.break_saving();
    let _ = RedisServer::try_query::<String>(&server.url(), &["BGSAVE"]);
    soon("it refuses writes", async || {
        matches!(redis.claim(&fresh_claim(), DEADLINE).await, Err(EngineError::Determinate(Determinate::Unavailable(why))) if why.contains("MISCONF"))
    })
    .await;
    server.query::<String>("CONFIG SET stop-writes-on-bgsave-error no");
    serves_again(&redis).await;
}

#[tokio::test]
async fn a_busy_server_is_not_waited_for() {
    let Some(server) = RedisServer::start_with(&["busy-reply-threshold 100"]).await else { return };
    let redis = open(&server.url());
    granted(&redis, &fresh_claim()).await;
    let url = server.url();
    let busy = std::thread::spawn(move || {
        let mut connection = redis::Client::open(url).unwrap().get_connection().unwrap();
        let _: redis::RedisResult<()> = redis::cmd("EVAL").arg("while true do end").arg(0).query(&mut connection);
    });
    soon("it is reported", async || {
        let answer = redis.claim(&fresh_claim(), DEADLINE).await;
        assert!(answer.is_err() || matches!(answer, Ok(ClaimResponse::Granted(_))));
        !is_uncertain(&answer) && answer.is_err_and(|why| why.to_string().contains("BUSY"))
    })
    .await;
    server.query::<String>("SCRIPT KILL");
    busy.join().unwrap();
    serves_again(&redis).await;
}

#[tokio::test]
async fn durability_is_read_from_the_server() {
    let Some(server) = RedisServer::start_with(&["appendonly yes", "appendfsync always"]).await else { return };
    let redis = open(&server.url());
    redis.probe().await.unwrap();
    let response = redis.capabilities();
    assert!(response.durable && response.shared && !response.strict_fence);
    server.query::<String>("CONFIG SET appendfsync everysec");
    soon("it no longer promises", async || !redis.capabilities().durable).await;
}
