//! Tests of the disk engine as a whole. Here: the contract, restarts, the lock of the folder, and the sweep. In `backup`: backups. In `durability` and
//! `kill`: crashes. In `measure`: figures, run by hand.

mod backup;
mod durability;
mod full;
mod kill;
mod measure;

use std::process::{Command, Stdio};

use futures_util::FutureExt;
use futures_util::future::join_all;
use oncegate_core::attempt::{Issuer, SystemEntropy};
use oncegate_core::claim::Outcome;
use oncegate_core::clock::{ManualClock, SystemClock, Timestamp};
use oncegate_core::engine::conformance::{DEADLINE, Subject, fresh_claim};
use oncegate_core::engine::{Determinate, Metadata, SharedRecord};
use oncegate_core::record::{ClaimState, Realm};
use oncegate_core::terms::{LeaseEnd, Terms};
use tempfile::TempDir;

use super::*;

const NOON: Timestamp = Timestamp::from_micros(1_700_000_000_000_000);

fn noon() -> Arc<ManualClock> {
    Arc::new(ManualClock::at(NOON))
}

/// Options of an engine that does not sweep while it is idle.
fn quiet() -> Options {
    Options { cache_bytes: 1 << 20, sweep_every: Duration::from_hours(1), ..Options::default() }
}

fn open(folder: &Path, clock: &Arc<ManualClock>) -> Disk {
    Disk::open(folder, clock.clone(), quiet()).expect("the folder opens")
}

/// Returns a claim of the same operation by a new attempt.
fn again(request: &ClaimRequest) -> ClaimRequest {
    static ISSUER: std::sync::OnceLock<Issuer> = std::sync::OnceLock::new();
    let issuer = ISSUER.get_or_init(|| Issuer::new(Arc::new(SystemClock::new()), Arc::new(SystemEntropy)));
    ClaimRequest { attempt: issuer.issue(None), ..request.clone() }
}

fn settle(request: &ClaimRequest, outcome: Outcome) -> OutcomeRequest {
    OutcomeRequest { key: request.key.clone(), attempt: request.attempt.clone(), outcome, late: None }
}

fn success() -> Outcome {
    Outcome::Success { result: Some("{\"n\": 1}".into()), retention: None }
}

fn renew(request: &ClaimRequest) -> RenewalRequest {
    RenewalRequest { key: request.key.clone(), attempt: request.attempt.clone(), lease: None }
}

/// Queues all requests, in order, before the first is answered.
async fn claim_all(disk: &Disk, requests: &[ClaimRequest]) -> Vec<Result<ClaimResponse, EngineError>> {
    join_all(requests.iter().map(|request| disk.claim(request, DEADLINE))).await
}

async fn grant(disk: &Disk, request: &ClaimRequest) -> u64 {
    match disk.claim(request, DEADLINE).await {
        Ok(ClaimResponse::Granted(grant)) => grant.fence.expect("a fence is promised"),
        other => panic!("expected a grant, got {other:?}"),
    }
}

fn fresh_subject() -> Subject {
    let folder = TempDir::new().expect("a folder");
    let clock = noon();
    let disk = open(folder.path(), &clock);
    Subject {
        engine: Arc::new(disk),
        pass: Box::new(move |span| {
            clock.advance(span);
            std::future::ready(()).boxed()
        }),
        tick: Duration::from_secs(1),
        exact_time: true,
        keep: Box::new(folder),
    }
}

oncegate_core::conformance!(std::future::ready(Some(fresh_subject())));

