//! `oncegate lock run` and `oncegate once`: commands that run while a lease is held.

use std::path::Path;
use std::process::{Child, Command, Stdio};
use std::time::Duration;

use oncegate_testkit::gateway::Gateway;
use oncegate_testkit::tcp_proxy::{Mode, TcpProxy};
use oncegate_testkit::wait::until;
use serde_json::{Value, json};

use crate::admin::{alice, operated};
use crate::support::command::{Ended, oncegate_with};
use crate::support::gateway;

const LONG: Duration = Duration::from_secs(20);

/// A gateway, and a folder for what commands write.
struct Site {
    gateway: Gateway,
    folder: tempfile::TempDir,
}

impl Site {
    async fn new() -> Self {
        Self { gateway: gateway::on_memory().start().await, folder: tempfile::tempdir().unwrap() }
    }

    fn path(&self) -> &Path {
        self.folder.path()
    }

    fn url(&self) -> String {
        format!("http://{}", self.gateway.api())
    }

    /// Runs `oncegate` with these words and then `sh -c script`, to its end.
    fn run(&self, words: &[&str], script: &str) -> Ended {
        let words = [words, &["--", "/bin/sh", "-c", script]].concat();
        oncegate_with(self.path(), &words, &[("ONCEGATE_URL", &self.url()), ("PATH", "/usr/bin:/bin")])
    }

    /// Starts it, and returns once the script has made the file `started`.
    async fn start(&self, words: &[&str], script: &str) -> Child {
        let child = self.spawn(words, script);
        self.made("started").await;
        child
    }

    fn spawn(&self, words: &[&str], script: &str) -> Child {
        self.command(words, script).spawn().unwrap()
    }

    fn command(&self, words: &[&str], script: &str) -> Command {
        let mut command = Command::new(env!("CARGO_BIN_EXE_oncegate"));
        command.args(words).args(["--", "/bin/sh", "-c", script]).env("ONCEGATE_URL", self.url());
        command.current_dir(self.path()).stdin(Stdio::null()).stderr(Stdio::null()).stdout(Stdio::null());
        command
    }

    async fn made(&self, file: &str) {
        until(&format!("{file} is made"), LONG, async || self.path().join(file).exists()).await;
    }

    async fn lock(&self, name: &str) -> (u16, Value) {
        let answer = self.gateway.client().get(&format!("/v1/locks/{name}")).await;
        (answer.status, answer.body)
    }

    async fn hold(&self, name: &str) -> String {
        let held = self.gateway.client().post(&format!("/v1/locks/{name}/holds"), &json!({})).await.expect(201);
        held.body["attempt"].as_str().unwrap().to_owned()
    }
}

fn signal(child: &Child, name: &str) {
    let sent = Command::new("/bin/kill").args([&format!("-{name}"), &child.id().to_string()]).status().unwrap();
    assert!(sent.success());
}

fn signal_if_running(child: &mut Child, name: &str) {
    if child.try_wait().unwrap().is_none() {
        signal(child, name);
    }
}

async fn code(child: &mut Child) -> Option<i32> {
    let mut code = None;
    until("the command ends", LONG, async || match child.try_wait().unwrap() {
        Some(status) => {
            code = status.code();
            true
        }
        None => false,
    })
    .await;
    code
}

#[tokio::test]
async fn a_command_holds_the_lock_and_its_exit_code_is_returned() {
    let site = Site::new().await;
    let fence = |ended: &Ended| ended.out.trim().parse::<u64>().unwrap();
    let first = site.run(&["lock", "run", "job"], "echo $ONCEGATE_FENCE; exit 7");
    assert_eq!(first.code, Some(7), "{}", first.err);
    assert_eq!(site.lock("job").await.0, 404, "it is released");
    let second = site.run(&["lock", "run", "job"], "echo $ONCEGATE_FENCE; kill -9 $$");
    assert_eq!(second.code, Some(137), "{}", second.err);
    assert!(fence(&second) > fence(&first));
    let missing = site.run(&["lock", "run", "job", "--lease", "1ms"], "");
    assert_eq!(missing.code, Some(2), "{}", missing.err);
    let environment = [("ONCEGATE_URL", &*site.url())];
    for (command, code) in [("/absent", 127), ("/dev/null", 126)] {
        let ended = oncegate_with(site.path(), &["lock", "run", "job", "--", command], &environment);
        assert_eq!(ended.code, Some(code), "{}", ended.err);
        assert!(ended.err.contains(command), "{}", ended.err);
        assert_eq!(site.lock("job").await.0, 404);
    }
}

