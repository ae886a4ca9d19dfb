//! The files in `deploy/` work unchanged: its configurations, the unit, the secrets of Compose.

use std::fs;
use std::os::unix::net::UnixDatagram;
use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};
use std::time::Duration;

use oncegate_testkit::missing;
use oncegate_testkit::wait::until;

use crate::support::command::oncegate;

/// Exposure that `systemd-analyze security` may find, in tenths: below 2.0 it says "OK".
const EXPOSURE_MAX: u32 = 20;

fn deploy() -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).join("deploy")
}

/// Writes the files that a container or pod would have below `/run/secrets`, and returns a configuration that reads
/// them here.
fn placed(config: &str, folder: &Path) -> PathBuf {
    let text = fs::read_to_string(deploy().join(config)).expect("a configuration");
    let digest = "sha256:0f00bd0f44b5f8d7a6a2a3d5e1c9b8877665544332211000aabbccddeeff0011";
    for name in ["shop", "admin", "backup"] {
        fs::write(folder.join(name), format!("{digest}\n")).expect("a digest is written");
    }
    fs::write(folder.join("engine-url"), "redis://localhost:6379/0\n").expect("a URL is written");
    fs::write(folder.join("registry-url"), "postgres://oncegate@localhost/oncegate\n").expect("a URL is written");
    let here = folder.to_str().expect("UTF-8");
    let text = ["/run/secrets/oncegate", "/run/secrets", "/var/lib/oncegate"]
        .iter()
        .fold(text, |text, place| text.replace(place, here));
    let file = folder.join("oncegate.toml");
    fs::write(&file, text).expect("the configuration is written");
    file
}

#[test]
fn each_configuration_is_accepted() {
    let configurations = [
        "compose/oncegate.toml",
        "kubernetes/base/oncegate.toml",
        "kubernetes/overlays/disk/oncegate.toml",
        "kubernetes/overlays/outage-policies/oncegate.toml",
        "kubernetes/overlays/postgres-registry/oncegate.toml",
        "systemd/oncegate.toml",
    ];
    for config in configurations {
        let folder = tempfile::tempdir().expect("a folder");
        let file = placed(config, folder.path());
        let checked = oncegate(folder.path(), &["config", "check", "--config", file.to_str().expect("UTF-8")]);
        assert_eq!(checked.code, Some(0), "{config}: {}{}", checked.out, checked.err);
    }
}

#[test]
fn the_secrets_of_compose_are_accepted_and_made_once() {
    let folder = tempfile::tempdir().expect("a folder");
    let setup = folder.path().join("setup");
    fs::copy(deploy().join("compose/setup"), &setup).expect("it is copied");
    let run = || Command::new(&setup).stdin(Stdio::null()).output().expect("setup runs");
    let first = run();
    assert!(first.status.success(), "{}", String::from_utf8_lossy(&first.stderr));
    let said = String::from_utf8(first.stdout).expect("UTF-8");
    let secret = said.split("Bearer shop.").nth(1).and_then(|rest| rest.lines().next()).expect("the credential");
    assert!(secret.len() >= 22 && secret.chars().all(|char| char.is_ascii_alphanumeric()), "{secret}");
    let digest = fs::read_to_string(folder.path().join("secrets/shop")).expect("the digest");
    let config = folder.path().join("oncegate.toml");
    fs::write(&config, format!("[apps.shop]\nsecrets = [\"{}\"]\n", digest.trim())).expect("it is written");
    let checked = oncegate(folder.path(), &["config", "check", "--config", config.to_str().expect("UTF-8")]);
    assert_eq!(checked.code, Some(0), "{}", checked.err);
    assert!(run().stdout.is_empty(), "nothing is made a second time");
    assert_eq!(fs::read_to_string(folder.path().join("secrets/shop")).expect("the digest"), digest);
}

/// The unit's lines with this key.
fn unit_values(key: &str) -> Vec<String> {
    let unit = fs::read_to_string(deploy().join("systemd/oncegate.service")).expect("the unit");
    unit.lines().filter_map(|line| line.strip_prefix(key)).map(ToOwned::to_owned).collect()
}

