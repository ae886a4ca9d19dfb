//! `kill -9` of a busy engine in its own process, at random moments: every acknowledged claim is there, and no record is
//! torn.

use std::io::{BufRead, BufReader, Write};
use std::sync::atomic::{AtomicUsize, Ordering};

use oncegate_core::engine::conformance::DEADLINE;
use rand::rngs::SmallRng;
use rand::{RngExt, SeedableRng};

use super::*;
use crate::row::Row;

const ROUNDS: u64 = 20;

/// Claims that are acknowledged in all rounds, at least. A slow disk needs more rounds.
const ACKNOWLEDGED: usize = 1000;

#[tokio::test]
async fn acknowledged_claims_survive_a_kill_at_any_moment() {
    let (folder, clock) = (TempDir::new().unwrap(), Arc::new(SystemClock::new()));
    let mut rng = SmallRng::seed_from_u64(7);
    let mut acknowledged = 0;
    for round in 0..4 * ROUNDS {
        if round >= ROUNDS && acknowledged > ACKNOWLEDGED {
            break;
        }
        let lines = lines_until_killed(folder.path(), Duration::from_micros(rng.random_range(0..120_000)));
        let disk = Disk::open(folder.path(), clock.clone(), quiet()).unwrap();
        for line in &lines {
            let [global_id, attempt, state] = line.split(' ').collect::<Vec<_>>()[..] else { panic!("{line}") };
            let key = Key { global_id: global_id.parse().unwrap(), ..fresh_claim().key };
            let live = disk.read(&key).await.unwrap().unwrap_or_else(|| panic!("round {round}: {line} is lost"));
            assert_eq!(live.record.attempt.to_string(), attempt, "round {round}");
            assert!(state == "claimed" || live.record.state == ClaimState::Succeeded, "round {round}: {line}");
        }
        drop(disk);
        inspect(folder.path(), |store| {
            let mut ends = 0;
            for row in store.claims.range(&b"\x01"[..]..) {
                let (key, _) = row.into_inner().unwrap();
                let row: Row = store.get(&key).expect("no record is torn").unwrap();
                let end = row::end_key(&key, Some(&row)).expect("all of these end");
                assert!(store.ends.contains_key(end).unwrap(), "each claim has its entry");
                ends += 1;
            }
            assert_eq!(store.ends.len().unwrap(), ends);
        });
        acknowledged += lines.len();
    }
    assert!(acknowledged > ACKNOWLEDGED, "the engine was busy: {acknowledged}");
}

/// Starts an engine under load, kills it this long after its first answer, and returns what it acknowledged.
fn lines_until_killed(folder: &Path, runs: Duration) -> Vec<String> {
    let mut child = child("kill::child_claims").send(folder).0;
    let output = BufReader::new(child.stdout.take().unwrap());
    let count = Arc::new(AtomicUsize::new(0));
    let reader = std::thread::spawn({
        let count = count.clone();
        move || {
            let mut lines = Vec::new();
            let mut output = output;
            let mut line = String::new();
            // An incomplete line is not an acknowledgement.
            while output.read_line(&mut line).is_ok_and(|_| line.ends_with('\n')) {
                if let Some(line) = line.trim_end().strip_prefix('>') {
                    lines.push(line.to_owned());
                    count.fetch_add(1, Ordering::SeqCst);
                }
                line.clear();
            }
            lines
        }
    });
    while count.load(Ordering::SeqCst) == 0 && !reader.is_finished() {
        std::thread::sleep(Duration::from_millis(1));
    }
    std::thread::sleep(runs);
    child.kill().unwrap();
    child.wait().unwrap();
    reader.join().unwrap()
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
#[ignore = "run by another test, in its own process"]
async fn child_claims() {
    let Some(folder) = folder_of_child() else { return };
    // So little memory that rows are flushed all the time: kills hit flushes as well.
    let options = Options { memtable_bytes: 64 << 10, ..Options::default() };
    let disk = Disk::open(Path::new(&folder), Arc::new(SystemClock::new()), options).unwrap();
    let disk = Arc::new(disk);
    println!();
    let callers = (0..32).map(|_| {
        let disk = disk.clone();
        tokio::spawn(async move {
            // Ends even if it is not killed.
            for _ in 0..1000 {
                let request = fresh_claim();
                grant(&disk, &request).await;
                acknowledge(&request, "claimed");
                disk.settle(&settle(&request, success()), DEADLINE).await.unwrap();
                acknowledge(&request, "succeeded");
            }
        })
    });
    join_all(callers).await;
}

fn acknowledge(request: &ClaimRequest, state: &str) {
    let mut output = std::io::stdout().lock();
    writeln!(output, ">{} {} {state}", request.key.global_id, request.attempt).unwrap();
}
