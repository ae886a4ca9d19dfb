//! The program that the tests run: the client of this folder in its own process, with options as `name=value`. The same
//! options and lines as `../python/scenario.py`, which explains them.

#![expect(clippy::print_stdout, reason = "its lines are what the tests read")]
#![expect(clippy::disallowed_methods, reason = "a caller of the gateway has its own clock and randomness")]

#[expect(dead_code, reason = "the scenarios need no fence and no lookup")]
mod oncegate;

use std::{collections::HashMap, env, fmt::Display, time::Duration};

use anyhow::Context as _;
use serde_json::{Value, json};
use tokio::time::sleep;

use crate::oncegate::{Answer, Error, Gateway, Held, OnUnavailable, Options, Outcome, Terms, global_id};

type Settings = HashMap<String, String>;

#[tokio::main]
async fn main() -> anyhow::Result<()> {
    let words: Vec<String> = env::args().skip(1).collect();
    let (what, words) = words.split_first().context("what to do")?;
    if what == "vectors" {
        return vectors(&words[0]);
    }
    let pairs = words.iter().filter_map(|word| word.split_once('='));
    let settings: Settings = pairs.map(|(name, value)| (name.to_owned(), value.to_owned())).collect();
    let proceeds = settings.get("policy").is_some_and(|policy| policy == "proceed");
    let options = Options {
        credential: settings.get("credential").cloned(),
        on_unavailable: if proceeds { OnUnavailable::Proceed } else { OnUnavailable::FailClosed },
        timeout: millis(&settings, "timeout", 1000),
        claim_within: millis(&settings, "claim_within", 5000),
        settle_within: millis(&settings, "settle_within", 30_000),
    };
    let gateway = Gateway::new(settings["urls"].split(',').map(str::to_owned).collect(), options);
    if what == "orders" {
        return orders(gateway, settings).await;
    }
    one(&gateway, &settings).await
}

async fn orders(gateway: Gateway, settings: Settings) -> anyhow::Result<()> {
    let worker = async |gateway: Gateway, settings: Settings| -> anyhow::Result<()> {
        for at in 0..settings["orders"].parse()? {
            let order = format!("A-{at}");
            while let Some(pause) = try_order(&gateway, &settings, &order).await? {
                sleep(pause).await;
            }
        }
        Ok(())
    };
    let workers = (0..settings["workers"].parse::<usize>()?).map(|_| worker(gateway.clone(), settings.clone()));
    futures_util::future::try_join_all(workers).await.map(|_| ())
}

/// Nothing once the order has an answer, else how long to wait.
async fn try_order(gateway: &Gateway, settings: &Settings, order: &str) -> anyhow::Result<Option<Duration>> {
    match run(gateway, settings, order).await {
        Ok(Answer::Done(done)) => println!("done {order} {}", number(&done.result)),
        Ok(Answer::Duplicate(it)) if it.state == "succeeded" => println!("duplicate {order} {}", number(&it.result)),
        Ok(Answer::Duplicate(it)) => return Ok(Some(it.retry_after.min(Duration::from_millis(100)))),
        Err(Error::Unavailable { .. }) => return Ok(Some(Duration::from_millis(50))),
        Ok(Answer::Mismatch { code }) => anyhow::bail!(code),
        Err(error) => anyhow::bail!("{error:?}"),
    }
    Ok(None)
}