/// The filter matches only the last claim: the list continues over steps that find nothing.
#[tokio::test]
async fn a_list_finds_the_one_matching_claim_among_many() {
    let folder = TempDir::new().unwrap();
    let disk = open(folder.path(), &noon());
    let mut requests: Vec<_> = (0..1000).map(|_| fresh_claim()).collect();
    assert!(claim_all(&disk, &requests).await.iter().all(Result::is_ok));
    requests.sort_by_key(|request| request.key.global_id);
    let last = &requests[999];
    disk.settle(&settle(last, Outcome::Unknown), DEADLINE).await.unwrap();
    let app = last.key.app.clone();
    let unknown =
        ListRequest { app: app.clone(), realm: Realm::Api, state: Some(ClaimState::Unknown), after: None, limit: 10 };
    let found: Vec<_> = disk.list(&unknown).await.unwrap().into_iter().map(|listed| listed.global_id).collect();
    assert_eq!(found, [last.key.global_id]);
    let all = ListRequest { app, realm: Realm::Api, state: None, after: None, limit: 2000 };
    let found: Vec<_> = disk.list(&all).await.unwrap().into_iter().map(|listed| listed.global_id).collect();
    assert_eq!(found, requests.iter().map(|request| request.key.global_id).collect::<Vec<_>>());
}

#[tokio::test]
async fn a_restart_keeps_claims_and_their_remaining_time() {
    let (folder, clock) = (TempDir::new().unwrap(), noon());
    let disk = open(folder.path(), &clock);
    let requests: Vec<_> = (0..5).map(|_| fresh_claim()).collect();
    for request in &requests {
        grant(&disk, request).await;
    }
    disk.settle(&settle(&requests[1], success()), DEADLINE).await.unwrap();
    disk.settle(&settle(&requests[2], Outcome::Unknown), DEADLINE).await.unwrap();
    disk.settle(&settle(&requests[3], Outcome::Failure), DEADLINE).await.unwrap();
    clock.advance(Duration::from_mins(20));
    disk.renew(&renew(&requests[4]), DEADLINE).await.unwrap();
    let mut before = Vec::new();
    for request in &requests {
        before.push(disk.read(&request.key).await.unwrap());
    }
    drop(disk);
    let disk = open(folder.path(), &clock);
    for (request, before) in requests.iter().zip(before) {
        assert_eq!(disk.read(&request.key).await.unwrap(), before);
    }
    let left = disk.read(&requests[0].key).await.unwrap().unwrap().left;
    assert_eq!(left, Some(Duration::from_mins(40)));
}

#[tokio::test]
async fn a_wall_clock_stepped_back_over_a_restart_stops_time_but_never_reverses_it() {
    let (folder, clock) = (TempDir::new().unwrap(), noon());
    let disk = open(folder.path(), &clock);
    let request = fresh_claim();
    let first = grant(&disk, &request).await;
    clock.advance(Duration::from_mins(10));
    let second = grant(&disk, &fresh_claim()).await;
    drop(disk);
    clock.step_wall(Timestamp::from_micros(1));
    let disk = open(folder.path(), &clock);
    assert_eq!(disk.read(&request.key).await.unwrap().unwrap().left, Some(Duration::from_mins(50)));
    let third = grant(&disk, &fresh_claim()).await;
    assert!(first < second && second < third, "fences rise although the wall clock goes back");
    clock.advance(Duration::from_mins(50));
    assert_eq!(disk.read(&request.key).await.unwrap(), None);
}

#[tokio::test]
async fn a_wall_clock_stepped_forward_while_running_ends_no_lease() {
    let (folder, clock) = (TempDir::new().unwrap(), noon());
    let disk = open(folder.path(), &clock);
    let request = fresh_claim();
    grant(&disk, &request).await;
    clock.step_wall(NOON.plus(Duration::from_hours(5)));
    assert_eq!(disk.read(&request.key).await.unwrap().unwrap().left, Some(Duration::from_hours(1)));
}

#[tokio::test]
async fn a_fence_is_never_given_twice_even_if_its_claim_is_gone() {
    let (folder, clock) = (TempDir::new().unwrap(), noon());
    let disk = open(folder.path(), &clock);
    // Claim and failure may be in one batch, which then changes no claim.
    let request = fresh_claim();
    let (settled, failed) = (request.clone(), settle(&request, Outcome::Failure));
    let (claimed, failed) = tokio::join!(disk.claim(&settled, DEADLINE), disk.settle(&failed, DEADLINE));
    let Ok(ClaimResponse::Granted(granted)) = claimed else { panic!("{claimed:?}") };
    failed.unwrap();
    drop(disk);
    clock.step_wall(Timestamp::from_micros(1));
    let disk = open(folder.path(), &clock);
    assert!(granted.fence.unwrap() < grant(&disk, &again(&request)).await);
}

