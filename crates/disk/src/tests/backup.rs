//! Backups and restores, without a gateway.

use futures_util::StreamExt as _;
use oncegate_core::engine::KEPT_PREFIX;

use super::super::restore::restore;
use super::*;

async fn begin(disk: &Disk) -> Backup {
    disk.backup().await.unwrap().expect("a disk engine makes backups")
}

fn metadata(disk: &Disk) -> &dyn oncegate_core::engine::Engine {
    disk
}

async fn collect(mut backup: Backup) -> Result<Vec<u8>, EngineError> {
    let mut bytes = Vec::new();
    while let Some(piece) = backup.next().await {
        bytes.extend(piece?);
    }
    Ok(bytes)
}

#[tokio::test]
async fn a_restored_store_has_what_was_stored_and_lacks_the_record_that_it_lacks_nothing() {
    let root = TempDir::new().unwrap();
    let (clock, [old, new]) = (noon(), ["old", "new"].map(|name| root.path().join(name)));
    let disk = open(&old, &clock);
    let [done, running, later] = [0; 3].map(|_| fresh_claim());
    grant(&disk, &done).await;
    disk.settle(&settle(&done, success()), DEADLINE).await.unwrap();
    let fence = grant(&disk, &running).await;
    let kept = Metadata::new("here").unwrap();
    for name in [format!("{KEPT_PREFIX}default"), "chain.default".into()] {
        assert!(metadata(&disk).compare_and_set_metadata(&name, None, &kept).await.unwrap());
    }
    let backup = begin(&disk).await;
    grant(&disk, &later).await;
    let bytes = collect(backup).await.unwrap();
    assert_eq!(disk.data_lost(), 0);
    drop(disk);

    let summary = restore(&new, &mut &bytes[..]).unwrap();
    assert_eq!((&*summary.engine, summary.made_at, summary.rows), ("disk", NOON, 5));
    let disk = open(&new, &clock);
    assert_eq!(disk.data_lost(), 1);
    for request in [&done, &running] {
        assert_eq!(disk.read(&request.key).await.unwrap().unwrap().record.attempt, request.attempt);
    }
    assert_eq!(disk.read(&later.key).await.unwrap(), None);
    assert_eq!(metadata(&disk).get_metadata(&format!("{KEPT_PREFIX}default")).await.unwrap(), None);
    assert_eq!(metadata(&disk).get_metadata("chain.default").await.unwrap(), Some(kept));
    assert!(grant(&disk, &later).await > fence, "fences keep rising");
    // What ends is found, and deleted.
    clock.advance(Duration::from_hours(48));
    assert_eq!(disk.read(&running.key).await.unwrap(), None);
    drop(disk);
    assert_eq!(open(&new, &clock).data_lost(), 0, "it is reported once");
    let again = restore(&new, &mut &bytes[..]).unwrap_err().to_string();
    assert!(again.contains("contains claims already"), "{again}");
}

#[tokio::test]
async fn closing_the_engine_ends_its_backup_and_does_not_wait_for_it() {
    let root = TempDir::new().unwrap();
    let disk = open(root.path(), &noon());
    for _ in 0..100 {
        let request = fresh_claim();
        grant(&disk, &request).await;
        let result = Outcome::Success { result: Some(format!("\"{}\"", "x".repeat(60_000)).into()), retention: None };
        disk.settle(&settle(&request, result), DEADLINE).await.unwrap();
    }
    let mut backup = begin(&disk).await;
    backup.next().await.unwrap().unwrap();
    let refused = disk.backup().await.err().unwrap();
    assert!(refused.to_string().contains("another backup of it is in progress"), "{refused}");
    drop(disk);
    drop(open(root.path(), &noon()));
    let why = collect(backup).await.unwrap_err();
    assert!(why.to_string().contains("closed during the backup"), "{why}");
    // A backup whose stream is dropped makes room for the next.
    let disk = open(root.path(), &noon());
    drop(begin(&disk).await);
    while disk.backup().await.is_err() {}
}