#[tokio::test]
async fn a_held_lock_is_an_error_or_skipped_or_waited_for() {
    let site = Site::new().await;
    let attempt = site.hold("job").await;
    let words = ["lock", "run", "job", "--if-held"];
    let failed = site.run(&[&words[..], &["fail"]].concat(), "touch ran");
    assert_eq!(failed.code, Some(75), "{}", failed.err);
    assert!(failed.err.contains("Others hold the lock job"), "{}", failed.err);
    let skipped = site.run(&[&words[..], &["skip", "--wait", "200ms", "--fair"]].concat(), "touch ran");
    let line = "oncegate: Others hold the lock job; the command was not run\n";
    assert_eq!((skipped.code, &*skipped.err), (Some(0), line));
    assert!(!site.path().join("ran").exists());
    assert_eq!(site.lock("job").await.1["waiting"], 0, "it has left the queue");
    let mut child = site.spawn(&["lock", "run", "job", "--wait", "1m", "--fair"], "exit 3");
    until("it queues", LONG, async || site.lock("job").await.1["waiting"] == 1).await;
    site.gateway.client().post("/v1/locks/job/release", &json!({ "attempt": attempt })).await.expect(200);
    assert_eq!(code(&mut child).await, Some(3));
}

#[tokio::test]
async fn the_lease_is_renewed_and_the_command_gets_sigterm_once_it_is_lost() {
    const SCRIPT: &str = "trap 'touch stopped; exit 0' TERM; touch started; while :; do sleep 0.05; done";
    let mut site = Site::new().await;
    let mut child = site.start(&["lock", "run", "job", "--lease", "3s"], SCRIPT).await;
    let fence = site.lock("job").await.1["fence"].clone();
    tokio::time::sleep(Duration::from_secs(7)).await;
    let (status, held) = site.lock("job").await;
    assert_eq!((status, &held["fence"]), (200, &fence), "renewed twice");
    site.gateway.kill();
    assert_eq!(code(&mut child).await, Some(124));
    assert!(site.path().join("stopped").exists());
}

#[tokio::test]
async fn the_command_gets_sigterm_when_an_operator_releases_its_lock_and_the_next_one_keeps_it() {
    const SCRIPT: &str = "trap 'touch stopped; exit 0' TERM; touch started; while :; do sleep 0.05; done";
    let site = Site { gateway: operated("memory:").start().await, ..Site::new().await };
    let mut child = site.start(&["lock", "run", "job", "--lease", "3s"], SCRIPT).await;
    let order = json!({ "app": "default", "name": "job", "reason": "INC-44" });
    alice(&site.gateway).post("/admin/v1/locks/release", &order).await.expect(200);
    let next = site.hold("job").await;
    assert_eq!(code(&mut child).await, Some(124));
    assert!(site.path().join("stopped").exists(), "the command was stopped");
    let renewed = site.gateway.client().post("/v1/locks/job/renewal", &json!({ "attempt": next })).await;
    assert_eq!(renewed.status, 200, "it released nothing: {}", renewed.text);
}

#[tokio::test]
async fn a_command_that_ignores_the_end_of_the_lease_is_killed_if_that_is_asked_for() {
    let mut site = Site::new().await;
    let words = ["lock", "run", "job", "--lease", "1s", "--kill-after", "100ms"];
    let mut child = site.start(&words, "trap '' TERM; touch started; while :; do sleep 0.05; done").await;
    site.gateway.kill();
    assert_eq!(code(&mut child).await, Some(124));
}

