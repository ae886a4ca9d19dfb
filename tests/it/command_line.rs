//! The commands other than `serve`, typed as an operator would.

use std::time::Duration;

use oncegate_core::hex;
use oncegate_testkit::wait::until;
use serde_json::json;
use sha2::{Digest, Sha256};

use crate::support::command::{oncegate, oncegate_with};
use crate::support::gateway;
use crate::support::table::rows;

#[test]
fn id_prints_what_md5sum_would() {
    let folder = tempfile::tempdir().unwrap();
    let id = |words: &[&str]| oncegate(folder.path(), &[&["id", "--app", "shop"], words].concat());
    let named = id(&["--operation", "order.submit", r#"{ "order_id": "A-1001" }"#]);
    assert_eq!((named.code, &*named.out, &*named.err), (Some(0), "2ca8a31a53ad078ffd0c7c8c80158af7\n", ""));
    let bare = id(&["A-1001"]);
    assert_eq!((bare.code, &*bare.out), (Some(2), ""));
    assert!(bare.err.starts_with("oncegate: ") && bare.err.contains("'\"A-1001\"'"), "{}", bare.err);
    let nameless = oncegate(folder.path(), &["id", "--app", "Shop", "1"]);
    assert_eq!(nameless.code, Some(2));
}

#[tokio::test]
async fn id_and_gateway_agree() {
    let folder = tempfile::tempdir().unwrap();
    let gateway = gateway::on_memory().start().await;
    let contents = json!({ "b": [1.0, "ü\u{7}", null], "a": { "z": 1e21, "y": -0.0 } });
    let body = json!({ "operation": "order.submit", "contents": contents });
    let response = gateway.client().post("/v1/global-ids", &body).await.expect(200);
    let words = ["id", "--app", "default", "--operation", "order.submit", "--canonical", &contents.to_string()];
    let printed = oncegate(folder.path(), &words);
    let expected =
        format!("{}\n{}\n", response.body["global_id"].as_str().unwrap(), response.body["canonical"].as_str().unwrap());
    assert_eq!(printed.out, expected);
}

/// The configuration that a newcomer has written is in the folder, and no option names it.
#[test]
fn a_configuration_file_that_is_not_read_is_named() {
    let folder = tempfile::tempdir().unwrap();
    let taken = std::net::TcpListener::bind("127.0.0.1:0").unwrap();
    let address = taken.local_addr().unwrap().to_string();
    // It ends at once, since its port is taken.
    let serve = ["serve", "--engine", "memory:", "--data-dir", "data", "--listen", &address];
    let ways: [&[&str]; 2] = [&["config", "check"], &serve];
    let is_warned = |words: &[&str], variables: &[(&str, &str)]| {
        let ended = oncegate_with(folder.path(), words, variables);
        let said = [ended.out, ended.err].concat();
        said.contains("is not read: name it with --config")
    };
    for words in ways {
        assert!(!is_warned(words, &[]), "{words:?}");
    }
    std::fs::write(folder.path().join("oncegate.toml"), "[defaults]\nlease = \"1m\"\n").unwrap();
    for words in ways {
        assert!(is_warned(words, &[]), "{words:?}");
        assert!(!is_warned(&[words, &["--config", "oncegate.toml"]].concat(), &[]), "{words:?}");
        assert!(!is_warned(words, &[("ONCEGATE_CONFIG", "oncegate.toml")]), "{words:?}");
    }
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
fn config_check_connects_to_engines_only_if_that_is_asked_for() {
    let folder = tempfile::tempdir().unwrap();
    let closed = std::net::TcpListener::bind("127.0.0.1:0").unwrap().local_addr().unwrap();
    for scheme in ["etcd", "zookeeper", "redis", "postgres"] {
        let engine = match scheme {
            "postgres" => format!("postgres://gateway:pass-canary@{closed}/oncegate"),
            _ => format!("{scheme}://gateway:pass-canary@{closed}"),
        };
        let offline = oncegate(folder.path(), &["config", "check", "--engine", &engine]);
        assert_eq!(offline.code, Some(0), "{scheme}: {}", offline.err);
        let connected = oncegate(folder.path(), &["config", "check", "--connect", "--engine", &engine]);
        assert_eq!(connected.code, Some(2), "{scheme}: {}", connected.err);
        assert!(connected.err.contains("engines.primary: "), "{scheme}: {}", connected.err);
        assert!(connected.out.contains("Engine primary cannot be used."), "{scheme}: {}", connected.out);
        assert!(!(connected.err + &connected.out).contains("canary"), "{scheme}");
    }
    let memory = oncegate(folder.path(), &["config", "check", "--connect", "--engine", "memory:"]);
    assert_eq!(memory.code, Some(0), "{}", memory.err);
    assert!(memory.out.contains("Engine primary can be used.\n  it answers"), "{}", memory.out);
}

#[test]
fn config_print_shows_what_all_layers_come_to_and_no_secret() {
    let folder = tempfile::tempdir().unwrap();
    let digest = "1f55b9dbb34db31ee615fea98af1b62ec6f169bb38355164364099813349e079";
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
async fn health_reports_by_its_exit_code() {
    let folder = tempfile::tempdir().unwrap();
    let mut gateway = gateway::on_memory().start().await;
    let url = format!("http://{}", gateway.admin());
    let ready = oncegate(folder.path(), &["health", "--admin", &url]);
    assert_eq!((ready.code, &*ready.out), (Some(0), "ready\n"), "{}", ready.err);
    let admin = gateway.admin().to_string();
    let ready = oncegate_with(folder.path(), &["health"], &[("ONCEGATE_SERVER__ADMIN_LISTEN", &admin)]);
    assert_eq!(ready.code, Some(0), "{}", ready.err);
    gateway.kill();
    let gone = oncegate(folder.path(), &["health", "--admin", &url]);
    assert_eq!((gone.code, &*gone.out), (Some(1), ""));
    assert!(gone.err.contains("is not ready"), "{}", gone.err);
}

/// Every command that calls a gateway: the flag, or the variable, or the configuration; and the other listener is
/// recognised.
#[tokio::test]
async fn every_command_takes_its_gateway_the_same_way() {
    let folder = tempfile::tempdir().unwrap();
    let token = "token_of_alice_0123456789abcdef";
    let digest = hex::encode(&Sha256::digest(token));
    let gateway = gateway::on_memory().config(&format!("[admin.tokens]\nalice = \"sha256:{digest}\"\n")).start().await;
    let (api, admin) = (format!("http://{}", gateway.api()), format!("http://{}/", gateway.admin()));
    let (nowhere, closed) = ("http://127.0.0.1:1", "127.0.0.1:1");
    let claim = ["--app", "default", "1"];
    let of_admin: [&[&str]; 9] = [
        &["health"],
        &["engine", "list"],
        &["chain", "list"],
        &["audit"],
        &["overlaps"],
        &["suspects", "list"],
        &["app", "list"],
        &["claim", "list", "--app", "default"],
        &["lock", "list", "--app", "default"],
    ];
    let run = |words: &[&str], environment: &[(&str, &str)]| {
        let environment = [environment, &[("ONCEGATE_ADMIN_TOKEN", token), ("PATH", "/usr/bin:/bin")]].concat();
        oncegate_with(folder.path(), words, &environment)
    };
    for words in of_admin {
        let by_flag = run(&[words, &["--admin", &admin]].concat(), &[("ONCEGATE_ADMIN_URL", nowhere)]);
        assert_eq!(by_flag.code, Some(0), "{words:?}: {}", by_flag.err);
        let by_variable = run(words, &[("ONCEGATE_ADMIN_URL", &admin), ("ONCEGATE_SERVER__ADMIN_LISTEN", closed)]);
        assert_eq!(by_variable.code, Some(0), "{words:?}: {}", by_variable.err);
        let wrong = run(&[words, &["--admin", &api]].concat(), &[]);
        let said = format!("{api} is the API of a gateway; this command needs its admin listener");
        assert!(wrong.code == Some(1) && wrong.err.contains(&said), "{words:?}: {}", wrong.err);
        assert!(wrong.err.contains("with --admin or in ONCEGATE_ADMIN_URL"), "{words:?}: {}", wrong.err);
    }
    let listen = gateway.admin().to_string();
    let shown = run(&[&["claim", "show"], &claim[..]].concat(), &[("ONCEGATE_SERVER__ADMIN_LISTEN", &listen)]);
    assert_eq!(shown.code, Some(3), "it is not there: {}", shown.err);
    let jobs: [&[&str]; 2] = [&["once", "report", "\"today\""], &["lock", "run", "report"]];
    for words in jobs {
        let job = |more: &[&str], environment: &[(&str, &str)]| {
            run(&[words, more, &["--", "/bin/true"]].concat(), environment)
        };
        let by_flag = job(&["--url", &api], &[("ONCEGATE_URL", nowhere)]);
        assert_eq!(by_flag.code, Some(0), "{words:?}: {}", by_flag.err);
        let by_variable = job(&[], &[("ONCEGATE_URL", &api), ("ONCEGATE_SERVER__LISTEN", closed)]);
        assert_eq!(by_variable.code, Some(0), "{words:?}: {}", by_variable.err);
        let wrong = job(&["--url", &admin], &[]);
        assert!(wrong.code == Some(125) && wrong.err.contains("is the admin listener of a gateway"), "{}", wrong.err);
        assert!(wrong.err.contains("with --url or in ONCEGATE_URL"), "{}", wrong.err);
    }
}

/// With the apps in the configuration file no gateway is called: the command prints the lines to add.
#[tokio::test]
async fn an_app_for_the_configuration_file_is_made_without_a_gateway() {
    let folder = tempfile::tempdir().unwrap();
    let file = folder.path().join("my.toml");
    std::fs::write(&file, "").unwrap();
    let app = |words: &[&str]| {
        let ended = oncegate(folder.path(), &[&["app"], words, &["--config", "my.toml"]].concat());
        assert_eq!(ended.code, Some(0), "{}", ended.err);
        ended.out
    };
    // The first line is the credential, what follows the empty line before the table is for the file.
    let parts = |out: &str| {
        let credential = out.lines().next().unwrap().to_owned();
        let (app, secret) = credential.rsplit_once('.').unwrap();
        assert_eq!((app, secret.len()), ("shop.eu", 32));
        let table = out.find("[apps.").unwrap();
        let lines: Vec<_> = out[table..].lines().take_while(|line| !line.is_empty()).collect();
        let toml = lines.join("\n");
        assert!(!toml.contains(secret), "{toml}");
        (credential, toml)
    };
    let (old, table) = parts(&app(&["new", "shop.eu"]));
    std::fs::write(&file, &table).unwrap();
    let gateway = gateway::on_memory().config(&table).start().await;
    let answers = async |credential: &str, status: u16| {
        let client = gateway.client().with_credential(credential);
        until("the file is heeded", Duration::from_secs(10), async || {
            client.post("/v1/global-ids", &json!({ "contents": 1 })).await.status == status
        })
        .await;
    };
    answers(&old, 200).await;
    let (new, table) = parts(&app(&["rotate", "shop.eu"]));
    for file in [&file, &gateway.config_file()] {
        std::fs::write(file, &table).unwrap();
    }
    answers(&new, 200).await;
    answers(&old, 200).await;
    let listed: serde_json::Value = serde_json::from_str(&app(&["list", "--output", "json"])).unwrap();
    let secrets = listed["apps"][0]["secrets"].as_array().unwrap();
    assert_eq!(secrets.len(), 2);
    let revoked = app(&["revoke", "shop.eu", secrets[0]["secret_id"].as_str().unwrap()]);
    let table = &revoked[revoked.find("[apps.").unwrap()..];
    for file in [&file, &gateway.config_file()] {
        std::fs::write(file, table).unwrap();
    }
    answers(&old, 401).await;
    answers(&new, 200).await;
    assert!(app(&["disable", "shop.eu"]).ends_with("\n[apps.\"shop.eu\"]\ndisabled = true\n"));
    let row = &rows(&app(&["list"]))[0];
    assert_eq!((&*row["APP"], &*row["CHAIN"], &*row["LAST USED"]), ("shop.eu", "default", "-"));
    assert!(app(&["show", "shop.eu"]).starts_with("App     shop.eu\n"));

    for wrong in [&["rotate", "shpo"][..], &["revoke", "shop.eu", "00000000"], &["enable", "shpo"], &["show", "shpo"]] {
        let refused = oncegate(folder.path(), &[&["app"], wrong, &["--config", "my.toml"]].concat());
        assert_eq!(refused.code, Some(3), "{}", refused.out);
        assert!(refused.err.contains("shop.eu"), "{}", refused.err);
    }
    assert_eq!(oncegate(folder.path(), &["app", "new", "Shop"]).code, Some(2));
}

#[tokio::test]
async fn a_gateway_whose_apps_are_in_its_file_says_so() {
    let folder = tempfile::tempdir().unwrap();
    let token = "token_of_alice_0123456789abcdef";
    let digest = hex::encode(&Sha256::digest(token));
    let tables = format!("[apps.shop]\nsecrets = [\"sha256:{digest}\"]\n[admin.tokens]\nalice = \"sha256:{digest}\"\n");
    let gateway = gateway::on_memory().config(&tables).start().await;
    let admin = format!("http://{}", gateway.admin());
    let app = |words: &[&str]| {
        let words = [&["app"], words, &["--admin", &admin]].concat();
        oncegate_with(folder.path(), &words, &[("ONCEGATE_ADMIN_TOKEN", token)])
    };
    gateway.client().with_credential(&format!("shop.{token}")).claim(json!(1)).await.expect(201);
    let shown = app(&["show", "shop"]);
    let (_, secrets) = shown.out.split_once("\n\n").unwrap();
    let secret = &rows(secrets)[0];
    assert_eq!((&*secret["SECRET"], &*secret["CREATED"]), (&digest[..8], "-"));
    assert!(secret["LAST USED"].starts_with("20"), "{}", shown.out);
    for words in [&["new", "bank"][..], &["rotate", "shop"], &["revoke", "shop", "00000000"], &["disable", "shop"]] {
        let refused = app(&[words, &["--reason", "a test"]].concat());
        assert_eq!(refused.code, Some(3), "{}", refused.out);
        assert!(refused.err.contains("apps_in_configuration"), "{}", refused.err);
    }
}