#[tokio::test]
async fn a_closed_engine_answers_nothing_and_releases_its_folder() {
    let (folder, clock) = (TempDir::new().unwrap(), noon());
    let disk = open(folder.path(), &clock);
    let request = fresh_claim();
    grant(&disk, &request).await;
    let again = again(&request);
    let (queued, ()) = tokio::join!(disk.claim(&again, DEADLINE), disk.close());
    assert!(matches!(queued, Ok(ClaimResponse::Duplicate(_))), "queued calls are answered: {queued:?}");
    let refused = disk.claim(&request, DEADLINE).await.unwrap_err();
    assert_eq!(refused.to_string(), "the store is not available: it has been closed");
    disk.close().await;
    assert!(open(folder.path(), &clock).read(&request.key).await.unwrap().is_some());
}

#[tokio::test]
async fn a_second_engine_on_the_folder_is_refused() {
    let (folder, clock) = (TempDir::new().unwrap(), noon());
    let disk = open(folder.path(), &clock);
    let refused = Disk::open(folder.path(), clock.clone(), quiet()).err().unwrap().to_string();
    let expected =
        format!("{} is held by process {}; only one process may use it", folder.path().display(), std::process::id());
    assert_eq!(refused, expected);
    assert_eq!(child("child_opens").send(folder.path()).finish(), format!("refused {expected}"));
    drop(disk);
    assert_eq!(child("child_opens").send(folder.path()).finish(), "opened");
}

#[test]
#[ignore = "run by another test, in its own process"]
fn child_opens() {
    let Some(folder) = folder_of_child() else { return };
    match Disk::open(Path::new(&folder), noon(), quiet()) {
        Ok(_) => println!("\n>opened"),
        Err(refused) => println!("\n>refused {refused}"),
    }
}

