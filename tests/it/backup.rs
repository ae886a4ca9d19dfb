//! Backups of the disk engine: made under traffic, restored into an empty folder, and never half of either.

use std::fs;
use std::path::Path;
use std::process::{Command, Stdio};
use std::time::Duration;

use oncegate_testkit::gateway::Gateway;
use oncegate_testkit::wait::until;
use serde_json::{Value, json};
use tokio::io::{AsyncReadExt as _, AsyncWriteExt as _};

use crate::admin::{TOKEN, alice, operated};
use crate::support::command::{Ended, oncegate, oncegate_with};

fn url(folder: &Path) -> String {
    format!("disk:{}", folder.display())
}

/// Runs `oncegate backup` in a folder.
fn backup(gateway: &Gateway, folder: &Path, words: &[&str]) -> Ended {
    let admin = format!("http://{}", gateway.admin());
    let words = [&["backup", "--admin", &admin], words].concat();
    oncegate_with(folder, &words, &[("ONCEGATE_ADMIN_TOKEN", TOKEN)])
}

fn order(number: u64) -> Value {
    json!({ "operation": "order.submit", "contents": { "number": number }, "lease": "10m" })
}

/// Names of the files in a folder.
fn files(folder: &Path) -> Vec<String> {
    let entries = fs::read_dir(folder).unwrap().map(|entry| entry.unwrap().file_name().into_string().unwrap());
    let mut names: Vec<_> = entries.collect();
    names.sort();
    names
}

