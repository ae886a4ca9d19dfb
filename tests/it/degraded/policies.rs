//! Each policy as a caller sees it: the answer, the named policy and the metrics; and the state of the store after its
//! recovery.

use oncegate_testkit::fresh;
use oncegate_testkit::gateway::Gateway;
use oncegate_testkit::wait::until;
use serde_json::{Value, json};

use super::{again, alice, back, delivered, durable_redis, out, policy, setup};
use crate::support::caller::caller;
use crate::support::command::oncegate_with;
use crate::support::exposition::Page;
use crate::support::table::rows;

#[tokio::test]
async fn each_policy_answers_in_the_stores_place_and_says_so() {
    let Some(mut server) = durable_redis().await else { return };
    let mut gateway = setup(server.url()).start().await;
    let [closed, spooling, local, lenient] =
        ["closed", "spooling", "local", "lenient"].map(|app| caller(&gateway, app));
    let (held, done) = (json!("held before"), json!("done before"));
    let store_granted = local.claim(held.clone()).await.expect(201);
    assert_eq!(policy(&store_granted), None);
    local
        .report(&local.claim(done.clone()).await.expect(201), json!({ "outcome": "success", "result": 7 }))
        .await
        .expect(200);
    let of_spooling = spooling.claim(json!("spooled")).await.expect(201);
    let of_closed = closed.claim(json!("closed")).await.expect(201);
    server.kill();
    out(&gateway).await;

    // Closed: nothing is granted and no outcome is accepted.
    closed.settle(&of_closed, "success").await.expect(503);
    // Local: claims that it has granted and seen.
    for (contents, state) in [(&held, "in_progress"), (&done, "succeeded")] {
        let duplicate = again(&local, contents).await.expect(409);
        assert_eq!((policy(&duplicate), &duplicate.body["state"]), (Some("local"), &json!(state)));
    }
    let granted = local.claim(json!("new")).await.expect(201);
    assert_eq!((policy(&granted), &granted.body["fence"]), (Some("local"), &json!(null)));
    assert_eq!(policy(&again(&local, &json!("new")).await.expect(409)), Some("local"));
    assert_eq!(policy(&local.renew(&granted, Some("1m")).await.expect(200)), Some("local"));
    let settled = local.report(&granted, json!({ "outcome": "success", "result": "r" })).await.expect(200);
    assert_eq!((policy(&settled), &settled.body["state"]), (Some("local"), &json!("succeeded")));
    assert_eq!(again(&local, &json!("new")).await.expect(409).body["result"], "r");
    assert_eq!(policy(&local.settle(&granted, "failure").await.expect(409)), Some("local"));
    assert_eq!(policy(&local.renew(&granted, None).await.expect(409)), Some("local"));
    // Open: each new operation is granted, and the same nonce gets the same grant.
    let body = json!({ "contents": "open", "attempt_nonce": "nonce-of-the-caller-1" });
    let opened = lenient.post("/v1/claims", &body).await.expect(201);
    assert_eq!(policy(&opened), Some("fail_open"));
    let repeated = lenient.post("/v1/claims", &body).await.expect(201);
    assert_eq!((&repeated.body["attempt"], &repeated.body["repeated"]), (&opened.body["attempt"], &json!(true)));
    assert_eq!(policy(&lenient.settle(&opened, "success").await.expect(202)), Some("spool"));
    // Spooled: taken, and known from then on.
    let spooled = spooling.settle(&of_spooling, "success").await.expect(202);
    assert_eq!((policy(&spooled), &spooled.body["state"]), (Some("spool"), &json!("spooled")));
    assert_eq!(policy(&again(&spooling, &json!("spooled")).await.expect(409)), Some("spool"));
    spooling.claim(json!("another")).await.expect(503);
    // A batch is its items.
    let item = json!({ "contents": "in a batch", "lease": "10m" });
    let items = json!({ "items": [item, item, { "contents": "new" }] });
    let batch = local.post("/v1/claims/batch", &items).await.expect(200);
    let statuses: Vec<_> = batch.body["items"].as_array().unwrap().iter().map(|item| item["status"].clone()).collect();
    assert_eq!(statuses, [201, 409, 409]);
    assert_eq!(batch.body["items"][0]["degraded"], "local");

    let admin = gateway.admin_client();
    let metrics = Page::get(&admin).await;
    for (app, by) in [("local", "local"), ("lenient", "fail_open"), ("lenient", "spool"), ("spooling", "spool")] {
        assert!(metrics.sum("oncegate_degraded_answers_total", &[("app", app), ("policy", by)]) > 0, "{app} {by}");
    }
    assert_eq!(metrics.sum("oncegate_degraded_answers_total", &[("app", "closed")]), 0);
    until("the gauges know", super::TIMEOUT, async || {
        let metrics = Page::get(&admin).await;
        // Two grants of `local` with a renewal and an outcome, one of `lenient` with its outcome, one spooled.
        metrics.sum("oncegate_spool_entries", &[]) == 7 && metrics.sum("oncegate_spool_bytes", &[]) > 1000
    })
    .await;

    let is_seen_open = async || {
        closed.claim(fresh::contents()).await.expect(503);
        let ready = admin.get("/readyz?verbose").await.expect(200).body;
        let spool = &ready["spool"];
        assert_eq!(
            (&spool["entries"], &spool["takes"], spool["oldest_at"].is_string()),
            (&json!(7), &json!(true), true)
        );
        let shown = alice(&gateway).get("/admin/v1/engines").await.expect(200).body;
        assert_eq!(shown["spool"], *spool);
        ready["engines"]["primary"]["breaker"]["state"] == "open" && shown["engines"][0]["breaker"]["state"] == "open"
    };
    until("the breaker is seen open", super::TIMEOUT, is_seen_open).await;
    entries_are_listed(&gateway).await;

    // The process ends with the store still out, and knows all of it again.
    gateway.kill();
    let setup = setup(server.url()).data_dir(gateway.data_dir());
    let gateway = setup.start().await;
    let [spooling, local, lenient] = ["spooling", "local", "lenient"].map(|app| caller(&gateway, app));
    assert_eq!(policy(&again(&local, &json!("new")).await.expect(409)), Some("local"));
    assert_eq!(policy(&again(&lenient, &json!("open")).await.expect(409)), Some("fail_open"));
    assert_eq!(policy(&again(&spooling, &json!("spooled")).await.expect(409)), Some("spool"));
    server.restart().await;
    delivered(&gateway).await;
    back(&gateway).await;
    for (client, contents) in [(&spooling, json!("spooled")), (&local, json!("new")), (&lenient, json!("open"))] {
        let duplicate = again(client, &contents).await.expect(409);
        assert_eq!((policy(&duplicate), &duplicate.body["state"]), (None, &json!("succeeded")), "{contents}");
    }
    let ready = gateway.admin_client().get("/readyz?verbose").await.expect(200).body;
    assert_eq!((&ready["engines"]["primary"]["up"], &ready["spool"]["entries"]), (&json!(true), &json!(0)));
    assert_ne!(ready["engines"]["primary"]["breaker"]["state"], "open");
    let in_progress = again(&local, &json!("in a batch")).await.expect(409);
    assert_eq!(in_progress.body["state"], "in_progress", "the store has a grant without its outcome");
    let overlaps = alice(&gateway).get("/admin/v1/overlaps").await.expect(200);
    assert_eq!(overlaps.body["overlaps"], json!([]), "there was no other attempt");
}

