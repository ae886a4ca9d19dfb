//! Secrets planted in every place that a gateway reads, and a search for them in all its output: its log at the most
//! detailed level, its metrics, its answers, and the output of commands.

use std::path::Path;
use std::time::Duration;

use oncegate_core::hex;
use oncegate_testkit::certificates::Authority;
use oncegate_testkit::client::{Answer, Client};
use oncegate_testkit::gateway::Gateway;
#[cfg(feature = "postgres")]
use oncegate_testkit::postgres_server::PostgresServer;
use oncegate_testkit::redis_server::RedisServer;
use oncegate_testkit::wait::until;
use serde_json::json;
use sha2::{Digest, Sha256};

use crate::support::command::oncegate_with;
use crate::support::gateway;

const SOON: Duration = Duration::from_secs(10);

/// Planted secrets. They have no common parts, so each finding has one source.
const PASSWORD: &str = "canarypassword7261";
const SECRET: &str = "canary_secret_8362_abcdefgh";
const TOKEN: &str = "canary_token_9473_abcdefghij";
const NONCE: &str = "canary-nonce-1584-abcd";
const CONTENTS: &str = "canary contents 2695";
const FINGERPRINT: &str = "canary fingerprint 3706";
const RESULT: &str = "canary result 4817";
/// A wrong credential may be a valid one elsewhere.
const WRONG: &str = "canary_wrong_5928_abcdefgh";

fn digest(secret: &str) -> String {
    format!("sha256:{}", hex::encode(&Sha256::digest(secret)))
}

/// Texts that must not be found: all planted secrets, the digests of secrets (they admit no caller, but are private
/// too), and the key of the certificate, line by line.
fn planted(key: &str) -> Vec<String> {
    let plain = [PASSWORD, SECRET, TOKEN, NONCE, CONTENTS, FINGERPRINT, RESULT, WRONG].map(str::to_owned);
    let digests = [SECRET, TOKEN].map(|secret| digest(secret)["sha256:".len()..].to_owned());
    let lines = key.lines().filter(|line| !line.starts_with("-----")).map(str::to_owned);
    plain.into_iter().chain(digests).chain(lines).collect()
}

/// Fails if it contains any planted text.
#[track_caller]
fn clean(what: &str, said: &str, planted: &[String]) {
    for secret in planted {
        assert!(!said.contains(secret.as_str()), "{what} gives {secret:?} away:\n{said}");
    }
}

/// Files with secrets, and a configuration that names them. The engine's URL is in a file too.
fn configuration(folder: &Path, engine: &str) -> String {
    for (name, text) in [("engine", engine.to_owned()), ("token", digest(TOKEN)), ("shop", digest(SECRET))] {
        std::fs::write(folder.join(name), text + "\n").unwrap();
    }
    let here = folder.display();
    format!(
        "[log]\nlevel = \"trace\"\n[engines]\nstore_file = \"{here}/engine\"\n[chains.store]\nengines = [\"store\"]\n\
         [server.tls]\ncertificate = \"{here}/tls.crt\"\nkey = \"{here}/tls.key\"\n\
         [admin.tokens]\nalice_file = \"{here}/token\"\n[apps.shop]\nchain = \"store\"\nsecrets_file = \"{here}/shop\"\n\
         [apps.gone]\nsecrets = [\"{}\"]\ndisabled = true\n",
        digest(SECRET)
    )
}

fn claim(contents: &str) -> serde_json::Value {
    json!({ "contents": contents, "fingerprint": FINGERPRINT })
}

