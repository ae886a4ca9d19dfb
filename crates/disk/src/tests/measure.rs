//! Figures, not tests: claims per fsync, and the duration of a start. Run by hand:
//! `cargo test --release --package oncegate-disk --lib tests::measure -- --ignored --nocapture --test-threads=1`

use std::sync::atomic::{AtomicUsize, Ordering};

use fjall::Database;

use super::*;

/// Counts fsyncs.
struct Counting(Arc<AtomicUsize>);

impl Persist for Counting {
    fn persist(&self, database: &Database) -> fjall::Result<()> {
        self.0.fetch_add(1, Ordering::Relaxed);
        Fsync.persist(database)
    }
}

async fn throughput(callers: usize, each: usize) {
    let (folder, clock) = (TempDir::new().unwrap(), SystemClock::new());
    let fsyncs = Arc::new(AtomicUsize::new(0));
    let persist = Box::new(Counting(fsyncs.clone()));
    let disk = Disk::open_with(folder.path(), Arc::new(SystemClock::new()), Options::default(), persist).unwrap();
    let disk = Arc::new(disk);
    let requests: Vec<Vec<_>> = (0..callers).map(|_| (0..each).map(|_| fresh_claim()).collect()).collect();
    let began = clock.monotonic();
    let calls = requests.into_iter().map(|requests| {
        let disk = disk.clone();
        let clock = SystemClock::new();
        tokio::spawn(async move {
            let mut took = Vec::with_capacity(requests.len());
            for request in &requests {
                let began = clock.monotonic();
                grant(&disk, request).await;
                took.push(clock.monotonic().saturating_sub(began));
            }
            took
        })
    });
    let mut took: Vec<_> = join_all(calls).await.into_iter().flat_map(Result::unwrap).collect();
    let span = clock.monotonic().saturating_sub(began);
    took.sort_unstable();
    let (claims, fsyncs) = (took.len(), fsyncs.load(Ordering::Relaxed));
    println!(
        "{callers} callers: {claims} claims in {span:.1?}, {:.0}/s; {fsyncs} fsyncs of {:.1} claims; p50 {:?}, p99 {:?}",
        f64::from(u32::try_from(claims).unwrap()) / span.as_secs_f64(),
        f64::from(u32::try_from(claims).unwrap()) / f64::from(u32::try_from(fsyncs).unwrap()),
        took[claims / 2],
        took[claims * 99 / 100],
    );
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
#[ignore = "prints figures"]
async fn claims_per_second() {
    for (callers, each) in [(1, 500), (16, 300), (256, 200), (1024, 100)] {
        throughput(callers, each).await;
    }
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
#[ignore = "prints figures"]
async fn start_up_with_a_million_claims() {
    let (folder, clock) = (TempDir::new().unwrap(), Arc::new(SystemClock::new()));
    let timed_open = |path: &Path, what: &str| {
        let began = clock.monotonic();
        let disk = Disk::open(path, clock.clone(), Options::default()).unwrap();
        let took = clock.monotonic().saturating_sub(began);
        println!("start {what}: {took:.2?}");
        (disk, took)
    };
    let (disk, _) = timed_open(folder.path(), "of an empty folder");
    let began = clock.monotonic();
    let mut last = fresh_claim();
    for part in 0..1000 {
        let requests: Vec<_> = (0..1000).map(|_| fresh_claim()).collect();
        assert!(claim_all(&disk, &requests).await.iter().all(Result::is_ok));
        last = requests[999].clone();
        // Journals and memtables come and go: the data after a crash depends on its time.
        if [400, 555, 777, 999].contains(&part) {
            let copy = copy_of_a_moment(folder.path());
            // Writing the copy to the disk is not part of a start.
            assert!(Command::new("sync").status().unwrap().success());
            println!("{}", journals(copy.path()));
            let (disk, took) = timed_open(copy.path(), &format!("after a crash at {} claims", (part + 1) * 1000));
            assert!(disk.read(&last.key).await.unwrap().is_some());
            assert!(took < Duration::from_secs(2), "{took:?}");
        }
    }
    println!("a million claims, a thousand at once, took {:.1?}", clock.monotonic().saturating_sub(began));
    drop(disk);
    println!("{}", journals(folder.path()));
    let (disk, took) = timed_open(folder.path(), "after a clean end at a million claims");
    assert!(took < Duration::from_secs(2), "{took:?}");
    assert!(disk.read(&last.key).await.unwrap().is_some());
    let status = std::fs::read_to_string("/proc/self/status").unwrap_or_default();
    println!("{}", status.lines().find(|line| line.starts_with("VmHWM")).unwrap_or_default());
}

/// Copies a folder while no file is created or deleted in it, as flushes do.
fn copy_of_a_moment(folder: &Path) -> TempDir {
    loop {
        let (copy, before) = (TempDir::new().unwrap(), files(folder));
        if durability::copy_folder(folder, copy.path()).is_ok() && files(folder) == before {
            return copy;
        }
    }
}

fn files(folder: &Path) -> Vec<std::path::PathBuf> {
    let mut files = Vec::new();
    let mut folders = vec![folder.to_owned()];
    while let Some(folder) = folders.pop() {
        for entry in std::fs::read_dir(folder).into_iter().flatten().flatten() {
            files.push(entry.path());
            folders.extend(Some(entry.path()).filter(|path| path.is_dir()));
        }
    }
    files.sort();
    files
}

/// Returns the sizes of the journals that a start has to read.
fn journals(folder: &Path) -> String {
    let files = std::fs::read_dir(folder.join("db")).unwrap().map(|file| file.unwrap().path());
    let journals = files.filter(|path| path.extension().is_some_and(|extension| extension == "jnl"));
    let lengths: Vec<_> = journals.map(|path| format!("{} MB", path.metadata().unwrap().len() / 1_000_000)).collect();
    format!("journals: {}", lengths.join(", "))
}
