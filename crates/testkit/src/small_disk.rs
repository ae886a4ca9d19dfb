//! A small file system that a test fills. Needs the right to mount.

use std::fs::File;
use std::io::Write as _;
use std::path::{Path, PathBuf};
use std::process::Command;

use tempfile::TempDir;

/// A mounted file system of 4 MiB.
pub struct SmallDisk {
    folder: TempDir,
}

impl SmallDisk {
    /// Mounts one; `None`, loudly, where this process may not.
    #[expect(clippy::print_stderr, reason = "a skipped test must be visible")]
    pub fn mount() -> Option<Self> {
        let folder = TempDir::new().expect("a folder");
        let mut mount = Command::new("mount");
        let mounted = mount.args(["-t", "tmpfs", "-o", "size=4m", "tmpfs"]).arg(folder.path()).output();
        if mounted.is_ok_and(|output| output.status.success()) {
            return Some(Self { folder });
        }
        eprintln!("SKIPPED: a full disk is not tested, since this process may not mount a file system");
        None
    }

    /// Returns where it is mounted.
    pub fn path(&self) -> &Path {
        self.folder.path()
    }

    /// Writes zeros until there is no space left; returns the file.
    pub fn fill(&self) -> PathBuf {
        let ballast = self.path().join("ballast");
        let mut file = File::create(&ballast).expect("a file");
        while file.write_all(&[0; 512]).is_ok() {}
        ballast
    }
}

impl Drop for SmallDisk {
    fn drop(&mut self) {
        let _ = Command::new("umount").arg("--lazy").arg(self.path()).status();
    }
}
