//! The program that the repository's tests run: the client in a separate process, with options as `name=value`. The same options and
//! lines in every language; `clients/python/tests/scenario.py` explains them.

#![expect(clippy::print_stdout, reason = "its lines are what the tests read")]

use std::collections::HashMap;
use std::env;
use std::fmt::Display;
use std::time::Duration;

use oncegate_client::{
    Client, Contents, Done, Error, Grant, OnUnavailable, Once, OnceError, Options, State, Terms, WorkError, global_id,
};
use serde::{Deserialize, Deserializer, Serialize, Serializer, ser};
use serde_json::{Value, json};
use tokio::time::sleep;

type Settings = HashMap<String, String>;
type Failed = Box<dyn std::error::Error + Send + Sync>;

#[tokio::main]
async fn main() -> Result<(), Failed> {
    let words: Vec<String> = env::args().skip(1).collect();
    let (what, words) = words.split_first().ok_or("what to do")?;
    if what == "vectors" {
        return vectors(&words[0]);
    }
    let pairs = words.iter().filter_map(|word| word.split_once('='));
    let settings: Settings = pairs.map(|(name, value)| (name.to_owned(), value.to_owned())).collect();
    let proceeds = settings.get("policy").is_some_and(|policy| policy == "proceed");
    let options = Options::default()
        .credential(settings.get("credential").map_or("", String::as_str))
        .on_unavailable(if proceeds { OnUnavailable::Proceed } else { OnUnavailable::FailClosed })
        .timeout(millis(&settings, "timeout", 1000))
        .claim_within(millis(&settings, "claim_within", 5000))
        .settle_within(millis(&settings, "settle_within", 30_000));
    let client = Client::new(settings["urls"].split(','), options)?;
    if what == "orders" {
        return orders(&client, &settings).await;
    }
    one(&client, &settings).await
}

async fn orders(client: &Client, settings: &Settings) -> Result<(), Failed> {
    let mut workers = Vec::new();
    for _ in 0..settings["workers"].parse::<usize>()? {
        let (client, settings) = (client.clone(), settings.clone());
        workers.push(tokio::spawn(async move {
            for at in 0..settings["orders"].parse()? {
                let order = format!("A-{at}");
                while let Some(pause) = try_order(&client, &settings, &order).await? {
                    sleep(pause).await;
                }
            }
            Ok::<_, Failed>(())
        }));
    }
    for worker in workers {
        worker.await??;
    }
    Ok(())
}

/// Returns nothing once the order has an answer, otherwise the time to wait.
async fn try_order(client: &Client, settings: &Settings, order: &str) -> Result<Option<Duration>, Failed> {
    match run(client, settings, order).await {
        Ok(Once::Done(done)) => println!("done {order} {}", done.result.order),
        Ok(Once::Duplicate(it)) if it.state == State::Succeeded => {
            println!("duplicate {order} {}", number(it.result.as_ref()));
        }
        Ok(Once::Duplicate(it)) => return Ok(Some(it.retry_after.min(Duration::from_millis(100)))),
        Ok(Once::Mismatch(it)) => return Err(it.code.into()),
        Err(OnceError::Call { error: Error::Unavailable { .. }, .. }) => return Ok(Some(Duration::from_millis(50))),
        Err(error) => return Err(error.to_string().into()),
    }
    Ok(None)
}

async fn one(client: &Client, settings: &Settings) -> Result<(), Failed> {
    let order = &settings["order"];
    let (error, _) = match run(client, settings, order).await {
        Ok(Once::Done(done)) => {
            say_done(order, &done);
            return Ok(());
        }
        Ok(Once::Duplicate(it)) => {
            println!("duplicate {order} {} {}", number(it.result.as_ref()), it.state.name());
            return Ok(());
        }
        Ok(Once::Mismatch(it)) => {
            println!("mismatch {}", it.code);
            return Ok(());
        }
        Err(OnceError::Work(error)) => {
            println!("raised {}", if error.is_nothing_happened() { "failure" } else { "unknown" });
            return Ok(());
        }
        Err(OnceError::Call { error, result }) => (error, result),
    };
    match error {
        Error::Unavailable { causes, .. } => {
            let kinds: Vec<_> = causes.iter().map(|cause| cause.kind.name()).collect();
            println!("unavailable {}", kinds.join(" "));
        }
        Error::Rejected(rejected) => println!("rejected {} {}", rejected.status, rejected.code),
        Error::OutcomeRefused { code } => println!("refused {code}"),
        Error::NotSettled { report, .. } => {
            println!("not_settled");
            // Kept somewhere, and given to a gateway later.
            loop {
                if let Ok(settled) = client.settle(&report).await {
                    println!("settled {}", or_none(settled.state.as_ref().map(State::name)));
                    return Ok(());
                }
            }
        }
        other => return Err(other.into()),
    }
    Ok(())
}