#[tokio::test]
async fn signals_reach_the_command_and_stop_a_wait() {
    let site = Site::new().await;
    // Both shells get it: the outer one waits for the inner one. A `sleep 60` instead could lose a signal between its
    // fork and its exec, since the shell's handler still runs there. Then the outer command would keep waiting.
    let inner = "trap 'touch stopped; exit' INT; touch started; while :; do sleep 0.05; done";
    let script = format!("trap 'exit 9' INT; /bin/sh -c \"{inner}\"; exit 1");
    let mut child = site.start(&["lock", "run", "job"], &script).await;
    signal(&child, "INT");
    assert_eq!(code(&mut child).await, Some(9));
    assert!(site.path().join("stopped").exists(), "it reaches the whole process group");
    assert_eq!(site.lock("job").await.0, 404, "it is released");
    let held = site.hold("job").await;
    let mut waits = site.spawn(&["lock", "run", "job", "--fair", "--wait", "1m"], "");
    until("it queues", LONG, async || site.lock("job").await.1["waiting"] == 1).await;
    signal(&waits, "TERM");
    assert_eq!(code(&mut waits).await, Some(143));
    assert_eq!(site.lock("job").await.1["waiting"], 0, "it has left the queue");
    // A signal for the command only does not stop the wait.
    let mut waits = site.spawn(&["lock", "run", "job", "--fair", "--wait", "1m"], "exit 4");
    until("it queues", LONG, async || site.lock("job").await.1["waiting"] == 1).await;
    signal(&waits, "USR1");
    site.gateway.client().post("/v1/locks/job/release", &json!({ "attempt": held })).await.expect(200);
    assert_eq!(code(&mut waits).await, Some(4));
}

/// The gateway has granted it, and the answer is on its way.
#[tokio::test]
async fn a_lock_whose_grant_did_not_arrive_before_the_signal_is_given_back() {
    let site = Site::new().await;
    let between = TcpProxy::start_any(site.gateway.api()).await;
    between.set(Mode::HalfOpen);
    let url = format!("http://{}", between.address());
    let mut waits = site.spawn(&["lock", "run", "job", "--wait", "1m", "--lease", "10m", "--url", &url], "touch ran");
    until("it is granted", LONG, async || site.lock("job").await.0 == 200).await;
    signal(&waits, "TERM");
    assert_eq!(code(&mut waits).await, Some(143));
    until("it is given back", LONG, async || site.lock("job").await.0 == 404).await;
    assert!(!site.path().join("ran").exists());
}

#[tokio::test]
async fn an_operation_runs_once_unless_its_command_promises_that_nothing_happened() {
    let site = Site::new().await;
    let run = |words: &[&str], script: &str| {
        let ended = site.run(&[&["once", "job"], words].concat(), script);
        (ended.code, ended.err)
    };
    assert_eq!(run(&["1"], "echo 1 >> ran"), (Some(0), String::new()));
    assert_eq!(run(&["1"], "echo 2 >> ran"), (Some(0), String::new()), "done before");
    assert_eq!(std::fs::read_to_string(site.path().join("ran")).unwrap(), "1\n");
    assert_eq!(run(&["-2", "--on-error", "failure"], "exit 5").0, Some(5));
    assert_eq!(run(&["-2"], "exit 6").0, Some(6), "it may run again");
    let unknown = run(&["-2"], "exit 0");
    assert_eq!(unknown.0, Some(76), "{}", unknown.1);
    assert!(unknown.1.contains("--take-over"), "{}", unknown.1);
    let absent = ["once", "job", "-2", "--take-over", "--", "/absent"];
    let not_started = oncegate_with(site.path(), &absent, &[("ONCEGATE_URL", &*site.url())]);
    assert_eq!(not_started.code, Some(76), "{}", not_started.err);
    assert!(not_started.err.contains("is still unknown"), "{}", not_started.err);
    assert_eq!(run(&["-2"], "exit 0").0, Some(76), "it was not forgotten");
    assert_eq!(run(&["-2", "--take-over"], "exit 0").0, Some(0));
    let bare = run(&["abc"], "exit 0");
    assert_eq!(bare.0, Some(2), "{}", bare.1);
    let words = ["once", "job", "3", "--retention", "1h"];
    let mut child = site.start(&words, "touch started; while [ ! -e end ]; do sleep 0.05; done").await;
    assert_eq!(run(&["3"], "exit 0").0, Some(75));
    assert_eq!(run(&["3", "--if-held", "skip"], "exit 1").0, Some(0));
    std::fs::write(site.path().join("end"), "").unwrap();
    assert_eq!(run(&["3", "--wait", "1m"], "exit 1").0, Some(0), "it waits for the success");
    assert_eq!(code(&mut child).await, Some(0));
}