/// Each entry that waits is listed, in pages, without contents and attempts.
async fn entries_are_listed(gateway: &Gateway) {
    let alice = alice(gateway);
    let all = alice.get("/admin/v1/spool").await.expect(200);
    let entries = all.body["entries"].as_array().unwrap();
    let is_of = |app: &str, answer: &str| {
        entries.iter().filter(|entry| entry["app"] == app && entry["answer"] == answer).count()
    };
    assert_eq!(entries.len(), 7, "{}", all.text);
    assert_eq!([is_of("local", "granted"), is_of("local", "renewed"), is_of("local", "success")], [2, 1, 1]);
    assert_eq!([is_of("lenient", "granted"), is_of("lenient", "success"), is_of("spooling", "success")], [1, 1, 1]);
    assert!(entries.is_sorted_by(|older, newer| older["id"].as_u64() < newer["id"].as_u64()));
    for hidden in ["in a batch", "nonce-of-the-caller-1", "contents\"", "attempt\"", "result\""] {
        assert!(!all.text.contains(hidden), "{hidden}: {}", all.text);
    }
    until("a failed delivery is shown", super::TIMEOUT, async || {
        let shown = alice.get("/admin/v1/spool?limit=1").await.expect(200);
        shown.body["entries"][0]["last_failure"].as_str().is_some_and(|why| !why.is_empty())
    })
    .await;
    let first = alice.get("/admin/v1/spool?app=local&limit=3").await.expect(200);
    let next = &first.body["next"];
    assert_eq!(next, &first.body["entries"][2]["id"]);
    let rest = alice.get(&format!("/admin/v1/spool?app=local&limit=3&after={next}")).await.expect(200);
    assert_eq!((rest.body["entries"].as_array().unwrap().len(), &rest.body["next"]), (1, &Value::Null));
    assert_eq!(alice.get("/admin/v1/spool?app=closed").await.expect(200).body["entries"], json!([]));
    for wrong in ["after=0", "after=x", "limit=1001", "app=%20", "state=unknown"] {
        assert_eq!(alice.get(&format!("/admin/v1/spool?{wrong}")).await.code(), (400, "invalid_request"), "{wrong}");
    }

    let admin = format!("http://{}", gateway.admin());
    let folder = tempfile::tempdir().unwrap();
    let run = |words: &[&str]| {
        let words = [&["spool", "waiting", "--admin", &*admin], words].concat();
        let ended = oncegate_with(folder.path(), &words, &[("ONCEGATE_ADMIN_TOKEN", super::TOKEN)]);
        assert_eq!(ended.code, Some(0), "{}", ended.err);
        ended.out
    };
    let listed = run(&["--app", "spooling"]);
    let row = &rows(&listed)[0];
    assert_eq!((&*row["ANSWER"], &*row["POLICY"], &*row["REALM"]), ("success", "spool", "api"), "{listed}");
    assert!(run(&["--limit", "2"]).contains("\n\nThere are more: --after "));
    assert_eq!(run(&["--app", "closed"]), "Nothing waits for a store at this gateway.\n");
}