fn say_done(order: &str, done: &Done<Returned>) {
    if done.result_omitted.is_some() {
        println!("not_stored");
    }
    let (state, degraded) = (or_none(done.state.as_ref().map(State::name)), or_none(done.degraded.as_ref()));
    let late = if done.late == Some(true) { "late" } else { "in_time" };
    println!("done {order} {} {state} {degraded} {late}", done.result.order);
}

async fn run(client: &Client, settings: &Settings, order: &str) -> Result<Once<Returned>, OnceError<Returned>> {
    let work = async |grant: Grant| {
        let how = if grant.repeated() { "repeated" } else { "first" };
        println!("granted {order} {how} {}", or_none(grant.degraded()));
        sleep(millis(settings, "work", 0)).await;
        match settings.get("fails").map(String::as_str) {
            Some("failure") => return Err(WorkError::nothing_happened("the work says so")),
            Some("unknown") => return Err("who knows".into()),
            _ => {}
        }
        if !grant.is_live() {
            println!("lost {}", or_none(grant.lost()));
        }
        println!("effect {order}");
        Ok(Returned { order: order.to_owned(), kind: settings.get("returns").cloned() })
    };
    let mut terms = Terms::new();
    if let Some(fingerprint) = settings.get("fingerprint") {
        terms = terms.fingerprint(fingerprint);
    }
    if let Some(lease) = settings.get("lease") {
        terms = terms.lease(length(lease));
    }
    client.once_with("order.submit", oncegate_client::contents! { "order_id" => order }, terms, work).await
}

/// The order number, and further values for a test.
struct Returned {
    order: String,
    kind: Option<String>,
}

impl Serialize for Returned {
    fn serialize<S: Serializer>(&self, serializer: S) -> Result<S::Ok, S::Error> {
        let more = match self.kind.as_deref() {
            Some("foreign") => return Err(ser::Error::custom("a channel is no JSON")),
            Some("long") => "x".repeat(70_000).into(),
            Some("deep") => (0..200).fold(json!([]), |deep, _| json!([deep])),
            _ => Value::Null,
        };
        json!({ "order_number": self.order, "more": more }).serialize(serializer)
    }
}

impl<'de> Deserialize<'de> for Returned {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        let number = &Value::deserialize(deserializer)?["order_number"];
        let order = number.as_str().map_or_else(|| number.to_string(), str::to_owned);
        Ok(Self { order, kind: None })
    }
}

fn vectors(path: &str) -> Result<(), Failed> {
    let table: Value = serde_json::from_str(&std::fs::read_to_string(path)?)?;
    for list in ["accepted", "refused"] {
        for vector in table[list].as_array().ok_or("vectors")? {
            let text = |field: &str| vector[field].as_str().unwrap_or_default();
            match global_id(text("app_key"), text("operation"), &Contents::json(text("contents_json"))) {
                Ok(id) => println!("accepted {id}"),
                Err(_) => println!("refused"),
            }
        }
    }
    Ok(())
}

fn number(result: Option<&Returned>) -> String {
    or_none(result.map(|result| &result.order))
}

/// Reads `300ms` or `2s`.
fn length(text: &str) -> Duration {
    let seconds = text.strip_suffix("ms").is_none();
    let count: u64 = text.trim_end_matches(['m', 's']).parse().unwrap_or(1);
    if seconds { Duration::from_secs(count) } else { Duration::from_millis(count) }
}

fn millis(settings: &Settings, name: &str, otherwise: u64) -> Duration {
    Duration::from_millis(settings.get(name).and_then(|value| value.parse().ok()).unwrap_or(otherwise))
}

fn or_none(value: Option<impl Display>) -> String {
    value.map_or_else(|| "-".to_owned(), |value| value.to_string())
}
