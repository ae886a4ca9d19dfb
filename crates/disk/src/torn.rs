//! Cuts off a journal's last batch where a power loss tore it. The database does so itself, unless the hole lies inside
//! one long value: then it finds a whole batch with a wrong checksum, and refuses to start.

use std::fs::OpenOptions;
use std::io;
use std::ops::Range;
use std::path::{Path, PathBuf};

/// What a disk writes whole or not at all, at the least.
const SECTOR: usize = 512;

/// Cuts the newest journal before its last batch, if that has a hole; tells whether it did.
///
/// A batch is written after the one before it was made durable, so only the last can be torn, and was never answered.
/// What was never written reads as zeros, and no whole batch has a sector of them: its text knows no zero byte. A last
/// batch that is wrong in any other way was not torn but spoilt, and is left for a human to see.
pub(super) fn cut_torn_batch(database: &Path) -> io::Result<bool> {
    let Some(path) = newest_journal(database)? else { return Ok(false) };
    let journal = std::fs::read(&path)?;
    let Some(last) = last_batch(&journal) else { return Ok(false) };
    let mut sectors = journal[..last.end].chunks(SECTOR).skip(last.start.div_ceil(SECTOR));
    let has_hole = sectors.any(|sector| sector.len() == SECTOR && sector.iter().all(|byte| *byte == 0));
    if has_hole {
        let file = OpenOptions::new().write(true).open(path)?;
        file.set_len(u64::try_from(last.start).unwrap_or(u64::MAX))?;
        file.sync_all()?;
    }
    Ok(has_hole)
}

/// Journals are numbered; the one that is written to has the highest number.
pub(super) fn newest_journal(database: &Path) -> io::Result<Option<PathBuf>> {
    let mut newest: Option<(u64, PathBuf)> = None;
    for entry in std::fs::read_dir(database)? {
        let path = entry?.path();
        let number = path.file_name().and_then(|name| name.to_str()?.strip_suffix(".jnl")?.parse().ok());
        if let Some(number) = number.filter(|number| newest.as_ref().is_none_or(|(newest, _)| number > newest)) {
            newest = Some((number, path));
        }
    }
    Ok(newest.map(|(_, path)| path))
}

/// Where the last batch lies, if batches one after the other, and then zeros, are all there is.
pub(super) fn last_batch(journal: &[u8]) -> Option<Range<usize>> {
    let (mut rest, mut last) = (journal, None);
    while let Some(after) = skip_batch(rest) {
        last = Some(journal.len() - rest.len()..journal.len() - after.len());
        rest = after;
    }
    last.filter(|_| rest.iter().all(|byte| *byte == 0))
}

/// What comes after a batch: a start (tag, count, sequence number), items (tag, kind, compression, keyspace, three
/// lengths, key, value) and an end (tag, checksum, trailer).
fn skip_batch(bytes: &[u8]) -> Option<&[u8]> {
    let ([1, count @ ..], mut rest) = bytes.split_first_chunk::<13>()? else { return None };
    for _ in 0..u32::from_le_bytes(*count.first_chunk()?) {
        let ([2, head @ ..], after) = rest.split_first_chunk::<21>()? else { return None };
        let key_bytes = u16::from_le_bytes(*head[10..].first_chunk()?);
        let value_bytes = u32::from_le_bytes(*head.last_chunk()?);
        rest = after.get(usize::from(key_bytes)..)?.get(usize::try_from(value_bytes).ok()?..)?;
    }
    let ([3, end @ ..], rest) = rest.split_first_chunk::<13>()? else { return None };
    end.ends_with(b"FJL\x03").then_some(rest)
}
