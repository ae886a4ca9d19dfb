//! Folders that one process may use at a time: creation, lock, and durable names. The content is up to the callers.

use std::fmt;
use std::fs::{self, DirBuilder, File, TryLockError};
use std::io::{self, ErrorKind, Write as _};
use std::path::Path;

/// Name of the lock file in a folder. It contains the ID of the process that has the lock.
pub const LOCK_FILE: &str = "LOCK";

/// Lock of a folder, until this is dropped or the process ends.
#[derive(Debug)]
pub struct FolderLock(File);

/// Reason why a folder is not locked.
#[derive(Debug)]
pub enum LockError {
    /// Another process has the lock, or this process has it already.
    Held(Holder),
    /// The operating system refused.
    Io(io::Error),
}

/// Process that has the lock, as its lock file says.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Holder(Option<u32>);

impl Holder {
    /// A process of unknown ID.
    pub const UNKNOWN: Self = Self(None);
}

impl fmt::Display for Holder {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self.0 {
            Some(process) => write!(f, "process {process}"),
            None => f.write_str("another process"),
        }
    }
}

impl FolderLock {
    /// Locks an existing folder.
    pub fn take(folder: &Path) -> Result<Self, LockError> {
        let path = folder.join(LOCK_FILE);
        let mut file =
            File::options().read(true).write(true).create(true).truncate(false).open(&path).map_err(LockError::Io)?;
        match file.try_lock() {
            Ok(()) => {}
            Err(TryLockError::WouldBlock) => {
                let holder = fs::read_to_string(path).ok().and_then(|text| text.trim().parse().ok());
                return Err(LockError::Held(Holder(holder)));
            }
            Err(TryLockError::Error(error)) => return Err(LockError::Io(error)),
        }
        // For people only, so a full disk is no reason to fail.
        drop(file.set_len(0).and_then(|()| writeln!(file, "{}", std::process::id())));
        Ok(Self(file))
    }
}

impl Drop for FolderLock {
    /// Closing the file is not enough: a child that is being started shares the open file, and so the lock, for a
    /// moment.
    fn drop(&mut self) {
        drop(self.0.unlock());
    }
}

/// Creates a folder that only the gateway's user may enter, and the folders above it. Does nothing if it exists.
///
/// # Errors
/// The operating system's error; `NotADirectory` if the path is something else.
pub fn create(path: &Path) -> io::Result<()> {
    if path.is_dir() {
        return Ok(());
    }
    let mut builder = DirBuilder::new();
    builder.recursive(true);
    #[cfg(unix)]
    std::os::unix::fs::DirBuilderExt::mode(&mut builder, 0o700);
    match builder.create(path) {
        Err(error) if error.kind() == ErrorKind::AlreadyExists => return Err(ErrorKind::NotADirectory.into()),
        created => created?,
    }
    sync_parent(path)
}

/// Makes the names in a folder durable.
pub fn sync(path: &Path) -> io::Result<()> {
    if cfg!(unix) { File::open(path)?.sync_all() } else { Ok(()) }
}

/// Makes the name of a folder durable.
pub fn sync_parent(path: &Path) -> io::Result<()> {
    // A relative path of one part is in the current directory, which is not ours to sync.
    path.parent().filter(|parent| !parent.as_os_str().is_empty()).map_or(Ok(()), sync)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_second_lock_names_the_process_that_has_the_first() {
        let root = tempfile::tempdir().unwrap();
        let folder = root.path().join("a/b");
        create(&folder).unwrap();
        let held = FolderLock::take(&folder).unwrap();
        match FolderLock::take(&folder).unwrap_err() {
            LockError::Held(holder) => assert_eq!(holder.to_string(), format!("process {}", std::process::id())),
            LockError::Io(error) => panic!("{error}"),
        }
        drop(held);
        fs::write(folder.join(LOCK_FILE), "of an earlier release").unwrap();
        let _held = FolderLock::take(&folder).unwrap();
        assert!(matches!(create(&folder.join(LOCK_FILE)).unwrap_err().kind(), ErrorKind::NotADirectory));
    }

    #[cfg(unix)]
    #[test]
    fn a_folder_is_for_its_user_alone_and_an_error_names_its_cause() {
        use std::os::unix::fs::PermissionsExt;

        let root = tempfile::tempdir().unwrap();
        let folder = root.path().join("a/b");
        create(&folder).unwrap();
        create(&folder).unwrap();
        assert_eq!(fs::metadata(&folder).unwrap().permissions().mode() & 0o777, 0o700);
        let file = root.path().join("file");
        fs::write(&file, "").unwrap();
        assert_eq!(create(&file.join("below")).unwrap_err().kind(), ErrorKind::NotADirectory);
        let name = "x".repeat(300);
        assert_ne!(create(&root.path().join(name)).unwrap_err().kind(), ErrorKind::NotADirectory);
        assert!(sync(&root.path().join("none")).is_err() && sync(root.path()).is_ok());
        assert!(sync_parent(&root.path().join("none/a")).is_err());
        assert!(sync_parent(Path::new("a")).is_ok(), "the current directory is not ours");
    }
}
