//! The commands beside `serve`, as an operator types them.

use serde_json::json;

use crate::support::command::{oncegate, oncegate_with};
use crate::support::gateway::Setup;

#[test]
fn id_prints_what_md5sum_would() {
    let folder = tempfile::tempdir().unwrap();
    let id = |words: &[&str]| oncegate(folder.path(), &[&["id", "--app", "shop"], words].concat());
    let named = id(&["--operation", "order.submit", r#"{ "order_id": "A-1001" }"#]);
    assert_eq!((named.code, &*named.out, &*named.err), (Some(0), "2ca8a31a53ad078ffd0c7c8c80158af7\n", ""));
    let bare = id(&["A-1001"]);
    assert_eq!((bare.code, &*bare.out), (Some(1), ""));
    assert!(bare.err.starts_with("oncegate: ") && bare.err.contains("'\"A-1001\"'"), "{}", bare.err);
    let nameless = oncegate(folder.path(), &["id", "--app", "Shop", "1"]);
    assert_eq!(nameless.code, Some(2));
}

#[tokio::test]
async fn id_and_gateway_agree() {
    let folder = tempfile::tempdir().unwrap();
    let gateway = Setup::on_memory().start().await;
    let contents = json!({ "b": [1.0, "ü\u{7}", null], "a": { "z": 1e21, "y": -0.0 } });
    let body = json!({ "operation": "order.submit", "contents": contents });
    let told = gateway.client().post("/v1/global-ids", &body).await.expect(200);
    let words = ["id", "--app", "default", "--operation", "order.submit", "--canonical", &contents.to_string()];
    let printed = oncegate(folder.path(), &words);
    let expected =
        format!("{}\n{}\n", told.body["global_id"].as_str().unwrap(), told.body["canonical"].as_str().unwrap());
    assert_eq!(printed.out, expected);
}

#[test]
fn config_check_names_file_key_and_nearest() {
    let folder = tempfile::tempdir().unwrap();
    let check = |toml: &str| {
        std::fs::write(folder.path().join("my.toml"), toml).unwrap();
        oncegate(folder.path(), &["config", "check", "--config", "my.toml"])
    };
    let good = check("[defaults]\nlease = \"1m\"\n");
    assert_eq!(good.code, Some(0), "{}", good.err);
    let bad = check("[server]\nlistn = \"127.0.0.1:8080\"\n\n[defaults]\nlease = \"1 minute\"\nretentoin = \"1d\"\n");
    assert_eq!((bad.code, &*bad.out), (Some(2), ""));
    for word in [
        "my.toml",
        "server.listn",
        "did you mean `listen`?",
        "defaults.lease",
        "defaults.retentoin",
        "did you mean `retention`?",
    ] {
        assert!(bad.err.contains(word), "no {word} in {}", bad.err);
    }
    let absent = oncegate(folder.path(), &["config", "check", "--config", "absent.toml"]);
    assert_eq!(absent.code, Some(2));
    assert!(absent.err.contains("absent.toml"), "{}", absent.err);
}

#[test]
fn config_print_shows_what_all_layers_come_to_and_no_secret() {
    let folder = tempfile::tempdir().unwrap();
    let digest = "9f86d081884c7d659a2feaa0c55ad015a3bf4f1b2b0b822cd15d6c15b0f00a08";
    let toml = format!(
        "[server]\nlisten = \"127.0.0.1:1\"\n[engines]\nprimary = \"redis://user:pass-canary@127.0.0.1/3\"\n\
         [defaults]\nlease = \"1m\"\n[apps.shop]\nsecrets = [\"sha256:{digest}\"]\n[admin.tokens]\nalice = \"sha256:{digest}\"\n"
    );
    std::fs::write(folder.path().join("my.toml"), toml).unwrap();
    let environment = [("ONCEGATE_DEFAULTS__LEASE", "2m"), ("ONCEGATE_CONFIG", "my.toml")];
    let printed = oncegate_with(folder.path(), &["config", "print", "--listen", "127.0.0.1:2"], &environment);
    assert_eq!(printed.code, Some(0), "{}", printed.err);
    for line in ["listen = \"127.0.0.1:2\"", "lease = \"2m\"", "retention = \"1d\"", "127.0.0.1/3"] {
        assert!(printed.out.contains(line), "no {line} in {}", printed.out);
    }
    for secret in ["pass-canary", digest] {
        assert!(!printed.out.contains(secret) && !printed.err.contains(secret), "{}{}", printed.out, printed.err);
    }
}

#[tokio::test]
async fn health_tells_in_its_exit_code() {
    let folder = tempfile::tempdir().unwrap();
    let mut gateway = Setup::on_memory().start().await;
    let url = format!("http://{}", gateway.admin());
    let ready = oncegate(folder.path(), &["health", "--url", &url]);
    assert_eq!((ready.code, &*ready.out), (Some(0), "ready\n"), "{}", ready.err);
    let admin = gateway.admin().to_string();
    let ready = oncegate_with(folder.path(), &["health"], &[("ONCEGATE_SERVER__ADMIN_LISTEN", &admin)]);
    assert_eq!(ready.code, Some(0), "{}", ready.err);
    gateway.kill();
    let gone = oncegate(folder.path(), &["health", "--url", &url]);
    assert_eq!((gone.code, &*gone.out), (Some(1), ""));
    assert!(gone.err.contains("is not ready"), "{}", gone.err);
}
