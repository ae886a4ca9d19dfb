//! The journal's file as the writer sees it: something that can be added to, synced, shortened and rewritten. An interface,
//! so that tests can let a disk fail.

use std::fs::{self, File, OpenOptions};
use std::io::{self, Read, Seek, SeekFrom, Write};
use std::ops::Range;
use std::path::{Path, PathBuf};

use super::frame::HEADER;

const FILE: &str = "entries";
const FILE_NEW: &str = "entries.new";

/// A file that grows at its end.
pub(super) trait Log: Send {
    /// Adds bytes at the end. After an error any part of them may be there.
    fn append(&mut self, bytes: &[u8]) -> io::Result<()>;

    /// Makes everything before durable.
    fn sync(&mut self) -> io::Result<()>;

    /// Takes away what is beyond so many bytes.
    fn truncate(&mut self, bytes: u64) -> io::Result<()>;

    /// Makes a new file of these parts, behind the header, durably so. The old one stays in use.
    fn copy(&mut self, keep: &[Range<u64>]) -> io::Result<()>;

    /// Takes the new file into use. After an error nobody knows which one a restart would find.
    fn swap(&mut self) -> io::Result<()>;
}

/// The file of a journal's folder.
pub(super) struct FileLog {
    folder: PathBuf,
    file: File,
}

impl FileLog {
    /// Opens the file of a folder, which is made if it is not there, and reads it.
    pub(super) fn open(folder: &Path) -> io::Result<(Self, Vec<u8>)> {
        let path = folder.join(FILE);
        if !path.try_exists()? {
            // Whole from the beginning: under its name there is never half a header.
            let mut file = options().truncate(true).open(folder.join(FILE_NEW))?;
            file.write_all(HEADER)?;
            file.sync_all()?;
            fs::rename(folder.join(FILE_NEW), &path)?;
            sync_folder(folder)?;
        }
        let mut file = options().open(path)?;
        let mut bytes = Vec::new();
        file.read_to_end(&mut bytes)?;
        Ok((Self { folder: folder.to_owned(), file }, bytes))
    }

    /// Puts a copy of the file aside, for somebody to look at.
    pub(super) fn put_aside(&self, name: &str) -> io::Result<PathBuf> {
        let aside = self.folder.join(name);
        fs::copy(self.folder.join(FILE), &aside)?;
        Ok(aside)
    }
}

impl Log for FileLog {
    fn append(&mut self, bytes: &[u8]) -> io::Result<()> {
        self.file.seek(SeekFrom::End(0))?;
        self.file.write_all(bytes)
    }

    fn sync(&mut self) -> io::Result<()> {
        self.file.sync_data()
    }

    fn truncate(&mut self, bytes: u64) -> io::Result<()> {
        self.file.set_len(bytes)?;
        self.file.sync_all()
    }

    fn copy(&mut self, keep: &[Range<u64>]) -> io::Result<()> {
        let mut new = options().truncate(true).open(self.folder.join(FILE_NEW))?;
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

    fn swap(&mut self) -> io::Result<()> {
        let new = options().open(self.folder.join(FILE_NEW))?;
        fs::rename(self.folder.join(FILE_NEW), self.folder.join(FILE))?;
        self.file = new;
        sync_folder(&self.folder)
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

/// Makes the names in a folder durable.
pub(super) fn sync_folder(path: &Path) -> io::Result<()> {
    if cfg!(unix) { File::open(path)?.sync_all() } else { Ok(()) }
}
