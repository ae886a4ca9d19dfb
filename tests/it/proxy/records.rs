//! Stored responses of the proxy, and their use in replays: encryption, defaults by status, private responses, shares,
//! and answers of outage policies.

use std::fs;
use std::os::unix::fs::PermissionsExt as _;
use std::sync::atomic::{AtomicUsize, Ordering};

use oncegate_testkit::redis_server::RedisServer;
use oncegate_testkit::wait::until;
use serde_json::{Value, json};
use tempfile::TempDir;

use super::framing::RawUpstream;
use super::{Caller, SOON, Upstream, at, config, proxy};
use crate::admin::{alice, operated};
use crate::support::exposition::Page;
use crate::support::gateway;

/// Returns the table of keys with these secrets, and their folder. The first key encrypts.
pub(super) fn encryption(secrets: &[&str]) -> (String, TempDir) {
    let folder = tempfile::tempdir().unwrap();
    let key = |secret: &&str| {
        let file = folder.path().join(secret);
        fs::write(&file, secret.repeat(32)).unwrap();
        format!("{{ id = \"{secret}\", file = \"{}\" }}", file.display())
    };
    let keys: Vec<_> = secrets.iter().map(key).collect();
    (format!("[proxy.encryption]\nkeys = [{}]\n", keys.join(", ")), folder)
}

#[tokio::test]
async fn with_keys_only_encrypted_records_are_replayed_and_none_runs_again() {
    let Some(server) = RedisServer::start().await else { return };
    let (upstream, port) = Upstream::start().await;
    let config = config("", &at(port), "");
    let (old, _old_folder) = encryption(&["aa"]);
    let (both, _both_folder) = encryption(&["bb", "aa"]);
    let (new, _new_folder) = encryption(&["bb"]);
    // The gateways that store a response, its key, and the gateways that can replay it.
    let setups = [("", "clear"), (&*old, "old"), (&*both, "both"), (&*new, "new")];
    let mut gateways = Vec::new();
    for (keys, name) in setups {
        let gateway = gateway::on(server.url()).config(&format!("{config}{keys}")).patient().start().await;
        let caller = Caller::of(&gateway);
        until("the store serves", SOON, async || {
            caller.post("/orders/a", &format!("{name}-0"), "one").await.status == 201
        })
        .await;
        gateways.push((gateway, caller, name));
    }
    for (_, caller, name) in &gateways {
        caller.post("/orders/a", name, "one").await;
        caller.post("/orders/big", &format!("{name}-big"), "one").await;
    }
    let effects = upstream.effects();
    for (_, caller, reader) in &gateways {
        for (_, _, writer) in &gateways {
            let readable = match *reader {
                "both" => *writer != "clear",
                "new" => ["both", "new"].contains(writer),
                _ => writer == reader,
            };
            let response = caller.post("/orders/a", writer, "one").await;
            let tombstone = caller.post("/orders/big", &format!("{writer}-big"), "one").await;
            assert_eq!(response.is_replay(), readable, "{writer} at {reader}");
            for answer in [&response, &tombstone].into_iter().skip(usize::from(readable)) {
                assert_eq!((answer.status, &answer.json()["code"]), (409, &Value::from("response_not_stored")));
                assert_eq!(answer.headers.contains_key("location"), readable, "{writer} at {reader}: its fields");
                assert_eq!(answer.json()["response_status"].is_u64(), readable, "{writer} at {reader}: its status");
            }
        }
    }
    assert_eq!(upstream.effects(), effects, "nothing ran again");
    // The proxy does not trust changes in the store: a record in clear text instead of an encrypted one.
    let key = server.query::<Vec<String>>("KEYS ogp:*");
    assert!(!key.is_empty(), "its keys are the proxy's own");
}

#[tokio::test]
async fn a_key_that_every_user_can_read_is_warned_of_at_the_start() {
    let (_upstream, port) = Upstream::start().await;
    for (mode, lines) in [(0o644, 1), (0o640, 0)] {
        let (keys, folder) = encryption(&["aa"]);
        fs::set_permissions(folder.path().join("aa"), fs::Permissions::from_mode(mode)).unwrap();
        let (gateway, _caller) = proxy(port, &keys).await;
        gateway.logged("Every user of this host can read", lines).await;
    }
}

