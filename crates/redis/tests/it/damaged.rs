//! Values that cannot be read: no call treats them as absent, or changes them. The engine reads values in two places,
//! in Rust and in its scripts; here the two are compared.

use oncegate_core::claim::{ClaimRequest, Outcome, OutcomeRequest};
use oncegate_core::engine::conformance::{DEADLINE, fresh_claim};
use oncegate_core::engine::{Claims as _, Determinate, EngineError};
use oncegate_core::operator::ReleaseRequest;

use super::{Redis, RedisServer, again, name, open, renew, settle, success};

const HEX: &str = "0123456789abcdef0123456789abcdef0123456789abcdef0123456789abcdef";

fn is_unreadable<T>(answer: &Result<T, EngineError>) -> bool {
    matches!(answer, Err(EngineError::Determinate(Determinate::Incompatible(_))))
}

/// Results of each call on a key.
async fn is_refused_by_all(redis: &Redis, request: &ClaimRequest, value: &str) {
    let stranger = again(request);
    let take_over = ClaimRequest { take_over: true, ..again(request) };
    let release = ReleaseRequest { key: request.key.clone(), attempt: request.attempt.clone(), result: None };
    let mut answers = Vec::new();
    for claim in [request, &stranger, &take_over] {
        answers.push(("claim", is_unreadable(&redis.claim(claim, DEADLINE).await)));
    }
    for caller in [request, &stranger] {
        for outcome in [success("1"), Outcome::Unknown, Outcome::Failure] {
            answers.push(("outcome", is_unreadable(&redis.settle(&settle(caller, outcome.clone()), DEADLINE).await)));
            let too_old = OutcomeRequest { late: None, ..settle(caller, outcome) };
            answers.push(("old outcome", is_unreadable(&redis.settle(&too_old, DEADLINE).await)));
        }
        answers.push(("renewal", is_unreadable(&redis.renew(&renew(caller, None), DEADLINE).await)));
    }
    answers.push(("lookup", is_unreadable(&redis.read(&request.key).await)));
    answers.push(("release", is_unreadable(&redis.release(&release).await)));
    let wrong: Vec<_> = answers.iter().filter(|(_, refused)| !refused).map(|(call, _)| call).collect();
    assert!(wrong.is_empty(), "{value:?}: {wrong:?}");
}

