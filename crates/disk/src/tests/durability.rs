//! Power losses and failed fsyncs. A `kill -9` does not lose data of the kernel, so these tests restore the files to
//! their state when the last fsync returned.

use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering};

use fjall::Database;
use oncegate_core::attempt::Attempt;
use oncegate_core::engine::conformance::DEADLINE;

use super::*;

/// Copies the folder after each fsync: the disk as a power loss would leave it.
struct Snapshots {
    folder: std::path::PathBuf,
    world: Arc<Mutex<World>>,
}

#[derive(Default)]
struct World {
    on_disk: Option<Arc<TempDir>>,
    acknowledged: Vec<Acknowledged>,
    crashes: Vec<Crash>,
}

/// A claim that was acknowledged: its key, its attempt, its state.
type Acknowledged = (Key, Attempt, ClaimState);

/// The disk, and how many claims were acknowledged, at one instant.
type Crash = (Arc<TempDir>, usize);

impl Persist for Snapshots {
    fn persist(&self, database: &Database) -> fjall::Result<()> {
        // An answer that does not wait for the fsync comes well before it.
        std::thread::sleep(Duration::from_millis(2));
        Fsync.persist(database)?;
        let copy = TempDir::new()?;
        copy_folder(&self.folder, copy.path())?;
        self.world.lock().unwrap().on_disk = Some(Arc::new(copy));
        Ok(())
    }
}