/// As operators see the lock and the claim that it holds.
#[tokio::test]
async fn a_lock_and_a_claim_have_the_terms_of_the_command_line() {
    let site = Site { gateway: operated("memory:").start().await, ..Site::new().await };
    let script = |file: &str| format!("touch {file}; while [ ! -e end ]; do sleep 0.05; done");
    let mut limited = site.spawn(&["lock", "run", "limited", "--limit", "3", "--lease", "7m"], &script("limited"));
    let mut shared = site.spawn(&["lock", "run", "shared", "--shared", "--lease", "7m"], &script("shared"));
    let mut claimed = site.spawn(&["once", "job", "1", "--lease", "7m", "--retention", "90m"], &script("claimed"));
    for file in ["limited", "shared", "claimed"] {
        site.made(file).await;
    }
    for (name, limit) in [("limited", json!(3)), ("shared", Value::Null)] {
        let held = site.lock(name).await.1;
        assert_eq!((&held["mode"], &held["limit"]), (&json!("shared"), &limit), "{held}");
        let left = held["holders"][0]["lease_ms"].as_u64().unwrap();
        assert!((300_000..=420_000).contains(&left), "{held}");
    }
    // Only a fair request has a place in the queue.
    site.hold("busy").await;
    let mut queued = site.spawn(&["lock", "run", "busy", "--shared", "--fair", "--wait", "1m"], "");
    until("it queues", LONG, async || site.lock("busy").await.1["waiting"] == 1).await;
    signal(&queued, "TERM");
    assert_eq!(code(&mut queued).await, Some(143));
    let named = json!({ "app": "default", "operation": "job", "contents": 1 });
    let show = async || alice(&site.gateway).post("/admin/v1/claims/show", &named).await.expect(200).body;
    let claim = show().await;
    assert_eq!((&claim["lease"], &claim["state"]), (&json!("7m"), &json!("in_progress")), "{claim}");
    std::fs::write(site.path().join("end"), "").unwrap();
    for child in [&mut limited, &mut shared, &mut claimed] {
        assert_eq!(code(child).await, Some(0));
    }
    let claim = show().await;
    assert_eq!((&claim["retention"], &claim["state"]), (&json!("90m"), &json!("succeeded")), "{claim}");
}

/// The lease of a grant begins when the wait ends, not when the request is sent.
#[tokio::test]
async fn a_command_that_has_waited_for_longer_than_its_lease_runs_to_its_end() {
    let site = Site::new().await;
    for words in [&["lock", "run", "job"][..], &["once", "job", "1", "--on-error", "failure"]] {
        let end = site.path().join("end");
        let first = [words, &["--lease", "10s"]].concat();
        let mut first = site.start(&first, "touch started; while [ ! -e end ]; do sleep 0.05; done; exit 1").await;
        let waits = [words, &["--wait", "1m", "--lease", "4s"]].concat();
        let mut waits = site.spawn(&waits, "sleep 1; touch ran");
        tokio::time::sleep(Duration::from_secs(5)).await;
        assert!(waits.try_wait().unwrap().is_none(), "it waits");
        std::fs::write(&end, "").unwrap();
        assert_eq!(code(&mut first).await, Some(1));
        assert_eq!(code(&mut waits).await, Some(0), "{words:?}");
        for file in ["ran", "started", "end"] {
            std::fs::remove_file(site.path().join(file)).unwrap();
        }
    }
}

