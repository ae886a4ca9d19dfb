//! Opening a journal: what its file holds is read and sorted into what still waits, and its torn end is cut off.

use std::collections::BTreeMap;
use std::ops::Range;
use std::path::Path;
use std::sync::atomic::AtomicU64;
use std::sync::{Arc, Mutex};

use tokio::sync::mpsc;

use super::entry::{Entry, Seq};
use super::folder::{Folder, OpenError};
use super::form::Line;
use super::frame::{self, Scanned};
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

pub(super) fn open(path: &Path, bounds: Bounds) -> Result<(Journal, Recovered), OpenError> {
    let folder = Folder::take(path)?;
    let io = |error| OpenError::io(path, error);
    let (mut log, bytes) = FileLog::open(path).map_err(io)?;
    let (scanned, contents) = read(path, &bytes)?;
    let mut damaged = None;
    if scanned.damaged > 0 {
        damaged = Some((scanned.damaged, log.put_aside(DAMAGED).map_err(io)?));
    }
    if scanned.ends_at < bytes.len() {
        log.truncate(scanned.ends_at as u64).map_err(io)?;
    }
    let Contents { entries, overlaps, next } = contents;
    let frames = entries.iter().map(|(seq, (frame, _))| (*seq, frame));
    let frames = frames.chain(overlaps.iter().map(|(id, (frame, _))| (*id, frame)));
    let live = frames.map(|(seq, frame)| (seq, frame.start as u64..frame.end as u64)).collect();
    let recovered = Recovered {
        entries: entries.iter().map(|(seq, (_, entry))| (*seq, entry.clone())).collect(),
        overlaps: overlaps.into_values().map(|(_, overlap)| overlap).collect(),
        damaged,
    };
    let mut accounts = Accounts::default();
    for (seq, (frame, entry)) in &entries {
        accounts.enter(*seq, entry.app(), frame.len() as u64, entry.at);
    }
    let journal = start(log, scanned.ends_at as u64, live, accounts, next, bounds, Some(folder)).map_err(io)?;
    Ok((journal, recovered))
}

/// A journal over this file, and the thread that writes it.
pub(super) fn start<L: Log + 'static>(
    log: L,
    bytes: u64,
    live: BTreeMap<Seq, Range<u64>>,
    accounts: Accounts,
    next: Seq,
    bounds: Bounds,
    folder: Option<Folder>,
) -> std::io::Result<Journal> {
    let (queue, asks) = mpsc::channel(QUEUE);
    let writer = Writer::new(log, bytes, live);
    std::thread::Builder::new().name("journal".into()).spawn(move || writer.run(asks, folder))?;
    Ok(Journal { bounds, next: AtomicU64::new(next), accounts: Arc::new(Mutex::new(accounts)), queue })
}

/// What a file holds.
fn read(path: &Path, bytes: &[u8]) -> Result<(Scanned, Contents), OpenError> {
    let unreadable = |why: String| OpenError::Unreadable { path: path.to_owned(), why };
    let scanned = frame::scan(bytes).ok_or_else(|| unreadable("its file does not begin as a journal".into()))?;
    let mut contents = Contents { next: 1, ..Contents::default() };
    for frame in &scanned.frames {
        // It is what was written, so a newer release has written it.
        let line = Line::read(&frame::payload(bytes, frame));
        match line.ok_or_else(|| unreadable(format!("byte {} holds what only a newer one knows", frame.start)))? {
            Line::Entry(seq, entry) => {
                contents.next = contents.next.max(seq + 1);
                contents.entries.insert(seq, (frame.clone(), *entry));
            }
            Line::Overlap(overlap) => {
                contents.next = contents.next.max(overlap.id + 1);
                contents.overlaps.insert(overlap.id, (frame.clone(), overlap));
            }
            Line::Delivered(seqs) => {
                for seq in seqs {
                    contents.next = contents.next.max(seq + 1);
                    contents.entries.remove(&seq);
                    contents.overlaps.remove(&seq);
                }
            }
        }
    }
    Ok((scanned, contents))
}