#[tokio::test]
async fn an_erased_response_leaves_no_encrypted_body() {
    let (upstream, port) = Upstream::start().await;
    let (keys, _folder) = encryption(&["aa"]);
    let gateway = operated("memory:").config(&format!("{}{keys}", config("", &at(port), ""))).start().await;
    let (caller, alice) = (Caller::of(&gateway), alice(&gateway));
    let body = "private ".repeat(500);
    let first = caller.post("/orders/a", "k-1", &body).await;
    let claims = alice.get("/admin/v1/claims?app=default&realm=proxy").await.expect(200);
    let global_id = &claims.body["claims"][0]["global_id"];
    let named = json!({ "app": "default", "realm": "proxy", "global_id": global_id });
    let stored = async || alice.post("/admin/v1/claims/show", &named).await.expect(200).body["result"].to_string();
    let before = stored().await;
    assert!(before.len() > body.len() && before.contains("sealed"), "{before}");
    let forget = json!({ "app": "default", "global_id": global_id, "reason": "PRIV-7" });
    alice.post("/admin/v1/proxy/forget", &forget).await.expect(200);
    let after = stored().await;
    assert!(after.len() < 400 && after.contains("sealed"), "the tombstone is encrypted, the body gone: {after}");
    let repeat = caller.post("/orders/a", "k-1", &body).await;
    assert_eq!((repeat.status, &repeat.json()["response_status"]), (409, &Value::from(201)));
    assert_eq!(repeat.headers["location"], first.headers["location"]);
    assert_eq!(upstream.effects(), 1);
}

/// Its length is not announced, so it is known to be too long only when it has arrived.
#[tokio::test]
async fn a_response_in_pieces_that_is_too_long_leaves_a_tombstone() {
    let (upstream, port) = RawUpstream::start().await;
    let (gateway, caller) = proxy(port, "response_bytes = \"1KiB\"\n").await;
    let chunk = format!("258\r\n{}\r\n", "x".repeat(0x258));
    for (key, chunks, is_stored) in [("k-1", 1, true), ("k-2", 2, false)] {
        upstream.answer(&format!(
            "HTTP/1.1 201 Created\r\nlocation: /orders/1\r\nconnection: close\r\ntransfer-encoding: chunked\r\n\r\n{}0\r\n\r\n",
            chunk.repeat(chunks)
        ));
        let first = caller.post("/orders/a", key, "one").await;
        assert_eq!((first.status, first.body.unwrap().len()), (201, 0x258 * chunks));
        let repeat = caller.post("/orders/a", key, "one").await;
        assert_eq!(
            (repeat.is_replay(), &repeat.headers["location"]),
            (is_stored, &"/orders/1".parse().unwrap()),
            "{key}"
        );
        assert!(is_stored || repeat.json()["code"] == "response_not_stored", "{key}");
    }
    assert_eq!(upstream.take().len(), 2);
    let page = Page::get(&gateway.admin_client()).await;
    assert_eq!(page.sum("oncegate_proxy_tombstones_total", &[("route", "orders.create")]), 1);
}

#[tokio::test]
async fn what_strangers_can_cause_is_not_stored_unless_a_route_says_so() {
    let (upstream, port) = Upstream::start().await;
    for (more, stored, released) in [
        ("", &[400, 402, 404, 409, 422][..], &[401, 403, 405, 407, 408, 413, 421, 425, 429, 307, 308][..]),
        ("dialect = \"stripe\"\n", &[400, 403, 404, 500], &[401, 405, 413, 429]),
        // An exact status leaves the other list's default.
        ("store = [\"2xx\", \"403\", \"429\"]\n", &[403, 429], &[401, 405, 413]),
        ("release = [\"404\", \"201\"]\n", &[403, 405, 400], &[404]),
        ("store_private = true\nrelease = [\"4xx\"]\nstore = [\"2xx\", \"409\"]\n", &[409], &[400, 404, 429]),
    ] {
        let (_gateway, caller) = proxy(port, more).await;
        for (statuses, runs) in [(stored, 1), (released, 2)] {
            for status in statuses {
                let (before, path) = (upstream.requests(), format!("/orders/status-{status}"));
                for _ in 0..2 {
                    assert_eq!(caller.post(&path, &path, "one").await.status, *status, "{more}");
                }
                assert_eq!(upstream.requests(), before + runs, "{more}: {status}");
            }
        }
    }
}

#[tokio::test]
async fn errors_of_clients_leave_most_of_the_room_for_responses() {
    let (upstream, port) = Upstream::start().await;
    let (_gateway, caller) = proxy(port, "[defaults.quota]\nresponse_bytes_total = \"8KiB\"\n").await;
    let send = async |path: &str, key: &str| caller.post(path, key, &"x".repeat(1000)).await;
    // Each takes about 1.5 KiB of 2.
    for key in ["k-1", "k-2"] {
        assert_eq!(send("/orders/status-404", key).await.status, 404);
    }
    assert!(send("/orders/status-404", "k-1").await.is_replay());
    assert_eq!(send("/orders/status-404", "k-2").await.json()["code"], "response_not_stored");
    for key in ["k-3", "k-4", "k-5"] {
        assert_eq!(send("/orders/a", key).await.status, 201);
        assert!(send("/orders/a", key).await.is_replay(), "{key}");
    }
    assert_eq!(upstream.requests(), 5);
}

