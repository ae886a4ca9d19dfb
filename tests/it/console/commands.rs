//! Commands on pages: the command line accepts each of them unchanged.

use std::collections::BTreeSet;

use oncegate::cli::arguments;
use serde_json::json;

use super::browser::Browser;
use super::operated;
use super::pages::{page_of, succeeded};
use crate::support::caller;

/// Returns the commands in the code of a page. A place for a value has a value.
fn commands(page: &str) -> BTreeSet<Vec<String>> {
    let code = page.split("<code>").chain(page.split("<pre>")).skip(1).filter(|code| code.starts_with("oncegate "));
    let code = code.map(|code| code.split("</").next().unwrap());
    let lines = code.flat_map(|code| code.split('\n').flat_map(|line| line.split(", oncegate ")));
    lines.map(|line| words(&line.replace("&quot;", "\"").replace("&amp;", "&"))).collect()
}

/// Returns the words of a command, as a shell has them.
fn words(line: &str) -> Vec<String> {
    let unquoted: Vec<&str> = line.split('\'').collect();
    let mut words: Vec<String> = Vec::new();
    for (index, part) in unquoted.iter().enumerate() {
        if index % 2 == 1 {
            words.push((*part).to_owned());
        } else {
            words.extend(part.split_whitespace().map(str::to_owned));
        }
    }
    if words.first().is_none_or(|word| word != "oncegate") {
        words.insert(0, "oncegate".to_owned());
    }
    for index in 1..words.len() {
        if words[index] == "…" {
            let value = match words[index - 1].as_str() {
                "--outcome" => "success",
                "--found" => "once",
                "--global-id" => "0123456789abcdef0123456789abcdef",
                _ => "shop",
            };
            value.clone_into(&mut words[index]);
        }
    }
    words
}

#[tokio::test]
async fn the_command_line_takes_each_command_of_each_page() {
    let gateway = operated().start().await;
    let contents = json!({ "order_id": "A-1" });
    let done = page_of(&succeeded(&gateway, &contents, &json!(1)).await);
    let unknown = page_of(&super::actions::unknown(&gateway, &json!({ "order_id": "A-2" })).await);
    gateway.client().post("/v1/locks/nightly/holds", &json!({ "lease": "10m" })).await.expect(201);
    super::hostile::suspected(&gateway, "order.submit", &json!({ "order_id": "A-3" })).await;
    let browser = Browser::signed_in(&gateway, "act").await;
    let lock = browser.get("/console/locks/default/nightly").await.expect(200).text;
    let (_, release) = lock.split_once("/console/locks/default/nightly/release/").expect("a hold");
    let release = format!("/console/locks/default/nightly/release/{}", release.split('"').next().unwrap());
    let mut pages: Vec<String> = include_str!("routes.txt")
        .lines()
        .filter_map(|line| line.split_once(" GET ").map(|(_, path)| path.to_owned()))
        .filter(|path| !path.contains('{'))
        .collect();
    pages.extend(["/console/attention/1", "/console/operations/default/order.submit"].map(str::to_owned));
    pages.extend(["", "/switch", "/failover"].map(|action| format!("/console/chains/default{action}")));
    pages.extend(["/console/locks/default/nightly", "/console/locks?app=%3Breboot", &release].map(str::to_owned));
    pages.extend(["", "/rotate", "/disable", "/enable"].map(|action| format!("/console/apps/default{action}")));
    pages.extend(["", "/release", "/forget"].map(|action| format!("{done}{action}")));
    pages.extend(["", "/settle", "/release"].map(|action| format!("{unknown}{action}")));
    let mut found = taken(&browser, &pages).await;
    let closed = operated().config(&caller::app("shop")).start().await;
    let browser = Browser::signed_in(&closed, "act").await;
    let app = browser.get("/console/apps/shop").await.expect(200).text;
    let (_, secret) = app.split_once("<th scope=\"row\"><code><bdi>").expect("a secret");
    let revoke = format!("/console/apps/shop/revoke/{}", secret.split('<').next().unwrap());
    found.extend(taken(&browser, &["/console/apps/shop".to_owned(), revoke]).await);
    for expected in [
        "claim settle",
        "claim release",
        "chain switch",
        "chain failover",
        "app revoke",
        "lock release",
        "suspects check",
    ] {
        let is_it = |words: &Vec<String>| words[1..].join(" ").starts_with(expected);
        assert!(found.iter().any(is_it), "{expected}: {found:?}");
    }
}

/// Asserts that the command line takes the commands of these pages, and returns them.
async fn taken(browser: &Browser, pages: &[String]) -> BTreeSet<Vec<String>> {
    let mut all = BTreeSet::new();
    for path in pages {
        let page = browser.get(path).await;
        for words in commands(&page.text) {
            let parsed = arguments::parse_from(&words);
            assert!(
                parsed.is_ok(),
                "{path}: {words:?}: {}",
                parsed.err().map(|error| error.to_string()).unwrap_or_default()
            );
            assert!(!words.iter().any(|word| word.contains("reboot")), "{path}: {words:?}");
            all.insert(words);
        }
    }
    all
}
