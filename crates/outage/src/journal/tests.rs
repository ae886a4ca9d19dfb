//! The journal after a crash, a torn end and damage, and on full and failing disks.

use std::fs;
use std::io::{self, Write};
use std::ops::Range;
use std::sync::atomic::{AtomicBool, Ordering};

use futures_util::future::join;
use oncegate_core::claim::ClaimRequest;
use oncegate_core::engine::conformance::fresh_claim;
use oncegate_core::outage_policy::OutagePolicy;
use oncegate_core::record::ClaimState;
use oncegate_core::suspect::{Cause, MaskedAttempt, Suspect};

use super::log::Log;
use super::open::{OpenState, on_a_thread, read, start};
use super::*;
use oncegate_core::outage::entry::JournaledOperation;

const ROOMY: Bounds = Bounds { bytes: 1 << 30, app_bytes: 1 << 30 };

fn entry(request: &ClaimRequest) -> Entry {
    let journaled = JournaledOperation::Granted(request.clone());
    Entry { chain: "default".into(), policy: OutagePolicy::Local, at: request.attempt.timestamp(), journaled }
}

fn keys(recovered: &Recovered) -> Vec<String> {
    recovered.entries.iter().map(|(_, entry)| entry.key().global_id.to_string()).collect()
}

fn ids(requests: &[ClaimRequest]) -> Vec<String> {
    requests.iter().map(|request| request.key.global_id.to_string()).collect()
}

/// Opens a journal whose last holder may still be closing it.
fn open(folder: &Path) -> (Journal, Recovered) {
    for _ in 0..1000 {
        match Journal::open(folder, ROOMY) {
            Err(JournalOpenError::Held { .. }) => std::thread::sleep(Duration::from_millis(2)),
            opened => return opened.unwrap(),
        }
    }
    panic!("the journal stays held");
}

#[tokio::test]
async fn entries_that_were_not_delivered_survive_a_crash_in_order() {
    let folder = tempfile::tempdir().unwrap();
    let path = folder.path().join("made/journal");
    let requests: Vec<_> = (0..5).map(|_| ClaimRequest { caller: "pod/a".parse().ok(), ..fresh_claim() }).collect();
    let (journal, nothing) = open(&path);
    assert!(nothing.entries.is_empty() && nothing.suspects.is_empty());
    let mut seqs = Vec::new();
    for request in &requests {
        seqs.push(journal.append(&entry(request)).await.unwrap());
    }
    journal.remove_delivered(vec![seqs[1], seqs[3]], Vec::new(), Vec::new()).await.unwrap();
    // As after a kill: only the folder is left.
    let copy = folder.path().join("copy");
    fs::create_dir(&copy).unwrap();
    fs::copy(path.join("entries"), copy.join("entries")).unwrap();
    let (again, recovered) = open(&copy);
    assert_eq!(keys(&recovered), ids(&[requests[0].clone(), requests[2].clone(), requests[4].clone()]));
    for (_, entry) in &recovered.entries {
        let JournaledOperation::Granted(request) = &entry.journaled else { panic!("a grant") };
        assert_eq!(request.caller, requests[0].caller);
    }
    assert_eq!(again.waiting().entries, 3);
    assert!(again.append(&entry(&fresh_claim())).await.unwrap() > seqs[4], "numbers continue to rise");
}

#[tokio::test]
async fn one_process_holds_the_journal_until_it_closes_it() {
    let folder = tempfile::tempdir().unwrap();
    let (journal, _) = open(folder.path());
    let refused = Journal::open(folder.path(), ROOMY).err().unwrap().to_string();
    assert!(refused.contains("held by process"), "{refused}");
    journal.close().await;
    open(folder.path());
    assert!(matches!(journal.append(&entry(&fresh_claim())).await, Err(JournalError::Broken(_))));
}