/// A renewal without an answer is repeated while the lease lasts.
#[tokio::test]
async fn a_renewal_that_fails_is_repeated_until_the_lease_ends() {
    let site = Site::new().await;
    let mut between = TcpProxy::start(site.gateway.api()).await;
    let url = format!("http://{}", between.address());
    let script = |name: &str| format!("touch {name}; while [ ! -e end ]; do sleep 0.05; done");
    let options = ["--lease", "12s", "--url", &url];
    let locked = site.spawn(&[&["lock", "run", "job"][..], &options].concat(), &script("locked"));
    let claimed = site.spawn(&[&["once", "job", "1"][..], &options].concat(), &script("claimed"));
    site.made("locked").await;
    site.made("claimed").await;
    between.refuse().await;
    tokio::time::sleep(Duration::from_secs(5)).await;
    between.heal().await;
    tokio::time::sleep(Duration::from_secs(8)).await;
    std::fs::write(site.path().join("end"), "").unwrap();
    for mut child in [locked, claimed] {
        assert_eq!(code(&mut child).await, Some(0));
    }
}

/// The time of a wait is also that for a gateway that does not answer.
#[tokio::test]
async fn a_request_is_repeated_for_as_long_as_it_may_wait() {
    let site = Site::new().await;
    let mut between = TcpProxy::start(site.gateway.api()).await;
    between.refuse().await;
    let url = format!("http://{}", between.address());
    let options = ["--wait", "1m", "--url", &url];
    let locked = site.spawn(&[&["lock", "run", "job"][..], &options].concat(), "exit 3");
    let claimed = site.spawn(&[&["once", "job", "1"][..], &options].concat(), "exit 3");
    // Longer than without a wait.
    tokio::time::sleep(Duration::from_secs(7)).await;
    between.heal().await;
    for mut child in [locked, claimed] {
        assert_eq!(code(&mut child).await, Some(3));
    }
}

#[tokio::test]
async fn a_success_that_cannot_be_reported_is_no_success() {
    // Another attempt holds the claim by then: the gateway refuses the report.
    let site = Site { gateway: operated("memory:").start().await, ..Site::new().await };
    let script = "touch started; while [ ! -e end ]; do sleep 0.05; done";
    let mut child = site.start(&["once", "job", "1", "--lease", "1h"], script).await;
    let order = json!({ "app": "default", "operation": "job", "contents": 1, "reason": "INC-45" });
    alice(&site.gateway).post("/admin/v1/claims/release", &order).await.expect(200);
    let client = site.gateway.client();
    client.post("/v1/claims", &json!({ "operation": "job", "contents": 1 })).await.expect(201);
    std::fs::write(site.path().join("end"), "").unwrap();
    assert_eq!(code(&mut child).await, Some(125), "superseded");
    // No gateway answers: it tries until it is stopped.
    let mut site = Site::new().await;
    let mut child = site.start(&["once", "job", "2", "--lease", "1h"], &format!("{script}; touch ended")).await;
    site.gateway.kill();
    std::fs::write(site.path().join("end"), "").unwrap();
    site.made("ended").await;
    until("it reports", LONG, async || {
        signal_if_running(&mut child, "TERM");
        tokio::time::sleep(Duration::from_millis(1100)).await;
        child.try_wait().unwrap().is_some()
    })
    .await;
    assert_eq!(code(&mut child).await, Some(125));
}

