//! A file system that is really full, and then not any more. Needs the right to mount.

use oncegate_core::engine::conformance::DEADLINE;
use oncegate_testkit::small_disk::SmallDisk;

use super::*;

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_full_disk_stops_answers_and_they_come_back_with_free_space() {
    let Some(small) = SmallDisk::mount() else { return };
    let disk = open(&small.path().join("claims"), &noon());
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
