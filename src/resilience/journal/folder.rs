//! The folder of a journal: one process at a time holds it, and nobody else's eyes see into it.

use std::fs::{DirBuilder, File, TryLockError};
use std::io;
use std::path::{Path, PathBuf};

use super::log::sync_folder;

const LOCK_FILE: &str = "LOCK";

/// Why a folder could not be opened as a journal.
#[derive(Debug, thiserror::Error)]
pub enum OpenError {
    /// Another process holds it.
    #[error("the journal in {} is held by another process, which has to end first; gateways on one machine need a server.data_dir each", .0.display())]
    Held(PathBuf),
    /// There is no journal.
    #[error("there is no journal in {}; name the folder that was the server.data_dir of the gateway", .0.display())]
    Absent(PathBuf),
    /// A file of it is none of ours, or of a newer release.
    #[error("the journal in {} cannot be read by this release: {why}", .path.display())]
    Unreadable {
        /// The folder.
        path: PathBuf,
        /// What is wrong with it.
        why: String,
    },
    /// The operating system refused.
    #[error("the journal in {}, which keeps what is answered while a store is out, cannot be used: {source}; let server.data_dir name a folder that the gateway may write to", .path.display())]
    Io {
        /// The folder.
        path: PathBuf,
        /// What it said.
        source: io::Error,
    },
}

impl OpenError {
    /// What an I/O error in this folder means.
    pub(super) fn io(path: &Path, source: io::Error) -> Self {
        Self::Io { path: path.to_owned(), source }
    }
}

/// A folder that this process holds, until it is dropped.
#[derive(Debug)]
pub(super) struct Folder {
    /// The operating system lets go of the lock when the process ends, however it ends.
    lock: File,
}

impl Folder {
    /// Takes hold of a folder, which is made if it is not there.
    pub(super) fn take(path: &Path) -> Result<Self, OpenError> {
        create(path).map_err(|error| OpenError::io(path, error))?;
        let lock = File::options().create(true).truncate(false).write(true).open(path.join(LOCK_FILE));
        let lock = lock.map_err(|error| OpenError::io(path, error))?;
        match lock.try_lock() {
            Ok(()) => Ok(Self { lock }),
            Err(TryLockError::WouldBlock) => Err(OpenError::Held(path.to_owned())),
            Err(TryLockError::Error(error)) => Err(OpenError::io(path, error)),
        }
    }
}

impl Drop for Folder {
    /// Closing alone would not do: a child that is being started shares the open file for a moment, and its lock.
    fn drop(&mut self) {
        let _ = self.lock.unlock();
    }
}

fn create(path: &Path) -> io::Result<()> {
    if path.is_dir() {
        return Ok(());
    }
    let mut builder = DirBuilder::new();
    builder.recursive(true);
    #[cfg(unix)]
    std::os::unix::fs::DirBuilderExt::mode(&mut builder, 0o700);
    builder.create(path)?;
    // A relative path of one part lies in the current directory, which is nobody's news.
    path.parent().filter(|parent| !parent.as_os_str().is_empty()).map_or(Ok(()), sync_folder)
}