#[tokio::test]
async fn a_full_journal_fails_closed_and_says_which_bound() {
    let Some(mut server) = durable_redis().await else { return };
    let setup = setup(server.url()).env("ONCEGATE_LIMITS__JOURNAL_BYTES", 20_000);
    let gateway = setup.env("ONCEGATE_LIMITS__JOURNAL_APP_BYTES", 4_000).start().await;
    let [local, lenient] = ["local", "lenient"].map(|app| caller(&gateway, app));
    server.kill();
    out(&gateway).await;
    let mut granted = 0;
    let refused = loop {
        let answer = lenient.claim(json!({ "number": granted })).await;
        if answer.status != 201 {
            break answer;
        }
        granted += 1;
    };
    assert!((3..20).contains(&granted), "{granted}");
    assert_eq!(refused.code(), (503, "store_unavailable"));
    assert!(refused.headers.contains_key("retry-after"));
    let takes = async || gateway.admin_client().get("/readyz?verbose").await.expect(200).body["spool"]["takes"].clone();
    assert_eq!(takes().await, false);
    local.claim(json!("another app has room")).await.expect(201);
    assert_eq!(takes().await, true);
    server.restart().await;
    delivered(&gateway).await;
    back(&gateway).await;
    lenient.claim(json!("room again")).await.expect(201);
}

#[tokio::test]
async fn the_journal_folder_is_used_only_with_a_policy_and_must_then_be_usable() {
    let folder = tempfile::tempdir().unwrap();
    let journal = folder.path().join("journal");
    let plain = crate::support::gateway::on_memory().data_dir(folder.path());
    drop(plain.start().await);
    assert!(!journal.exists());
    std::fs::write(&journal, "in the way").unwrap();
    let (status, log) = setup("memory:").data_dir(folder.path()).try_start().await.err().unwrap();
    assert!(!status.success() && log.contains("server.data_dir"), "{log}");
    std::fs::remove_file(&journal).unwrap();
    let first = setup("memory:").data_dir(folder.path()).start().await;
    let (status, log) = setup("memory:").data_dir(folder.path()).try_start().await.err().unwrap();
    assert!(!status.success() && log.contains(&format!("is held by process {}", first.pid())), "{log}");
    drop(first);
}

#[tokio::test]
async fn one_gateway_holds_the_data_dir_whatever_its_policies_are_and_a_reload_finds_it_ready() {
    let folder = tempfile::tempdir().unwrap();
    let plain = crate::support::gateway::on_memory().data_dir(folder.path());
    let first = plain.start().await;
    for second in [&plain, &setup("memory:").data_dir(folder.path())] {
        let (status, log) = second.try_start().await.err().unwrap();
        let held = format!("is held by process {}: stop that gateway, or give this one its own folder", first.pid());
        assert!(!status.success() && log.contains(&held), "{log}");
    }
    let listed = crate::support::command::oncegate(folder.path(), &["spool", "list", "--data-dir", "."]);
    assert!(listed.err.contains("There is no journal"), "{}", listed.err);
    first.configure("[defaults.on_outage]\noutcome = \"spool\"\n");
    first.signal("HUP");
    until("the journal is open", super::TIMEOUT, async || folder.path().join("journal/entries").exists()).await;
    let listed = crate::support::command::oncegate(folder.path(), &["spool", "list", "--data-dir", "."]);
    assert!(listed.err.contains("its gateway runs"), "{}", listed.err);
}

#[cfg(unix)]
#[tokio::test]
async fn a_policy_is_refused_at_a_reload_if_the_data_dir_cannot_be_used() {
    let folder = tempfile::tempdir().unwrap();
    let data_dir = folder.path().join("data");
    std::fs::write(&data_dir, "in the way").unwrap();
    let gateway = crate::support::gateway::on_memory().data_dir(&data_dir).start().await;
    gateway.logged("server.data_dir cannot be used", 1).await;
    gateway.configure("[defaults.on_outage]\noutcome = \"spool\"\n");
    gateway.signal("HUP");
    let refused = async || gateway.log().contains("it cannot be used, so nothing changes");
    until("the reload is refused", super::TIMEOUT, refused).await;
    std::fs::remove_file(&data_dir).unwrap();
    gateway.signal("HUP");
    until("the journal is open", super::TIMEOUT, async || data_dir.join("journal/entries").exists()).await;
}
