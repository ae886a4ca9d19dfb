//! Opening of a journal: reads its file, finds the entries that still wait, and cuts off a torn end.

use std::collections::BTreeMap;
use std::ops::Range;
use std::path::Path;
use std::sync::atomic::AtomicU64;
use std::sync::{Arc, Mutex};

use oncegate_core::suspect::Suspect;
use tokio::sync::mpsc;

use super::folder::{self, JournalOpenError};
use super::frame;
use super::log::{FileLog, Log};
use super::stored_form::FrameContent;
use super::writer::Writer;
use super::{Bounds, Journal, QUEUE, Recovered, Usage};
use oncegate_core::outage::entry::{Entry, Seq};

/// Name of the copy of a damaged file.
const DAMAGED: &str = "entries.damaged";

/// The live contents of a file.
#[derive(Default)]
struct Contents {
    entries: BTreeMap<Seq, (Range<usize>, Entry)>,
    suspects: BTreeMap<Seq, (Range<usize>, Suspect)>,
    /// Greater than every number in use.
    next: Seq,
}

/// State of a file that its journal continues from.
pub(super) struct OpenState {
    /// End of the last complete frame: the rest is cut off.
    pub(super) bytes: u64,
    /// The live frames.
    pub(super) live: BTreeMap<Seq, Range<u64>>,
    pub(super) usage: Usage,
    pub(super) next: Seq,
}

pub(super) fn open(path: &Path, bounds: Bounds) -> Result<(Journal, Recovered), JournalOpenError> {
    let lock = folder::lock(path)?;
    let io = |error| JournalOpenError::io(path, error);
    let (log, bytes) = FileLog::open(lock, path).map_err(io)?;
    let (ground, mut recovered, damaged) =
        read(&bytes).map_err(|why| JournalOpenError::Unreadable { path: path.to_owned(), why })?;
    if damaged > 0 {
        recovered.damaged = Some((damaged, log.put_aside(DAMAGED).map_err(io)?));
    }
    if ground.bytes < bytes.len() as u64 {
        log.cut(ground.bytes).map_err(io)?;
    }
    let (journal, writing) = start(log, ground, bounds);
    on_a_thread(writing).map_err(io)?;
    Ok((journal, recovered))
}

/// Returns a journal over this file, and its writer, which the caller has to run.
pub(super) fn start(log: impl Log, ground: OpenState, bounds: Bounds) -> (Journal, impl Future<Output = ()> + Send) {
    let OpenState { bytes, live, usage, next } = ground;
    let (queue, requests) = mpsc::channel(QUEUE);
    let writing = Writer::new(log, bytes, live).run(requests);
    (Journal { bounds, next: AtomicU64::new(next), usage: Arc::new(Mutex::new(usage)), queue }, writing)
}

/// Runs the writer on its own thread, because a disk may block for long.
pub(super) fn on_a_thread(writing: impl Future<Output = ()> + Send + 'static) -> std::io::Result<()> {
    let runtime = tokio::runtime::Builder::new_current_thread().build()?;
    std::thread::Builder::new().name("journal".into()).spawn(move || runtime.block_on(writing))?;
    Ok(())
}

/// Reads a file. Returns the state that its journal continues with, the waiting entries, and the number of damaged
/// frames.
pub(super) fn read(bytes: &[u8]) -> Result<(OpenState, Recovered, usize), String> {
    let scanned = frame::scan(bytes).ok_or("its file does not begin as a journal")?;
    let mut contents = Contents { next: 1, ..Contents::default() };
    for frame in &scanned.frames {
        // Its checksum is right, so a newer release has written it.
        let line = FrameContent::read(&frame::payload(bytes, frame));
        contents.take(line.ok_or_else(|| format!("byte {} holds what only a newer one knows", frame.start))?, frame);
    }
    let Contents { entries, suspects, next } = contents;
    let frames = entries.iter().map(|(seq, (frame, _))| (*seq, frame));
    let frames = frames.chain(suspects.iter().map(|(id, (frame, _))| (*id, frame)));
    let live = frames.map(|(seq, frame)| (seq, frame.start as u64..frame.end as u64)).collect();
    let mut usage = Usage::default();
    for (seq, (frame, entry)) in &entries {
        usage.enter(*seq, entry.app(), frame.len() as u64, entry.at);
    }
    let recovered = Recovered {
        entries: entries.into_iter().map(|(seq, (_, entry))| (seq, entry)).collect(),
        suspects: suspects.into_values().map(|(_, suspect)| suspect).collect(),
        damaged: None,
    };
    Ok((OpenState { bytes: scanned.ends_at as u64, live, usage, next }, recovered, scanned.damaged))
}

impl Contents {
    fn take(&mut self, line: FrameContent, frame: &Range<usize>) {
        match line {
            FrameContent::Entry(seq, entry) => {
                self.next = self.next.max(seq + 1);
                self.entries.insert(seq, (frame.clone(), *entry));
            }
            FrameContent::Suspect(suspect) => {
                self.next = self.next.max(suspect.id + 1);
                // It may replace an earlier frame: it has been checked.
                self.suspects.insert(suspect.id, (frame.clone(), suspect));
            }
            FrameContent::Delivered(seqs) => {
                for seq in seqs {
                    self.next = self.next.max(seq + 1);
                    self.entries.remove(&seq);
                    self.suspects.remove(&seq);
                }
            }
        }
    }
}