async fn one(gateway: &Gateway, settings: &Settings) -> anyhow::Result<()> {
    let order = &settings["order"];
    match run(gateway, settings, order).await {
        Ok(Answer::Done(done)) if done.state.as_deref() == Some("released") => println!("raised failure"),
        Ok(Answer::Done(done)) if done.state.as_deref() == Some("unknown") => println!("raised unknown"),
        Ok(Answer::Done(done)) => {
            let (state, degraded) = (or_none(done.state.as_ref()), or_none(done.degraded.as_ref()));
            if done.result_error.is_some() {
                println!("not_stored");
            }
            let late = if done.late == Some(true) { "late" } else { "in_time" };
            println!("done {order} {} {state} {degraded} {late}", number(&done.result));
        }
        Ok(Answer::Duplicate(it)) => println!("duplicate {order} {} {}", number(&it.result), it.state),
        Ok(Answer::Mismatch { code }) => println!("mismatch {code}"),
        Err(Error::Unavailable { causes }) => {
            print!("unavailable");
            for cause in causes {
                print!(" {}", cause.kind);
            }
            println!();
        }
        Err(Error::Rejected { status, code }) => println!("rejected {status} {code}"),
        Err(Error::OutcomeRefused { code }) => println!("refused {code}"),
        Err(Error::NotSettled { report, .. }) => {
            println!("not_settled");
            // Kept somewhere, and given to a gateway later.
            match gateway.settle(report, Duration::from_secs(20)).await {
                Ok(stands) => println!("settled {}", stands["state"].as_str().unwrap_or("-")),
                Err(error) => anyhow::bail!("{error:?}"),
            }
        }
        Err(Error::NotCanonical(why)) => anyhow::bail!(why),
    }
    Ok(())
}

async fn run(gateway: &Gateway, settings: &Settings, order: &str) -> Result<Answer, Error> {
    let work = async |held: &Held| {
        let how = if held.is_repeated() { "repeated" } else { "first" };
        println!("granted {order} {how} {}", or_none(held.degraded()));
        sleep(millis(settings, "work", 0)).await;
        match settings.get("fails").map(String::as_str) {
            Some("failure") => return Outcome::Failure,
            Some("unknown") => return Outcome::Unknown,
            _ => {}
        }
        if !held.is_still_ours() {
            println!("lost {}", or_none(held.lost()));
        }
        println!("effect {order}");
        Outcome::Success(
            json!({ "order_number": order, "more": returned(settings.get("returns").map(String::as_str)) }),
        )
    };
    let fingerprint = settings.get("fingerprint").cloned().map(Value::from);
    let terms = Terms { fingerprint, lease: settings.get("lease").cloned(), ..Terms::default() };
    gateway.run_once("order.submit", json!({ "order_id": order }), &terms, work).await
}

/// What the work returns beside the order number. A `Value` is always JSON, so nothing is `foreign`.
fn returned(kind: Option<&str>) -> Value {
    match kind {
        Some("long") => "x".repeat(70_000).into(),
        Some("deep") => (0..200).fold(json!([]), |deep, _| json!([deep])),
        _ => Value::Null,
    }
}

fn vectors(path: &str) -> anyhow::Result<()> {
    let table: Value = serde_json::from_str(&std::fs::read_to_string(path)?)?;
    let text = |vector: &Value, field: &str| vector[field].as_str().unwrap_or_default().to_owned();
    for vector in table["accepted"].as_array().context("vectors")? {
        let contents = serde_json::from_str(&text(vector, "contents_json"))?;
        match global_id(&text(vector, "app_key"), &text(vector, "operation"), &contents) {
            Ok(id) => println!("accepted {id}"),
            Err(error) => anyhow::bail!("{error:?}"),
        }
    }
    for vector in table["refused"].as_array().context("vectors")? {
        let contents = serde_json::from_str::<Value>(&text(vector, "contents_json"));
        match contents.ok().and_then(|contents| global_id("shop", "default", &contents).ok()) {
            Some(id) => println!("accepted {id}"),
            None => println!("refused"),
        }
    }
    Ok(())
}

fn number(result: &Value) -> String {
    result["order_number"].as_str().map_or_else(|| or_none(result.get("order_number")), str::to_owned)
}

fn millis(settings: &Settings, name: &str, otherwise: u64) -> Duration {
    Duration::from_millis(settings.get(name).and_then(|value| value.parse().ok()).unwrap_or(otherwise))
}

fn or_none(value: Option<impl Display>) -> String {
    value.map_or_else(|| "-".to_owned(), |value| value.to_string())
}
