//! `oncegate claim`, `engine` and `chain`, as somebody on call types them.

use std::fs;
use std::path::Path;
use std::time::Duration;

use serde_json::{Value, json};

use super::{TOKEN, operated};
use crate::support::command::{Ended, oncegate_with};
use crate::support::gateway::{Gateway, Setup};
use crate::support::wait::until;

const CONTENTS: &str = r#"{ "order_id": "A-1001" }"#;

/// Somebody at a terminal, with alice's token in the environment.
struct Terminal {
    folder: tempfile::TempDir,
    admin: String,
}

impl Terminal {
    fn at(gateway: &Gateway) -> Self {
        Self { folder: tempfile::tempdir().unwrap(), admin: format!("http://{}", gateway.admin()) }
    }

    fn folder(&self) -> &Path {
        self.folder.path()
    }

    fn run(&self, words: &[&str]) -> Ended {
        oncegate_with(self.folder(), &[words, &["--admin", &self.admin]].concat(), &[("ONCEGATE_ADMIN_TOKEN", TOKEN)])
    }

    /// A command on the claim of the order, with the rest of its words.
    fn claim(&self, action: &str, rest: &[&str]) -> Ended {
        let named = ["claim", action, "--app", "default", "--operation", "order.submit", CONTENTS];
        self.run(&[&named, rest].concat())
    }
}

impl Ended {
    #[track_caller]
    fn expect(self, code: i32) -> Self {
        assert_eq!(self.code, Some(code), "{}{}", self.out, self.err);
        self
    }
}

