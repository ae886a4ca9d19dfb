//! `kill -9`, again and again, at random moments of a busy engine in a process of its own: what it acknowledged is
//! there, and nothing of what is there is torn.

use crate::engine::conformance::DEADLINE;
use std::io::{BufRead, BufReader, Write};
use std::sync::atomic::{AtomicUsize, Ordering};

use rand::rngs::SmallRng;
use rand::{RngExt, SeedableRng};

use super::*;

const ROUNDS: u64 = 20;

#[tokio::test]
async fn what_was_acknowledged_survives_a_kill_at_any_moment() {
    let (folder, clock) = (TempDir::new().unwrap(), Arc::new(SystemClock::new()));
    let mut random = SmallRng::seed_from_u64(7);
    let mut acknowledged = 0;
    for round in 0..ROUNDS {
        let said = said_until_killed(folder.path(), Duration::from_micros(random.random_range(0..120_000)));
        let disk = Disk::open(folder.path(), clock.clone(), quiet()).unwrap();
        for line in &said {
            let [global_id, attempt, state] = line.split(' ').collect::<Vec<_>>()[..] else { panic!("{line}") };
            let key = Key { app: fresh_claim().key.app, global_id: global_id.parse().unwrap() };
            let held = disk.read(&key).await.unwrap().unwrap_or_else(|| panic!("round {round}: {line} is lost"));
            assert_eq!(held.record.attempt.to_string(), attempt, "round {round}");
            assert!(state == "claimed" || held.record.state == ClaimState::Succeeded, "round {round}: {line}");
        }
        drop(disk);
        inspect(folder.path(), |store| {
            let mut ends = 0;
            for row in store.claims.range(&b"\x01"[..]..) {
                let (key, _) = row.into_inner().unwrap();
                let row = store.get(&key).expect("no record is torn").unwrap();
                let end = row.end_key(&key).expect("all of these end");
                assert!(store.ends.contains_key(end).unwrap(), "claim and end are one");
                ends += 1;
            }
            assert_eq!(store.ends.len().unwrap(), ends);
        });
        acknowledged += said.len();
    }
    assert!(acknowledged > 1000, "the engine was busy: {acknowledged}");
}

/// Starts an engine under load, lets it run on for this long after its first answer, kills it, and tells what it
/// acknowledged.
fn said_until_killed(folder: &Path, runs: Duration) -> Vec<String> {
    let mut child = child("kill::child_claims").say(folder).0;
    let output = BufReader::new(child.stdout.take().unwrap());
    let count = Arc::new(AtomicUsize::new(0));
    let reader = std::thread::spawn({
        let count = count.clone();
        move || {
            let mut said = Vec::new();
            let mut output = output;
            let mut line = String::new();
            // What was cut off in the middle of a line was not acknowledged.
            while output.read_line(&mut line).is_ok_and(|_| line.ends_with('\n')) {
                if let Some(line) = line.trim_end().strip_prefix('>') {
                    said.push(line.to_owned());
                    count.fetch_add(1, Ordering::SeqCst);
                }
                line.clear();
            }
            said
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
#[ignore = "run by another test, in a process of its own"]
async fn child_claims() {
    let Some(folder) = told_folder() else { return };
    // So little memory that rows are sorted away all the time: the kill falls into that as well.
    let options = Options { memtable_bytes: 64 << 10, ..Options::default() };
    let disk = Disk::open(Path::new(&folder), Arc::new(SystemClock::new()), options).unwrap();
    let disk = Arc::new(disk);
    println!();
    let callers = (0..32).map(|_| {
        let disk = disk.clone();
        tokio::spawn(async move {
            // Ends by itself if nobody kills it.
            for _ in 0..1000 {
                let ask = fresh_claim();
                grant(&disk, &ask).await;
                acknowledge(&ask, "claimed");
                disk.settle(&settle(&ask, success()), DEADLINE).await.unwrap();
                acknowledge(&ask, "succeeded");
            }
        })
    });
    join_all(callers).await;
}

fn acknowledge(ask: &ClaimRequest, state: &str) {
    let mut output = std::io::stdout().lock();
    writeln!(output, ">{} {} {state}", ask.key.global_id, ask.attempt).unwrap();
}
