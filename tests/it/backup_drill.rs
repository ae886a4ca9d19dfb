//! Backups every night, and the restore drill: the files of `deploy/` and the page, as they are written.

use std::fs;
use std::os::unix::fs::PermissionsExt as _;
use std::path::{Path, PathBuf};
use std::process::{Command, Output};
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};

use oncegate_testkit::fresh;
use oncegate_testkit::gateway::Gateway;
use oncegate_testkit::missing::tool;
use serde_json::{Value, json};

use crate::admin::{TOKEN, operated};

const PAGE: &str = include_str!("../../docs/engines/disk.md");
const DAY: u64 = 86_400;

fn root() -> &'static Path {
    Path::new(env!("CARGO_MANIFEST_DIR"))
}

fn said(output: &Output) -> String {
    String::from_utf8_lossy(&[&output.stdout[..], &output.stderr].concat()).into_owned()
}

/// A command that finds the program under test, the script of backups, and the gateway.
#[expect(clippy::disallowed_methods, reason = "what a test starts needs the PATH of the test")]
fn prepared(mut command: Command, gateway: &Gateway, folder: &Path) -> Command {
    let program = Path::new(env!("CARGO_BIN_EXE_oncegate")).parent().expect("the folder of the program");
    let path = std::env::var("PATH").expect("a PATH");
    let path = format!("{}:{}:{path}", program.display(), root().join("deploy/backup").display());
    command.env("PATH", path).env("ONCEGATE_ADMIN_URL", format!("http://{}", gateway.admin())).current_dir(folder);
    command
}

/// The backups in a folder, oldest first.
fn backups(folder: &Path) -> Vec<PathBuf> {
    let mut files: Vec<_> =
        fs::read_dir(folder).expect("a folder").map(|entry| entry.expect("a file").path()).collect();
    files.sort();
    files
}

async fn on_disk(folder: &Path) -> Gateway {
    operated(&format!("disk:{}", folder.join("claims").display())).data_dir(&folder.join("data")).start().await
}

/// Runs the words that a unit, the cron line and the manifests have in common, with the folder and the token of this test.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn nightly_backups_are_rotated_and_a_failed_one_deletes_nothing() {
    let root = tempfile::tempdir().expect("a folder");
    let folder = root.path().join("backups");
    let token = root.path().join("token");
    fs::write(&token, TOKEN).expect("it is written");
    fs::set_permissions(&token, fs::Permissions::from_mode(0o400)).expect("they are set");
    let mut gateway = on_disk(root.path()).await;
    let run = |gateway: &Gateway, days: &str| {
        let mut command = prepared(Command::new("oncegate-backup"), gateway, root.path());
        command.arg(&folder).arg(days).arg("--token-file").arg(&token).output().expect("it runs")
    };
    let absent = run(&gateway, "30");
    assert!(absent.status.code() == Some(1) && said(&absent).contains("there is no folder"), "{}", said(&absent));
    fs::create_dir(&folder).expect("it is made");
    for wrong in ["", "30d", "-1"] {
        let refused = run(&gateway, wrong);
        assert!(refused.status.code() == Some(2) && said(&refused).contains("usage: "), "{wrong}: {}", said(&refused));
    }
    // Files that are a month and a day old, and ten days old; the rest of a killed backup; a file that is no backup.
    for (name, days) in [
        ("oncegate-20260101T031700Z.backup", 32),
        ("oncegate-20260102T031700Z.backup.7.partial", 32),
        ("oncegate-20260122T031700Z.backup", 10),
        ("notes.txt", 400),
    ] {
        let file = fs::File::create(folder.join(name)).expect("a file");
        let then = file.metadata().expect("its metadata").modified().expect("a time")
            - std::time::Duration::from_secs(days * DAY);
        file.set_modified(then).expect("its time is set");
    }
    let made = run(&gateway, "30");
    assert!(made.status.success(), "{}", said(&made));
    let left = backups(&folder);
    let names: Vec<_> = left.iter().map(|file| file.file_name().expect("a name").to_str().expect("UTF-8")).collect();
    assert_eq!((names[0], names[1], names.len()), ("notes.txt", "oncegate-20260122T031700Z.backup", 3), "{names:?}");
    let permissions = fs::metadata(&left[2]).expect("the backup").permissions();
    assert_eq!(permissions.mode() & 0o777, 0o600, "its owner alone may read it");
    // Otherwise the next one could have its name.
    fs::rename(&left[2], folder.join("oncegate-20260123T031700Z.backup")).expect("it is renamed");
    let left = backups(&folder);
    gateway.kill();
    let failed = run(&gateway, "1");
    assert_eq!(failed.status.code(), Some(1), "{}", said(&failed));
    assert_eq!(backups(&folder), left, "a failed backup deletes nothing");
}

