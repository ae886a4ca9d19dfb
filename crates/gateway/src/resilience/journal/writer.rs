//! The one that writes the journal: takes what has queued up, writes it at once, syncs once, and answers all. What is dead is
//! written over when most of the file is.

use std::collections::BTreeMap;
use std::ops::Range;

use tokio::sync::{mpsc, oneshot};

use super::Refused;
use super::entry::Seq;
use super::frame::HEADER;
use super::log::Log;

/// How many jobs are written at once, at most.
const BATCH_MAX: usize = 1024;

/// A file smaller than this is not worth rewriting.
const WORTH_REWRITING_BYTES: u64 = 1 << 20;

/// Something to write.
pub(super) struct Job {
    /// What is added: whole frames. Those with a number live until they are buried.
    pub(super) frames: Vec<(Option<Seq>, Vec<u8>)>,
    /// What is dead once the frames are written.
    pub(super) buried: Vec<Seq>,
    /// Whether the answer waits until the disk has it.
    pub(super) durable: bool,
    /// Told when it is done, or was refused.
    pub(super) done: Option<oneshot::Sender<Result<(), Refused>>>,
}

/// What the writer is asked.
pub(super) enum Ask {
    /// Write this.
    Write(Job),
    /// Let go of the file.
    Close(oneshot::Sender<()>),
}

/// The state of the file.
pub(super) struct Writer<L> {
    log: L,
    bytes: u64,
    live: BTreeMap<Seq, Range<u64>>,
    live_bytes: u64,
    /// A file of fewer bytes is left as it is.
    worth_rewriting: u64,
    /// What buries entries and found no room: it goes before whatever is written next, or the dead would pile up beside what
    /// takes their place.
    owed: Vec<Job>,
    /// Why nothing is written any more.
    broken: Option<Refused>,
}

impl<L: Log> Writer<L> {
    /// A writer to a file of so many bytes, in which these frames are live.
    pub(super) fn new(log: L, bytes: u64, live: BTreeMap<Seq, Range<u64>>) -> Self {
        let live_bytes = live.values().map(|frame| frame.end - frame.start).sum();
        Self { log, bytes, live, live_bytes, worth_rewriting: WORTH_REWRITING_BYTES, owed: Vec::new(), broken: None }
    }

    /// Writes until it is told to close, or nobody is left to ask. The file is held as long.
    pub(super) async fn run(mut self, mut requests: mpsc::Receiver<Ask>) {
        while let Some(first) = requests.recv().await {
            let mut jobs = Vec::new();
            let mut close = None;
            let mut next = Some(first);
            while let Some(request) = next {
                match request {
                    Ask::Write(job) => jobs.push(job),
                    Ask::Close(done) => close = Some(done),
                }
                next = if close.is_none() && jobs.len() < BATCH_MAX { requests.try_recv().ok() } else { None };
            }
            self.write(jobs).await;
            if let Some(done) = close {
                // What was written without waiting for the disk.
                drop(self.log.sync().await);
                drop(self);
                // What comes from now on is certainly not written.
                drop(requests);
                let _ = done.send(());
                return;
            }
            self.rewrite_if_mostly_dead().await;
        }
    }

    async fn write(&mut self, new: Vec<Job>) {
        let mut jobs = std::mem::take(&mut self.owed);
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
            // Nobody waits if the caller has gone, or was told before; what was written counts all the same.
            if let Some(done) = job.done.take() {
                drop(done.send(written.clone()));
            }
            if matches!(written, Err(Refused::NoRoom(_))) && !job.buried.is_empty() {
                self.owed.push(job);
            }
        }
    }

    /// Puts the frames of jobs into the file, and onto the disk where one of them waits for that.
    async fn try_write(&mut self, jobs: &[Job]) -> Result<(), Refused> {
        let mut bytes = Vec::new();
        jobs.iter().flat_map(|job| &job.frames).for_each(|(_, frame)| bytes.extend_from_slice(frame));
        if let Err(failure) = self.log.append(&bytes).await {
            // A full disk: what fits half must not stand there, or nothing after it could be read.
            return Err(match self.log.truncate(self.bytes).await {
                Ok(()) => Refused::NoRoom(failure.to_string()),
                Err(also) => self.break_down(&format!("{failure}; {also}")),
            });
        }
        if jobs.iter().any(|job| job.durable)
            && let Err(failure) = self.log.sync().await
        {
            // Nobody knows what the disk has, and no later sync would tell.
            return Err(self.break_down(&failure.to_string()));
        }
        Ok(())
    }

    /// Nothing is written any more. What those are told who have handed something in just now.
    fn break_down(&mut self, why: &str) -> Refused {
        tracing::error!(
            error = why,
            "the journal cannot be written: nothing is answered in a store's place until this gateway is restarted"
        );
        self.broken = Some(Refused::Broken(why.to_owned()));
        Refused::Unsure(why.to_owned())
    }

    /// Keeps account of what has been written.
    fn place(&mut self, job: &Job) {
        for (seq, frame) in &job.frames {
            let begins = self.bytes;
            self.bytes += frame.len() as u64;
            if let Some(seq) = seq {
                self.live.insert(*seq, begins..self.bytes);
                self.live_bytes += frame.len() as u64;
            }
        }
        for seq in &job.buried {
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
            // The old file is as good as before, and larger than it has to be.
            tracing::warn!(error = %failure, "the journal's file cannot be made smaller yet");
            self.worth_rewriting = self.bytes * 2;
            return;
        }
        if let Err(failure) = self.log.swap().await {
            self.break_down(&failure.to_string());
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
