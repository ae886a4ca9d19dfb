//! Writes the journals of a database again before it is opened, so that all data that is read from them is on the disk.

use std::fs::File;
use std::io::{self, ErrorKind, Write as _};
use std::path::Path;

use oncegate_folder as folder;

/// Replaces each journal by a copy of its content, durably.
///
/// After a kill, a journal may have a batch that was written and not synced. After a failed fsync, the kernel may show
/// such a batch as if it were on the disk, and a second fsync may succeed without writing it. Only new writes are
/// certain to reach the disk or to fail.
pub(super) fn rewrite(database: &Path) -> io::Result<()> {
    let entries = match std::fs::read_dir(database) {
        Ok(entries) => entries,
        Err(error) if error.kind() == ErrorKind::NotFound => return Ok(()),
        Err(error) => return Err(error),
    };
    for entry in entries {
        let path = entry?.path();
        if path.extension().is_none_or(|extension| extension != "jnl") {
            continue;
        }
        let bytes = std::fs::read(&path)?;
        // A batch ends with another byte: zeros at the end are space that was reserved.
        let Some(last) = bytes.iter().rposition(|byte| *byte != 0) else { continue };
        let copy = path.with_extension("jnl.new");
        let mut file = File::create(&copy)?;
        file.write_all(&bytes[..=last])?;
        file.sync_all()?;
        std::fs::rename(copy, path)?;
    }
    folder::sync(database)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_journal_is_written_again_without_reserved_space_and_other_files_stay() {
        let root = tempfile::tempdir().unwrap();
        let write = |name: &str, bytes: &[u8]| std::fs::write(root.path().join(name), bytes).unwrap();
        write("0.jnl", b"ab\0c\0\0\0");
        write("1.jnl", b"\0\0");
        write("version", b"x\0");
        let inode = |name: &str| {
            use std::os::unix::fs::MetadataExt as _;
            std::fs::metadata(root.path().join(name)).unwrap().ino()
        };
        let before = ["0.jnl", "version"].map(inode);
        rewrite(root.path()).unwrap();
        let read = |name: &str| std::fs::read(root.path().join(name)).unwrap();
        assert_eq!((read("0.jnl"), read("1.jnl"), read("version")), (b"ab\0c".into(), b"\0\0".into(), b"x\0".into()));
        let after = ["0.jnl", "version"].map(inode);
        assert!(before[0] != after[0] && before[1] == after[1], "{before:?} {after:?}");
        assert_eq!(std::fs::read_dir(root.path()).unwrap().count(), 3);
        rewrite(&root.path().join("absent")).unwrap();
    }
}
