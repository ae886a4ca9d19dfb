//! The writer of the journal: takes all queued jobs, writes them at once, syncs once, and answers all. Rewrites the file when
//! most of it is dead.

use std::collections::BTreeMap;
use std::ops::Range;

use tokio::sync::{mpsc, oneshot};

use super::JournalError;
use super::frame::HEADER;
use super::log::Log;
use oncegate_core::outage::entry::Seq;

/// Most jobs that are written at once.
const BATCH_MAX: usize = 1024;

/// Smallest file that is rewritten.
const WORTH_REWRITING_BYTES: u64 = 1 << 20;

pub(super) struct Job {
    /// Frames to append. Those with a number live until they are removed.
    pub(super) frames: Vec<(Option<Seq>, Vec<u8>)>,
    /// Numbers of frames that are dead once these are written.
    pub(super) removed: Vec<Seq>,
    /// True if the answer waits for a sync.
    pub(super) durable: bool,
    /// Receives the result.
    pub(super) done: Option<oneshot::Sender<Result<(), JournalError>>>,
}

pub(super) enum WriterRequest {
    /// Writes this.
    Write(Job),
    /// Closes the file.
    Close(oneshot::Sender<()>),
}

/// The state of the file.
pub(super) struct Writer<L> {
    log: L,
    bytes: u64,
    live: BTreeMap<Seq, Range<u64>>,
    live_bytes: u64,
    /// Smallest file that is rewritten next.
    worth_rewriting: u64,
    /// Removals that could not be written for lack of room. They are written before the next job, so that dead entries
    /// do not accumulate.
    deferred: Vec<Job>,
    /// The reason why nothing is written any more.
    broken: Option<JournalError>,
}

impl<L: Log> Writer<L> {
    /// Creates a writer to a file of this length with these live frames.
    pub(super) fn new(log: L, bytes: u64, live: BTreeMap<Seq, Range<u64>>) -> Self {
        let live_bytes = live.values().map(|frame| frame.end - frame.start).sum();
        Self {
            log,
            bytes,
            live,
            live_bytes,
            worth_rewriting: WORTH_REWRITING_BYTES,
            deferred: Vec::new(),
            broken: None,
        }
    }

    /// Writes until it is closed, or all senders are gone.
    pub(super) async fn run(mut self, mut requests: mpsc::Receiver<WriterRequest>) {
        while let Some(first) = requests.recv().await {
            let mut jobs = Vec::new();
            let mut close = None;
            let mut next = Some(first);
            while let Some(request) = next {
                match request {
                    WriterRequest::Write(job) => jobs.push(job),
                    WriterRequest::Close(done) => close = Some(done),
                }
                next = if close.is_none() && jobs.len() < BATCH_MAX { requests.try_recv().ok() } else { None };
            }
            self.write(jobs).await;
            if let Some(done) = close {
                // For frames that were written without a sync.
                drop(self.log.sync().await);
                drop(self);
                // Later requests are certainly not written.
                drop(requests);
                let _ = done.send(());
                return;
            }
            self.rewrite_if_mostly_dead().await;
        }
    }

    async fn write(&mut self, new: Vec<Job>) {
        let mut jobs = std::mem::take(&mut self.deferred);
        jobs.extend(new);
        if jobs.is_empty() {
            return;
        }
        let written = match &self.broken {
            Some(why) => Err(why.clone()),
            None => self.try_write(&jobs).await,
        };
        for mut job in jobs {
            if written.is_ok() {
                self.place(&job);
            }
            // The caller may have disconnected, or may have its answer already; the frames still count.
            if let Some(done) = job.done.take() {
                drop(done.send(written.clone()));
            }
            if matches!(written, Err(JournalError::DiskFull(_))) && !job.removed.is_empty() {
                self.deferred.push(job);
            }
        }
    }

    /// Appends the frames of jobs to the file, and syncs if one of them waits for that.
    async fn try_write(&mut self, jobs: &[Job]) -> Result<(), JournalError> {
        let mut bytes = Vec::new();
        jobs.iter().flat_map(|job| &job.frames).for_each(|(_, frame)| bytes.extend_from_slice(frame));
        if let Err(failure) = self.log.append(&bytes).await {
            // The disk is full: half a frame would make all later ones unreadable.
            return Err(match self.log.truncate(self.bytes).await {
                Ok(()) => JournalError::DiskFull(failure.to_string()),
                Err(also) => self.stop_writing(&format!("{failure}; {also}")),
            });
        }
        if jobs.iter().any(|job| job.durable)
            && let Err(failure) = self.log.sync().await
        {
            // The content of the disk is unknown, and no later sync can show it.
            return Err(self.stop_writing(&failure.to_string()));
        }
        Ok(())
    }

    /// Stops writing permanently. Returns the error for the present jobs.
    fn stop_writing(&mut self, why: &str) -> JournalError {
        tracing::error!(
            error = why,
            "The journal cannot be written, so outage policies refuse calls; repair the disk, then restart this gateway"
        );
        self.broken = Some(JournalError::Broken(why.to_owned()));
        JournalError::Uncertain(why.to_owned())
    }