#[test]
fn each_way_of_making_them_runs_the_same_command() {
    for (file, command) in [
        ("deploy/systemd/oncegate-backup.service", "/usr/bin/oncegate-backup /var/backups/oncegate 30 --config "),
        ("deploy/backup/cron", " oncegate oncegate-backup /var/backups/oncegate 30 --config "),
        ("deploy/kubernetes/overlays/disk/backup.yaml", r#"["oncegate-backup", "/backups", "30", "--token-file", "#),
        ("deploy/helm/oncegate/templates/backup.yaml", r#"["oncegate-backup", "/backups", {{ .Values.backup.keepDays"#),
        ("Dockerfile", "COPY deploy/backup/oncegate-backup /usr/local/bin/"),
        ("Cargo.toml", r#"["deploy/backup/oncegate-backup", "usr/bin/", "755"]"#),
        ("scripts/build-archive", "deploy/backup/oncegate-backup"),
    ] {
        let text = fs::read_to_string(root().join(file)).expect("a file of the repository");
        assert!(text.contains(command), "{file} has no {command}");
    }
}

/// Orders succeed during the backup, and the gateway dies with `kill -9` after it: each success from before is in the restored store.
#[tokio::test(flavor = "multi_thread", worker_threads = 4)]
async fn the_restore_drill_of_the_page_is_pasted_under_traffic_and_after_a_kill() {
    let (Some(mut bash), Some(_)) = (tool("bash"), tool("curl")) else { return };
    let folder = tempfile::tempdir().expect("a folder");
    let mut gateway = on_disk(folder.path()).await;
    let client = gateway.client();
    let order =
        |number: &Value| json!({ "operation": "order.submit", "contents": { "order_id": number }, "lease": "10m" });
    let (is_over, done) = (AtomicBool::new(false), AtomicU64::new(0));
    let traffic = async {
        while !is_over.load(Ordering::SeqCst) {
            let granted = client.post("/v1/claims", &order(&json!(done.load(Ordering::SeqCst)))).await.expect(201);
            client.settle(&granted, "success").await.expect(200);
            done.fetch_add(1, Ordering::SeqCst);
        }
    };
    let known = client.post("/v1/claims", &order(&json!("A-1001"))).await.expect(201);
    client.settle(&known, "success").await.expect(200);

    let drill =
        PAGE.split("### Restore drill").nth(1).and_then(|rest| rest.split("```sh\n").nth(1)).expect("the drill");
    let drill = drill.split("```").next().expect("its end");
    let (api, admin) = (fresh::port().to_string(), fresh::port().to_string());
    let pasted = drill.replace("/etc/oncegate/oncegate.toml", gateway.config_file().to_str().expect("UTF-8"));
    let pasted = pasted.replace("18080", &api).replace("19464", &admin).replace("--app shop", "--app default");
    // Keeps one copy of the backup, for the kill.
    let pasted = pasted.replace("rm -r", "cp drill.backup kept.backup\nrm -r");
    bash.args(["-e", "-c", &pasted]).env("ONCEGATE_ADMIN_TOKEN", TOKEN);
    let before = async {
        let mut bash = prepared(bash, &gateway, folder.path());
        while done.load(Ordering::SeqCst) < 50 {
            tokio::task::yield_now().await;
        }
        let acknowledged = done.load(Ordering::SeqCst);
        let output = tokio::task::spawn_blocking(move || bash.output().expect("bash runs")).await.expect("it ends");
        is_over.store(true, Ordering::SeqCst);
        (acknowledged, output)
    };
    let ((), (acknowledged, output)) = tokio::join!(traffic, before);
    let shown = said(&output);
    assert!(output.status.success() && shown.contains("succeeded"), "{shown}");
    assert!(!folder.path().join("drill").exists() && !folder.path().join("drill.backup").exists(), "it leaves nothing");

    gateway.kill();
    let mut restore = prepared(Command::new("oncegate"), &gateway, folder.path());
    restore.args(["restore", "kept.backup", "--engine", "disk:./again"]);
    let restored = restore.output().expect("it runs");
    assert!(restored.status.success(), "{}", said(&restored));
    let again = operated(&format!("disk:{}", folder.path().join("again").display())).start().await;
    for number in 0..acknowledged {
        let answer = again.client().post("/v1/claims", &order(&json!(number))).await;
        assert_eq!((answer.code(), &answer.body["state"]), ((409, "duplicate"), &json!("succeeded")), "{number}");
    }
}