#[tokio::test]
async fn an_unreadable_record_is_neither_absent_nor_overwritten() {
    let (folder, clock) = (TempDir::new().unwrap(), noon());
    let request = fresh_claim();
    grant(&open(folder.path(), &clock), &request).await;
    let key = row::row_key(&request.key);
    let tampered = inspect(folder.path(), |store| {
        let row = store.claims.get(&key).unwrap().unwrap();
        let tampered = [&row[..16], b"from the future"].concat();
        store.claims.insert(key.clone(), tampered.clone()).unwrap();
        tampered
    });
    clock.advance(Duration::from_hours(2));
    let disk =
        Disk::open(folder.path(), clock.clone(), Options { sweep_every: Duration::from_millis(1), ..quiet() }).unwrap();
    for _ in 0..2 {
        let refused = disk.claim(&again(&request), DEADLINE).await.unwrap_err();
        assert!(matches!(refused, EngineError::Determinate(Determinate::Incompatible(_))), "{refused:?}");
        assert!(disk.read(&request.key).await.is_err());
        assert!(disk.settle(&settle(&request, success()), DEADLINE).await.is_err());
        tokio::time::sleep(Duration::from_millis(20)).await;
    }
    // Other claims are not affected.
    grant(&disk, &fresh_claim()).await;
    drop(disk);
    let found =
        inspect(folder.path(), |store| (store.claims.get(&key).unwrap().unwrap().to_vec(), store.ends.len().unwrap()));
    assert_eq!(found, (tampered, 2), "a later release finds when it ends");
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn of_two_hundred_racing_claims_one_is_granted() {
    let (folder, clock) = (TempDir::new().unwrap(), noon());
    let disk = Arc::new(open(folder.path(), &clock));
    let request = fresh_claim();
    let racers = (0..200).map(|_| {
        let (disk, request) = (disk.clone(), again(&request));
        tokio::spawn(async move { disk.claim(&request, DEADLINE).await.unwrap() })
    });
    let answers = join_all(racers).await;
    let granted = answers.iter().filter(|answer| matches!(answer, Ok(ClaimResponse::Granted(_)))).count();
    assert_eq!(granted, 1);
}

#[tokio::test]
async fn a_dropped_call_disturbs_no_other() {
    let (folder, clock) = (TempDir::new().unwrap(), noon());
    let disk = Disk::open(folder.path(), clock, Options { queue_max: 2, ..quiet() }).unwrap();
    let mut dropped = 0;
    for _ in 0..50 {
        let request = fresh_claim();
        // Polled once: the call is in the queue, and its answer is dropped, unless the writer was faster.
        dropped += usize::from(disk.claim(&request, DEADLINE).now_or_never().is_none());
        let other = again(&request);
        assert!(
            matches!(disk.claim(&other, DEADLINE).await, Ok(ClaimResponse::Duplicate(live)) if live.record.attempt == request.attempt)
        );
    }
    assert!(dropped > 0);
}

/// Sweeps with an idle engine until these are left, and then once more. A slow disk needs several turns.
/// Returns the number of claims and of ends that are left.
async fn swept(folder: &Path, clock: &Arc<ManualClock>, expected: (usize, usize)) -> (usize, usize) {
    let mut left = counts(folder);
    for _ in 0..100 {
        let is_last = left == expected;
        let options = Options { sweep_every: Duration::from_millis(1), ..quiet() };
        let disk = Disk::open(folder, clock.clone(), options).unwrap();
        tokio::time::sleep(Duration::from_millis(200)).await;
        drop(disk);
        left = counts(folder);
        if is_last {
            break;
        }
    }
    left
}

fn counts(folder: &Path) -> (usize, usize) {
    // The watermarks are a row among the claims.
    inspect(folder, |store| (store.claims.len().unwrap() - 1, store.ends.len().unwrap()))
}

/// Reads or changes the database of a closed engine.
fn inspect<T>(folder: &Path, read: impl FnOnce(&Store) -> T) -> T {
    let folder = Folder::open(folder).unwrap();
    let store = Store::open(&folder.database(), &quiet(), Box::new(Fsync)).unwrap();
    let found = read(&store);
    Fsync.persist(&store.database).unwrap();
    found
}

#[tokio::test]
async fn a_folder_that_was_created_with_other_options_is_read_and_written() {
    let (new, old, clock) = (TempDir::new().unwrap(), TempDir::new().unwrap(), noon());
    let disk = open(new.path(), &clock);
    let mut requests: Vec<_> = (0..20).map(|_| fresh_claim()).collect();
    for request in &requests {
        grant(&disk, request).await;
    }
    drop(disk);
    // The same rows, in tables with the default options of the database.
    let rows = inspect(new.path(), |store| {
        let rows =
            |keyspace: &fjall::Keyspace| keyspace.iter().map(|row| row.into_inner().unwrap()).collect::<Vec<_>>();
        [("claims", rows(&store.claims)), ("ends", rows(&store.ends))]
    });
    let created = Folder::open(old.path()).unwrap();
    let database = fjall::Database::builder(created.database()).open().unwrap();
    for (name, rows) in rows {
        let keyspace = database.keyspace(name, fjall::KeyspaceCreateOptions::default).unwrap();
        for (key, value) in rows {
            keyspace.insert(key, value).unwrap();
        }
        keyspace.rotate_memtable_and_wait().unwrap();
    }
    drop((database, created));
    // As many tables as are merged at once.
    for _ in 0..14 {
        let (disk, request) = (open(old.path(), &clock), fresh_claim());
        grant(&disk, &request).await;
        requests.push(request);
        drop(disk);
        inspect(old.path(), |store| store.claims.rotate_memtable_and_wait().unwrap());
    }
    let disk = open(old.path(), &clock);
    for request in &requests {
        assert!(matches!(disk.claim(&again(request), DEADLINE).await, Ok(ClaimResponse::Duplicate(_))));
    }
    drop(disk);
    let (claims, ends) = inspect(old.path(), |store| (store.claims.len().unwrap(), store.ends.len().unwrap()));
    assert_eq!((claims, ends), (requests.len() + 1, requests.len()), "the watermarks are a row, too");
}

#[tokio::test]
async fn ended_claims_are_swept_and_no_others() {
    let (folder, clock) = (TempDir::new().unwrap(), noon());
    let disk = open(folder.path(), &clock);
    let requests: Vec<_> = (0..700).map(|_| fresh_claim()).collect();
    let unknown = ClaimRequest { terms: outliving(&requests[0]), ..fresh_claim() };
    claim_all(&disk, &requests).await;
    grant(&disk, &unknown).await;
    disk.settle(&settle(&requests[1], success()), DEADLINE).await.unwrap();
    disk.settle(&settle(&requests[2], Outcome::Failure), DEADLINE).await.unwrap();
    clock.advance(Duration::from_mins(59));
    disk.renew(&renew(&requests[3]), DEADLINE).await.unwrap();
    drop(disk);
    assert_eq!(counts(folder.path()), (700, 699));
    clock.advance(Duration::from_mins(2));
    // The success, the renewed claim, and the claim that outlives its lease; the last one has no entry among the ends.
    assert_eq!(swept(folder.path(), &clock, (3, 2)).await, (3, 2));
    let disk = open(folder.path(), &clock);
    assert_eq!(disk.read(&requests[0].key).await.unwrap(), None);
    assert_eq!(disk.read(&requests[1].key).await.unwrap().unwrap().record.state, ClaimState::Succeeded);
    assert_eq!(disk.read(&requests[3].key).await.unwrap().unwrap().left, Some(Duration::from_mins(58)));
    assert_eq!(disk.read(&unknown.key).await.unwrap().unwrap().record.state, ClaimState::Unknown);
    disk.settle(&settle(&unknown, success()), DEADLINE).await.unwrap();
    drop(disk);
    clock.advance(Duration::from_hours(48));
    assert_eq!(swept(folder.path(), &clock, (0, 0)).await, (0, 0));
}

#[tokio::test]
async fn ended_records_are_swept_and_no_others() {
    let (folder, clock) = (TempDir::new().unwrap(), noon());
    let disk = open(folder.path(), &clock);
    let lock = |name: &str, version, lasts| RecordChange {
        name: RecordName::Lock("shop".parse().unwrap(), name.parse().unwrap()),
        new: SharedRecord::versioned(version, b"").unwrap(),
        lasts: Some(lasts),
        ..RecordChange::of_metadata("n", None, &Metadata::new("").unwrap())
    };
    let store = async |change: RecordChange| {
        assert!(matches!(disk.change_record(&change, DEADLINE).await, Ok(ChangeResponse::Stored(_))));
        change
    };
    let extended = store(lock("extended", 1, Duration::from_mins(1))).await;
    let now_longer = lock("extended", 2, Duration::from_hours(2));
    let extended = store(RecordChange { expected: Some(extended.new), ..now_longer }).await;
    let ended = store(lock("ended", 1, Duration::from_mins(1))).await;
    let grants = |lasts| RecordChange { name: RecordName::Grants(fresh_claim().key), ..lock("any", 1, lasts) };
    let grants = [store(grants(Duration::from_mins(1))).await, store(grants(Duration::from_hours(2))).await];
    drop(disk);
    assert_eq!(counts(folder.path()), (4, 4));
    clock.advance(Duration::from_hours(1));
    assert_eq!(swept(folder.path(), &clock, (2, 2)).await, (2, 2));
    let disk = open(folder.path(), &clock);
    for (kept, gone) in [(&extended, &ended), (&grants[1], &grants[0])] {
        assert!(disk.get_record(&kept.name, DEADLINE).await.unwrap().record.is_some());
        assert!(disk.get_record(&gone.name, DEADLINE).await.unwrap().record.is_none());
    }
    drop(disk);
    clock.advance(Duration::from_hours(1));
    assert_eq!(swept(folder.path(), &clock, (0, 0)).await, (0, 0));
}

#[tokio::test]
async fn an_outdated_entry_of_a_lock_is_removed_without_the_lock() {
    let (folder, clock) = (TempDir::new().unwrap(), noon());
    let disk = open(folder.path(), &clock);
    let change = RecordChange {
        name: RecordName::Lock("shop".parse().unwrap(), "a".parse().unwrap()),
        lasts: Some(Duration::from_hours(1)),
        ..RecordChange::of_metadata("n", None, &Metadata::new("").unwrap())
    };
    disk.change_record(&change, DEADLINE).await.unwrap();
    drop(disk);
    inspect(folder.path(), |store| {
        let early = NOON.plus(Duration::from_secs(1)).as_micros().to_be_bytes();
        store.ends.insert([&early[..], &row::record_key(&change.name)].concat(), "").unwrap();
    });
    clock.advance(Duration::from_mins(1));
    assert_eq!(swept(folder.path(), &clock, (1, 1)).await, (1, 1));
    assert!(open(folder.path(), &clock).get_record(&change.name, DEADLINE).await.unwrap().record.is_some());
}

fn outliving(request: &ClaimRequest) -> Terms {
    Terms { on_lease_end: LeaseEnd::Unknown, ..request.terms }
}

#[tokio::test]
async fn an_outdated_entry_deletes_no_claim() {
    let (folder, clock) = (TempDir::new().unwrap(), noon());
    let request = fresh_claim();
    grant(&open(folder.path(), &clock), &request).await;
    inspect(folder.path(), |store| {
        let early = NOON.plus(Duration::from_secs(1)).as_micros().to_be_bytes();
        store.ends.insert([&early[..], &row::row_key(&request.key)].concat(), "").unwrap();
    });
    assert_eq!(counts(folder.path()), (1, 2));
    clock.advance(Duration::from_mins(1));
    assert_eq!(swept(folder.path(), &clock, (1, 1)).await, (1, 1));
    assert!(open(folder.path(), &clock).read(&request.key).await.unwrap().is_some());
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_busy_engine_sweeps_in_its_batches() {
    let (folder, clock) = (TempDir::new().unwrap(), noon());
    let disk = open(folder.path(), &clock);
    for _ in 0..5 {
        claim_all(&disk, &(0..1000).map(|_| fresh_claim()).collect::<Vec<_>>()).await;
    }
    clock.advance(Duration::from_hours(2));
    // The idle sweep is an hour away: these calls' batches do the sweep.
    for _ in 0..25 {
        grant(&disk, &fresh_claim()).await;
    }
    drop(disk);
    let (claims, ends) = counts(folder.path());
    assert_eq!((claims, ends), (25, 25));
}

/// This test binary, running one of its ignored tests in its own process. It reads a folder from its input; the lines of
/// its output begin with `>`.
struct Child(std::process::Child);

fn child(test: &str) -> Child {
    let this = std::env::current_exe().unwrap();
    let name = format!("{}::{test}", module_path!().split_once("::").unwrap().1);
    let mut command = Command::new(this);
    command.args(["--exact", &name, "--ignored", "--nocapture", "--test-threads=1"]);
    Child(command.stdin(Stdio::piped()).stdout(Stdio::piped()).stderr(Stdio::null()).spawn().unwrap())
}

impl Child {
    fn send(mut self, folder: &Path) -> Self {
        use std::io::Write;
        let mut input = self.0.stdin.take().unwrap();
        writeln!(input, "{}", folder.display()).unwrap();
        self
    }

    /// Waits for its end, and returns its output.
    fn finish(self) -> String {
        let output = self.0.wait_with_output().unwrap();
        let output = String::from_utf8(output.stdout).unwrap();
        output.lines().filter_map(|line| line.strip_prefix('>')).collect::<Vec<_>>().join("\n")
    }
}

/// Returns the folder from the input of a child; nothing if no test has started it.
fn folder_of_child() -> Option<String> {
    use std::io::IsTerminal;
    let input = std::io::stdin();
    let mut line = String::new();
    if !input.is_terminal() {
        input.read_line(&mut line).ok()?;
    }
    Some(line.trim_end().to_owned()).filter(|folder| !folder.is_empty())
}
