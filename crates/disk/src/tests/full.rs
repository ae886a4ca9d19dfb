//! A file system that is really full, and then not any more. Needs the right to mount.

use std::path::PathBuf;
use std::process::Command;

use oncegate_core::engine::conformance::DEADLINE;

use super::*;

/// A mounted file system of a few MiB.
struct SmallDisk {
    folder: TempDir,
}

impl SmallDisk {
    fn mount() -> Option<Self> {
        let folder = TempDir::new().unwrap();
        let mut mount = Command::new("mount");
        let mounted = mount.args(["-t", "tmpfs", "-o", "size=4m", "tmpfs"]).arg(folder.path()).output();
        if mounted.is_ok_and(|output| output.status.success()) {
            return Some(Self { folder });
        }
        eprintln!("SKIPPED: a full disk is not tested, since this process may not mount a file system");
        None
    }

    /// Writes zeros until there is no space left; returns the file.
    fn fill(&self) -> PathBuf {
        let ballast = self.folder.path().join("ballast");
        let mut file = std::fs::File::create(&ballast).unwrap();
        while std::io::Write::write_all(&mut file, &[0; 512]).is_ok() {}
        ballast
    }
}

impl Drop for SmallDisk {
    fn drop(&mut self) {
        let _ = Command::new("umount").arg("--lazy").arg(self.folder.path()).status();
    }
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_full_disk_stops_answers_and_they_come_back_with_free_space() {
    let Some(small) = SmallDisk::mount() else { return };
    let disk = open(&small.folder.path().join("claims"), &noon());
    let kept = fresh_claim();
    grant(&disk, &kept).await;
    for _ in 0..2 {
        let ballast = small.fill();
        // A journal may have room on its last page.
        let fails = async {
            let mut granted = Vec::new();
            loop {
                let request = fresh_claim();
                match disk.claim(&request, DEADLINE).await {
                    Ok(_) => granted.push(request),
                    Err(why) => return (granted, request, why),
                }
            }
        };
        let (granted, lost, why) = tokio::time::timeout(Duration::from_mins(1), fails).await.expect("the disk is full");
        assert!(matches!(why, EngineError::Indeterminate(_)), "{why}");
        // While the disk is full, the engine answers no call, and its probe fails.
        for _ in 0..3 {
            tokio::time::sleep(Duration::from_millis(120)).await;
            assert!(disk.probe().await.is_err() && disk.read(&kept.key).await.is_err());
        }
        std::fs::remove_file(ballast).unwrap();
        let answers = async { while disk.probe().await.is_err() {} };
        tokio::time::timeout(Duration::from_secs(10), answers).await.expect("it answers again, without a restart");
        grant(&disk, &lost).await;
        for request in granted.iter().chain([&kept]) {
            assert_eq!(disk.read(&request.key).await.unwrap().unwrap().record.attempt, request.attempt);
        }
    }
}
