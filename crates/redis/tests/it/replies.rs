//! S9 and S13: lost replies make a call uncertain, never wrong, and a reply always belongs to its request, after any
//! fault of the shared connection.

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::Duration;

use futures_util::future::join_all;
use oncegate_core::attempt::Attempt;
use oncegate_core::claim::{ClaimRequest, ClaimResponse, Outcome, OutcomeResponse};
use oncegate_core::engine::conformance::{DEADLINE, fresh_claim};
use oncegate_core::engine::{Claims as _, Topology as _};
use oncegate_core::record::ClaimState;
use oncegate_redis::{Options, Redis};
use oncegate_testkit::tcp_proxy::TcpProxy;

use super::{
    RedisServer, again, attempt, behind_proxy, behind_proxy_with, granted, is_duplicate, is_uncertain, name, open,
    options, settle, soon, success, unavailable,
};

#[tokio::test]
async fn a_claim_whose_reply_was_lost_recognises_itself() {
    let Some(server) = RedisServer::start().await else { return };
    let (proxy, redis) = behind_proxy(&server).await;
    let request = fresh_claim();
    proxy.lose_next_reply();
    let lost = redis.claim(&request, DEADLINE).await;
    assert!(is_uncertain(&lost), "{lost:?}");

    let own = granted(&redis, &request).await;
    assert_eq!((&own.attempt, own.repeated), (&request.attempt, false));
    assert!(own.lease_left.is_some_and(|left| left <= request.terms.lease));
    // The caller's own repeat comes with a new timestamp and the same nonce.
    let repeat = ClaimRequest {
        attempt: Attempt::new(attempt().timestamp(), request.attempt.nonce().clone()),
        ..request.clone()
    };
    let repeated = granted(&redis, &repeat).await;
    assert_eq!((&repeated.attempt, repeated.repeated), (&request.attempt, true));
    assert!(is_duplicate(&redis, &again(&request)).await);
}

#[tokio::test]
async fn an_outcome_whose_reply_was_lost_can_be_repeated() {
    let Some(server) = RedisServer::start().await else { return };
    let (proxy, redis) = behind_proxy(&server).await;
    let request = fresh_claim();
    granted(&redis, &request).await;
    proxy.lose_next_reply();
    assert!(is_uncertain(&redis.settle(&settle(&request, success("1")), DEADLINE).await));
    let repeated = redis.settle(&settle(&request, success("2")), DEADLINE).await;
    assert!(
        matches!(repeated, Ok(OutcomeResponse::Done { state: Some(ClaimState::Succeeded), late: Some(false), .. })),
        "{repeated:?}"
    );
    assert_eq!(redis.read(&request.key).await.unwrap().unwrap().record.result.as_deref(), Some("1"));
}

/// A claim that finds a record reads it with a second command. The reply to that one may be lost as well.
#[tokio::test]
async fn a_claim_that_lost_its_second_reply_is_uncertain_to_its_holder_alone() {
    let Some(server) = RedisServer::start().await else { return };
    let (proxy, redis) = behind_proxy_with(&server, Options { remembered_keys: 0, ..Options::default() }).await;
    let request = fresh_claim();
    granted(&redis, &request).await;
    // Of the SET and its ECHO the replies pass.
    proxy.swallow_reply_after(2);
    let own = redis.claim(&request, DEADLINE).await;
    assert!(is_uncertain(&own), "it holds the claim, and must not be answered that nothing has happened: {own:?}");
    assert_eq!(granted(&redis, &request).await.attempt, request.attempt);
    proxy.swallow_reply_after(2);
    unavailable(redis.claim(&again(&request), DEADLINE).await);
    assert!(is_duplicate(&redis, &again(&request)).await);
}

/// Of a key that this gateway has seen taken. Another gateway finds it taken first, and then reads it.
#[tokio::test]
async fn a_repeat_takes_one_round_trip() {
    let Some(server) = RedisServer::start().await else { return };
    let (_proxy, redis) = behind_proxy_with(&server, Options::default()).await;
    let (_other_proxy, other) = behind_proxy_with(&server, Options::default()).await;
    // An ECHO ends each round trip, and there are no heartbeats.
    let round_trips = || {
        let calls = server.query::<String>("INFO commandstats");
        let echoes =
            calls.lines().find_map(|line| line.strip_prefix("cmdstat_echo:calls=")?.split(',').next()).unwrap();
        echoes.parse::<u64>().unwrap()
    };
    let request = fresh_claim();
    granted(&redis, &request).await;
    for (engine, expected) in [(&redis, 1), (&other, 2), (&other, 1)] {
        let before = round_trips();
        assert!(is_duplicate(engine, &again(&request)).await);
        assert_eq!(round_trips() - before, expected);
    }
}

