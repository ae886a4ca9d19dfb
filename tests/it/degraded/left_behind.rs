//! `oncegate spool`: entries in the folder of a gateway that no longer runs, listed and delivered by hand.

use serde_json::{Value, json};

use super::{again, alice, config, durable_redis, out, setup};
use crate::support::caller::caller;
use crate::support::command::oncegate;
use crate::support::gateway;
use crate::support::table::rows;

#[tokio::test]
async fn the_journal_of_a_lost_host_is_listed_and_delivered() {
    let Some(mut server) = durable_redis().await else { return };
    let mut gateway = setup(server.url()).start().await;
    let (spooling, local) = (caller(&gateway, "spooling"), caller(&gateway, "local"));
    let secret = "contents-that-nobody-shows";
    let granted = spooling.claim(json!(secret)).await.expect(201);
    server.kill();
    out(&gateway).await;
    spooling.report(&granted, json!({ "outcome": "success", "result": "result-that-nobody-shows" })).await.expect(202);
    local.claim(json!("held")).await.expect(201);
    let data_dir = gateway.data_dir().to_owned();
    let folder = data_dir.to_str().unwrap();
    let run = |words: &[&str]| oncegate(&data_dir, &[words, &["--data-dir", folder]].concat());

    let held = run(&["spool", "list"]);
    assert!(held.code == Some(1) && held.err.contains("held by process"), "{}", held.err);
    gateway.kill();
    let listed = run(&["spool", "list"]);
    assert_eq!(listed.code, Some(0), "{}", listed.err);
    let id = granted.body["global_id"].as_str().unwrap();
    let found: Vec<_> = rows(&listed.out)
        .into_iter()
        .map(|row| ["APP", "OPERATION", "ANSWER", "POLICY", "CHAIN"].map(|header| row[header].clone()))
        .collect();
    let expected =
        [["spooling", "-", "success", "spool", "default"], ["local", "default", "granted", "local", "default"]];
    assert_eq!(found, expected, "{}", listed.out);
    assert_eq!(rows(&listed.out)[0]["GLOBAL ID"], id);
    assert!(listed.out.ends_with("\n\nWaiting: 2.\n"), "{}", listed.out);
    let as_json: Value = serde_json::from_str(&run(&["spool", "list", "--output", "json"]).out).unwrap();
    assert_eq!(
        (&as_json["entries"][0]["global_id"], &as_json["entries"][1]["answer"]),
        (&json!(id), &json!("granted"))
    );
    let attempt = granted.body["attempt"].as_str().unwrap();
    for hidden in [secret, "nobody-shows", attempt] {
        assert!(!listed.out.contains(hidden), "{}", listed.out);
    }

    // Its store is still out: nothing is lost by trying.
    let url = server.url();
    let deliver = |timeout: &str| run(&["spool", "deliver", "--engine", &url, "--timeout", timeout]);
    let refused = deliver("300ms");
    assert_eq!(refused.code, Some(1), "{}", refused.out);
    assert!(refused.out.contains("Delivered: 0, waiting: 2, overlaps: 0."), "{}", refused.out);
    assert!(refused.err.starts_with("oncegate: Not everything was delivered. Run this again"), "{}", refused.err);
    server.restart().await;
    let delivered = deliver("20s");
    assert_eq!(delivered.code, Some(0), "{}", delivered.err);
    assert!(delivered.out.contains("Delivered: 2, waiting: 0, overlaps: 0."), "{}", delivered.out);
    assert_eq!(run(&["spool", "list"]).out, "Everything has been delivered.\n");

    let other = setup(server.url()).start().await;
    let duplicate = again(&caller(&other, "spooling"), &json!(secret)).await.expect(409);
    assert_eq!(duplicate.body["result"], "result-that-nobody-shows");
    again(&caller(&other, "local"), &json!("held")).await.expect(409);

    let nothing = oncegate(&data_dir, &["spool", "list", "--data-dir", "no-such-folder"]);
    assert!(nothing.code == Some(3) && nothing.err.contains("There is no journal"), "{}", nothing.err);
}

#[tokio::test]
async fn entries_of_a_chain_that_is_not_configured_any_more_are_named_and_listed() {
    let Some(mut server) = durable_redis().await else { return };
    let setup = |chain: &str| {
        let chains = format!("[engines]\nstore = {:?}\n[chains.{chain}]\nengines = [\"store\"]\n", server.url());
        gateway::on_configured().config(&format!("{}{chains}[defaults]\nchain = {chain:?}\n", config()))
    };
    let (former, present) = (setup("former"), setup("present"));
    let mut gateway = former.start().await;
    server.kill();
    out(&gateway).await;
    caller(&gateway, "local").claim(json!("held")).await.expect(201);
    gateway.kill();
    let gateway = present.data_dir(gateway.data_dir()).start().await;
    gateway.logged("The journal has entries of a chain that is not configured", 1).await;
    let listed = alice(&gateway).get("/admin/v1/spool").await.expect(200);
    let entries = listed.body["entries"].as_array().unwrap();
    assert_eq!(entries.len(), 1, "{}", listed.text);
    assert_eq!((&entries[0]["app"], &entries[0]["chain"]), (&json!("local"), &json!("former")));
}
