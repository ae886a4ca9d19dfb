//! The journal's file as the writer sees it: something that can be added to, synced, shortened and rewritten. An interface,
//! so that tests can let a disk fail, and simulations let it take time that does not pass.

use std::fs::{self, File, OpenOptions};
use std::io::{self, Read, Seek, SeekFrom, Write};
use std::ops::Range;
use std::path::{Path, PathBuf};

use super::frame::HEADER;
use oncegate_folder::{self as folder, FolderLock};

const FILE: &str = "entries";
const FILE_NEW: &str = "entries.new";

/// A file that grows at its end. One that blocks is written by a thread of its own.
pub(super) trait Log: Send + 'static {
    /// Adds bytes at the end. After an error any part of them may be there.
    fn append(&mut self, bytes: &[u8]) -> impl Future<Output = io::Result<()>> + Send;

    /// Makes everything before durable.
    fn sync(&mut self) -> impl Future<Output = io::Result<()>> + Send;

    /// Takes away what is beyond so many bytes.
    fn truncate(&mut self, bytes: u64) -> impl Future<Output = io::Result<()>> + Send;

    /// Makes a new file of these parts, behind the header, durably so. The old one stays in use.
    fn copy(&mut self, keep: &[Range<u64>]) -> impl Future<Output = io::Result<()>> + Send;

    /// Takes the new file into use. After an error nobody knows which one a restart would find.
    fn swap(&mut self) -> impl Future<Output = io::Result<()>> + Send;
}

/// The file of a journal's folder, which it holds as long. All of it blocks.
pub(super) struct FileLog {
    path: PathBuf,
    file: File,
    _lock: FolderLock,
}

impl FileLog {
    /// Opens the file of a folder, which is made if it is not there, and reads it.
    pub(super) fn open(lock: FolderLock, path: &Path) -> io::Result<(Self, Vec<u8>)> {
        let file = path.join(FILE);
        if !file.try_exists()? {
            // Whole from the beginning: under its name there is never half a header.
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

    /// Puts a copy of the file aside, for somebody to look at.
    pub(super) fn put_aside(&self, name: &str) -> io::Result<PathBuf> {
        let aside = self.path.join(name);
        fs::copy(self.path.join(FILE), &aside)?;
        Ok(aside)
    }

    /// Takes away what is beyond so many bytes.
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
