//! The table of the calls of locks, at the gateway in memory and, by `scripts/with-gateway`, at a real one.
#![cfg(feature = "testing")]

use std::collections::HashMap;
use std::time::{Duration, SystemTime};

use oncegate_client::testing::MemoryGateway;
use oncegate_client::{Client, Error, Hold, Locker, Options};
use serde_json::{Value, json};

const LOCKS: &str = include_str!(concat!(env!("CARGO_MANIFEST_DIR"), "/../vectors/locks.json"));

fn table() -> Value {
    serde_json::from_str(LOCKS).expect("a table")
}

fn list(value: &Value) -> &[Value] {
    value.as_array().map_or(&[], Vec::as_slice)
}

fn locker(client: &Client, name: &str, step: &Value) -> Locker {
    let mut locker = client.lock(name);
    if step["mode"] == "shared" {
        locker = locker.shared();
    }
    if let Some(limit) = step["limit"].as_u64() {
        locker = locker.limit(u32::try_from(limit).expect("a small number"));
    }
    if step["own"] == true {
        locker = locker.owner(table()["owner"].as_str().expect("an owner"));
    }
    locker
}

async fn run(client: &Client, steps: &[Value]) {
    let run = SystemTime::now().duration_since(SystemTime::UNIX_EPOCH).expect("after 1970").as_nanos();
    let (name, mut fence, mut holds) = (format!("table:{run}"), 0, HashMap::<String, Hold>::new());
    for (at, step) in steps.iter().enumerate() {
        if let Some(released) = step["release"].as_str() {
            holds.remove(released).expect("a hold").release().await.expect("an answer");
        } else if let Some(wanted) = step.get("lookup") {
            let record = client.lock(&name).lookup().await.expect("an answer").map(|record| {
                json!({ "mode": record.mode.map(oncegate_client::Mode::name), "holders": record.holders.len(), "limit": record.limit })
            });
            assert_eq!(record.unwrap_or_default(), *wanted, "step {at}");
        } else {
            let acquired = locker(client, &name, step).acquire(Duration::ZERO).await;
            match acquired {
                Err(Error::LockNotAcquired { code, limit, .. }) => {
                    assert_eq!(
                        (json!(code), json!(limit)),
                        (step["refused"].clone(), step["in_use"].clone()),
                        "step {at}"
                    );
                }
                Err(error) => panic!("step {at}: {error}"),
                Ok(hold) => {
                    assert!(hold.fence() >= fence, "step {at}");
                    let is_new = if hold.fence() > fence { "new" } else { "same" };
                    let seen = json!({ "mode": hold.mode().name(), "holds": hold.holds(), "fence": is_new });
                    assert_eq!(seen, step["held"], "step {at}");
                    fence = hold.fence();
                    holds.insert(step["acquire"].as_str().expect("a name").to_owned(), hold);
                }
            }
        }
    }
}

#[tokio::test]
async fn locks_are_those_of_the_table() {
    let mut clients = vec![MemoryGateway::new().client(Options::default())];
    if std::env::var("ONCEGATE_URL").is_ok() {
        clients.push(Client::from_env(Options::default()).expect("a client"));
    }
    for client in clients {
        for table in list(&table()["tables"]) {
            run(&client, list(&table["steps"])).await;
        }
    }
}

#[tokio::test]
async fn a_wrong_limit_is_refused_before_anything_is_sent() {
    let client = MemoryGateway::new().client(Options::default());
    for wrong in list(&table()["wrong_limits"]) {
        let refused = locker(&client, "stock:42", wrong).acquire(Duration::ZERO).await;
        let says = wrong["says"].as_str().expect("a text");
        assert!(matches!(&refused, Err(Error::Argument(detail)) if detail.contains(says)), "{wrong}: {refused:?}");
    }
}
