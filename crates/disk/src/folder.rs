//! The folder of a disk engine: who holds it, whether it is one of ours, and which format it has. What is inside the
//! database is for `store` to know.

use std::fs::File;
use std::io::{self, ErrorKind, Write};
use std::path::{Path, PathBuf};

use oncegate_folder::{self as folder, FolderLock, Holder, LOCK_FILE, LockError};

/// The format this release writes. It is raised only when an older release could not read what a newer one writes.
const FORMAT: u32 = 1;
const FORMAT_PREFIX: &str = "oncegate claims, format ";

const FORMAT_FILE: &str = "FORMAT";
const FORMAT_FILE_NEW: &str = "FORMAT.new";
const DATABASE: &str = "db";

/// Why a folder could not be opened as a disk engine.
#[derive(Debug, thiserror::Error)]
pub enum OpenError {
    /// Another process, or another engine of this one, holds it.
    #[error("{} is held by {holder}; one process only may use it", .path.display())]
    Held {
        /// The directory.
        path: PathBuf,
        /// The process that holds it.
        holder: Holder,
    },
    /// The path names something else than a directory.
    #[error("{} is not a directory; name a directory to keep claims in", .0.display())]
    NotADirectory(PathBuf),
    /// The directory may not be read or written.
    #[error("no permission to use {}; the gateway must be able to read and write there", .0.display())]
    NoPermission(PathBuf),
    /// The directory holds something else than claims.
    #[error("{} holds something, but no claims; name an empty directory", .0.display())]
    Foreign(PathBuf),
    /// The claims in it have a format that this release does not know.
    #[error("{} was written by a newer release, in format {found}; this release knows up to {FORMAT}", .path.display())]
    Newer {
        /// The directory.
        path: PathBuf,
        /// Its format.
        found: u32,
    },
    /// The claims in it cannot be read.
    #[error("{} cannot be read: {why}", .path.display())]
    Damaged {
        /// The directory.
        path: PathBuf,
        /// What is wrong with it.
        why: String,
    },
    /// The operating system refused.
    #[error("{}: {source}", .path.display())]
    Io {
        /// The directory.
        path: PathBuf,
        /// What it said.
        source: io::Error,
    },
}

impl OpenError {
    /// What an I/O error on this directory means.
    pub(super) fn io(path: &Path, source: io::Error) -> Self {
        let path = path.to_owned();
        match source.kind() {
            ErrorKind::PermissionDenied | ErrorKind::ReadOnlyFilesystem => Self::NoPermission(path),
            ErrorKind::NotADirectory => Self::NotADirectory(path),
            _ => Self::Io { path, source },
        }
    }
}

/// A directory that this process holds, until it is dropped.
#[derive(Debug)]
pub(super) struct Folder {
    path: PathBuf,
    _lock: FolderLock,
}

impl Folder {
    /// Takes hold of a directory, and makes it one of ours if it is new.
    pub(super) fn take(path: &Path) -> Result<Self, OpenError> {
        let io = |error| OpenError::io(path, error);
        folder::create(path).map_err(io)?;
        // Nothing is left in a directory that is none of ours, not even a lock.
        format(path)?;
        let lock = FolderLock::take(path).map_err(|error| match error {
            LockError::Held(holder) => OpenError::Held { path: path.to_owned(), holder },
            LockError::Io(error) => io(error),
        })?;
        let folder = Self { path: path.to_owned(), _lock: lock };
        match format(path)? {
            Some(FORMAT) => {}
            Some(found) => return Err(OpenError::Newer { path: path.to_owned(), found }),
            None => folder.claim_for_ourselves().map_err(io)?,
        }
        folder.clear_unfinished().map_err(io)?;
        Ok(folder)
    }

    /// The directory.
    pub(super) fn path(&self) -> &Path {
        &self.path
    }

    /// Where the database lives: apart from our own files, for it has a lock of its own.
    pub(super) fn database(&self) -> PathBuf {
        self.path.join(DATABASE)
    }

    /// Marks an empty directory as ours. It is marked before anything else is put there, so whatever the power does, a
    /// directory without the mark holds nothing of ours.
    fn claim_for_ourselves(&self) -> io::Result<()> {
        let new = self.path.join(FORMAT_FILE_NEW);
        let mut file = File::create(&new)?;
        writeln!(file, "{FORMAT_PREFIX}{FORMAT}")?;
        file.sync_all()?;
        std::fs::rename(new, self.path.join(FORMAT_FILE))?;
        folder::sync(&self.path)?;
        folder::sync_parent(&self.path)
    }