#[tokio::test]
async fn the_command_line_of_the_unit_starts_a_gateway() {
    let folder = tempfile::tempdir().expect("a folder");
    let config = placed("systemd/oncegate.toml", folder.path());
    let lines = unit_values("ExecStart=");
    let words: Vec<&str> = lines[0].split(' ').collect();
    assert_eq!(words[0], "/usr/bin/oncegate");
    let mut command = Command::new(env!("CARGO_BIN_EXE_oncegate"));
    for word in &words[1..] {
        command.arg(word.replace("/etc/oncegate/oncegate.toml", config.to_str().expect("UTF-8")));
    }
    for variable in unit_values("Environment=") {
        let (name, value) = variable.split_once('=').expect("a variable");
        command.env(name, value.replace("/var/lib/oncegate", folder.path().to_str().expect("UTF-8")));
    }
    let log = folder.path().join("log");
    command.env("ONCEGATE_SERVER__LISTEN", "127.0.0.1:0").env("ONCEGATE_SERVER__ADMIN_LISTEN", "127.0.0.1:0");
    command.env("ONCEGATE_LOG__FORMAT", "json").stdin(Stdio::null()).stdout(Stdio::null());
    let mut gateway = command.stderr(fs::File::create(&log).expect("a log")).spawn().expect("it starts");
    until("the gateway is in service", Duration::from_secs(30), async || {
        let said = fs::read_to_string(&log).expect("its log");
        assert!(matches!(gateway.try_wait(), Ok(None)), "it ended: {said}");
        said.contains("\"admin_listen\"")
    })
    .await;
    gateway.kill().expect("it is killed");
    gateway.wait().expect("it has ended");
    assert!(folder.path().join("claims").is_dir(), "its claims are below its state directory");
}

#[test]
fn the_units_are_valid_and_confined() {
    let folder = tempfile::tempdir().expect("a folder");
    let program = Path::new(env!("CARGO_BIN_EXE_oncegate"));
    for name in ["oncegate.service", "oncegate-backup.service", "oncegate-backup.timer"] {
        let unit = fs::read_to_string(deploy().join("systemd").join(name)).expect("the unit");
        // The programs are not installed where the tests run.
        let backup = deploy().join("backup/oncegate-backup").display().to_string();
        let unit = unit.replace("/usr/bin/oncegate-backup", &backup);
        let unit = unit.replace("/usr/bin/oncegate ", &format!("{} ", program.display()));
        fs::write(folder.path().join(name), unit).expect("it is written");
    }
    for name in ["oncegate.service", "oncegate-backup.service", "oncegate-backup.timer"] {
        let unit = folder.path().join(name);
        let analyze = |words: &[&str]| Command::new("systemd-analyze").args(words).arg(&unit).output();
        let Ok(verified) = analyze(&["verify", "--man=no"]) else { return missing::skip("systemd-analyze") };
        let said = String::from_utf8_lossy(&verified.stderr);
        assert!(verified.status.success() && !said.contains(name), "{said}");
        if name.ends_with(".service") {
            let security = analyze(&["security", "--offline=yes", &format!("--threshold={EXPOSURE_MAX}")]);
            let security = security.expect("it runs");
            assert!(security.status.success(), "{name}: {}", String::from_utf8_lossy(&security.stdout));
        }
    }
}

#[test]
fn the_service_manager_is_notified_of_start_reload_and_stop() {
    let folder = tempfile::tempdir().expect("a folder");
    let path = folder.path().join("notify");
    let socket = UnixDatagram::bind(&path).expect("a socket");
    socket.set_read_timeout(Some(Duration::from_secs(30))).expect("it is set");
    let mut command = Command::new(env!("CARGO_BIN_EXE_oncegate"));
    command.args(["serve", "--engine", "memory:", "--listen", "127.0.0.1:0", "--admin-listen", "127.0.0.1:0"]);
    command.env("NOTIFY_SOCKET", &path).current_dir(folder.path());
    let mut gateway =
        command.stdin(Stdio::null()).stdout(Stdio::null()).stderr(Stdio::null()).spawn().expect("it starts");
    let notified = |state: &str| {
        let mut buffer = [0; 256];
        let length = socket.recv(&mut buffer).expect("a notification");
        let said = String::from_utf8_lossy(&buffer[..length]);
        assert!(said.starts_with(state), "{said}");
    };
    let signal =
        |name: &str| Command::new("kill").args([name, &gateway.id().to_string()]).status().expect("it is sent");
    notified("READY=1");
    signal("-HUP");
    notified("RELOADING=1");
    notified("READY=1");
    signal("-TERM");
    notified("STOPPING=1");
    assert!(gateway.wait().expect("it has ended").success());
}

#[test]
fn the_unit_does_not_repeat_a_start_with_a_wrong_configuration() {
    assert_eq!(unit_values("RestartPreventExitStatus="), ["2"]);
    let folder = tempfile::tempdir().expect("a folder");
    let config = folder.path().join("oncegate.toml");
    fs::write(&config, "[serve]\n").expect("it is written");
    let started = oncegate(folder.path(), &["serve", "--config", config.to_str().expect("UTF-8")]);
    assert_eq!(started.code, Some(2), "{}", started.err);
}
