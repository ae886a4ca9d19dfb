//! The commands that use the admin API, as an operator types them.

use std::fs;
use std::path::Path;
#[cfg(feature = "disk")]
use std::sync::Arc;
use std::time::Duration;

use oncegate_core::clock::SystemClock;
#[cfg(feature = "disk")]
use oncegate_core::engine::conformance::DEADLINE;
#[cfg(feature = "disk")]
use oncegate_core::engine::conformance::fresh_claim;
#[cfg(feature = "disk")]
use oncegate_core::outage::grants::{DegradedGrant, Grants};
use oncegate_testkit::gateway::Gateway;
use oncegate_testkit::wait::until;
use serde_json::{Value, json};

use super::{TOKEN, operated};
use crate::support::command::{Ended, oncegate_with};
use crate::support::gateway;
use crate::support::table::rows;

const CONTENTS: &str = r#"{ "order_id": "A-1001" }"#;

/// A terminal with alice's token in the environment.
pub(crate) struct Terminal {
    folder: tempfile::TempDir,
    admin: String,
}

impl Terminal {
    pub(crate) fn at(gateway: &Gateway) -> Self {
        Self { folder: tempfile::tempdir().unwrap(), admin: format!("http://{}", gateway.admin()) }
    }

    fn folder(&self) -> &Path {
        self.folder.path()
    }