#[tokio::test]
async fn a_night_on_call() {
    let gateway = operated("memory:").config("[defaults]\non_lease_end = \"unknown\"\n").start().await;
    let terminal = Terminal::at(&gateway);
    let nothing = terminal.claim("show", &[]).expect(3);
    assert!(nothing.err.contains("No claim of operation `order.submit` stands for app `default`"), "{}", nothing.err);
    let claim = json!({ "operation": "order.submit", "contents": { "order_id": "A-1001" }, "lease": "100ms" });
    let granted = gateway.client().post("/v1/claims", &claim).await.expect(201);
    let is_unknown =
        async || terminal.claim("show", &[]).expect(0).out.contains("state       unknown: it may have been done");
    until("the lease has ended", Duration::from_secs(20), is_unknown).await;

    let shown = terminal.claim("show", &["--json"]).expect(0);
    let shown: Value = serde_json::from_str(&shown.out).unwrap();
    assert_eq!(shown["global_id"], granted.body["global_id"]);
    let hash = shown["attempt_hash"].as_str().unwrap();
    let unreasoned = terminal.claim("settle", &["--outcome", "success"]).expect(2);
    assert!(unreasoned.err.contains("--reason"), "{}", unreasoned.err);
    let not_json = terminal.claim("settle", &["--outcome", "success", "--result", "done", "--reason", "r"]).expect(1);
    assert!(not_json.err.contains("'\"done\"'"), "{}", not_json.err);
    let other = ["--outcome", "success", "--reason", "r", "--attempt-hash", "00000000"];
    assert!(terminal.claim("settle", &other).expect(3).err.contains("(superseded, request "));
    let settled =
        ["--outcome", "success", "--result", r#"{"n": 1}"#, "--reason", "INC-9: seen", "--attempt-hash", hash];
    let settled = terminal.claim("settle", &settled).expect(0);
    assert!(settled.out.contains(": succeeded, until 2"), "{}", settled.out);
    let readable = terminal.claim("show", &[]).expect(0).out;
    for line in ["result      {\"n\":1}", "operation   order.submit", "kept in     engine primary, chain default"] {
        assert!(readable.contains(line), "no {line} in {readable}");
    }

    let refused = terminal.claim("release", &["--reason", "INC-9"]).expect(3);
    assert!(refused.err.contains("(already_succeeded, request "), "{}", refused.err);
    let by_id = ["claim", "release", "--app", "default", "--global-id", granted.body["global_id"].as_str().unwrap()];
    let meant = terminal.run(&[&by_id[..], &["--even-succeeded", "--reason", "INC-9"]].concat()).expect(0);
    assert!(meant.out.ends_with(": released, it can be claimed again\n"), "{}", meant.out);
    terminal.claim("show", &[]).expect(3);
}

#[tokio::test]
async fn lists_are_read_page_by_page() {
    let gateway = operated("memory:").start().await;
    let terminal = Terminal::at(&gateway);
    for number in 0..5 {
        gateway.client().claim(json!(format!("order-{number}\u{9b}"))).await.expect(201);
    }
    let list = |rest: &[&str]| {
        terminal.run(&[&["claim", "list", "--app", "default", "--state", "in_progress"], rest].concat())
    };
    let first = list(&["--limit", "3"]).expect(0).out;
    assert_eq!(first.lines().count(), 4, "{first}");
    let (_, after) = first.lines().last().unwrap().split_once("--after ").unwrap();
    let second = list(&["--after", after]).expect(0).out;
    assert_eq!(second.lines().count(), 2, "{second}");
    assert!(!first.contains('\u{9b}') && first.contains("order-"), "a terminal must not take contents for commands");
    let engines = terminal.run(&["engine", "list"]).expect(0).out;
    assert!(engines.starts_with("primary  up (answers)  memory:\n"), "{engines}");
    for part in ["    chains: default; ", "    breaker: closed since 20", "\nspool: 0 entries, 0 of 67108864 bytes\n"] {
        assert!(engines.contains(part), "{part}: {engines}");
    }
    let chains = terminal.run(&["chain", "list"]).expect(0).out;
    assert_eq!(chains, "default  engines: primary (up); active: primary; epoch: 0\n");
    let json: Value = serde_json::from_str(&terminal.run(&["chain", "list", "--json"]).expect(0).out).unwrap();
    assert_eq!(json["chains"][0]["active"], "primary");
}

#[tokio::test]
async fn whoever_cannot_be_let_in_is_told_why() {
    let gateway = operated("memory:").start().await;
    let terminal = Terminal::at(&gateway);
    let with = |words: &[&str], environment: &[(&str, &str)]| {
        let words = [&["chain", "list", "--admin", &terminal.admin], words].concat();
        oncegate_with(terminal.folder(), &words, environment)
    };
    let tokenless = with(&[], &[]).expect(1);
    assert!(
        tokenless.err.contains("ONCEGATE_ADMIN_TOKEN") && tokenless.err.contains("--token-file"),
        "{}",
        tokenless.err
    );
    let wrong = with(&[], &[("ONCEGATE_ADMIN_TOKEN", "wrong")]).expect(1);
    assert!(wrong.err.contains("(unauthenticated, request "), "{}", wrong.err);
    fs::write(terminal.folder().join("token"), format!("{TOKEN}\n")).unwrap();
    with(&["--token-file", "token"], &[]).expect(0);
    let absent = with(&["--token-file", "absent"], &[]).expect(1);
    assert!(absent.err.contains("cannot read the token from absent"), "{}", absent.err);

    // Without --admin it is the listener of the configuration, and the token is no setting of it.
    let admin = gateway.admin().to_string();
    let environment = [("ONCEGATE_SERVER__ADMIN_LISTEN", &*admin), ("ONCEGATE_ADMIN_TOKEN", TOKEN)];
    oncegate_with(terminal.folder(), &["chain", "list"], &environment).expect(0);

    let closed = Setup::on_memory().start().await;
    let refused = Terminal::at(&closed).run(&["chain", "list"]).expect(1);
    assert!(refused.err.contains("[admin.tokens]"), "{}", refused.err);
    let api = format!("http://{}", gateway.api());
    let environment = [("ONCEGATE_ADMIN_TOKEN", TOKEN)];
    let other_listener = oncegate_with(terminal.folder(), &["chain", "list", "--admin", &api], &environment).expect(3);
    assert!(other_listener.err.contains("nothing at this path"), "{}", other_listener.err);
    drop(closed);
}
