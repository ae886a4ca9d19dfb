//! Messages for callers, operators and newcomers when something is wrong. The messages about single fields of a request
//! are in `edge`.

use std::process::Command;

use oncegate_testkit::gateway::Gateway;
use serde_json::{Value, json};

use crate::proxy;
use crate::support::command::oncegate;
use crate::support::gateway;

/// Returns what curl prints, as a newcomer calls it.
fn curl(words: &[&str]) -> String {
    let output = Command::new("curl").args(["--silent", "--show-error", "--max-time", "20"]).args(words).output();
    let output = output.expect("curl runs");
    [output.stdout, output.stderr].map(|text| String::from_utf8_lossy(&text).into_owned()).concat()
}

/// Returns the addresses of the three listeners, each with its name.
fn listeners(gateway: &Gateway) -> [(&'static str, String); 3] {
    let [api, admin] = [gateway.api(), gateway.admin()].map(|address| address.to_string());
    [("API", api), ("admin listener", admin), ("proxy", proxy::address(gateway))]
}

async fn with_proxy(more: &str) -> Gateway {
    let config = proxy::config("", &proxy::at(1), "");
    gateway::on_memory().config(&format!("{more}{config}")).start().await
}

#[tokio::test]
async fn a_client_that_begins_with_http2_can_show_why_it_is_refused() {
    let gateway = with_proxy("").await;
    for (name, address) in listeners(&gateway) {
        for path in ["/v1/claims", "/livez"] {
            let shown = curl(&["--http2-prior-knowledge", "--include", &format!("http://{address}{path}")]);
            assert!(shown.starts_with("HTTP/2 400"), "{name}: {shown}");
            assert!(shown.contains("application/problem+json"), "{name}: {shown}");
            assert!(shown.contains("This listener speaks HTTP/1.1 only."), "{name}: {shown}");
        }
        let posted =
            curl(&["--http2-prior-knowledge", "--data", "{\"contents\":1}", &format!("http://{address}/v1/claims")]);
        assert!(posted.contains("HTTP/1.1 only"), "{name}: {posted}");
    }
}

#[tokio::test]
async fn the_types_of_problems_begin_with_the_configured_base_on_every_listener() {
    let gateway = with_proxy("[server]\nproblem_base = \"https://docs.example/problems/\"\n").await;
    let problem = |words: &[&str]| -> Value {
        let shown = curl(words);
        serde_json::from_str(&shown).unwrap_or_else(|_| panic!("{words:?}: {shown}"))
    };
    let is_ours = |problem: &Value| {
        let code = problem["code"].as_str().expect("a code");
        assert_eq!(problem["type"], format!("https://docs.example/problems/{code}"), "{problem}");
    };
    for (_, address) in listeners(&gateway) {
        is_ours(&problem(&[&format!("http://{address}/nothing")]));
        is_ours(&problem(&["--header", "Host;", &format!("http://{address}/nothing")]));
        // Refused by the listener, before there is a request.
        is_ours(&problem(&["--http2-prior-knowledge", &format!("http://{address}/nothing")]));
    }
    let batch = ["--json", "{\"items\":[{\"contents\":null}]}"];
    let answer = problem(&[&batch[..], &[&format!("http://{}/v1/claims/batch", gateway.api())]].concat());
    is_ours(&answer["items"][0]);
}

#[cfg(feature = "redis")]
#[tokio::test]
async fn operators_get_the_words_of_a_store_once_and_callers_get_none_of_them() {
    use oncegate_core::hex;
    use oncegate_testkit::redis_server::RedisServer;
    use oncegate_testkit::wait::until;
    use sha2::{Digest, Sha256};

    let Some(server) = RedisServer::start_with(&["requirepass hunter2-of-the-store"]).await else { return };
    let port = server.url().rsplit(':').next().and_then(|port| port.split('/').next()).expect("a port").to_owned();
    let stores = [
        ("wrong", format!("redis://:not-it@127.0.0.1:{port}"), "WRONGPASS: the Redis server does not accept"),
        ("missing", format!("redis://127.0.0.1:{port}"), "NOAUTH: the Redis server refuses: it requires a password"),
        ("tls", format!("rediss://localhost:{port}"), "its port speaks no TLS, write redis:// in place of rediss://"),
        ("down", "redis://127.0.0.1:1".to_owned(), "the Redis server refuses connections"),
        ("nowhere", "redis://no-such-host.invalid".to_owned(), "failed to lookup address"),
    ];
    let secret = |name: &str| format!("secret_of_{name}_0123456789abcdef");
    let engines = stores.iter().map(|(name, url, _)| format!("{name} = \"{url}\"\n"));
    let tables = stores.iter().map(|(name, ..)| {
        let digest = hex::encode(&Sha256::digest(secret(name)));
        format!(
            "[chains.{name}]\nengines = [\"{name}\"]\n[apps.{name}]\nchain = \"{name}\"\nsecrets = [\"sha256:{digest}\"]\n"
        )
    });
    let config: String =
        ["[defaults]\nchain = \"down\"\n[engines]\n".to_owned()].into_iter().chain(engines).chain(tables).collect();
    let gateway = gateway::on_configured().config(&config).start().await;
    for (name, _, words) in &stores {
        let client = gateway.client().with_credential(&format!("{name}.{}", secret(name)));
        let refused = client.claim(json!(1)).await;
        assert_eq!(refused.code(), (503, "store_unavailable"), "{name}: {}", refused.text);
        let expected = "The store is not available. Nothing was changed; try again after Retry-After.";
        assert_eq!(refused.body["detail"], expected, "{name}");
        let detail = async || {
            let ready = gateway.admin_client().get("/readyz?verbose").await.expect(200);
            ready.body["engines"][name]["detail"].as_str().expect("a detail").to_owned()
        };
        until(words, std::time::Duration::from_secs(20), async || detail().await.contains(words)).await;
        let detail = detail().await;
        assert_eq!(detail.matches("the store is not available").count(), 1, "{name}: {detail}");
    }
    assert!(!gateway.log().contains("hunter2") && !gateway.log().contains("not-it"), "{}", gateway.log());
}

/// Wrong command lines, with parts of their errors.
const COMMAND_LINES: &[(&[&str], &[&str])] = &[
    (&["serve", "--port", "8080"], &["--listen 127.0.0.1:8080"]),
    (&["serve", "--engine", "memory"], &["write memory:"]),
    (&["serve", "--engine", "rediss:/localhost"], &["rediss://"]),
    (&["serve", "--listen", "8080"], &["an address is an IP address and a port", "127.0.0.1:8080"]),
    (&["serve", "--listen", "localhost:8080"], &["an address is an IP address and a port"]),
    (&["serve", "-p", "8080"], &["--listen"]),
    (&["health", "--url", "http://127.0.0.1:9464"], &["--admin"]),
    (&["claim", "show", "--app", "shop", "--url", "http://127.0.0.1:8080", "1"], &["--admin http://127.0.0.1:9464"]),
    (&["id", "--app", "shop", "--json", "1"], &["--output json"]),
    (&["once", "--admin", "http://127.0.0.1:9464", "1", "--", "true"], &["--url http://127.0.0.1:8080"]),
    (&["lock", "run", "nightly", "--admin", "http://127.0.0.1:9464", "--", "true"], &["--url http://127.0.0.1:8080"]),
    (&["health", "--admin", "127.0.0.1:9464"], &["such as http://127.0.0.1:9464"]),
    (&["health", "--admin", "http://127.0.0.1:9464/readyz"], &["such as http://127.0.0.1:9464"]),
    (&["health", "--admin", "http://127.0.0.1:1"], &["is not ready"]),
    (&["claim", "show", "{}"], &["--app"]),
    (&["claim", "list", "--app", "shop", "--admin", "http://127.0.0.1:1"], &["ONCEGATE_ADMIN_TOKEN", "--token-file"]),
    (&["id", "--app", "shop", "A-1001"], &["Text needs its own quotes"]),
    (&["id", "--app", "Shop", "1"], &["shop"]),
    (&["config", "check", "oncegate.toml"], &["--config oncegate.toml"]),
    (&["serve", "oncegate.toml"], &["--config oncegate.toml"]),
    (&["migrate", "--engine", "redis://localhost"], &["postgres://"]),
    (&["spool", "list", "--data-dir", "nothing"], &["nothing"]),
    (&["history", "--from", "yesterday"], &["such as 2026-10-20T09:00:00Z"]),
    (&["proxy", "check", "http://h/"], &["no [[proxy.routes]]", "--config"]),
];

#[test]
fn a_wrong_command_line_says_what_to_type() {
    let folder = tempfile::tempdir().unwrap();
    for (words, parts) in COMMAND_LINES {
        let ended = oncegate(folder.path(), words);
        assert!(ended.code.is_some_and(|code| code != 0), "{words:?} is accepted");
        for part in *parts {
            assert!(ended.err.contains(part), "{words:?} lacks {part}: {}", ended.err);
        }
        no_rust(&ended.err);
    }
}

/// Checks that a message has no text that only Rust programmers understand.
fn no_rust(message: &str) {
    for word in ["Error(", "Err(", "Some(", "Os {", "kind:", "struct ", ".rs:", "EOF", "panicked", "unwrap", "variant"]
    {
        assert!(!message.contains(word), "{word} in {message}");
    }
}
