//! The form of a backup: a line of text, rows, and an end with a checksum. The engine defines the meaning of the rows.
//! A backup without its end is incomplete, and is refused.

use std::io::{self, BufRead as _, BufReader, ErrorKind, Read};

use oncegate_core::clock::Timestamp;
use sha2::{Digest as _, Sha256};

/// The form that this release writes and reads.
const FORMAT: u32 = 1;

const PREFIX: &str = "oncegate backup, format ";

/// Longest first line.
const HEAD_BYTES_MAX: u64 = 128;

/// Longest key and value that are read: far more than any engine stores. Bounds the memory that a damaged length takes.
const PART_BYTES_MAX: u32 = 64 << 20;

/// Contents of a complete backup.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct Summary {
    /// Scheme of the engine that made it, such as `disk`.
    pub engine: String,
    /// Time at which it was made, by the clock of the engine.
    pub made_at: Timestamp,
    /// Number of its rows.
    pub rows: u64,
}

/// Reason why a backup is not used.
#[derive(Debug, thiserror::Error)]
pub enum BackupError {
    /// Does not begin like a backup.
    #[error("it is not a backup of Oncegate")]
    Foreign,
    /// Its format is not known.
    #[error("it has format {0}, of a newer release; this release knows up to {FORMAT}")]
    Newer(u32),
    /// Truncated: the end of the backup is missing.
    #[error("it is truncated: the end of the backup is missing. Use another backup")]
    Truncated,
    /// Damaged: its bytes differ from those that were written.
    #[error("it is damaged: {0}. Use another backup")]
    Damaged(&'static str),
    /// Cannot be read.
    #[error("it cannot be read: {0}")]
    Io(#[source] io::Error),
}

/// Writes a backup, in pieces that the caller takes.
pub struct Encoder {
    piece: Vec<u8>,
    hash: Sha256,
    rows: u64,
}

impl Encoder {
    /// Begins a backup of an engine of this scheme.
    pub fn new(engine: &str, made_at: Timestamp) -> Self {
        let piece = format!("{PREFIX}{FORMAT}, {engine}, {made_at}, {}\n", made_at.as_micros()).into_bytes();
        Self { piece, hash: Sha256::new(), rows: 0 }
    }

    /// Appends a row. Its key must not be empty.
    pub fn row(&mut self, key: &[u8], value: &[u8]) {
        for part in [key, value] {
            self.piece.extend(u32::try_from(part.len()).unwrap_or(u32::MAX).to_be_bytes());
            self.piece.extend(part);
        }
        self.rows += 1;
    }

    /// Returns the bytes since the last piece.
    pub fn take(&mut self) -> Vec<u8> {
        self.hash.update(&self.piece);
        std::mem::take(&mut self.piece)
    }

    /// Ends the backup, and returns the last piece: an empty key, the number of rows and the checksum.
    pub fn end(mut self) -> Vec<u8> {
        self.piece.extend(0u32.to_be_bytes());
        self.piece.extend(self.rows.to_be_bytes());
        let mut last = self.take();
        last.extend(self.hash.finalize());
        last
    }
}

/// Key and value of a row.
pub type Row = (Vec<u8>, Vec<u8>);

/// Reads a backup row by row.
pub struct Decoder<R> {
    from: BufReader<R>,
    hash: Sha256,
    read: Summary,
}

impl<R: Read> Decoder<R> {
    /// Reads the beginning of a backup.
    pub fn new(from: R) -> Result<Self, BackupError> {
        let mut from = BufReader::with_capacity(256 << 10, from);
        let mut head = Vec::new();
        (&mut from).take(HEAD_BYTES_MAX).read_until(b'\n', &mut head).map_err(BackupError::Io)?;
        if head.is_empty() {
            return Err(BackupError::Truncated);
        }
        let text = std::str::from_utf8(&head).ok().and_then(|head| head.strip_prefix(PREFIX)?.strip_suffix('\n'));
        let parts: Vec<_> = text.ok_or(BackupError::Foreign)?.split(", ").collect();
        match parts.first().and_then(|format| format.parse().ok()) {
            Some(FORMAT) => {}
            Some(newer) => return Err(BackupError::Newer(newer)),
            None => return Err(BackupError::Foreign),
        }
        let [_, engine, _, micros] = parts[..] else { return Err(BackupError::Foreign) };
        let made_at = Timestamp::from_micros(micros.parse().map_err(|_| BackupError::Foreign)?);
        let read = Summary { engine: engine.to_owned(), made_at, rows: 0 };
        Ok(Self { from, hash: Sha256::new_with_prefix(&head), read })
    }

    /// Returns the contents so far. They are complete once [`Self::row`] has returned no row.
    pub fn summary(&self) -> &Summary {
        &self.read
    }

    /// Reads the next row: its key and its value. Nothing after the last one, if the backup is complete and undamaged.
    pub fn row(&mut self) -> Result<Option<Row>, BackupError> {
        let key = self.part()?;
        if key.is_empty() {
            return self.end().map(|()| None);
        }
        let value = self.part()?;
        self.read.rows += 1;
        Ok(Some((key, value)))
    }

    fn end(&mut self) -> Result<(), BackupError> {
        let rows = u64::from_be_bytes(self.array()?);
        let expected: [u8; 32] = self.hash.clone().finalize().into();
        if self.array()? != expected {
            return Err(BackupError::Damaged("its checksum is wrong"));
        }
        if rows != self.read.rows {
            return Err(BackupError::Damaged("its number of rows is wrong"));
        }
        match self.from.fill_buf() {
            Ok([]) => Ok(()),
            Ok(_) => Err(BackupError::Damaged("something follows its end")),
            Err(error) => Err(BackupError::Io(error)),
        }
    }

    fn part(&mut self) -> Result<Vec<u8>, BackupError> {
        let length = u32::from_be_bytes(self.array()?);
        if length > PART_BYTES_MAX {
            return Err(BackupError::Damaged("a row is longer than any that is written"));
        }
        let mut part = Vec::new();
        (&mut self.from).take(length.into()).read_to_end(&mut part).map_err(BackupError::Io)?;
        if part.len() as u64 != u64::from(length) {
            return Err(BackupError::Truncated);
        }
        self.hash.update(&part);
        Ok(part)
    }

    fn array<const N: usize>(&mut self) -> Result<[u8; N], BackupError> {
        let mut bytes = [0; N];
        self.from.read_exact(&mut bytes).map_err(|error| match error.kind() {
            ErrorKind::UnexpectedEof => BackupError::Truncated,
            _ => BackupError::Io(error),
        })?;
        self.hash.update(bytes);
        Ok(bytes)
    }
}

/// Reads a whole backup, and checks that it is complete and undamaged.
pub fn verify(from: impl Read) -> Result<Summary, BackupError> {
    let mut backup = Decoder::new(from)?;
    while backup.row()?.is_some() {}
    Ok(backup.read)
}

#[cfg(test)]
mod tests {
    use super::*;

    const NOON: Timestamp = Timestamp::from_micros(1_700_000_000_000_000);

    fn backup() -> Vec<u8> {
        let mut encoder = Encoder::new("disk", NOON);
        encoder.row(b"a", b"1");
        let mut bytes = encoder.take();
        encoder.row(b"b", b"");
        bytes.extend(encoder.end());
        bytes
    }

    #[test]
    fn a_backup_is_read_as_it_was_written() {
        let bytes = backup();
        let mut decoder = Decoder::new(&bytes[..]).unwrap();
        let mut rows = Vec::new();
        while let Some(row) = decoder.row().unwrap() {
            rows.push(row);
        }
        assert_eq!(rows, [(b"a".to_vec(), b"1".to_vec()), (b"b".to_vec(), Vec::new())]);
        assert_eq!(*decoder.summary(), Summary { engine: "disk".into(), made_at: NOON, rows: 2 });
        assert_eq!(verify(&bytes[..]).unwrap(), *decoder.summary());
    }

    #[test]
    fn a_backup_that_lost_or_changed_any_byte_is_refused() {
        let bytes = backup();
        for length in 0..bytes.len() {
            assert!(verify(&bytes[..length]).is_err(), "cut after {length}");
        }
        for at in 0..bytes.len() {
            let mut changed = bytes.clone();
            changed[at] ^= 1;
            assert!(verify(&changed[..]).is_err(), "changed at {at}");
        }
        let why = |bytes: &[u8]| verify(bytes).unwrap_err().to_string();
        assert!(why(&bytes[..bytes.len() - 1]).contains("truncated"), "{}", why(&bytes[..bytes.len() - 1]));
        assert!(why(&[&bytes[..], b"x"].concat()).contains("something follows"));
        assert!(why(b"").contains("truncated") && why(b"PK\x03\x04").contains("not a backup"));
        assert!(why(b"oncegate backup, format 7, x\n").contains("format 7"));
    }
}
