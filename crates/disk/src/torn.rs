//! Removes the last batch of a journal if a power loss tore it. fjall 3 does this itself, except if the hole is inside
//! one value: then it reports a checksum mismatch and does not open. Its only recovery mode cannot be configured, and
//! its error names neither the batch nor the journal, so this file reads the journal itself.

use std::fs::OpenOptions;
use std::io;
use std::ops::Range;
use std::path::{Path, PathBuf};

/// Smallest unit that a disk writes completely or not at all.
const SECTOR: usize = 512;

/// Truncates the newest journal before its last batch, if that has a hole. Returns whether it did.
///
/// A batch is written after the previous one is durable, so only the last one can be torn, and its calls were never answered.
/// Unwritten sectors read as zeros, and a complete batch has no sector of zeros, since its text contains no zero byte. A last
/// batch that is damaged in another way is left for an operator.
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

/// Returns the journal with the highest number, which is the one in use.
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

/// Returns the range of the last batch, if the journal consists of batches and then only zeros.
pub(super) fn last_batch(journal: &[u8]) -> Option<Range<usize>> {
    let (mut rest, mut last) = (journal, None);
    while let Some(after) = skip_batch(rest) {
        last = Some(journal.len() - rest.len()..journal.len() - after.len());
        rest = after;
    }
    last.filter(|_| rest.iter().all(|byte| *byte == 0))
}

/// Returns the bytes after a batch: a start (tag, count, sequence number), items (tag, kind, compression, keyspace, three
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

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_journal_in_use_has_the_highest_number() {
        let root = tempfile::tempdir().unwrap();
        assert_eq!(newest_journal(root.path()).unwrap(), None);
        for name in ["9.jnl", "10.jnl", "2.jnl", "11.txt", "x.jnl"] {
            std::fs::write(root.path().join(name), "").unwrap();
        }
        assert_eq!(newest_journal(root.path()).unwrap(), Some(root.path().join("10.jnl")));
    }
}