    /// Records the written bytes.
    fn place(&mut self, job: &Job) {
        for (seq, frame) in &job.frames {
            let begins = self.bytes;
            self.bytes += frame.len() as u64;
            if let Some(seq) = seq {
                let replaced = self.live.insert(*seq, begins..self.bytes).unwrap_or_default();
                self.live_bytes += frame.len() as u64;
                self.live_bytes -= replaced.end - replaced.start;
            }
        }
        for seq in &job.removed {
            if let Some(frame) = self.live.remove(seq) {
                self.live_bytes -= frame.end - frame.start;
            }
        }
    }

    async fn rewrite_if_mostly_dead(&mut self) {
        if self.broken.is_some() || self.bytes < self.worth_rewriting || self.live_bytes * 2 > self.bytes {
            return;
        }
        let keep: Vec<_> = self.live.values().cloned().collect();
        if let Err(failure) = self.log.copy(&keep).await {
            // The old file is still good, only larger than necessary.
            tracing::warn!(error = %failure, "The journal's file could not be rewritten to make it smaller; it will be tried again");
            self.worth_rewriting = self.bytes * 2;
            return;
        }
        if let Err(failure) = self.log.swap().await {
            self.stop_writing(&failure.to_string());
            return;
        }
        self.worth_rewriting = WORTH_REWRITING_BYTES;
        self.bytes = HEADER.len() as u64;
        for frame in self.live.values_mut() {
            let bytes = frame.end - frame.start;
            *frame = self.bytes..self.bytes + bytes;
            self.bytes += bytes;
        }
    }
}

#[cfg(test)]
mod tests {
    use std::io;
    use std::sync::Arc;
    use std::sync::atomic::{AtomicUsize, Ordering};

    use super::*;

    /// A file that counts its operations.
    #[derive(Clone, Default)]
    struct Counted(Arc<Counts>);

    #[derive(Default)]
    struct Counts {
        appended: AtomicUsize,
        copied: AtomicUsize,
    }

    impl Log for Counted {
        async fn append(&mut self, _: &[u8]) -> io::Result<()> {
            self.0.appended.fetch_add(1, Ordering::Relaxed);
            Ok(())
        }
        async fn sync(&mut self) -> io::Result<()> {
            Ok(())
        }
        async fn truncate(&mut self, _: u64) -> io::Result<()> {
            Ok(())
        }
        async fn copy(&mut self, _: &[Range<u64>]) -> io::Result<()> {
            self.0.copied.fetch_add(1, Ordering::Relaxed);
            Err(io::Error::other("no room"))
        }
        async fn swap(&mut self) -> io::Result<()> {
            Ok(())
        }
    }

    fn job(seq: Seq, removed: Vec<Seq>) -> Job {
        Job { frames: vec![(Some(seq), vec![0; 10])], removed, durable: false, done: None }
    }

    #[tokio::test]
    async fn a_file_is_rewritten_once_it_is_large_and_half_of_it_is_dead() {
        const LARGE: u64 = WORTH_REWRITING_BYTES;
        for (bytes, live, is_rewritten) in [
            (LARGE - 1, 0, false),
            (LARGE, 0, true),
            (LARGE, LARGE / 2, true),
            (LARGE, LARGE / 2 + 1, false),
            (4 * LARGE, 3 * LARGE, false),
        ] {
            let log = Counted::default();
            let mut writer = Writer::new(log.clone(), bytes, BTreeMap::from([(1, 0..live)]));
            writer.rewrite_if_mostly_dead().await;
            assert_eq!(log.0.copied.load(Ordering::Relaxed) == 1, is_rewritten, "{live} of {bytes}");
            if is_rewritten {
                assert_eq!(
                    writer.worth_rewriting,
                    2 * bytes,
                    "it could not be, and is tried again once it is twice as large"
                );
            }
            writer.stop_writing("broken");
            writer.worth_rewriting = 0;
            writer.rewrite_if_mostly_dead().await;
            assert_eq!(log.0.copied.load(Ordering::Relaxed) == 1, is_rewritten, "never after a failure of the disk");
        }
    }

    #[test]
    fn live_bytes_are_those_of_frames_that_were_not_removed() {
        let mut writer = Writer::new(Counted::default(), 100, BTreeMap::new());
        (1..=3).for_each(|seq| writer.place(&job(seq, vec![])));
        writer.place(&job(4, vec![2, 3]));
        assert_eq!((writer.bytes, writer.live_bytes), (140, 20));
        assert_eq!(writer.live, BTreeMap::from([(1, 100..110), (4, 130..140)]));
        writer.place(&job(4, vec![]));
        assert_eq!((writer.bytes, writer.live_bytes), (150, 20), "it replaces an earlier one of its number");
    }

    #[tokio::test]
    async fn jobs_are_written_in_bounded_batches_and_none_after_the_close() {
        let log = Counted::default();
        let (requests, queue) = mpsc::channel(BATCH_MAX + 10);
        for _ in 0..=BATCH_MAX {
            requests.try_send(WriterRequest::Write(job(1, vec![]))).ok().unwrap();
        }
        let ((closed, is_closed), (late, is_late)) = (oneshot::channel(), oneshot::channel());
        requests.try_send(WriterRequest::Close(closed)).ok().unwrap();
        requests.try_send(WriterRequest::Write(Job { done: Some(late), ..job(2, vec![]) })).ok().unwrap();
        Writer::new(log.clone(), 0, BTreeMap::new()).run(queue).await;
        assert_eq!(log.0.appended.load(Ordering::Relaxed), 2, "a full batch, and one more job");
        is_closed.await.unwrap();
        is_late.await.unwrap_err();
    }
}