#[tokio::test]
async fn room_for_responses_is_free_again_after_their_retention() {
    let (_upstream, port) = Upstream::start().await;
    let more = "retention = \"2s\"\n[defaults.quota]\nresponse_bytes_total = \"4KiB\"\n";
    let (_gateway, caller) = proxy(port, more).await;
    let number = AtomicUsize::new(0);
    let repeat = async || {
        let (key, body) = (format!("k-{}", number.fetch_add(1, Ordering::Relaxed)), "x".repeat(1000));
        caller.post("/orders/a", &key, &body).await;
        caller.post("/orders/a", &key, &body).await
    };
    until("there is no room", SOON, async || repeat().await.status == 409).await;
    until("there is room", SOON, async || repeat().await.is_replay()).await;
}

#[tokio::test]
async fn a_private_response_is_stored_where_it_is_encrypted_or_asked_for_and_else_the_log_says_how() {
    let (_upstream, port) = Upstream::start().await;
    let (keys, _folder) = encryption(&["aa"]);
    for (more, is_stored) in [
        ("", false),
        ("store_private = true\n", true),
        ("dialect = \"stripe\"\n", true),
        ("dialect = \"stripe\"\nstore_private = false\n", false),
        (&*keys, true),
        (&*format!("store_private = false\n{keys}"), false),
        ("[defaults]\nmode = \"observe\"\n", false),
    ] {
        let (gateway, caller) = proxy(port, more).await;
        let is_observed = more.contains("observe");
        for key in ["k-1", "k-2"] {
            assert_eq!(caller.post("/orders/private", key, "one").await.status, 201);
            let repeat = caller.post("/orders/private", key, "one").await;
            assert_eq!(repeat.is_replay(), is_stored, "{more}");
            assert!(is_stored || is_observed || repeat.status == 409, "{more}");
        }
        gateway.logged("write store_private = true", usize::from(!is_stored)).await;
        let metrics = gateway.admin_client().get("/metrics").await.text;
        let counted =
            metrics.lines().find_map(|line| line.strip_prefix("oncegate_proxy_private_responses_total{route="));
        let expected = match (is_stored, is_observed) {
            (true, _) => "0",
            (false, true) => "4",
            (false, false) => "2",
        };
        assert_eq!(counted.and_then(|line| line.split(' ').next_back()).unwrap_or("0"), expected, "{more}");
    }
}

#[tokio::test]
async fn an_answer_names_the_policy_that_gave_it_to_its_caller_and_to_the_upstream() {
    let Some(mut server) = RedisServer::start().await else { return };
    let (upstream, port) = Upstream::start().await;
    let more = "[defaults.on_outage]\nclaim = \"local\"\noutcome = \"spool\"\n";
    let gateway = gateway::on(server.url()).config(&config("", &at(port), more)).start().await;
    let caller = Caller::of(&gateway);
    until("the store serves", SOON, async || {
        let answer = caller.post("/orders/a", "k-0", "one").await;
        answer.status == 201 && !answer.headers.contains_key("oncegate-degraded")
    })
    .await;
    caller.post("/orders/a", "k-1", "one").await;
    caller.post("/orders/big", "k-2", "one").await;
    let repeat = caller.post("/orders/a", "k-1", "one").await;
    assert!(repeat.is_replay() && !repeat.headers.contains_key("oncegate-degraded"));
    server.kill();
    let effects = upstream.effects();
    until("the policy answers", SOON, async || {
        let repeat = caller.post("/orders/a", "k-1", "one").await;
        repeat.is_replay() && repeat.headers.get("oncegate-degraded").is_some_and(|policy| policy == "local")
    })
    .await;
    // A first request names it too, to its caller and to the upstream.
    let granted = caller.post("/orders/a", "k-3", "one").await;
    assert_eq!((granted.status, &granted.headers["oncegate-degraded"]), (201, &"local".parse().unwrap()));
    assert_eq!(granted.headers["x-seen-degraded"], "Some(\"local\")");
    let effects = effects + 1;
    for (path, key, body, status) in [("/orders/big", "k-2", "one", 409), ("/orders/a", "k-1", "two", 422)] {
        let refused = caller.post(path, key, body).await;
        assert_eq!((refused.status, &refused.headers["oncegate-degraded"]), (status, &"local".parse().unwrap()));
    }
    assert_eq!(upstream.effects(), effects);
}
