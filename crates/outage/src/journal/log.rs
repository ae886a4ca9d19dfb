//! The journal's file for the writer: append, sync, truncate, rewrite. An interface, so that tests can make a disk fail and
//! simulations can control its time.

use std::fs::{self, File, OpenOptions};
use std::io::{self, Read, Seek, SeekFrom, Write};
use std::ops::Range;
use std::path::{Path, PathBuf};

use oncegate_folder::{self as folder, FolderLock};

use super::frame::HEADER;

const FILE: &str = "entries";
const FILE_NEW: &str = "entries.new";

/// A file that grows at its end. A file that blocks has its own thread.
pub(super) trait Log: Send + 'static {
    /// Appends bytes. After an error any part of them may be in the file.
    fn append(&mut self, bytes: &[u8]) -> impl Future<Output = io::Result<()>> + Send;

    /// Makes all earlier bytes durable.
    fn sync(&mut self) -> impl Future<Output = io::Result<()>> + Send;

    /// Truncates the file to this length.
    fn truncate(&mut self, bytes: u64) -> impl Future<Output = io::Result<()>> + Send;

    /// Writes these parts to a new file, after the header, durably. The old one stays in use.
    fn copy(&mut self, keep: &[Range<u64>]) -> impl Future<Output = io::Result<()>> + Send;

    /// Replaces the old file by the new one. After an error a restart may find either.
    fn swap(&mut self) -> impl Future<Output = io::Result<()>> + Send;
}

/// The file in a journal's folder, and the folder's lock. All methods block.
pub(super) struct FileLog {
    path: PathBuf,
    file: File,
    _lock: FolderLock,
}

impl FileLog {
    /// Opens the file of a folder, creates it if it does not exist, and reads it.
    pub(super) fn open(lock: FolderLock, path: &Path) -> io::Result<(Self, Vec<u8>)> {
        let file = path.join(FILE);
        if !file.try_exists()? {
            // Written under another name first, so that the file never has half a header.
            let mut new = options().truncate(true).open(path.join(FILE_NEW))?;
            new.write_all(HEADER)?;
            new.sync_all()?;
            fs::rename(path.join(FILE_NEW), &file)?;
            folder::sync(path)?;
        }
        let mut file = options().open(file)?;
        let mut bytes = Vec::new();
        file.read_to_end(&mut bytes)?;
        Ok((Self { path: path.to_owned(), file, _lock: lock }, bytes))
    }

    /// Copies the file, for inspection.
    pub(super) fn put_aside(&self, name: &str) -> io::Result<PathBuf> {
        let aside = self.path.join(name);
        fs::copy(self.path.join(FILE), &aside)?;
        Ok(aside)
    }

    /// Truncates the file to this length.
    pub(super) fn cut(&self, bytes: u64) -> io::Result<()> {
        self.file.set_len(bytes)?;
        self.file.sync_all()
    }
}

impl Log for FileLog {
    async fn append(&mut self, bytes: &[u8]) -> io::Result<()> {
        self.file.seek(SeekFrom::End(0))?;
        self.file.write_all(bytes)
    }

    async fn sync(&mut self) -> io::Result<()> {
        self.file.sync_data()
    }

    async fn truncate(&mut self, bytes: u64) -> io::Result<()> {
        self.cut(bytes)
    }

    async fn copy(&mut self, keep: &[Range<u64>]) -> io::Result<()> {
        let mut new = options().truncate(true).open(self.path.join(FILE_NEW))?;
        let mut out = io::BufWriter::new(&mut new);
        out.write_all(HEADER)?;
        for part in keep {
            self.file.seek(SeekFrom::Start(part.start))?;
            io::copy(&mut (&mut self.file).take(part.end - part.start), &mut out)?;
        }
        out.flush()?;
        drop(out);
        new.sync_all()
    }

    async fn swap(&mut self) -> io::Result<()> {
        let new = options().open(self.path.join(FILE_NEW))?;
        fs::rename(self.path.join(FILE_NEW), self.path.join(FILE))?;
        self.file = new;
        folder::sync(&self.path)
    }
}

/// Only for the gateway's own user: entries hold contents and attempts.
fn options() -> OpenOptions {
    let mut options = File::options();
    options.read(true).write(true).create(true);
    #[cfg(unix)]
    std::os::unix::fs::OpenOptionsExt::mode(&mut options, 0o600);
    options
}
