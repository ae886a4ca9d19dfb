//! The folder of a disk engine: its lock, its format, and whether it contains claims at all. The database in it belongs to
//! `store`.

use std::fs::File;
use std::io::{self, ErrorKind, Write};
use std::path::{Path, PathBuf};

use oncegate_folder::{self as folder, FolderLock, Holder, LOCK_FILE, LockError};

/// The format that this release writes. Raised only when older releases cannot read what newer ones write.
const FORMAT: u32 = 1;
const FORMAT_PREFIX: &str = "oncegate claims, format ";

const FORMAT_FILE: &str = "FORMAT";
const FORMAT_FILE_NEW: &str = "FORMAT.new";
const DATABASE: &str = "db";

/// Reason why a folder could not be opened.
#[derive(Debug, thiserror::Error)]
pub enum DiskOpenError {
    /// Another process has locked it, or another engine of this process.
    #[error("{} is held by {}; only one process may use it", .0.display(), .1)]
    Held(PathBuf, Holder),
    /// The path is not a directory.
    #[error("{} is not a directory; name a directory to keep claims in", .0.display())]
    NotADirectory(PathBuf),
    /// The folder may not be read or written.
    #[error("no permission to use {}; the gateway must be able to read and write there", .0.display())]
    NoPermission(PathBuf),
    /// The folder contains something other than claims.
    #[error("{} contains other files, and no claims; name an empty directory", .0.display())]
    Foreign(PathBuf),
    /// The claims have a format that this release does not know.
    #[error("{} was written by a newer release, in format {}; this release knows up to {FORMAT}", .0.display(), .1)]
    Newer(PathBuf, u32),
    /// The folder into which a backup should be restored contains claims.
    #[error("{} contains claims already; a backup is restored into an empty folder, and overwrites nothing", .0.display())]
    NotEmpty(PathBuf),
    /// The claims cannot be read.
    #[error("{} cannot be read: {}", .0.display(), .1)]
    Damaged(PathBuf, String),
    /// The operating system reported an error.
    #[error("{}: {}", .0.display(), .1)]
    Io(PathBuf, #[source] io::Error),
}

impl DiskOpenError {
    /// Returns the error for an I/O error on this folder.
    pub(super) fn io(path: &Path, source: io::Error) -> Self {
        let path = path.to_owned();
        match source.kind() {
            ErrorKind::PermissionDenied | ErrorKind::ReadOnlyFilesystem => Self::NoPermission(path),
            ErrorKind::NotADirectory => Self::NotADirectory(path),
            _ => Self::Io(path, source),
        }
    }
}

/// A locked folder. The lock is released on drop.
#[derive(Debug)]
pub(super) struct Folder {
    path: PathBuf,
    _lock: FolderLock,
}

impl Folder {
    /// Locks a folder, and creates it if there is none.
    pub(super) fn open(path: &Path) -> Result<Self, DiskOpenError> {
        let io = |error| DiskOpenError::io(path, error);
        let folder = Self::lock(path)?;
        match format(path)? {
            Some(FORMAT) => {}
            Some(found) => return Err(DiskOpenError::Newer(path.to_owned(), found)),
            None => folder.write_format().map_err(io)?,
        }
        folder.remove_unfinished().map_err(io)?;
        Ok(folder)
    }

    /// Locks a folder without claims, and creates it if there is none. It gets its format by [`Self::write_format`].
    pub(super) fn open_empty(path: &Path) -> Result<Self, DiskOpenError> {
        let folder = Self::lock(path)?;
        if format(path)?.is_some() {
            return Err(DiskOpenError::NotEmpty(path.to_owned()));
        }
        Ok(folder)
    }

    fn lock(path: &Path) -> Result<Self, DiskOpenError> {
        let io = |error| DiskOpenError::io(path, error);
        folder::create(path).map_err(io)?;
        // A folder with other content is left untouched, even without a lock file.
        format(path)?;
        let lock = FolderLock::take(path).map_err(|error| match error {
            LockError::Held(holder) => DiskOpenError::Held(path.to_owned(), holder),
            LockError::Io(error) => io(error),
        })?;
        Ok(Self { path: path.to_owned(), _lock: lock })
    }

    /// Empties a folder that has got no format.
    pub(super) fn clear(self) {
        let _ = std::fs::remove_dir_all(self.database());
        for name in [FORMAT_FILE_NEW, LOCK_FILE] {
            let _ = std::fs::remove_file(self.path.join(name));
        }
    }

    pub(super) fn path(&self) -> &Path {
        &self.path
    }

    /// Returns the folder of the database. It has its own lock, so it is apart from our files.
    pub(super) fn database(&self) -> PathBuf {
        self.path.join(DATABASE)
    }

    /// Writes the format file. A folder without it contains no claims, also after a power loss: a new one gets it before anything
    /// else, a restored one after everything else.
    pub(super) fn write_format(&self) -> io::Result<()> {
        let new = self.path.join(FORMAT_FILE_NEW);
        let mut file = File::create(&new)?;
        writeln!(file, "{FORMAT_PREFIX}{FORMAT}")?;
        file.sync_all()?;
        std::fs::rename(new, self.path.join(FORMAT_FILE))?;
        folder::sync(&self.path)?;
        folder::sync_parent(&self.path)
    }