#[tokio::test]
async fn a_lost_answer_to_a_read_is_certain_to_have_changed_nothing() {
    let Some(server) = RedisServer::start().await else { return };
    let (proxy, redis) = behind_proxy(&server).await;
    proxy.lose_next_reply();
    unavailable(redis.read(&fresh_claim().key).await);
    let request = fresh_claim();
    granted(&redis, &request).await;
    // A transaction of four commands has six replies, and its ECHO one more.
    for lost in 0..7 {
        proxy.swallow_reply_after(lost);
        unavailable(redis.read(&request.key).await);
        soon("it is read", async || redis.read(&request.key).await.is_ok_and(|claim| claim.is_some())).await;
    }
}

/// Requests cut off in the middle: the server may or may not have executed them, and the attempt's next try finds out.
#[tokio::test]
async fn a_request_cut_off_anywhere_is_never_answered_wrongly() {
    let Some(server) = RedisServer::start().await else { return };
    let (mut proxy, redis) = behind_proxy(&server).await;
    // A whole claim takes less than 400.
    for bytes in [0, 1, 20, 60, 120, 150, 180, 200, 220, 260, 300] {
        let request = fresh_claim();
        proxy.cut_after(bytes);
        let first = redis.claim(&request, DEADLINE).await;
        assert!(is_uncertain(&first) || matches!(first, Ok(ClaimResponse::Granted(_))), "{bytes}: {first:?}");
        proxy.heal().await;
        assert_eq!(granted(&redis, &request).await.attempt, request.attempt);
        assert!(is_duplicate(&redis, &again(&request)).await);
    }
}