/// Success, repeats, mistakes and refusals; the store is up. Gives answers that must be clean, and attempts.
async fn scenarios(gateway: &Gateway, authority: &Authority) -> (Vec<Answer>, Vec<String>) {
    let callers = || Client::over_tls(gateway.api(), authority.client_config(None));
    let shop = callers().with_credential(&format!("shop.{SECRET}"));
    let mut body = claim(CONTENTS);
    body["attempt_nonce"] = json!(NONCE);
    // The URL of the store is in a file, so the start has not waited for a connection.
    let granted = shop.granted(&body).await;
    let attempt = granted.body["attempt"].as_str().unwrap().to_owned();
    let mut response = Vec::new();
    // A duplicate or a mismatch does not show attempt, contents or fingerprint.
    response.push(shop.post("/v1/claims", &claim(CONTENTS)).await.expect(409));
    response.push(shop.post("/v1/claims", &json!({ "contents": CONTENTS, "fingerprint": 1 })).await.expect(422));
    // A lookup shows an app its own contents, and nothing else of these.
    let looked_up = shop.get(&granted.path("")).await.expect(200).text;
    assert!([&attempt, NONCE, FINGERPRINT].iter().all(|secret| !looked_up.contains(*secret)), "{looked_up}");
    shop.report(&granted, json!({ "outcome": "success", "result": RESULT })).await.expect(200);
    response.push(shop.settle(&granted, "failure").await.expect(409));
    // Invalid nonces and attempts, and bodies that break off within a secret.
    for body in [
        format!("{{\"contents\":\"{CONTENTS}"),
        format!("{{\"contents\":\"{CONTENTS}\",\"attempt_nonce\":\"{NONCE} \"}}"),
        format!("{{\"contents\":\"{NONCE}\",\"attempt_nonce\":\"{NONCE}\"}}"),
        format!("{{\"contents\":{{\"{CONTENTS}\":1,\"{CONTENTS}\":2}}}}"),
        format!("{{\"contents\":1,\"lease\":\"{RESULT}\"}}"),
        format!("{{\"contents\":1,\"operation\":\"{RESULT}\"}}"),
    ] {
        shop.post_raw("/v1/claims", body).await;
    }
    for credential in [
        format!("shop.{WRONG}"),
        format!("gone.{SECRET}"),
        format!("nobody.{SECRET}"),
        WRONG.to_owned(),
        SECRET.to_owned(),
    ] {
        let refused = callers().with_credential(&credential).claim(json!(1)).await;
        assert!([401, 403].contains(&refused.status), "{}", refused.text);
        response.push(refused);
    }
    // Operators, and who would like to be one.
    let alice = gateway.admin_client().with_credential(TOKEN);
    for path in ["/admin/v1/engines", "/admin/v1/chains", "/admin/v1/audit", "/admin/v1/apps"] {
        response.push(alice.get(path).await.expect(200));
    }
    let named = json!({ "app": "shop", "contents": CONTENTS });
    alice.post("/admin/v1/claims/show", &named).await.expect(200);
    let mut release = named.clone();
    release["reason"] = json!("a test");
    release["even_succeeded"] = json!(true);
    response.push(alice.post("/admin/v1/claims/release", &release).await.expect(200));
    response.push(gateway.admin_client().with_credential(WRONG).get("/admin/v1/audit").await.expect(401));
    response.push(alice.get("/admin/v1/audit").await.expect(200));
    response.push(gateway.admin_client().get("/readyz?verbose").await.expect(200));
    (response, vec![attempt])
}

/// Searches all output of a gateway, and the output of commands on its configuration.
async fn search(
    gateway: &Gateway,
    config: &str,
    folder: &Path,
    answers: &[Answer],
    attempts: &[String],
    planted: &[String],
) {
    for answer in answers {
        clean("an answer", &answer.text, planted);
        for attempt in attempts {
            assert!(!answer.text.contains(attempt), "an answer gives an attempt away: {}", answer.text);
        }
    }
    // Configurations that are wrong around the secrets, read again while the gateway runs.
    let broken = [
        config.replace("[log]", "[lug]"),
        config.replace("[admin.tokens]", &format!("[admin.tokens]\nbob = \"{TOKEN}\"")),
        config.replace("[admin.tokens]", &format!("[admin.tokens]\nbob_file = \"{TOKEN}://\"")),
        config.replace("[engines]", &format!("[engines]\nx = \"redis://:{PASSWORD}@host?prefx=1\"")),
        config.replace("[engines]", &format!("[engines]\nx = \"rediss://:{PASSWORD}@host:port\"")),
        config.replace("[engines]", &format!("[engines]\nx = \"postgres://a:{PASSWORD}@host/d?sslmod=1\"")),
        config.replace("[engines]", &format!("[engines]\nx = \"mongo://a:{PASSWORD}@host\"")),
        config.replace("[engines]", &format!("[engines]\nx = [\"redis://:{PASSWORD}@host\"]")),
        config.replace("[engines]", &format!("[registry]\nurl = \"postgres://a:{PASSWORD}@/?x=1\"\n[engines]")),
        config.replace("[engines]", &format!("[registry]\nurl = \"redis://a:{PASSWORD}@host\"\n[engines]")),
        config.replace("/shop\"", "/tls.key\""),
        config.replace("/engine\"", "/tls.key\""),
        config.replace("disabled = true", &format!("secrets_file = \"{SECRET}\"")),
        format!("{config}\n[apps.{SECRET}]\nsecrets = [\"{SECRET}\"]\nx = \"{SECRET}")
            .replace(&format!("apps.{SECRET}"), "apps.x"),
    ];
    for (number, config) in broken.iter().enumerate() {
        let file = folder.join("broken.toml");
        std::fs::write(&file, config).unwrap();
        for action in ["check", "print"] {
            let ended = oncegate_with(folder, &["config", action, "--config", "broken.toml"], &[]);
            assert_eq!(ended.code, Some(2), "{number}: {}{}", ended.out, ended.err);
            clean(&format!("config {action} of mistake {number}"), &(ended.out + &ended.err), planted);
        }
        let refusals = || gateway.log().matches("it cannot be used, so nothing changes").count();
        let before = refusals();
        gateway.configure(config);
        gateway.signal("HUP");
        until("the mistake is reported", SOON, async || refusals() > before).await;
    }
    std::fs::write(folder.join("good.toml"), config).unwrap();
    let environment =
        [("ONCEGATE_ENGINES__OTHER", &*format!("redis://og:{PASSWORD}@host/0?prefix=a&x_password={PASSWORD}"))];
    let ended = oncegate_with(folder, &["config", "print", "--config", "good.toml"], &[]);
    assert_eq!(ended.code, Some(0), "{}", ended.err);
    clean("config print", &ended.out, planted);
    let ended = oncegate_with(folder, &["config", "print", "--config", "good.toml"], &environment);
    clean("config print", &(ended.out + &ended.err), planted);
    clean("/metrics", &gateway.admin_client().get("/metrics").await.text, planted);
    let log = gateway.log();
    assert!(log.contains("\"TRACE\"") && log.contains("\"DEBUG\""), "the level was heeded");
    clean("the log", &log, planted);
    for attempt in attempts {
        assert!(!log.contains(attempt), "the log gives an attempt away: {log}");
    }
    assert!(!log.contains("panicked"), "{log}");
}