/// Completes orders from this number on until it is dropped. Returns the number of the first that was not completed.
async fn traffic(gateway: &Gateway, first: u64) -> u64 {
    let client = gateway.client();
    let mut number = first;
    loop {
        let granted = client.post("/v1/claims", &order(number)).await.expect(201);
        client.settle(&granted, "success").await.expect(200);
        number += 1;
        if number >= first + 200 {
            return number;
        }
    }
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_backup_under_traffic_is_restored_with_every_success_before_it_and_grants_are_frozen() {
    let root = tempfile::tempdir().unwrap();
    let [claims, restored] = ["claims", "restored"].map(|name| root.path().join(name));
    let frozen = "[chains.default]\nengines = [\"primary\"]\non_data_loss = \"freeze\"\n[defaults]\nlease = \"8s\"\n";
    let mut gateway = operated(&url(&claims)).config(frozen).data_dir(&root.path().join("data")).start().await;
    let client = gateway.client();
    let is_granted = async || client.post("/v1/claims", &order(1_000_000)).await.status == 201;
    until("the freeze of the new store is over", Duration::from_mins(1), is_granted).await;
    let acknowledged = traffic(&gateway, 0).await;
    client.post("/v1/claims", &order(1_000_001)).await.expect(201);
    let (made, _) = tokio::join!(
        async {
            tokio::task::block_in_place(|| backup(&gateway, root.path(), &["--to", "a.backup", "--reason", "INC-1"]))
        },
        traffic(&gateway, 10_000),
    );
    let made = made.expect(0);
    assert!(made.out.starts_with("Wrote a.backup: ") && made.out.contains(" rows, as they were at 2"), "{}", made.out);
    let trail = alice(&gateway).get("/admin/v1/audit?limit=1").await.expect(200);
    let entry = &trail.body["entries"][0];
    assert_eq!([&entry["action"], &entry["result"], &entry["reason"]], ["engine.backup", "started", "INC-1"]);
    assert_eq!(entry["detail"], "engine: primary");
    gateway.kill();

    let engine = url(&restored);
    let checked = oncegate(root.path(), &["restore", "a.backup", "--check"]).expect(0);
    assert!(checked.out.starts_with("a.backup is complete: "), "{}", checked.out);
    let done = oncegate(root.path(), &["restore", "a.backup", "--engine", &engine]).expect(0);
    assert!(done.out.starts_with(&format!("Restored {engine}: ")) && done.out.contains("on_data_loss"), "{}", done.out);

    let gateway = operated(&engine).config(frozen).data_dir(&root.path().join("data")).start().await;
    gateway.logged("The store was restored from a backup", 1).await;
    gateway.logged("Grants are frozen", 1).await;
    let client = gateway.client();
    let unseen = client.post("/v1/claims", &order(2_000_000)).await;
    assert_eq!(unseen.code(), (503, "store_unavailable"), "{}", unseen.text);
    for number in 0..acknowledged {
        let answer = client.post("/v1/claims", &order(number)).await;
        assert_eq!((answer.code(), &answer.body["state"]), ((409, "duplicate"), &json!("succeeded")), "{number}");
    }
    let running = client.post("/v1/claims", &order(1_000_001)).await.expect(409);
    assert_eq!(running.body["state"], "in_progress");
    let metrics = gateway.admin_client().get("/metrics").await.text;
    assert!(metrics.contains("oncegate_engine_data_lost_total{engine=\"primary\"} 1"), "{metrics}");
    let is_granted = async || client.post("/v1/claims", &order(2_000_000)).await.status == 201;
    until("the freeze is over", Duration::from_mins(1), is_granted).await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_backup_overwrites_nothing_and_says_what_is_wrong() {
    let root = tempfile::tempdir().unwrap();
    let claims = root.path().join("claims");
    let gateway = operated(&url(&claims)).data_dir(&root.path().join("data")).start().await;
    traffic(&gateway, 0).await;
    backup(&gateway, root.path(), &["--to", "a.backup"]).expect(0);
    let before = fs::read(root.path().join("a.backup")).unwrap();
    for (words, code, expected) in [
        (&["--to", "a.backup"][..], 3, "a.backup exists; a backup overwrites nothing"),
        (&["--to", "none/b.backup"], 1, "Cannot write none/b.backup"),
        (&["--to", "claims"], 3, "claims exists"),
        (&["--to", "b.backup", "--engine", "spare"], 2, "the gateway has no engine `spare`; it has: primary"),
        (&["--to", "b.backup", "--engine", "redis:"], 2, "--engine: "),
        (&["--to", "b.backup", "--engine", "memory:"], 1, "memory makes no backups"),
        (&["--to", "b.backup", "--engine", "disk:./none"], 1, "./none is not the folder of a disk engine"),
        (&["--to", "b.backup", "--engine", "disk:./claims"], 1, "only one process may use it"),
        (&["--to", "b.backup", "--reason", ""], 2, "--reason <REASON>': a reason is one line"),
    ] {
        let refused = backup(&gateway, root.path(), words).expect(code);
        assert!(refused.err.to_lowercase().contains(&expected.to_lowercase()), "{words:?}: {}", refused.err);
    }
    let wrong = oncegate_with(
        root.path(),
        &["backup", "--to", "b.backup", "--admin", &format!("http://{}", gateway.api())],
        &[("ONCEGATE_ADMIN_TOKEN", TOKEN)],
    );
    assert!(wrong.expect(1).err.contains("is the API of a gateway"));
    assert_eq!(files(root.path()), ["a.backup", "claims", "data"], "nothing is left");
    assert_eq!(fs::read(root.path().join("a.backup")).unwrap(), before);

    let alice = alice(&gateway);
    let path = "/admin/v1/engines/spare/backup";
    assert_eq!(alice.post(path, &json!({ "reason": "r" })).await.code(), (404, "not_found"));
    let unreasoned = alice.post("/admin/v1/engines/primary/backup", &json!({})).await;
    assert_eq!(unreasoned.code(), (400, "invalid_request"));
    let unauthenticated = gateway.admin_client().post("/admin/v1/engines/primary/backup", &json!({})).await;
    assert_eq!(unauthenticated.code(), (401, "unauthenticated"));
    drop(gateway);
    // Without a gateway, from the folder.
    let stopped = ["backup", "--to", "b.backup", "--engine", "disk:./claims"];
    oncegate(root.path(), &stopped).expect(0);
    oncegate(root.path(), &["restore", "b.backup", "--engine", "disk:./again"]).expect(0);
}

#[tokio::test]
async fn other_engines_make_no_backups() {
    let root = tempfile::tempdir().unwrap();
    let gateway = operated("memory:").data_dir(&root.path().join("data")).start().await;
    let none = backup(&gateway, root.path(), &["--to", "a.backup"]).expect(3);
    assert!(
        none.err.contains("no disk engine. Back up Redis, PostgreSQL, etcd and ZooKeeper with their own tools"),
        "{}",
        none.err
    );
    let named = backup(&gateway, root.path(), &["--to", "a.backup", "--engine", "primary"]).expect(1);
    assert!(named.err.contains("Engine `primary` makes no backups"), "{}", named.err);
    assert_eq!(files(root.path()), ["data"]);
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_restore_is_complete_or_leaves_nothing() {
    let root = tempfile::tempdir().unwrap();
    let claims = root.path().join("claims");
    let gateway = operated(&url(&claims)).data_dir(&root.path().join("data")).start().await;
    traffic(&gateway, 0).await;
    backup(&gateway, root.path(), &["--to", "a.backup"]).expect(0);
    let whole = fs::read(root.path().join("a.backup")).unwrap();
    let mut damaged = whole.clone();
    damaged[whole.len() / 2] ^= 1;
    fs::write(root.path().join("damaged.backup"), damaged).unwrap();
    fs::write(root.path().join("short.backup"), &whole[..whole.len() - 7]).unwrap();
    fs::write(root.path().join("text.backup"), "claims").unwrap();
    fs::create_dir(root.path().join("empty")).unwrap();
    fs::create_dir(root.path().join("full")).unwrap();
    fs::write(root.path().join("full/notes.txt"), "mine").unwrap();
    for (file, engine, code, expected) in [
        ("short.backup", "disk:./new", 1, "it is truncated"),
        ("damaged.backup", "disk:./new", 1, "it is damaged: its checksum is wrong"),
        ("text.backup", "disk:./new", 1, "it is not a backup of Oncegate"),
        ("short.backup", "disk:./empty", 1, "it is truncated"),
        ("none.backup", "disk:./new", 1, "cannot read none.backup"),
        ("a.backup", "disk:./claims", 1, "is held by process"),
        ("a.backup", "disk:./full", 1, "contains other files"),
        ("a.backup", "memory:", 1, "a backup is restored into disk:PATH"),
        ("a.backup", "./new", 2, "--engine: an engine is written as"),
    ] {
        let refused = oncegate(root.path(), &["restore", file, "--engine", engine]).expect(code);
        assert!(refused.err.to_lowercase().contains(&expected.to_lowercase()), "{file} {engine}: {}", refused.err);
    }
    assert!(!root.path().join("new").exists());
    assert!(files(&root.path().join("empty")).is_empty());
    assert_eq!(files(&root.path().join("full")), ["notes.txt"]);
    for file in ["short.backup", "damaged.backup", "text.backup"] {
        oncegate(root.path(), &["restore", file, "--check"]).expect(1);
    }
    oncegate(root.path(), &["restore", "a.backup", "--engine", "disk:./empty"]).expect(0);
    let twice = oncegate(root.path(), &["restore", "a.backup", "--engine", "disk:./empty"]).expect(1);
    assert!(twice.err.contains("contains claims already"), "{}", twice.err);
}

/// A client that reads nothing keeps its backup waiting. During that time a second backup is refused, and calls are
/// answered.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn two_backups_at_once_do_not_disturb_each_other_or_the_gateway() {
    let root = tempfile::tempdir().unwrap();
    let claims = root.path().join("claims");
    let mut gateway = operated(&url(&claims)).data_dir(&root.path().join("data")).start().await;
    let client = gateway.client();
    // More than the buffers of the sockets hold.
    let result = "y".repeat(60_000);
    for number in 0..300 {
        let granted = client.post("/v1/claims", &order(number)).await.expect(201);
        client.report(&granted, json!({ "outcome": "success", "result": result })).await.expect(200);
    }
    // It has a small buffer, so that its kernel does not read for it.
    let socket = tokio::net::TcpSocket::new_v4().unwrap();
    socket.set_recv_buffer_size(4096).unwrap();
    let mut stalled = socket.connect(gateway.admin()).await.unwrap();
    let body = r#"{"reason":"stalled"}"#;
    let request = format!(
        "POST /admin/v1/engines/primary/backup HTTP/1.1\r\nHost: {}\r\nAuthorization: Bearer {TOKEN}\r\n\
         Content-Type: application/json\r\nContent-Length: {}\r\n\r\n{body}",
        gateway.admin(),
        body.len()
    );
    stalled.write_all(request.as_bytes()).await.unwrap();
    let mut first = [0; 12];
    stalled.read_exact(&mut first).await.unwrap();
    assert_eq!(&first, b"HTTP/1.1 200");
    let second = backup(&gateway, root.path(), &["--to", "b.backup"]).expect(1);
    assert!(second.err.contains("another backup of it is in progress"), "{}", second.err);
    traffic(&gateway, 1_000_000).await;
    drop(stalled);
    let is_made = async || backup(&gateway, root.path(), &["--to", "b.backup"]).code == Some(0);
    until("the first one has ended", Duration::from_mins(1), is_made).await;

    // A gateway that stops does not wait for a backup, and the client is left without a file.
    let admin = format!("http://{}", gateway.admin());
    let mut interrupted = Command::new(env!("CARGO_BIN_EXE_oncegate"))
        .args(["backup", "--to", "c.backup", "--admin", &admin])
        .current_dir(root.path())
        .env("ONCEGATE_ADMIN_TOKEN", TOKEN)
        .stderr(Stdio::piped())
        .spawn()
        .unwrap();
    let has_begun = async || files(root.path()).iter().any(|name| name.ends_with(".partial"));
    until("the backup begins", Duration::from_secs(20), has_begun).await;
    gateway.kill();
    let code = interrupted.wait().unwrap().code();
    // It may have been complete before the kill.
    let left = files(root.path());
    assert_eq!(code == Some(0), left.contains(&"c.backup".to_owned()), "{code:?} {left:?}");
    assert!(!left.iter().any(|name| name.ends_with(".partial")), "{left:?}");
}

#[test]
fn a_backup_onto_a_full_disk_leaves_nothing_behind() {
    let root = tempfile::tempdir().unwrap();
    let small = root.path().join("small");
    fs::create_dir(&small).unwrap();
    // In a separate mount namespace, which ends with the process.
    let script = "mount -t tmpfs -o size=64k tmpfs small || { echo SKIPPED; exit 0; }\n\
                  \"$0\" backup --to small/a.backup --engine disk:./claims; echo \"code $?\"; ls -A small\n\
                  \"$0\" backup --to a.backup --engine disk:./claims >&2 || exit 1\n\
                  mount -o remount,size=512k small\n\
                  \"$0\" restore a.backup --engine disk:./small/claims; echo \"code $?\"; ls -A small";
    let runtime = tokio::runtime::Runtime::new().unwrap();
    runtime.block_on(async {
        let gateway = operated(&url(&root.path().join("claims"))).start().await;
        for number in 0..20 {
            let granted = gateway.client().post("/v1/claims", &order(number)).await.expect(201);
            let fields = json!({ "outcome": "success", "result": "z".repeat(50_000) });
            gateway.client().report(&granted, fields).await.expect(200);
        }
    });
    let output = Command::new("unshare")
        .args(["--mount", "sh", "-c", script, env!("CARGO_BIN_EXE_oncegate")])
        .current_dir(root.path())
        .output();
    let Ok(output) = output else { return eprintln!("SKIPPED: there is no unshare") };
    let (out, err) = (String::from_utf8_lossy(&output.stdout), String::from_utf8_lossy(&output.stderr));
    if out.is_empty() || out.contains("SKIPPED") {
        return eprintln!("SKIPPED: a full disk is not tested, since this process may not mount a file system: {err}");
    }
    assert_eq!(out, "code 1\ncode 1\n", "{err}");
    assert_eq!(err.matches("o space left on device").count(), 2, "{err}");
}