/// Claims, reads and settles one operation after the other until `stop`. No other caller uses these operations, and every answer must be
/// about the right one. Returns the number of operations whose calls were all answered, and the number of the others.
async fn live(redis: Arc<Redis>, stop: Arc<AtomicBool>) -> (usize, usize) {
    let (mut answered, mut tries) = (0, 0);
    while !stop.load(Ordering::Relaxed) {
        tries += 1;
        let request = fresh_claim();
        match redis.claim(&request, DEADLINE).await {
            Ok(ClaimResponse::Granted(grant)) => assert_eq!(grant.attempt, request.attempt),
            Ok(other) => panic!("no other caller uses this operation: {other:?}"),
            Err(_) => {
                // Refused at once, as it may be; others want the processor too.
                tokio::time::sleep(Duration::from_millis(1)).await;
                continue;
            }
        }
        match redis.read(&request.key).await {
            Ok(Some(held)) => {
                assert_eq!((held.record.attempt, held.record.state), (request.attempt.clone(), ClaimState::InProgress));
            }
            Ok(None) => panic!("a granted claim is not there"),
            Err(_) => continue,
        }
        let outcome = if answered % 2 == 0 { success("1") } else { Outcome::Failure };
        match redis.settle(&settle(&request, outcome.clone()), DEADLINE).await {
            Ok(OutcomeResponse::Done { state: Some(ClaimState::Succeeded), late: Some(false), .. }) => {
                assert_ne!(outcome, Outcome::Failure);
            }
            Ok(OutcomeResponse::Done { state: None, late: Some(false), .. }) => assert_eq!(outcome, Outcome::Failure),
            Ok(other) => panic!("its holder settles it: {other:?}"),
            Err(_) => continue,
        }
        let absent = redis.read(&request.key).await;
        assert!(absent.as_ref().map_or(true, |held| held.is_none() == (outcome == Outcome::Failure)), "{absent:?}");
        answered += 1;
    }
    (answered, tries - answered)
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_swallowed_reply_never_mixes_up_answers() {
    let Some(server) = RedisServer::start().await else { return };
    // A reply that is missing at the end, with none after it, is only noticed by its lateness.
    let options = Options { response_timeout: Duration::from_millis(100), ..options() };
    let (proxy, redis) = behind_proxy_with(&server, options).await;
    let redis = Arc::new(redis);
    let stop = Arc::new(AtomicBool::new(false));
    let callers: Vec<_> = (0..64).map(|_| tokio::spawn(live(redis.clone(), stop.clone()))).collect();
    for round in 0..20 {
        // Never at the same place of a batch, and not before the connection is well in use.
        proxy.swallow_reply_after(900 + round * 37 % 211);
        soon("a reply is swallowed", async || proxy.has_swallowed()).await;
    }
    tokio::time::sleep(Duration::from_millis(300)).await;
    stop.store(true, Ordering::Relaxed);
    let lives = join_all(callers).await.into_iter().map(|caller| caller.expect("no wrong answer"));
    let (answered, cut_short) = lives.fold((0, 0), |sum, life| (sum.0 + life.0, sum.1 + life.1));
    println!("{answered} lives answered, {cut_short} cut short, {} connections", proxy.accepted());
    assert!(answered > 1000 && cut_short > 0);
    assert!(proxy.accepted() > 20, "the connection was replaced each time");
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn callers_that_disconnect_disturb_no_other_call() {
    let Some(server) = RedisServer::start().await else { return };
    let (proxy, redis) = behind_proxy(&server).await;
    let redis = Arc::new(redis);
    let stop = Arc::new(AtomicBool::new(false));
    let stayers: Vec<_> = (0..16).map(|_| tokio::spawn(live(redis.clone(), stop.clone()))).collect();
    let leavers: Vec<_> = (0..16_u64)
        .map(|place| {
            let redis = redis.clone();
            tokio::spawn(async move {
                for round in 0..100 {
                    let timeout = Duration::from_micros((place * 37 + round * 101) % 1500);
                    let _ = tokio::time::timeout(timeout, redis.claim(&fresh_claim(), DEADLINE)).await;
                }
            })
        })
        .collect();
    for leaver in leavers {
        leaver.await.unwrap();
    }
    stop.store(true, Ordering::Relaxed);
    for stayer in stayers {
        let (answered, cut_short) = stayer.await.expect("no wrong answer");
        assert!(answered > 0 && cut_short == 0, "every call was answered");
    }
    assert_eq!(proxy.accepted(), 1, "over one and the same connection");
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn of_two_gateways_racing_one_is_granted() {
    let Some(server) = RedisServer::start().await else { return };
    let gateways = [Arc::new(open(&server.url())), Arc::new(open(&server.url()))];
    for _ in 0..20 {
        let request = fresh_claim();
        let racers = (0..64).map(|place| {
            let (redis, request) = (gateways[place % 2].clone(), again(&request));
            tokio::spawn(async move { redis.claim(&request, DEADLINE).await })
        });
        let answers = join_all(racers.collect::<Vec<_>>()).await;
        let grants = answers.iter().filter(|answer| matches!(answer, Ok(Ok(ClaimResponse::Granted(_))))).count();
        assert_eq!(grants, 1);
        assert!(answers.iter().all(|answer| matches!(answer, Ok(Ok(_)))));
    }
}

/// A proxy that takes its time with replies: the next requests do not wait for them.
#[tokio::test]
async fn requests_do_not_wait_for_the_replies_before_them() {
    let Some(server) = RedisServer::start().await else { return };
    let proxy = TcpProxy::start(server.address()).await;
    let redis = open(&format!("redis://{}?connections=1", proxy.address()));
    redis.probe().await.unwrap();
    proxy.set(oncegate_testkit::tcp_proxy::Mode::HalfOpen);
    let requests: Vec<_> = (0..3).map(|_| fresh_claim()).collect();
    let claims = requests.iter().enumerate().map(|(place, request)| {
        let redis = &redis;
        async move {
            tokio::time::sleep(Duration::from_millis(20 * place as u64)).await;
            redis.claim(request, DEADLINE).await
        }
    });
    let arrived = soon("all three are at the server while no reply has come back", async || {
        requests.iter().all(|request| server.query(&format!("EXISTS {}", name(request))))
    });
    tokio::select! {
        () = arrived => {}
        answers = join_all(claims) => panic!("answered without replies: {answers:?}"),
    }
}