#[tokio::test]
async fn nothing_secret_is_said_on_redis() {
    let requirepass = format!("requirepass {PASSWORD}");
    let Some(mut redis) = RedisServer::start_with(&[&requirepass]).await else { return };
    let (folder, authority) = (tempfile::tempdir().unwrap(), Authority::generate());
    let pair = authority.issue();
    pair.write(folder.path());
    let planted = planted(&pair.key);
    let config = configuration(folder.path(), &format!("redis://:{PASSWORD}@{}", redis.address()));
    let gateway = gateway::on_memory().config(&config).start().await;
    let (mut answers, attempts) = scenarios(&gateway, &authority).await;
    assert_eq!(redis.query_as::<u64>(PASSWORD, "EXISTS og:marker"), 1, "the claim was on Redis");
    redis.kill();
    let shop =
        Client::over_tls(gateway.api(), authority.client_config(None)).with_credential(&format!("shop.{SECRET}"));
    answers.push(shop.post("/v1/claims", &claim("canary contents of an outage")).await.expect(503));
    answers.push(gateway.admin_client().get("/readyz?verbose").await.expect(200));
    // Back, with another password: the server's error is reported.
    redis.restart_with(&["requirepass another"]);
    until("the wrong password is reported", SOON, async || {
        let answer = gateway.admin_client().get("/readyz?verbose").await;
        let response = answer.text.contains("WRONGPASS");
        answers.push(answer);
        response
    })
    .await;
    search(&gateway, &config, folder.path(), &answers, &attempts, &planted).await;
}

#[cfg(feature = "postgres")]
#[tokio::test]
async fn nothing_secret_is_said_on_postgres() {
    let Some(mut server) = PostgresServer::start().await else { return };
    let (folder, authority) = (tempfile::tempdir().unwrap(), Authority::generate());
    let pair = authority.issue();
    pair.write(folder.path());
    let planted = planted(&pair.key);
    server.execute(&format!("CREATE ROLE og LOGIN SUPERUSER PASSWORD '{PASSWORD}'")).await;
    let url = server.url().replace("postgres://postgres@", &format!("postgres://og:{PASSWORD}@"));
    let config = configuration(folder.path(), &url);
    let gateway = gateway::on_memory().config(&config).start().await;
    let (mut answers, attempts) = scenarios(&gateway, &authority).await;
    server.kill();
    let shop =
        Client::over_tls(gateway.api(), authority.client_config(None)).with_credential(&format!("shop.{SECRET}"));
    until("the outage is reported", SOON, async || {
        let answer = shop.post("/v1/claims", &claim("canary contents of an outage")).await;
        let response = answer.code() == (503, "store_unavailable");
        answers.push(answer);
        response
    })
    .await;
    answers.push(gateway.admin_client().get("/readyz?verbose").await.expect(200));
    search(&gateway, &config, folder.path(), &answers, &attempts, &planted).await;
}

/// The registry of apps has its own password, and may be out.
#[cfg(feature = "postgres")]
#[tokio::test]
async fn nothing_secret_is_said_of_a_registry() {
    let (folder, url) = (tempfile::tempdir().unwrap(), format!("postgres://og:{PASSWORD}@127.0.0.1:1/registry"));
    std::fs::write(folder.path().join("registry"), &url).unwrap();
    let config = format!("[log]\nlevel = \"trace\"\n[registry]\nurl_file = \"{}/registry\"\n", folder.path().display());
    let gateway = gateway::on_memory().config(&config).start().await;
    let shop = gateway.client().with_credential(&format!("shop.{SECRET}"));
    let refused = shop.claim(json!(CONTENTS)).await;
    assert!(refused.status >= 400, "{}", refused.text);
    let response = async || gateway.log().contains("127.0.0.1:1/registry");
    until("the outage of the registry is reported", SOON, response).await;
    let planted = planted("");
    clean("an answer", &refused.text, &planted);
    clean("the log", &gateway.log(), &planted);
    clean("/metrics", &gateway.admin_client().get("/metrics").await.text, &planted);
    std::fs::write(folder.path().join("oncegate.toml"), &config).unwrap();
    let printed = oncegate_with(folder.path(), &["config", "print", "--config", "oncegate.toml"], &[]);
    assert!(printed.out.contains("url = \"postgres://og:***@127.0.0.1:1/registry\""), "{}{}", printed.out, printed.err);
}
