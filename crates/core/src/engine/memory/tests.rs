//! Tests of the memory engine: the conformance suite, its bound, its sweep, and the memory of a claim.

#[cfg(target_os = "linux")]
use std::process::Command;
use std::time::Duration;

use super::super::conformance::{DEADLINE, Subject, fresh_claim};
use super::*;
use crate::claim::{Outcome, OutcomeResponse};
use crate::clock::ManualClock;
use crate::engine::Engine;

fn noon() -> Arc<ManualClock> {
    Arc::new(ManualClock::at(Timestamp::from_micros(1_700_000_000_000_000)))
}

crate::conformance!(async { Some(Subject::on_manual_clock(|clock| Arc::new(Memory::new(clock, BYTES_MAX_DEFAULT)))) });

fn settle(request: &ClaimRequest, outcome: Outcome) -> OutcomeRequest {
    OutcomeRequest { key: request.key.clone(), attempt: request.attempt.clone(), outcome, late: None }
}

async fn fill(memory: &Memory) -> Vec<ClaimRequest> {
    let mut granted = Vec::new();
    loop {
        let request = fresh_claim();
        match memory.claim(&request, DEADLINE).await {
            Ok(ClaimResponse::Granted(_)) => granted.push(request),
            Err(EngineError::Determinate(Determinate::Full(_))) => return granted,
            other => panic!("unexpected {other:?}"),
        }
    }
}

#[tokio::test]
async fn a_full_engine_refuses_claims_and_accepts_outcomes() {
    let clock = noon();
    let memory = Memory::new(clock.clone(), 100_000);
    let granted = fill(&memory).await;
    assert!((300..600).contains(&granted.len()), "{} claims in 100 kB", granted.len());
    let repeat = memory.claim(&granted[0], DEADLINE).await;
    assert!(matches!(repeat, Ok(ClaimResponse::Granted(grant)) if grant.attempt == granted[0].attempt));
    let success = Outcome::Success { result: Some("1".into()), retention: None };
    assert!(matches!(memory.settle(&settle(&granted[0], success), DEADLINE).await, Ok(OutcomeResponse::Done { .. })));
    for request in &granted[1..] {
        assert!(matches!(
            memory.settle(&settle(request, Outcome::Failure), DEADLINE).await,
            Ok(OutcomeResponse::Done { .. })
        ));
    }
    memory.claim(&fresh_claim(), DEADLINE).await.unwrap();
}

#[tokio::test]
async fn outcomes_have_a_quarter_more_room_than_claims() {
    let memory = Memory::new(noon(), 100_000);
    let success = || Outcome::Success { result: Some(format!("\"{}\"", "x".repeat(2_000)).into()), retention: None };
    let (mut recorded, mut refused) = (0, 0);
    for request in fill(&memory).await {
        match memory.settle(&settle(&request, success()), DEADLINE).await {
            Ok(_) => recorded += 1,
            Err(EngineError::Determinate(Determinate::Full(_))) => refused += 1,
            other => panic!("unexpected {other:?}"),
        }
    }
    assert!((10..=14).contains(&recorded) && refused > 100, "{recorded} results of 2 kB in 25 kB, {refused} refused");
}

#[tokio::test]
async fn ended_claims_make_room() {
    let clock = noon();
    let memory = Memory::new(clock.clone(), 100_000);
    let first = fill(&memory).await;
    clock.advance(first[0].terms.lease);
    assert_eq!(fill(&memory).await.len(), first.len(), "all of them end at this instant");
}

#[tokio::test]
async fn it_is_one_server_that_loses_nothing() {
    let memory: &dyn Engine = &Memory::new(noon(), BYTES_MAX_DEFAULT);
    let lock = RecordName::Lock("shop".parse().unwrap(), "a".parse().unwrap());
    assert_eq!((memory.shards(), memory.shard_of(&fresh_claim().key), memory.shard_of_record(&lock)), (vec![0], 0, 0));
    assert_eq!((memory.data_lost(), memory.losses(0), memory.nodes()), (0, 0, Vec::new()));
    assert!(!memory.waits_for_replicas());
}

#[test]
#[cfg(target_os = "linux")]
fn a_claim_costs_at_most_250_bytes_beyond_its_contents() {
    let alone = ["--exact", "engine::memory::tests::what_a_claim_costs", "--ignored", "--nocapture"];
    let measured = Command::new(std::env::current_exe().unwrap()).args(alone).output().unwrap();
    let output = String::from_utf8_lossy(&measured.stdout);
    assert!(measured.status.success() && output.contains("1 passed"), "{output}");
}

/// Measured just after the tables have doubled, when they are emptiest.
#[tokio::test]
#[cfg(target_os = "linux")]
#[ignore = "measures the memory of its process: the test above runs it in a separate process"]
async fn what_a_claim_costs() {
    const CLAIMS: usize = SHARDS * 3_700;
    let memory = Memory::new(noon(), BYTES_MAX_DEFAULT);
    memory.claim(&fresh_claim(), DEADLINE).await.unwrap();
    let before = resident_bytes();
    let mut contents = 0;
    for _ in 0..CLAIMS {
        let request = fresh_claim();
        contents += request.contents.as_str().len();
        memory.claim(&request, DEADLINE).await.unwrap();
    }
    let cost = (resident_bytes() - before - contents) / CLAIMS;
    println!("{cost} bytes a claim");
    assert!(cost <= 250, "{cost} bytes a claim");
}

/// Returns the resident memory as the kernel counts it, in pages of 4 KiB.
#[cfg(target_os = "linux")]
fn resident_bytes() -> usize {
    let pages = std::fs::read_to_string("/proc/self/statm").unwrap();
    pages.split(' ').nth(1).unwrap().parse::<usize>().unwrap() * 4096
}

#[tokio::test]
async fn a_sweep_deletes_only_ended_claims_and_counts_what_it_frees() {
    let clock = noon();
    let memory = Memory::new(clock.clone(), BYTES_MAX_DEFAULT);
    let mut kept = Vec::new();
    for number in 0..1000 {
        let request = fresh_claim();
        memory.claim(&request, DEADLINE).await.unwrap();
        if number % 10 == 0 {
            kept.push(request);
        }
    }
    clock.advance(Duration::from_mins(59));
    for request in &kept {
        memory
            .renew(
                &RenewalRequest { key: request.key.clone(), attempt: request.attempt.clone(), lease: None },
                DEADLINE,
            )
            .await
            .unwrap();
    }
    clock.advance(Duration::from_mins(2));
    for shard in &memory.shards {
        let swept = shard.lock().unwrap().sweep(memory.clock.now(), usize::MAX);
        memory.release_bytes(swept);
    }
    let slots: usize = memory.shards.iter().map(|shard| shard.lock().unwrap().slots.len()).sum();
    assert_eq!(slots, kept.len());
    for request in &kept {
        memory.settle(&settle(request, Outcome::Failure), DEADLINE).await.unwrap();
    }
    assert_eq!(memory.bytes.load(Ordering::Relaxed), 0);
    assert!(memory.shards.iter().all(|shard| shard.lock().unwrap().ends.is_empty()));
}
