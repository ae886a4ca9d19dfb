//! The folder of a journal: one process at a time holds it, and only its user may look into it.

use std::io;
use std::path::{Path, PathBuf};

use oncegate_folder::{self as folder, FolderLock, Holder, LockError};

/// A failure to open the journal of a folder.
#[derive(Debug, thiserror::Error)]
pub enum JournalOpenError {
    /// Another process holds it.
    #[error("the journal in {} is held by {holder}, which has to end first; gateways on one machine need a server.data_dir each", .path.display())]
    Held {
        /// The folder.
        path: PathBuf,
        /// The process that holds it.
        holder: Holder,
    },
    /// There is no journal.
    #[error("there is no journal in {}; name the folder that was the server.data_dir of the gateway", .0.display())]
    Absent(PathBuf),
    /// Its file is no journal, or of a newer release.
    #[error("the journal in {} cannot be read by this release: {why}", .path.display())]
    Unreadable {
        /// The folder.
        path: PathBuf,
        /// The reason.
        why: String,
    },
    /// The operating system refused.
    #[error("the journal in {}, which holds the answers of outage policies, cannot be used: {source}; let server.data_dir name a folder that the gateway may write to", .path.display())]
    Io {
        /// The folder.
        path: PathBuf,
        /// Its error.
        source: io::Error,
    },
}

impl JournalOpenError {
    /// Returns an I/O error in this folder.
    pub(super) fn io(path: &Path, source: io::Error) -> Self {
        Self::Io { path: path.to_owned(), source }
    }
}

/// Locks the folder of a journal, and creates it if it does not exist.
pub(super) fn lock(path: &Path) -> Result<FolderLock, JournalOpenError> {
    folder::create(path).map_err(|error| JournalOpenError::io(path, error))?;
    FolderLock::take(path).map_err(|error| match error {
        LockError::Held(holder) => JournalOpenError::Held { path: path.to_owned(), holder },
        LockError::Io(error) => JournalOpenError::io(path, error),
    })
}