/// `timeout` signals its child, and then its whole group.
#[tokio::test]
async fn a_signal_that_comes_twice_does_not_keep_the_outcome_from_being_reported() {
    let site = Site::new().await;
    let script = "trap 'exit 0' TERM; touch started; while :; do sleep 0.05; done";
    let mut child = Command::new("timeout");
    child.args([
        "--kill-after=1m",
        "6",
        env!("CARGO_BIN_EXE_oncegate"),
        "once",
        "job",
        "1",
        "--",
        "/bin/sh",
        "-c",
        script,
    ]);
    child.env("ONCEGATE_URL", site.url()).current_dir(site.path()).stdin(Stdio::null()).stderr(Stdio::null());
    let mut child = child.spawn().unwrap();
    assert_eq!(code(&mut child).await, Some(124), "the code of `timeout`");
    let repeated = site.gateway.client().post("/v1/claims", &json!({ "operation": "job", "contents": 1 })).await;
    assert_eq!((repeated.status, &repeated.body["state"]), (409, &json!("succeeded")), "{}", repeated.text);
}

#[tokio::test]
async fn secrets_are_not_passed_on_to_the_command() {
    let site = Site::new().await;
    let url = site.url();
    let secrets = [("ONCEGATE_CREDENTIAL", "default.abc"), ("ONCEGATE_ADMIN_TOKEN", "def")];
    for words in [&["lock", "run", "job"][..], &["once", "job", "1"]] {
        let words = [words, &["--", "/bin/sh", "-c", "/usr/bin/env"]].concat();
        let environment = [&secrets[..], &[("ONCEGATE_URL", &*url), ("KEPT", "1")]].concat();
        let ended = oncegate_with(site.path(), &words, &environment);
        assert_eq!(ended.code, Some(0), "{}", ended.err);
        assert!(ended.out.contains("KEPT=1\n"), "{}", ended.out);
        for (name, _) in secrets {
            assert!(!ended.out.contains(name), "{}", ended.out);
        }
    }
}

/// A job may be a part of another one, whose fence is not its own.
#[tokio::test]
async fn a_command_without_a_fence_gets_none_of_another_job() {
    let site = Site::new().await;
    let words = ["once", "job", "1", "--", "/bin/sh", "-c", "/usr/bin/env"];
    for (disabled, has_fence) in [("0", true), ("1", false)] {
        let of_other = ("ONCEGATE_FENCE", "of another job");
        let environment = [("ONCEGATE_URL", &*site.url()), ("ONCEGATE_DISABLED", disabled), of_other];
        let ended = oncegate_with(site.path(), &words, &environment);
        assert_eq!(ended.code, Some(0), "{}", ended.err);
        assert!(!ended.out.contains(of_other.1), "{}", ended.out);
        assert_eq!(ended.out.contains("ONCEGATE_FENCE="), has_fence, "{}", ended.out);
    }
}

/// No gateway answers: it tries until it is stopped.
#[tokio::test]
async fn a_lock_that_cannot_be_released_is_a_warning_and_the_command_keeps_its_exit_code() {
    let mut site = Site::new().await;
    // The signals are for the report. The first one may come before the command has ended.
    let script = "trap '' TERM; touch started; while [ ! -e end ]; do sleep 0.05; done; touch ended; exit 3";
    let mut command = site.command(&["lock", "run", "job", "--lease", "1h"], script);
    let mut child = command.stderr(Stdio::piped()).spawn().unwrap();
    site.made("started").await;
    site.gateway.kill();
    std::fs::write(site.path().join("end"), "").unwrap();
    site.made("ended").await;
    until("it stops", LONG, async || {
        signal_if_running(&mut child, "TERM");
        tokio::time::sleep(Duration::from_millis(1100)).await;
        child.try_wait().unwrap().is_some()
    })
    .await;
    let ended = child.wait_with_output().unwrap();
    let said = String::from_utf8(ended.stderr).unwrap();
    assert_eq!(ended.status.code(), Some(3), "{said}");
    assert!(said.contains("The lock was not released, and is held until its lease ends"), "{said}");
}

#[tokio::test]
async fn without_a_gateway_nothing_runs() {
    let mut site = Site::new().await;
    site.gateway.kill();
    let ended = site.run(&["lock", "run", "job", "--if-held", "skip"], "touch ran");
    assert_eq!(ended.code, Some(125), "{}", ended.err);
    assert!(ended.err.contains("No answer from a gateway at http://"), "{}", ended.err);
    assert!(!site.path().join("ran").exists());
}