    /// Removes a database whose creation was interrupted, since it cannot be opened. It never contained a claim: the version
    /// file is written last, and claims after it.
    fn remove_unfinished(&self) -> io::Result<()> {
        let database = self.database();
        let version = std::fs::metadata(database.join("version")).map_or(0, |version| version.len());
        let is_empty =
            std::fs::read_dir(database.join("keyspaces")).map_or(true, |mut entries| entries.next().is_none());
        if database.exists() && version == 0 && is_empty {
            std::fs::remove_dir_all(database)?;
        }
        Ok(())
    }
}

/// Returns the format of the claims in a folder; nothing if the folder is empty.
fn format(path: &Path) -> Result<Option<u32>, DiskOpenError> {
    let foreign = || DiskOpenError::Foreign(path.to_owned());
    match std::fs::read_to_string(path.join(FORMAT_FILE)) {
        Ok(text) => {
            let format = text.strip_prefix(FORMAT_PREFIX).and_then(|format| format.trim_end().parse().ok());
            format.map(Some).ok_or_else(foreign)
        }
        Err(error) if error.kind() == ErrorKind::NotFound => {
            let ours = [LOCK_FILE, FORMAT_FILE_NEW];
            for entry in std::fs::read_dir(path).map_err(|error| DiskOpenError::io(path, error))? {
                let name = entry.map_err(|error| DiskOpenError::io(path, error))?.file_name();
                // Created by another process in the meantime.
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
        Err(error) => Err(DiskOpenError::io(path, error)),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_folder_is_created_with_its_format_and_found_again() {
        let root = tempfile::tempdir().unwrap();
        let path = root.path().join("a/b");
        drop(Folder::open(&path).unwrap());
        assert_eq!(std::fs::read_to_string(path.join(FORMAT_FILE)).unwrap(), "oncegate claims, format 1\n");
        let locked = Folder::open(&path).unwrap();
        let refused = Folder::open(&path).unwrap_err().to_string();
        let own = std::process::id();
        assert_eq!(refused, format!("{} is held by process {own}; only one process may use it", path.display()));
        drop(locked);
        Folder::open(&path).unwrap();
    }

    #[test]
    fn a_folder_with_other_content_is_left_untouched() {
        let root = tempfile::tempdir().unwrap();
        let file = root.path().join("file");
        std::fs::write(&file, "mine").unwrap();
        assert!(matches!(Folder::open(&file), Err(DiskOpenError::NotADirectory(_))));
        assert!(matches!(Folder::open(&file.join("below")), Err(DiskOpenError::NotADirectory(_))));
        assert!(matches!(Folder::open(root.path()), Err(DiskOpenError::Foreign(_))));
        assert_eq!(std::fs::read_to_string(&file).unwrap(), "mine");
        let left: Vec<_> = std::fs::read_dir(root.path()).unwrap().map(|entry| entry.unwrap().file_name()).collect();
        assert_eq!(left, ["file"], "no new file");
    }

    #[test]
    fn a_newer_format_is_rejected() {
        let root = tempfile::tempdir().unwrap();
        std::fs::write(root.path().join(FORMAT_FILE), "oncegate claims, format 2\n").unwrap();
        let refused = Folder::open(root.path()).unwrap_err().to_string();
        assert!(
            refused.ends_with("was written by a newer release, in format 2; this release knows up to 1"),
            "{refused}"
        );
        std::fs::write(root.path().join(FORMAT_FILE), "something else").unwrap();
        assert!(matches!(Folder::open(root.path()), Err(DiskOpenError::Foreign(_))));
    }

    #[test]
    fn a_database_whose_creation_was_interrupted_is_created_anew() {
        let root = tempfile::tempdir().unwrap();
        let folder = Folder::open(root.path()).unwrap();
        std::fs::create_dir_all(folder.database().join("keyspaces")).unwrap();
        std::fs::write(folder.database().join("0.jnl"), "").unwrap();
        folder.remove_unfinished().unwrap();
        assert!(!folder.database().exists());
        // A database with content is never removed.
        std::fs::create_dir_all(folder.database().join("keyspaces/1")).unwrap();
        folder.remove_unfinished().unwrap();
        assert!(folder.database().exists());
    }

    #[test]
    fn a_folder_that_may_not_be_used_is_told_from_one_that_cannot_be_read() {
        let error = |kind: ErrorKind| DiskOpenError::io(Path::new("claims"), kind.into());
        for kind in [ErrorKind::PermissionDenied, ErrorKind::ReadOnlyFilesystem] {
            assert!(matches!(error(kind), DiskOpenError::NoPermission(_)), "{kind}");
        }
        assert!(matches!(error(ErrorKind::NotADirectory), DiskOpenError::NotADirectory(_)));
        assert!(matches!(error(ErrorKind::StorageFull), DiskOpenError::Io(..)));
    }

    #[test]
    fn a_format_file_that_is_no_text_or_no_file_is_not_ours() {
        let root = tempfile::tempdir().unwrap();
        assert!(matches!(format(root.path()), Ok(None)));
        std::fs::write(root.path().join(FORMAT_FILE), [0xff, 0xfe]).unwrap();
        assert!(matches!(format(root.path()), Err(DiskOpenError::Foreign(_))));
        std::fs::remove_file(root.path().join(FORMAT_FILE)).unwrap();
        std::fs::create_dir(root.path().join(FORMAT_FILE)).unwrap();
        assert!(matches!(format(root.path()), Err(DiskOpenError::Io(..))));
    }
}