#[tokio::test]
async fn an_unreadable_row_is_neither_absent_nor_changed() {
    let Some(server) = RedisServer::start().await else { return };
    let redis = open(&server.url());
    let request = fresh_claim();
    let by_us = |rest: &str| format!("{}{rest}", request.attempt);
    let (short, long) = (format!("{HEX}0"), &HEX[1..]);
    let values = [
        "hello".into(),
        String::new(),
        by_us(""),
        by_us(" "),
        by_us("  1p c=1"),
        by_us(" 2p c=1"),
        by_us(" 1x c=1"),
        by_us(" 1px"),
        by_us(" 1 c=1"),
        // The attempt.
        "1700000000000000-abcde 1p c=1".into(),
        format!("1700000000000000-{} 1p c=1", "a".repeat(65)),
        "1700000000000000-0123456789abcde! 1p c=1".into(),
        "1700000000000000 1p c=1".into(),
        "0700000000000000-0123456789abcdef 1p c=1".into(),
        "-0123456789abcdef 1p c=1".into(),
        "17000000000000001-0123456789abcdef 1p c=1".into(),
        "170000000000000-0123456789abcdef 1p c=1".into(),
        "9007199254740992-0123456789abcdef 1p c=1".into(),
        format!(" {}", by_us(" 1p c=1")),
        // The terms.
        by_us(" 1p r=1w"),
        by_us(" 1p r="),
        by_us(" 1p r=0s c=1"),
        by_us(" 1p l=forever c=1"),
        by_us(" 1p l=zz l=30s c=1"),
        by_us(" 1p l=1000000000s c=1"),
        by_us(" 1s u=later c=1"),
        by_us(" 1p e=z"),
        by_us(" 1p e= c=1"),
        // The other words.
        by_us(" 1p o=bad!name c=1"),
        by_us(" 1p o=.first c=1"),
        by_us(&format!(" 1p o={} c=1", "a".repeat(129))),
        by_us(" 1p f=zz c=1"),
        by_us(" 1p f= c=1"),
        by_us(&format!(" 1p f={short} c=1")),
        by_us(&format!(" 1p f={long} c=1")),
        by_us(&format!(" 1p f={} c=1", HEX.replace('7', "g"))),
        by_us(" 1p h=12:1"),
        by_us(&format!(" 1p h={HEX}")),
        by_us(&format!(" 1p h={HEX}:")),
        by_us(&format!(" 1p h={HEX}:+1")),
        by_us(&format!(" 1p h={HEX}:1234567890123456")),
        // The contents.
        by_us(" 1p c="),
        by_us(" 1p c={nope"),
        by_us(" 1p c={\"a\":1"),
        by_us(" 1p c=\"cut"),
        by_us(" 1p c=\"cut\\\""),
        by_us(" 1u c=[1,2"),
        by_us(" 1s c=NaN"),
    ];
    for value in &values {
        for milliseconds in [None, Some("600000")] {
            let mut put = vec!["SET", "", value];
            let key = name(&request);
            put[1] = &key;
            put.extend(milliseconds.iter().flat_map(|milliseconds| ["PX", milliseconds]));
            server.query_words::<String>(&put);
            is_refused_by_all(&redis, &request, value).await;
            assert_eq!(server.query::<String>(&format!("GET {key}")), *value);
            let left: i64 = server.query(&format!("PTTL {key}"));
            assert!(if milliseconds.is_some() { (500_000..=600_000).contains(&left) } else { left == -1 }, "{left}");
        }
    }
    server.query::<i64>(&format!("DEL {}", name(&request)));
    server.query::<i64>(&format!("LPUSH {} x", name(&request)));
    is_refused_by_all(&redis, &request, "a list").await;
    assert_eq!(server.query::<i64>(&format!("LLEN {}", name(&request))), 1);
}

/// Whole values with one byte changed, left out or doubled: the two places agree on which of them are readable.
#[tokio::test]
async fn rust_and_lua_agree_on_what_is_readable() {
    let Some(server) = RedisServer::start().await else { return };
    let redis = open(&server.url());
    let (request, stranger) = (fresh_claim(), fresh_claim().attempt);
    let key = name(&request);
    let whole = format!(
        "{} 1s r=2d l=1500ms r=forever u=61s e=u o=order.submit f={HEX} late x=9 h={HEX}:99 \
         c={{\"a\":[1,-2.5e+30,true],\"\u{fc}\":\"\\\\\\\"\"}}\n[{{}}, null,\n\"\u{20ac}\u{1f600}\"]",
        request.attempt
    );
    let mut connection = server.connection();
    let (mut readable, mut unreadable) = (0_usize, 0_usize);
    let bytes = whole.as_bytes();
    for at in 0..bytes.len() {
        let mut changed: Vec<Vec<u8>> = Vec::new();
        for other in [b' ', b'=', b'"', b'\\', b'{', b']', b'\n', b'z', b'0', 0, 0x80, 0xc3, 0xff] {
            let mut value = bytes.to_vec();
            value[at] = other;
            changed.push(value);
        }
        let mut shorter = bytes.to_vec();
        shorter.remove(at);
        let mut longer = bytes.to_vec();
        longer.insert(at, bytes[at]);
        changed.extend([shorter, longer, bytes[..at].to_vec()]);
        for value in changed {
            redis::cmd("SET").arg(&key).arg(&value).exec(&mut connection).unwrap();
            let in_rust = is_unreadable(&redis.read(&request.key).await);
            // Of a stranger, whom every readable value turns away.
            let release = ReleaseRequest { key: request.key.clone(), attempt: stranger.clone(), result: None };
            let in_lua = is_unreadable(&redis.release(&release).await);
            assert_eq!(in_rust, in_lua, "{:?}", String::from_utf8_lossy(&value));
            unreadable += usize::from(in_rust);
            readable += usize::from(!in_rust);
        }
    }
    assert!(readable > 1000 && unreadable > 1000, "{readable} readable, {unreadable} not");
}