#[tokio::test]
async fn a_torn_end_is_cut_off_and_later_entries_follow_the_complete_ones() {
    let folder = tempfile::tempdir().unwrap();
    let requests = [fresh_claim(), fresh_claim(), fresh_claim()];
    let (journal, _) = open(folder.path());
    journal.append(&entry(&requests[0])).await.unwrap();
    journal.append(&entry(&requests[1])).await.unwrap();
    journal.close().await;
    let file = folder.path().join("entries");
    let whole = fs::read(&file).unwrap();
    fs::write(&file, &whole[..whole.len() - 7]).unwrap();
    let (journal, recovered) = open(folder.path());
    assert_eq!(keys(&recovered), ids(&requests[..1]));
    assert_eq!(recovered.damaged, None, "a crash does that");
    journal.append(&entry(&requests[2])).await.unwrap();
    journal.close().await;
    let (_, recovered) = open(folder.path());
    assert_eq!(keys(&recovered), ids(&[requests[0].clone(), requests[2].clone()]));
}

#[tokio::test]
async fn damage_is_reported_and_other_entries_are_kept() {
    let folder = tempfile::tempdir().unwrap();
    let requests = [fresh_claim(), fresh_claim()];
    let (journal, _) = open(folder.path());
    for request in &requests {
        journal.append(&entry(request)).await.unwrap();
    }
    journal.close().await;
    let file = folder.path().join("entries");
    let mut bytes = fs::read(&file).unwrap();
    bytes[frame::HEADER.len() + 40] ^= 1;
    fs::write(&file, &bytes).unwrap();
    let (_, recovered) = open(folder.path());
    assert_eq!(keys(&recovered), ids(&requests[1..]));
    let (count, aside) = recovered.damaged.unwrap();
    assert_eq!((count, fs::read(aside).unwrap()), (1, bytes), "kept for an inspection");
}

