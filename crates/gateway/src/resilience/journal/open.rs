//! Opening a journal: what its file holds is read and sorted into what still waits, and its torn end is cut off.

use std::collections::BTreeMap;
use std::ops::Range;
use std::path::Path;
use std::sync::atomic::AtomicU64;
use std::sync::{Arc, Mutex};

use tokio::sync::mpsc;

use super::entry::{Entry, Seq};
use super::folder::{self, OpenError};
use super::form::Line;
use super::frame;
use super::log::{FileLog, Log};
use super::writer::Writer;
use super::{Accounts, Bounds, Journal, QUEUE, Recovered};
use crate::domain::overlap::Overlap;

/// The name of the copy of a file in which damage was found.
const DAMAGED: &str = "entries.damaged";

/// What a file holds that counts.
#[derive(Default)]
struct Contents {
    entries: BTreeMap<Seq, (Range<usize>, Entry)>,
    overlaps: BTreeMap<Seq, (Range<usize>, Overlap)>,
    /// Beyond every number that was ever given.
    next: Seq,
}

/// What a journal goes on from.
pub(super) struct Ground {
    /// Where the last whole frame of the file ends: what comes after is to be cut off.
    pub(super) bytes: u64,
    /// The frames that count.
    pub(super) live: BTreeMap<Seq, Range<u64>>,
    pub(super) accounts: Accounts,
    pub(super) next: Seq,
}

pub(super) fn open(path: &Path, bounds: Bounds) -> Result<(Journal, Recovered), OpenError> {
    let lock = folder::lock(path)?;
    let io = |error| OpenError::io(path, error);
    let (log, bytes) = FileLog::open(lock, path).map_err(io)?;
    let (ground, mut recovered, damaged) =
        read(&bytes).map_err(|why| OpenError::Unreadable { path: path.to_owned(), why })?;
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

/// A journal over this file, and the work of writing it, which whoever starts it has to see to.
pub(super) fn start(log: impl Log, ground: Ground, bounds: Bounds) -> (Journal, impl Future<Output = ()> + Send) {
    let Ground { bytes, live, accounts, next } = ground;
    let (queue, requests) = mpsc::channel(QUEUE);
    let writing = Writer::new(log, bytes, live).run(requests);
    (Journal { bounds, next: AtomicU64::new(next), accounts: Arc::new(Mutex::new(accounts)), queue }, writing)
}

/// Writes on a thread of its own: a disk may take long, and nobody else is to wait for it.
pub(super) fn on_a_thread(writing: impl Future<Output = ()> + Send + 'static) -> std::io::Result<()> {
    let runtime = tokio::runtime::Builder::new_current_thread().build()?;
    std::thread::Builder::new().name("journal".into()).spawn(move || runtime.block_on(writing))?;
    Ok(())
}

/// What a file holds: what its journal goes on from, what still waits, and how many frames are damaged. Fails with what is
/// wrong with the whole.
pub(super) fn read(bytes: &[u8]) -> Result<(Ground, Recovered, usize), String> {
    let scanned = frame::scan(bytes).ok_or("its file does not begin as a journal")?;
    let mut contents = Contents { next: 1, ..Contents::default() };
    for frame in &scanned.frames {
        // It is what was written, so a newer release has written it.
        let line = Line::read(&frame::payload(bytes, frame));
        contents.take(line.ok_or_else(|| format!("byte {} holds what only a newer one knows", frame.start))?, frame);
    }
    let Contents { entries, overlaps, next } = contents;
    let frames = entries.iter().map(|(seq, (frame, _))| (*seq, frame));
    let frames = frames.chain(overlaps.iter().map(|(id, (frame, _))| (*id, frame)));
    let live = frames.map(|(seq, frame)| (seq, frame.start as u64..frame.end as u64)).collect();
    let mut accounts = Accounts::default();
    for (seq, (frame, entry)) in &entries {
        accounts.enter(*seq, entry.app(), frame.len() as u64, entry.at);
    }
    let recovered = Recovered {
        entries: entries.into_iter().map(|(seq, (_, entry))| (seq, entry)).collect(),
        overlaps: overlaps.into_values().map(|(_, overlap)| overlap).collect(),
        damaged: None,
    };
    Ok((Ground { bytes: scanned.ends_at as u64, live, accounts, next }, recovered, scanned.damaged))
}

impl Contents {
    fn take(&mut self, line: Line, frame: &Range<usize>) {
        match line {
            Line::Entry(seq, entry) => {
                self.next = self.next.max(seq + 1);
                self.entries.insert(seq, (frame.clone(), *entry));
            }
            Line::Overlap(overlap) => {
                self.next = self.next.max(overlap.id + 1);
                self.overlaps.insert(overlap.id, (frame.clone(), overlap));
            }
            Line::Delivered(seqs) => {
                for seq in seqs {
                    self.next = self.next.max(seq + 1);
                    self.entries.remove(&seq);
                    self.overlaps.remove(&seq);
                }
            }
        }
    }
}
