//! Folders of the servers that tests start.

use std::sync::LazyLock;

use tempfile::TempDir;

/// Folder of Linux for files in memory.
const MEMORY: &str = "/dev/shm";

/// Enough room for the servers of all concurrent tests.
const ROOM: u64 = 4 << 30;

/// Returns an empty folder, in memory if there is room: an fsync there does not wait for the writes of others. A killed
/// process loses nothing of it.
pub(crate) fn temporary() -> TempDir {
    static HAS_ROOM: LazyLock<bool> = LazyLock::new(|| {
        rustix::fs::statvfs(MEMORY).is_ok_and(|memory| memory.f_bavail.saturating_mul(memory.f_frsize) >= ROOM)
    });
    let folder = if *HAS_ROOM { tempfile::tempdir_in(MEMORY) } else { tempfile::tempdir() };
    folder.expect("a folder for the server")
}