#[test]
fn a_file_that_is_no_journal_or_of_a_newer_release_is_not_changed() {
    let folder = tempfile::tempdir().unwrap();
    let file = folder.path().join("entries");
    let mut newer = frame::HEADER.to_vec();
    frame::write(&mut newer, br#"{"kind":"of a release to come"}"#);
    for foreign in [b"something else".to_vec(), b"oncegate journal 2\n".to_vec(), newer] {
        fs::write(&file, &foreign).unwrap();
        let refused = Journal::open(folder.path(), ROOMY).err().unwrap().to_string();
        assert!(refused.contains("cannot be read by this release"), "{refused}");
        assert_eq!(fs::read(&file).unwrap(), foreign);
    }
    fs::write(folder.path().join("file"), "").unwrap();
    let refused = Journal::open(&folder.path().join("file/journal"), ROOMY).err().unwrap().to_string();
    assert!(refused.contains("server.data_dir"), "{refused}");
}

#[cfg(unix)]
#[tokio::test]
async fn only_the_user_of_the_gateway_may_read_the_journal() {
    use std::os::unix::fs::PermissionsExt;
    let root = tempfile::tempdir().unwrap();
    let folder = root.path().join("journal");
    let (journal, _) = open(&folder);
    journal.append(&entry(&fresh_claim())).await.unwrap();
    let mode = |path: &Path| fs::metadata(path).unwrap().permissions().mode() & 0o777;
    assert_eq!((mode(&folder), mode(&folder.join("entries"))), (0o700, 0o600));
}

#[tokio::test]
async fn the_journal_is_bounded_as_a_whole_and_for_each_app() {
    let folder = tempfile::tempdir().unwrap();
    let mut other = fresh_claim();
    other.key.app = "other".parse().unwrap();
    let bytes = frame_of(&FrameContent::Entry(1, Box::new(entry(&fresh_claim())))).len() as u64;
    let bounds = Bounds { bytes: bytes * 5 + 50, app_bytes: bytes * 2 + 10 };
    let (journal, _) = Journal::open(folder.path(), bounds).unwrap();
    let first = journal.append(&entry(&fresh_claim())).await.unwrap();
    journal.append(&entry(&fresh_claim())).await.unwrap();
    assert_eq!(journal.append(&entry(&fresh_claim())).await, Err(JournalError::AppFull));
    journal.append(&entry(&other)).await.unwrap();
    assert_eq!(journal.append(&entry(&other)).await, Err(JournalError::ShareFull));
    assert_eq!(journal.waiting().entries, 3);
    journal.remove_delivered(vec![first], Vec::new(), Vec::new()).await.unwrap();
    journal.append(&entry(&fresh_claim())).await.unwrap();
}

#[tokio::test]
async fn however_many_apps_fill_the_journal_another_one_finds_room() {
    let folder = tempfile::tempdir().unwrap();
    let (journal, _) = Journal::open(folder.path(), Bounds { bytes: 40_000, app_bytes: 40_000 }).unwrap();
    let mut kept = Vec::new();
    for app in ["first", "second", "third", "fourth"] {
        let mut request = fresh_claim();
        request.key.app = app.parse().unwrap();
        let mut count = 0;
        while journal.append(&entry(&request)).await.is_ok() {
            count += 1;
        }
        kept.push(count);
    }
    assert!(kept[0] > 20 && kept.is_sorted_by(|more, fewer| more > fewer) && kept[3] > 0, "{kept:?}");
}

#[tokio::test]
async fn dead_entries_do_not_pile_up_and_live_ones_survive_the_rewriting() {
    let folder = tempfile::tempdir().unwrap();
    let (journal, _) = open(folder.path());
    let kept = fresh_claim();
    journal.append(&entry(&kept)).await.unwrap();
    let overlap = overlap(journal.next_number(), &kept);
    journal.remove_delivered(vec![], vec![overlap.clone()], vec![]).await.unwrap();
    let mut large = fresh_claim();
    large.contents = oncegate_core::canonical::canonicalize(format!("\"{}\"", "x".repeat(60_000)).as_bytes()).unwrap();
    for _ in 0..100 {
        let seq = journal.append(&entry(&large)).await.unwrap();
        journal.remove_delivered(vec![seq], Vec::new(), Vec::new()).await.unwrap();
    }
    // It continues in the new file.
    let last = fresh_claim();
    journal.append(&entry(&last)).await.unwrap();
    journal.close().await;
    let bytes = fs::metadata(folder.path().join("entries")).unwrap().len();
    assert!(bytes < 1_200_000, "{bytes} bytes for two entries of a few hundred");
    let (_, recovered) = open(folder.path());
    assert_eq!((keys(&recovered), recovered.suspects), (ids(&[kept, last]), vec![overlap]));
}

fn overlap(id: u64, request: &ClaimRequest) -> Suspect {
    Suspect {
        id,
        app: request.key.app.clone(),
        operation: Some(request.operation.clone()),
        realm: request.key.realm,
        global_id: request.key.global_id,
        cause: Cause::Overlap(OutagePolicy::Local),
        ours: MaskedAttempt::from(&request.attempt),
        theirs: Some(MaskedAttempt::from(&fresh_claim().attempt)),
        state: Some(ClaimState::Succeeded),
        noticed_at: Timestamp::from_micros(7),
        checked: None,
    }
}

/// A disk that fails on request.
#[derive(Clone, Default)]
struct Disk(Arc<DiskState>);

#[derive(Default)]
struct DiskState {
    bytes: Mutex<Vec<u8>>,
    full: AtomicBool,
    sync_fails: AtomicBool,
    no_copies: AtomicBool,
    syncs: AtomicU64,
}

impl Log for Disk {
    async fn append(&mut self, bytes: &[u8]) -> io::Result<()> {
        let mut file = self.0.bytes.lock().unwrap();
        if self.0.full.load(Ordering::SeqCst) {
            file.write_all(&bytes[..bytes.len() / 2])?;
            return Err(io::Error::from(io::ErrorKind::StorageFull));
        }
        file.write_all(bytes)
    }

    async fn sync(&mut self) -> io::Result<()> {
        self.0.syncs.fetch_add(1, Ordering::SeqCst);
        if self.0.sync_fails.load(Ordering::SeqCst) { Err(io::Error::other("the disk has failed")) } else { Ok(()) }
    }

    async fn truncate(&mut self, bytes: u64) -> io::Result<()> {
        self.0.bytes.lock().unwrap().truncate(usize::try_from(bytes).unwrap());
        Ok(())
    }

    async fn copy(&mut self, _: &[Range<u64>]) -> io::Result<()> {
        if self.0.no_copies.load(Ordering::SeqCst) { Err(io::ErrorKind::StorageFull.into()) } else { Ok(()) }
    }

    async fn swap(&mut self) -> io::Result<()> {
        *self.0.bytes.lock().unwrap() = frame::HEADER.to_vec();
        Ok(())
    }
}

fn on(disk: &Disk) -> Arc<Journal> {
    *disk.0.bytes.lock().unwrap() = frame::HEADER.to_vec();
    let bytes = frame::HEADER.len() as u64;
    let ground = OpenState { bytes, live: BTreeMap::new(), usage: Usage::default(), next: 1 };
    let (journal, writing) = start(disk.clone(), ground, ROOMY);
    on_a_thread(writing).unwrap();
    Arc::new(journal)
}

#[tokio::test]
async fn a_full_disk_keeps_no_half_entry_and_is_used_again_when_it_has_room() {
    let disk = Disk::default();
    let journal = on(&disk);
    journal.append(&entry(&fresh_claim())).await.unwrap();
    disk.0.full.store(true, Ordering::SeqCst);
    assert!(matches!(journal.append(&entry(&fresh_claim())).await, Err(JournalError::DiskFull(_))));
    assert_eq!(journal.waiting().entries, 1);
    disk.0.full.store(false, Ordering::SeqCst);
    journal.append(&entry(&fresh_claim())).await.unwrap();
    let file = disk.0.bytes.lock().unwrap().clone();
    let scanned = frame::scan(&file).unwrap();
    assert_eq!((scanned.frames.len(), scanned.damaged, scanned.ends_at), (2, 0, file.len()));
}

#[tokio::test]
async fn removals_that_found_the_disk_full_are_written_before_new_entries() {
    let disk = Disk::default();
    let journal = on(&disk);
    let (first, second) = (fresh_claim(), fresh_claim());
    let seq = journal.append(&entry(&first)).await.unwrap();
    disk.0.full.store(true, Ordering::SeqCst);
    let (number, overlapped) = (journal.next_number(), fresh_claim());
    let overlap = overlap(number, &overlapped);
    assert!(matches!(
        journal.remove_delivered(vec![seq], vec![overlap.clone()], vec![]).await,
        Err(JournalError::DiskFull(_))
    ));
    assert!(matches!(journal.append(&entry(&second)).await, Err(JournalError::DiskFull(_))));
    disk.0.full.store(false, Ordering::SeqCst);
    journal.append(&entry(&second)).await.unwrap();
    let file = disk.0.bytes.lock().unwrap().clone();
    let (_, recovered, damaged) = read(&file).unwrap();
    assert_eq!((keys(&recovered), recovered.suspects, damaged), (ids(&[second]), vec![overlap], 0));
}

#[tokio::test]
async fn a_file_that_cannot_be_rewritten_goes_on_growing() {
    let disk = Disk::default();
    let journal = on(&disk);
    let mut large = fresh_claim();
    large.contents = oncegate_core::canonical::canonicalize(format!("\"{}\"", "x".repeat(200_000)).as_bytes()).unwrap();
    let seqs = [journal.append(&entry(&large)).await.unwrap(), journal.append(&entry(&large)).await.unwrap()];
    disk.0.no_copies.store(true, Ordering::SeqCst);
    for _ in 0..12 {
        let seq = journal.append(&entry(&large)).await.unwrap();
        journal.remove_delivered(vec![seq], Vec::new(), Vec::new()).await.unwrap();
    }
    journal.remove_delivered(seqs.to_vec(), Vec::new(), Vec::new()).await.unwrap();
    journal.append(&entry(&large)).await.unwrap();
    assert!(disk.0.bytes.lock().unwrap().len() > 2_500_000);
}

#[tokio::test]
async fn after_a_failed_sync_every_entry_is_refused() {
    let disk = Disk::default();
    let journal = on(&disk);
    disk.0.sync_fails.store(true, Ordering::SeqCst);
    assert!(
        matches!(journal.append(&entry(&fresh_claim())).await, Err(JournalError::Uncertain(_))),
        "the disk may have it"
    );
    disk.0.sync_fails.store(false, Ordering::SeqCst);
    assert!(matches!(journal.append(&entry(&fresh_claim())).await, Err(JournalError::Broken(_))));
    assert_eq!(journal.waiting(), Waiting::default());
}

/// Deliveries need no sync; answers do, also if both are written at once.
#[tokio::test]
async fn an_answer_waits_for_the_sync_also_if_its_write_begins_with_a_delivery() {
    for delivery_first in [true, false] {
        let disk = Disk::default();
        *disk.0.bytes.lock().unwrap() = frame::HEADER.to_vec();
        let ground =
            OpenState { bytes: frame::HEADER.len() as u64, live: BTreeMap::new(), usage: Usage::default(), next: 1 };
        let (journal, writing) = start(disk.clone(), ground, ROOMY);
        let first = entry(&fresh_claim());
        let second = entry(&fresh_claim());
        let calls = async {
            let kept = async {
                journal.append(&first).await.unwrap();
                disk.0.syncs.load(Ordering::SeqCst)
            };
            let delivered = async { journal.remove_delivered(vec![7], Vec::new(), Vec::new()).await.unwrap() };
            let syncs = if delivery_first { join(delivered, kept).await.1 } else { join(kept, delivered).await.0 };
            assert_eq!(syncs, 1, "answered before it was on the disk");
            // The same for two entries: one sync is enough.
            let (kept, also) = join(journal.append(&first), journal.append(&second)).await;
            assert!(kept.is_ok() && also.is_ok());
            assert_eq!(disk.0.syncs.load(Ordering::SeqCst), 2);
        };
        // All calls are queued before the writer runs.
        tokio::select! {
            biased;
            () = calls => {}
            () = writing => panic!("it ends only on request"),
        }
    }
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn many_callers_share_a_sync_and_none_is_answered_before_it() {
    let disk = Disk::default();
    let journal = on(&disk);
    let keep = |_| {
        let (journal, disk) = (journal.clone(), disk.clone());
        tokio::spawn(async move {
            let before = disk.0.syncs.load(Ordering::SeqCst);
            journal.append(&entry(&fresh_claim())).await.unwrap();
            assert!(disk.0.syncs.load(Ordering::SeqCst) > before, "answered before it was on the disk");
        })
    };
    let keeping: Vec<_> = (0..2000).map(keep).collect();
    for kept in keeping {
        kept.await.unwrap();
    }
    let syncs = disk.0.syncs.load(Ordering::SeqCst);
    assert!(syncs <= 2000, "{syncs} syncs");
    assert_eq!(journal.waiting().entries, 2000);
}

#[test]
fn the_bounds_themselves_are_within_the_bounds() {
    let [shop, bank]: [AppKey; 2] = ["shop", "bank"].map(|app| app.parse().unwrap());
    let at = Timestamp::from_micros(1);
    let mut usage = Usage::default();
    let bounds = Bounds { bytes: 100, app_bytes: 60 };
    // No more than it leaves free.
    assert_eq!(usage.add(1, &shop, 51, at, bounds), Err(JournalError::ShareFull));
    assert_eq!(usage.add(1, &shop, 50, at, bounds), Ok(()));
    assert_eq!(usage.add(2, &bank, 26, at, bounds), Err(JournalError::ShareFull));
    assert_eq!(usage.add(2, &bank, 20, at, bounds), Ok(()));
    usage.remove(1);
    usage.remove(1);
    assert_eq!((usage.bytes, usage.by_app.len(), usage.live.len()), (20, 1, 1));
    let roomy = Bounds { bytes: 1000, app_bytes: 60 };
    assert_eq!(usage.add(3, &bank, 41, at, roomy), Err(JournalError::AppFull));
    assert_eq!(usage.add(3, &bank, 40, at, roomy), Ok(()));
    usage.remove(2);
    assert_eq!((usage.bytes, usage.by_app[&bank]), (40, 40));
}

#[test]
fn the_oldest_entry_has_an_age() {
    let at = Timestamp::from_micros(1_000_000);
    let waiting = Waiting { oldest: Some(at), ..Waiting::default() };
    assert_eq!(waiting.oldest_age(at.plus(Duration::from_secs(5))), Duration::from_secs(5));
    assert_eq!(Waiting::default().oldest_age(at), Duration::ZERO);
}

#[tokio::test]
async fn numbers_go_on_after_overlaps_and_removals() {
    let folder = tempfile::tempdir().unwrap();
    let (journal, _) = open(folder.path());
    let request = fresh_claim();
    assert_eq!(journal.append(&entry(&request)).await.unwrap(), 1);
    let found = overlap(journal.next_number(), &request);
    journal.remove_delivered(vec![1], vec![found], Vec::new()).await.unwrap();
    journal.close().await;
    let (journal, recovered) = open(folder.path());
    assert_eq!((recovered.entries.len(), recovered.suspects.len()), (0, 1));
    assert_eq!(journal.next_number(), 3);
    // Only the record of its removal shows that an entry no longer exists.
    journal.remove_delivered(vec![7], Vec::new(), Vec::new()).await.unwrap();
    journal.close().await;
    let (journal, _) = open(folder.path());
    assert_eq!(journal.next_number(), 8);
}

#[tokio::test]
async fn outdated_overlaps_are_removed_with_what_was_delivered() {
    let folder = tempfile::tempdir().unwrap();
    let (journal, _) = open(folder.path());
    let request = fresh_claim();
    let ids = [journal.next_number(), journal.next_number()];
    for id in ids {
        journal.remove_delivered(Vec::new(), vec![overlap(id, &request)], Vec::new()).await.unwrap();
    }
    journal.remove_delivered(Vec::new(), Vec::new(), vec![ids[0]]).await.unwrap();
    journal.close().await;
    let (_, recovered) = open(folder.path());
    assert_eq!(recovered.suspects.iter().map(|overlap| overlap.id).collect::<Vec<_>>(), [ids[1]]);
}

#[tokio::test]
async fn an_overlap_is_on_the_disk_once_its_removal_returns() {
    let disk = Disk::default();
    let journal = on(&disk);
    let syncs = || disk.0.syncs.load(Ordering::SeqCst);
    journal.remove_delivered(vec![1], Vec::new(), Vec::new()).await.unwrap();
    assert_eq!(syncs(), 0, "a delivery can be repeated");
    journal.remove_delivered(vec![2], vec![overlap(3, &fresh_claim())], Vec::new()).await.unwrap();
    assert_eq!(syncs(), 1);
}

#[tokio::test]
async fn a_file_is_truncated_and_synced() {
    let folder = tempfile::tempdir().unwrap();
    let (mut log, _) = log::FileLog::open(folder::lock(folder.path()).unwrap(), folder.path()).unwrap();
    let bytes = || fs::read(folder.path().join("entries")).unwrap();
    let whole = bytes().len();
    log.append(b"half a frame").await.unwrap();
    assert_eq!(bytes().len(), whole + 12);
    log.truncate(u64::try_from(whole).unwrap()).await.unwrap();
    assert_eq!(bytes().len(), whole);
    log.copy(&[0..2, 2..3]).await.unwrap();
    log.swap().await.unwrap();
    assert_eq!(bytes().len(), whole + 3);
    assert!(!folder.path().join("entries.new").exists());
}