    /// Takes away a database whose making was cut short, which would stand in the way of a new one. Nothing was ever
    /// kept in it: the version file is written last, and everything that keeps claims after that.
    fn clear_unfinished(&self) -> io::Result<()> {
        let database = self.database();
        let version = std::fs::metadata(database.join("version")).map_or(0, |version| version.len());
        let nothing_kept = std::fs::read_dir(database.join("keyspaces")).map_or(true, |mut kept| kept.next().is_none());
        if database.exists() && version == 0 && nothing_kept {
            std::fs::remove_dir_all(database)?;
        }
        Ok(())
    }
}

/// The format of what is in a directory; nothing if that is empty.
fn format(path: &Path) -> Result<Option<u32>, OpenError> {
    let foreign = || OpenError::Foreign(path.to_owned());
    match std::fs::read_to_string(path.join(FORMAT_FILE)) {
        Ok(text) => {
            let format = text.strip_prefix(FORMAT_PREFIX).and_then(|format| format.trim_end().parse().ok());
            format.map(Some).ok_or_else(foreign)
        }
        Err(error) if error.kind() == ErrorKind::NotFound => {
            let ours = [LOCK_FILE, FORMAT_FILE_NEW];
            for entry in std::fs::read_dir(path).map_err(|error| OpenError::io(path, error))? {
                let name = entry.map_err(|error| OpenError::io(path, error))?.file_name();
                // Made by another process meanwhile.
                if name == FORMAT_FILE {
                    return format(path);
                }
                if !ours.iter().any(|ours| name == *ours) {
                    return Err(foreign());
                }
            }
            Ok(None)
        }
        Err(error) if error.kind() == ErrorKind::InvalidData => Err(foreign()),
        Err(error) => Err(OpenError::io(path, error)),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_directory_is_made_marked_and_found_again() {
        let root = tempfile::tempdir().unwrap();
        let path = root.path().join("a/b");
        drop(Folder::take(&path).unwrap());
        assert_eq!(std::fs::read_to_string(path.join(FORMAT_FILE)).unwrap(), "oncegate claims, format 1\n");
        let held = Folder::take(&path).unwrap();
        let refused = Folder::take(&path).unwrap_err().to_string();
        let own = std::process::id();
        assert_eq!(refused, format!("{} is held by process {own}; one process only may use it", path.display()));
        drop(held);
        Folder::take(&path).unwrap();
    }

    #[test]
    fn what_is_not_ours_is_left_alone() {
        let root = tempfile::tempdir().unwrap();
        let file = root.path().join("file");
        std::fs::write(&file, "mine").unwrap();
        assert!(matches!(Folder::take(&file), Err(OpenError::NotADirectory(_))));
        assert!(matches!(Folder::take(&file.join("below")), Err(OpenError::NotADirectory(_))));
        assert!(matches!(Folder::take(root.path()), Err(OpenError::Foreign(_))));
        assert_eq!(std::fs::read_to_string(&file).unwrap(), "mine");
        let left: Vec<_> = std::fs::read_dir(root.path()).unwrap().map(|entry| entry.unwrap().file_name()).collect();
        assert_eq!(left, ["file"], "nothing is left behind");
    }

    #[test]
    fn a_newer_format_is_told() {
        let root = tempfile::tempdir().unwrap();
        std::fs::write(root.path().join(FORMAT_FILE), "oncegate claims, format 2\n").unwrap();
        let refused = Folder::take(root.path()).unwrap_err().to_string();
        assert!(
            refused.ends_with("was written by a newer release, in format 2; this release knows up to 1"),
            "{refused}"
        );
        std::fs::write(root.path().join(FORMAT_FILE), "something else").unwrap();
        assert!(matches!(Folder::take(root.path()), Err(OpenError::Foreign(_))));
    }

    #[test]
    fn a_database_whose_making_was_cut_short_is_made_anew() {
        let root = tempfile::tempdir().unwrap();
        let folder = Folder::take(root.path()).unwrap();
        std::fs::create_dir_all(folder.database().join("keyspaces")).unwrap();
        std::fs::write(folder.database().join("0.jnl"), "").unwrap();
        folder.clear_unfinished().unwrap();
        assert!(!folder.database().exists());
        // One that keeps something is never taken away, however odd it looks.
        std::fs::create_dir_all(folder.database().join("keyspaces/1")).unwrap();
        folder.clear_unfinished().unwrap();
        assert!(folder.database().exists());
    }
}