    pub(crate) fn run(&self, words: &[&str]) -> Ended {
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
    pub(crate) fn expect(self, code: i32) -> Self {
        assert_eq!(self.code, Some(code), "{}{}", self.out, self.err);
        self
    }
}

#[tokio::test]
async fn a_night_on_call() {
    let gateway = operated("memory:").config("[defaults]\non_lease_end = \"unknown\"\n").start().await;
    let terminal = Terminal::at(&gateway);
    let nothing = terminal.claim("show", &[]).expect(3);
    assert!(nothing.err.contains("App `default` has no claim of operation `order.submit`"), "{}", nothing.err);
    let claim = json!({ "operation": "order.submit", "contents": { "order_id": "A-1001" }, "lease": "100ms" });
    let granted = gateway.client().post("/v1/claims", &claim).await.expect(201);
    let is_unknown =
        async || terminal.claim("show", &[]).expect(0).out.contains("State       unknown: it may have been done");
    until("the lease has ended", Duration::from_secs(20), is_unknown).await;

    let shown = terminal.claim("show", &["--output", "json"]).expect(0);
    let shown: Value = serde_json::from_str(&shown.out).unwrap();
    assert_eq!(shown["global_id"], granted.body["global_id"]);
    let hash = shown["attempt_hash"].as_str().unwrap();
    let unreasoned = terminal.claim("settle", &["--outcome", "success"]).expect(2);
    assert!(unreasoned.err.contains("--reason"), "{}", unreasoned.err);
    let not_json = terminal.claim("settle", &["--outcome", "success", "--result", "done", "--reason", "r"]).expect(2);
    assert!(not_json.err.contains("'\"done\"'"), "{}", not_json.err);
    let other = ["--outcome", "success", "--reason", "r", "--attempt-hash", "00000000"];
    assert!(terminal.claim("settle", &other).expect(3).err.contains("(superseded, request "));
    let settled =
        ["--outcome", "success", "--result", r#"{"n": 1}"#, "--reason", "INC-9: seen", "--attempt-hash", hash];
    let settled = terminal.claim("settle", &settled).expect(0);
    assert!(settled.out.contains(" of app `default` is succeeded until 2"), "{}", settled.out);
    let readable = terminal.claim("show", &[]).expect(0).out;
    for line in ["Result      {\"n\":1}", "Operation   order.submit", "Kept in     engine primary, chain default"] {
        assert!(readable.contains(line), "no {line} in {readable}");
    }

    let refused = terminal.claim("release", &["--reason", "INC-9"]).expect(3);
    assert!(refused.err.contains("(already_succeeded, request "), "{}", refused.err);
    assert!(refused.err.contains(" with --even-succeeded ") && !refused.err.contains('"'), "{}", refused.err);
    let by_id = ["claim", "release", "--app", "default", "--global-id", granted.body["global_id"].as_str().unwrap()];
    let meant = terminal.run(&[&by_id[..], &["--even-succeeded", "--reason", "INC-9"]].concat()).expect(0);
    assert!(meant.out.ends_with(" is released. Its operation can be claimed again.\n"), "{}", meant.out);
    terminal.claim("show", &[]).expect(3);
}

/// A change of another attempt than the named one is refused.
#[tokio::test]
async fn a_change_has_the_attempt_and_the_retention_of_the_command_line() {
    let gateway = operated("memory:").start().await;
    let terminal = Terminal::at(&gateway);
    let claim = json!({ "operation": "order.submit", "contents": { "order_id": "A-1001" } });
    gateway.client().post("/v1/claims", &claim).await.expect(201);
    let shown = terminal.claim("show", &["--output", "json"]).expect(0);
    let shown: Value = serde_json::from_str(&shown.out).unwrap();
    let (hash, other) = (shown["attempt_hash"].as_str().unwrap(), ["--reason", "r", "--attempt-hash", "00000000"]);
    for words in [&["--even-succeeded"][..], &[]] {
        let refused = terminal.claim("release", &[words, &other].concat()).expect(3);
        assert!(refused.err.contains("(superseded, request "), "{}", refused.err);
    }
    let forget = ["proxy", "forget", "--app", "default", "--global-id", shown["global_id"].as_str().unwrap()];
    terminal.run(&[&forget[..], &other].concat()).expect(3);
    let settled = ["--outcome", "success", "--retention", "90m", "--reason", "r", "--attempt-hash", hash];
    terminal.claim("settle", &settled).expect(0);
    let settled = terminal.claim("show", &["--output", "json"]).expect(0);
    assert!(settled.out.contains("\"90m\""), "{}", settled.out);
    terminal.claim("release", &["--even-succeeded", "--reason", "r", "--attempt-hash", hash]).expect(0);
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
    assert_eq!(rows(&first).len(), 3, "{first}");
    let (_, after) = first.lines().last().unwrap().split_once("There are more: --after ").unwrap();
    let second = list(&["--after", after]).expect(0).out;
    assert_eq!(rows(&second).len(), 2, "{second}");
    assert_eq!(rows(&first)[0]["STATE"], "in_progress");
    assert!(
        rows(&first)[0]["CONTENTS"].ends_with("\\u{9b}\""),
        "a terminal must not take contents for commands: {first}"
    );
    let json = list(&["--output", "json"]).expect(0).out;
    assert!(!json.contains('\u{9b}'), "{json}");
    let json: Value = serde_json::from_str(&json).unwrap();
    assert!(json["claims"][4]["contents"].as_str().unwrap().ends_with('\u{9b}'), "{json}");
    let none = terminal.run(&["claim", "list", "--app", "default", "--state", "succeeded"]).expect(0);
    assert_eq!(none.out, "There are no such claims.\n");
}

/// More than the gateway has on a page is read page by page.
#[tokio::test]
async fn a_long_list_is_one_table() {
    let gateway = operated("memory:").start().await;
    let items: Vec<Value> = (0..250).map(|number| json!({ "contents": number })).collect();
    gateway.client().post("/v1/claims/batch", &json!({ "items": items })).await.expect(200);
    let list = |limit: &str| Terminal::at(&gateway).run(&["claim", "list", "--app", "default", "--limit", limit]);
    let all = list("1000").expect(0).out;
    let mut ids: Vec<_> = rows(&all).into_iter().map(|row| row["GLOBAL ID"].clone()).collect();
    assert!(ids.len() == 250 && ids.is_sorted() && !all.contains("There are more"), "{all}");
    ids.dedup();
    assert_eq!(ids.len(), 250);
    let some = list("120").expect(0).out;
    assert_eq!(rows(&some).len(), 120);
    assert!(some.ends_with(&format!("There are more: --after {}\n", ids[119])), "{some}");
    for wrong in ["0", "100001"] {
        list(wrong).expect(2);
    }
}

#[tokio::test]
async fn engines_and_chains_are_tables() {
    let gateway = operated("memory:").start().await;
    let terminal = Terminal::at(&gateway);
    let engines = terminal.run(&["engine", "list"]).expect(0).out;
    let row = &rows(&engines)[0];
    let expected = ["primary", "up", "closed", "default", "lists, strict_fence", "memory:", "answers"];
    let found = ["ENGINE", "STATUS", "BREAKER", "CHAINS", "PROMISES", "URL", "DETAIL"].map(|header| &*row[header]);
    assert_eq!(found, expected, "{engines}");
    assert!(engines.ends_with("\n\nSpool: 0 entries, 0 of 67108864 bytes.\n"), "{engines}");
    let chains = terminal.run(&["chain", "list"]).expect(0).out;
    let expected = "CHAIN    ACTIVE   ENGINES       EPOCH  STATUS\ndefault  primary  primary (up)  0      in use\n";
    assert_eq!(chains, expected);
    let chain = terminal.run(&["chain", "show", "default"]).expect(0).out;
    let expected = "Chain          default\nActive engine  primary\nEngines        primary (up)\nEpoch          0\nStatus         in use\n";
    assert_eq!(chain, expected);
    let json = terminal.run(&["chain", "show", "default", "--output", "json"]).expect(0).out;
    assert_eq!(serde_json::from_str::<Value>(&json).unwrap()["active"], "primary");
    let unknown = terminal.run(&["chain", "show", "defualt"]).expect(3);
    assert_eq!(unknown.err, "oncegate: There is no chain `defualt`. The gateway has: default\n");
    terminal.run(&["chain", "switch", "../claims", "spare", "--reason", "r"]).expect(2);
}

#[tokio::test]
async fn the_audit_trail_is_a_table() {
    let gateway = operated("memory:").start().await;
    let terminal = Terminal::at(&gateway);
    let none = terminal.run(&["audit"]).expect(0).out;
    assert_eq!(none, "There are no changes in the audit trail of this gateway.\n");
    assert_eq!(
        terminal.run(&["overlaps"]).expect(0).out,
        "There are no overlaps at this gateway. Each gateway keeps its own list.\n"
    );
    let claim = json!({ "operation": "order.submit", "contents": { "order_id": "A-1001" } });
    gateway.client().post("/v1/claims", &claim).await.expect(201);
    terminal.claim("release", &["--reason", "INC-9: its host has failed"]).expect(0);
    let listed = terminal.run(&["audit"]).expect(0).out;
    let row = &rows(&listed)[0];
    let found = ["WHO", "ACTION", "RESULT", "APP", "OPERATION", "REASON"].map(|header| &*row[header]);
    assert_eq!(found, ["alice", "claim.release", "released", "default", "order.submit", "INC-9: its host has failed"]);
    let json = terminal.run(&["audit", "--output", "json", "--limit", "1"]).expect(0).out;
    assert_eq!(serde_json::from_str::<Value>(&json).unwrap()["entries"][0]["reason"], "INC-9: its host has failed");
    let missing = terminal.run(&["audit", "--limit", "201"]).expect(2);
    assert!(missing.err.contains("a whole number from 1 to 200"), "{}", missing.err);
}

/// Gateways keep degraded grants next to the claims. They are no claims, and callers cannot make any with a reserved operation.
#[cfg(feature = "disk")]
#[tokio::test]
async fn records_of_gateways_are_in_no_list() {
    let folder = tempfile::tempdir().unwrap();
    let url = format!("disk:{}", folder.path().join("claims").display());
    let engine = oncegate::engines::open(&url, Arc::new(SystemClock::new()), Vec::new()).unwrap();
    let mut claim = fresh_claim();
    claim.key.app = "default".parse().unwrap();
    let grant = DegradedGrant::of_claim(&claim, claim.attempt.timestamp(), claim.attempt.timestamp().plus(DEADLINE));
    let grants = Grants::default().with(&grant, grant.from).unwrap();
    engine.change_record(&grants.change(&claim.key, None, 1).unwrap(), DEADLINE).await.unwrap();
    engine.close().await;
    drop(engine);
    let gateway = operated(&url).start().await;
    let terminal = Terminal::at(&gateway);
    gateway.client().claim(json!("A-1001")).await.expect(201);
    let refused = json!({ "operation": "oncegate:x", "contents": 1 });
    let refused = gateway.client().post("/v1/claims", &refused).await;
    assert_eq!(refused.code(), (400, "invalid_request"));
    assert!(refused.body["detail"].as_str().unwrap().contains("`oncegate:` is reserved"), "{}", refused.text);
    let list = |words: &[&str]| {
        let listed = terminal.run(&[&["claim", "list", "--app", "default"], words].concat()).expect(0).out;
        rows(&listed).into_iter().map(|row| row["OPERATION"].clone()).collect::<Vec<_>>()
    };
    assert_eq!(list(&[]), ["default"]);
    assert_eq!(list(&["--limit", "1"]), ["default"]);
}

#[tokio::test]
async fn a_refused_operator_learns_the_reason() {
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
    assert!(wrong.err.starts_with("oncegate: The gateway does not know this token."), "{}", wrong.err);
    fs::write(terminal.folder().join("token"), format!("{TOKEN}\n")).unwrap();
    with(&["--token-file", "token"], &[]).expect(0);
    let absent = with(&["--token-file", "absent"], &[]).expect(1);
    assert!(absent.err.contains("Cannot read the token from absent"), "{}", absent.err);

    // Without --admin it is the listener of the configuration, and the token is no setting of it.
    let admin = gateway.admin().to_string();
    let environment = [("ONCEGATE_SERVER__ADMIN_LISTEN", &*admin), ("ONCEGATE_ADMIN_TOKEN", TOKEN)];
    oncegate_with(terminal.folder(), &["chain", "list"], &environment).expect(0);

    let closed = gateway::on_memory().start().await;
    let refused = Terminal::at(&closed).run(&["chain", "list"]).expect(1);
    assert!(refused.err.contains("[admin.tokens]"), "{}", refused.err);
    let api = format!("http://{}", gateway.api());
    let environment = [("ONCEGATE_ADMIN_TOKEN", TOKEN)];
    // Of another listener, 404 does not mean that there is no such claim.
    for words in [&["chain", "list"][..], &["claim", "show", "--app", "default", "1"]] {
        let words = [words, &["--admin", &api]].concat();
        let other_listener = oncegate_with(terminal.folder(), &words, &environment).expect(1);
        assert!(
            other_listener.err.contains("is the API of a gateway; this command needs its admin listener"),
            "{}",
            other_listener.err
        );
    }
    let nowhere = oncegate_with(terminal.folder(), &["chain", "list", "--admin", "nowhere"], &environment).expect(2);
    assert!(nowhere.err.contains("and a port, such as http://127.0.0.1:9464"), "{}", nowhere.err);
    drop(closed);
}