pub(super) fn copy_folder(from: &Path, to: &Path) -> std::io::Result<()> {
    std::fs::create_dir_all(to)?;
    for entry in std::fs::read_dir(from)? {
        let entry = entry?;
        let to = to.join(entry.file_name());
        if entry.file_type()?.is_dir() {
            copy_folder(&entry.path(), &to)?;
        } else {
            std::fs::copy(entry.path(), to)?;
        }
    }
    Ok(())
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn acknowledged_claims_survive_a_power_loss_at_any_moment() {
    let (folder, clock) = (TempDir::new().unwrap(), noon());
    // The second opening removes the preallocated part of the journal, which would make every copy 64 MiB long.
    drop(open(folder.path(), &clock));
    let world = Arc::new(Mutex::new(World::default()));
    let snapshots = Snapshots { folder: folder.path().to_owned(), world: world.clone() };
    let disk = Disk::open_with(folder.path(), clock.clone(), quiet(), Box::new(snapshots)).unwrap();
    let disk = Arc::new(disk);
    let callers = (0..16).map(|_| tokio::spawn(call_for_a_while(disk.clone(), world.clone())));
    for caller in join_all(callers).await {
        caller.unwrap();
    }
    drop(disk);
    let World { acknowledged, crashes, .. } = std::mem::take(&mut *world.lock().unwrap());
    assert!(crashes.len() >= 20, "{} crashes", crashes.len());
    for (on_disk, count) in crashes {
        let copy = TempDir::new().unwrap();
        copy_folder(on_disk.path(), copy.path()).unwrap();
        let disk = open(copy.path(), &clock);
        for (key, attempt, state) in &acknowledged[..count] {
            let live = disk.read(key).await.unwrap().unwrap_or_else(|| panic!("{attempt:?} {state:?} is lost"));
            assert_eq!(&live.record.attempt, attempt);
            // A later outcome may have reached the disk before its answer reached the caller.
            assert!(live.record.state == *state || *state == ClaimState::InProgress);
        }
    }
}

/// Claims, duplicates, lookups and outcomes. Records every answer, and a power loss now and then.
async fn call_for_a_while(disk: Arc<Disk>, world: Arc<Mutex<World>>) {
    let acknowledge = |attempt: &Attempt, request: &ClaimRequest, state| {
        let mut world = world.lock().unwrap();
        world.acknowledged.push((request.key.clone(), attempt.clone(), state));
        let count = world.acknowledged.len();
        if let Some(on_disk) = world.on_disk.clone().filter(|_| count.is_multiple_of(31)) {
            world.crashes.push((on_disk, count));
        }
    };
    for _ in 0..12 {
        let request = fresh_claim();
        grant(&disk, &request).await;
        acknowledge(&request.attempt, &request, ClaimState::InProgress);
        let other = again(&request);
        let (duplicate, settled) = (disk.claim(&other, DEADLINE), settle(&request, success()));
        let (duplicate, settled) = tokio::join!(duplicate, disk.settle(&settled, DEADLINE));
        settled.unwrap();
        acknowledge(&request.attempt, &request, ClaimState::Succeeded);
        let Ok(ClaimResponse::Duplicate(live)) = duplicate else { panic!("{duplicate:?}") };
        acknowledge(&request.attempt, &request, live.record.state);
        let found = disk.read(&request.key).await.unwrap().unwrap();
        acknowledge(&request.attempt, &request, found.record.state);
    }
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_duplicate_waits_for_the_fsync_of_the_claim_that_it_has_read() {
    let (folder, clock) = (TempDir::new().unwrap(), noon());
    let gate = Arc::new(Gate::default());
    let disk = Disk::open_with(folder.path(), clock, quiet(), Box::new(gate.clone())).unwrap();
    let disk = Arc::new(disk);
    let request = fresh_claim();
    let claimed = tokio::spawn({
        let (disk, request) = (disk.clone(), request.clone());
        async move { disk.claim(&request, DEADLINE).await }
    });
    gate.wait_for_arrivals(1).await;
    let others = [again(&request), again(&request)].map(|request| {
        let disk = disk.clone();
        tokio::spawn(async move { disk.claim(&request, DEADLINE).await })
    });
    tokio::time::sleep(Duration::from_millis(50)).await;
    assert!(!claimed.is_finished() && others.iter().all(|other| !other.is_finished()));
    gate.open.store(true, Ordering::SeqCst);
    assert!(matches!(claimed.await.unwrap(), Ok(ClaimResponse::Granted(_))));
    for other in others {
        assert!(matches!(other.await.unwrap(), Ok(ClaimResponse::Duplicate(_))));
    }
    assert_eq!(gate.arrivals.load(Ordering::SeqCst), 1, "duplicates alone need no fsync");
}

/// An fsync that a test can delay.
#[derive(Default)]
struct Gate {
    open: AtomicBool,
    arrivals: AtomicUsize,
}

impl Gate {
    async fn wait_for_arrivals(&self, count: usize) {
        let arrived = async {
            while self.arrivals.load(Ordering::SeqCst) < count {
                tokio::time::sleep(Duration::from_millis(1)).await;
            }
        };
        tokio::time::timeout(Duration::from_mins(1), arrived).await.expect("an fsync is asked for");
    }
}

impl Persist for Arc<Gate> {
    fn persist(&self, database: &Database) -> fjall::Result<()> {
        self.arrivals.fetch_add(1, Ordering::SeqCst);
        while !self.open.load(Ordering::SeqCst) {
            std::thread::sleep(Duration::from_millis(1));
        }
        Fsync.persist(database)
    }
}

#[tokio::test]
async fn remaining_times_are_those_of_the_answer_not_of_the_transition() {
    let (folder, clock) = (TempDir::new().unwrap(), noon());
    let gate = Arc::new(Gate::default());
    let disk = Disk::open_with(folder.path(), clock.clone(), quiet(), Box::new(gate.clone())).unwrap();
    let request = fresh_claim();
    let other = fresh_claim();
    gate.open.store(true, Ordering::SeqCst);
    grant(&disk, &request).await;
    gate.open.store(false, Ordering::SeqCst);
    let slow_disk = async {
        gate.wait_for_arrivals(2).await;
        clock.advance(Duration::from_mins(1));
        gate.open.store(true, Ordering::SeqCst);
    };
    let requests = [other, again(&request)];
    let (answers, ()) = tokio::join!(claim_all(&disk, &requests), slow_disk);
    let Ok(ClaimResponse::Duplicate(live)) = &answers[1] else { panic!("{answers:?}") };
    // Its batch took a minute, or it was applied after that batch: an hour less a minute is left.
    assert_eq!(live.left, Some(Duration::from_mins(59)));
}

/// An fsync that a test can make fail or panic.
struct Failing {
    panics: bool,
    now: Arc<AtomicBool>,
}

impl Persist for Failing {
    fn persist(&self, database: &Database) -> fjall::Result<()> {
        if !self.now.load(Ordering::SeqCst) {
            return Fsync.persist(database);
        }
        assert!(!self.panics, "the test wants it");
        Err(fjall::Error::Io(std::io::Error::from(std::io::ErrorKind::StorageFull)))
    }
}

/// Makes an fsync fail, or panic, in the middle of claims. Returns the engine, a claim that was answered before, and
/// the claims without an answer.
async fn failed(folder: &Path, clock: &Arc<ManualClock>, panics: bool) -> (Disk, Arc<AtomicBool>, Vec<ClaimRequest>) {
    let fail = Arc::new(AtomicBool::new(false));
    let persist = Failing { panics, now: fail.clone() };
    let disk = Disk::open_with(folder, clock.clone(), quiet(), Box::new(persist)).unwrap();
    let mut requests = vec![fresh_claim()];
    grant(&disk, &requests[0]).await;
    fail.store(true, Ordering::SeqCst);
    let lost: Vec<_> = (0..20).map(|_| fresh_claim()).collect();
    let answers = claim_all(&disk, &lost).await;
    // The first one was in a batch; those behind it may not have started.
    assert!(matches!(answers[0], Err(EngineError::Indeterminate(_))), "{answers:?}");
    assert!(answers.iter().all(Result::is_err));
    requests.extend(lost);
    (disk, fail, requests)
}

async fn is_refused(disk: &Disk, key: &Key, why: &str) {
    let refused = disk.read(key).await.unwrap_err();
    assert!(
        matches!(&refused, EngineError::Determinate(Determinate::Unavailable(message)) if message.contains(why)),
        "{refused}"
    );
    assert!(matches!(disk.probe().await, Err(EngineError::Determinate(Determinate::Unavailable(_)))));
}

/// Answered claims are still there. The others are answered when they are repeated with the same attempt.
async fn all_is_answered(disk: &Disk, requests: &[ClaimRequest]) {
    assert_eq!(disk.read(&requests[0].key).await.unwrap().unwrap().record.attempt, requests[0].attempt);
    for request in &requests[1..] {
        grant(disk, request).await;
    }
}

#[tokio::test]
async fn after_a_failed_fsync_nothing_is_answered_until_the_disk_can_be_written_again() {
    let (folder, clock) = (TempDir::new().unwrap(), noon());
    let (disk, fail, requests) = failed(folder.path(), &clock, false).await;
    for _ in 0..3 {
        is_refused(&disk, &requests[0].key, "written").await;
    }
    fail.store(false, Ordering::SeqCst);
    let answers = async { while disk.probe().await.is_err() {} };
    tokio::time::timeout(Duration::from_mins(1), answers).await.expect("it answers again, without a restart");
    all_is_answered(&disk, &requests).await;
    // It fails as often as the disk does.
    fail.store(true, Ordering::SeqCst);
    assert!(matches!(disk.claim(&fresh_claim(), DEADLINE).await, Err(EngineError::Indeterminate(_))));
    is_refused(&disk, &requests[0].key, "written").await;
    disk.close().await;
    drop(disk);
    all_is_answered(&open(folder.path(), &clock), &requests).await;
}

#[tokio::test]
async fn a_writer_that_panics_leaves_no_call_waiting() {
    let (folder, clock) = (TempDir::new().unwrap(), noon());
    let (disk, _, requests) = failed(folder.path(), &clock, true).await;
    is_refused(&disk, &requests[0].key, "its writer has ended").await;
    disk.close().await;
    drop(disk);
    all_is_answered(&open(folder.path(), &clock), &requests).await;
}

/// A journal that was written and not synced, as after a kill, is written again before it is read: the kernel may lose
/// the first writing without an error.
#[tokio::test]
async fn what_is_recovered_is_written_again_before_it_is_read() {
    use std::os::unix::fs::MetadataExt as _;
    let (folder, clock) = (TempDir::new().unwrap(), noon());
    let disk = open(folder.path(), &clock);
    let request = fresh_claim();
    grant(&disk, &request).await;
    drop(disk);
    let journal = torn::newest_journal(&folder.path().join("db")).unwrap().unwrap();
    let inode = || std::fs::metadata(&journal).unwrap().ino();
    let before = inode();
    let disk = open(folder.path(), &clock);
    assert_ne!(inode(), before, "the journal that is read is a copy that was synced");
    assert!(matches!(disk.claim(&again(&request), DEADLINE).await, Ok(ClaimResponse::Duplicate(_))));
}

/// Fills an engine's folder with two outcomes that have long results.
async fn journal_with_long_values(folder: &Path, clock: &Arc<ManualClock>) -> [ClaimRequest; 2] {
    let disk = open(folder, clock);
    let requests = [fresh_claim(), fresh_claim()];
    for request in &requests {
        grant(&disk, request).await;
        let result = Some(format!("\"{}\"", "long".repeat(5000)).into());
        disk.settle(&settle(request, Outcome::Success { result, retention: None }), DEADLINE).await.unwrap();
    }
    requests
}

/// Overwrites a page in the middle of the last batch before `end` with zeros, like an unwritten page. Returns the start of the
/// batch.
fn tear(journal: &Path, end: Option<usize>) -> usize {
    let mut bytes = std::fs::read(journal).unwrap();
    let whole = end.unwrap_or(bytes.len());
    let last = torn::last_batch(&bytes[..whole]).unwrap();
    let page = usize::midpoint(last.start, last.end) / 4096 * 4096;
    assert!(last.start < page && page + 4096 < last.end);
    bytes[page..page + 4096].fill(0);
    std::fs::write(journal, bytes).unwrap();
    last.start
}

#[tokio::test]
async fn a_write_that_a_power_loss_tore_is_removed() {
    let (folder, clock) = (TempDir::new().unwrap(), noon());
    let requests = journal_with_long_values(folder.path(), &clock).await;
    let journal = torn::newest_journal(&folder.path().join("db")).unwrap().unwrap();
    tear(&journal, None);
    let disk = open(folder.path(), &clock);
    for (request, state) in requests.iter().zip([ClaimState::Succeeded, ClaimState::InProgress]) {
        assert_eq!(disk.read(&request.key).await.unwrap().unwrap().record.state, state);
    }
    disk.settle(&settle(&requests[1], success()), DEADLINE).await.unwrap();
    drop(disk);
    let live = open(folder.path(), &clock).read(&requests[1].key).await.unwrap().unwrap();
    assert_eq!(live.record.state, ClaimState::Succeeded);
}

#[tokio::test]
async fn a_damaged_write_that_was_acknowledged_is_never_removed() {
    let (folder, clock) = (TempDir::new().unwrap(), noon());
    journal_with_long_values(folder.path(), &clock).await;
    let journal = torn::newest_journal(&folder.path().join("db")).unwrap().unwrap();
    let whole = std::fs::read(&journal).unwrap();
    // A hole in a batch in the middle, and a last batch that is damaged without a hole.
    let last = torn::last_batch(&whole).unwrap();
    let before_last = torn::last_batch(&whole[..last.start]).unwrap();
    tear(&journal, Some(before_last.start));
    let refused = Disk::open(folder.path(), clock.clone(), quiet()).err().unwrap();
    assert!(matches!(refused, DiskOpenError::Damaged(..)), "{refused}");
    let mut damaged = whole.clone();
    damaged[usize::midpoint(last.start, last.end)] ^= 1;
    std::fs::write(&journal, &damaged).unwrap();
    let refused = Disk::open(folder.path(), clock.clone(), quiet()).err().unwrap();
    assert!(matches!(refused, DiskOpenError::Damaged(..)), "{refused}");
    let left = std::fs::read(&journal).unwrap();
    let (content, reserved) = damaged.split_at(left.len());
    assert!(left == content && reserved.iter().all(|byte| *byte == 0), "only reserved space is removed");
    std::fs::write(&journal, whole).unwrap();
    open(folder.path(), &clock);
}
