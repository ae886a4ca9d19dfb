//! Grants of two gateways when one cannot reach the store: the report has each double grant, and nothing else.

use std::collections::BTreeMap;

use oncegate_core::attempt::Attempt;
use oncegate_testkit::gateway::Gateway;
use oncegate_testkit::tcp_proxy::TcpProxy;
use serde_json::{Value, json};

use super::{TOKEN, alice, delivered, durable_redis, out, setup};
use crate::support::caller::caller;
use crate::support::command::oncegate_with;
use crate::support::exposition::Page;
use crate::support::table::rows;

/// An attempt as a report names it.
fn shown(answer: &Value) -> Value {
    let attempt: Attempt = answer["attempt"].as_str().unwrap().parse().unwrap();
    json!({ "timestamp": attempt.timestamp().as_micros(), "attempt_hash": attempt.hash().to_string() })
}

async fn report(gateway: &Gateway, query: &str) -> Value {
    alice(gateway).get(&format!("/admin/v1/overlaps{query}")).await.expect(200).body
}

#[tokio::test]
async fn every_double_grant_is_reported_by_both_attempts() {
    let Some(server) = durable_redis().await else { return };
    let mut proxy = TcpProxy::start(server.address()).await;
    // No lease ends before the other gateway's claim of the same contents.
    let long = "[defaults]\nlease = \"10m\"\n";
    let mut cut_off = setup(format!("redis://{}", proxy.address())).config(long).start().await;
    let other = setup(server.url()).config(long).start().await;
    proxy.refuse().await;
    proxy.drop_connections();
    out(&cut_off).await;
    let mut expected = BTreeMap::new();
    for app in ["local", "lenient"] {
        let (here, there) = (caller(&cut_off, app), caller(&other, app));
        for number in 0..12 {
            let contents = json!({ "number": number });
            let ours = here.claim(contents.clone()).await.expect(201);
            // Only some of them are claimed at the other gateway too, and some there are done already.
            if number % 2 == 0 {
                let theirs = there.claim(contents).await.expect(201);
                let id = ours.body["global_id"].as_str().unwrap().to_owned();
                expected.insert(id, (app, shown(&ours.body), shown(&theirs.body)));
                if number % 4 == 0 {
                    there.settle(&theirs, "success").await.expect(200);
                }
            }
            match number % 3 {
                0 => drop(here.settle(&ours, "success").await),
                1 => drop(here.settle(&ours, "failure").await),
                _ => {}
            }
        }
    }
    proxy.heal().await;
    delivered(&cut_off).await;
    let found = report(&cut_off, "?limit=1000").await;
    let by_id: BTreeMap<_, _> = found["overlaps"]
        .as_array()
        .unwrap()
        .iter()
        .map(|overlap| (overlap["global_id"].as_str().unwrap().to_owned(), overlap))
        .collect();
    assert_eq!(by_id.keys().collect::<Vec<_>>(), expected.keys().collect::<Vec<_>>());
    for (id, (app, ours, theirs)) in &expected {
        let overlap = by_id[id];
        assert_eq!((&overlap["app"], &overlap["ours"], &overlap["theirs"]), (&json!(app), ours, theirs));
        let policy = if *app == "local" { "local" } else { "fail_open" };
        assert_eq!((&overlap["kind"], &overlap["cause"]), (&json!("overlap"), &json!(policy)), "{overlap}");
    }
    assert_eq!(report(&other, "").await["overlaps"], json!([]), "only who answered for the store knows");

    // Counted, logged, paged, kept.
    let metrics = Page::get(&cut_off.admin_client()).await;
    assert_eq!(metrics.sum("oncegate_overlaps_total", &[("app", "local"), ("policy", "local")]), 6);
    assert_eq!(metrics.sum("oncegate_overlaps_total", &[]), 12);
    cut_off.logged("Two attempts were granted the same operation", 12).await;
    assert_eq!(report(&cut_off, "?app=local&limit=1000").await["overlaps"].as_array().unwrap().len(), 6);
    let (mut seen, mut after) = (Vec::new(), String::new());
    loop {
        let page = report(&cut_off, &format!("?limit=5{after}")).await;
        seen.extend(page["overlaps"].as_array().unwrap().iter().map(|overlap| overlap["id"].as_u64().unwrap()));
        let Some(next) = page["next"].as_u64() else { break };
        after = format!("&after={next}");
    }
    assert!(seen.len() == 12 && seen.is_sorted_by(|one, next| one > next), "{seen:?}");
    let folder = tempfile::tempdir().unwrap();
    let admin = format!("http://{}", cut_off.admin());
    let words = ["overlaps", "--app", "local", "--limit", "5", "--admin", &admin];
    let listed = oncegate_with(folder.path(), &words, &[("ONCEGATE_ADMIN_TOKEN", TOKEN)]);
    let row = &rows(&listed.out)[0];
    let (_, ours, theirs) = &expected[&row["GLOBAL ID"]];
    let attempt = |shown: &Value| format!("{} {}", shown["attempt_hash"].as_str().unwrap(), shown["timestamp"]);
    assert_eq!((&*row["APP"], &*row["CAUSE"]), ("local", "local"), "{}", listed.err);
    assert_eq!((&row["OURS"], &row["THEIRS"]), (&attempt(ours), &attempt(theirs)));
    assert!(rows(&listed.out).len() == 5 && listed.out.contains("\n\nThere are more: --after "), "{}", listed.out);
    cut_off.kill();
    let again = setup(server.url()).data_dir(cut_off.data_dir()).start().await;
    assert_eq!(report(&again, "?limit=1000").await["overlaps"], found["overlaps"], "known after a restart");
    let without = again.admin_client();
    assert_eq!(without.get("/admin/v1/overlaps").await.status, 401);
    let alice = without.with_credential(TOKEN);
    for after in ["x", "0", "-1", "9007199254740992"] {
        let wrong = alice.get(&format!("/admin/v1/overlaps?after={after}")).await;
        assert_eq!(wrong.code(), (400, "invalid_request"), "{after}");
        assert!(wrong.text.contains("`after` is a whole number from 1 to 9007199254740991"), "{}", wrong.text);
    }
}
