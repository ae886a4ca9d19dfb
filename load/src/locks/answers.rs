//! Time from an end at one gateway, of a claim or of a hold, to the answer of the caller that waits for it at another.

use std::time::Duration;

use serde_json::json;
use tokio::time::{Instant, sleep};

use super::{
    caller::{Caller, holds},
    taken::{Taken, Times},
};
use crate::{contender::Contender, goals::at_most, running::Running, trial::Bench};

const REPEATS: usize = 300;

/// Number of locks, used one after another.
const NAMES: usize = 10;

/// Time for a call to begin its wait.
const ENTERED: Duration = Duration::from_millis(30);

/// From a release.
pub(super) async fn of_locks(bench: &Bench, engine: Contender) -> anyhow::Result<Taken> {
    let running = two(bench, engine).await?;
    let [mut here, mut there] = [0, 1].map(|number: usize| Caller::new(&running.gateways[number].api));
    let mut times = Times::new()?;
    for round in 0..REPEATS {
        let name = format!("lock-{}", round % NAMES);
        let held = here.acquire(&name, &json!({})).await?;
        there.send(&holds(&name), &json!({ "wait": "10s" })).await?;
        sleep(ENTERED).await;
        let began = Instant::now();
        let (answered, released) =
            tokio::join!(async { (there.answer(201).await, began.elapsed()) }, here.release(&name, &held));
        released?;
        times.add(answered.1);
        there.release(&name, &answered.0?).await?;
    }
    running.stop().await;
    Ok(figures(&format!("a release to the answer at another gateway, {engine}"), &times))
}

/// From an outcome.
pub(super) async fn of_claims(bench: &Bench, engine: Contender) -> anyhow::Result<Taken> {
    let running = two(bench, engine).await?;
    let [mut here, mut there] = [0, 1].map(|number: usize| Caller::new(&running.gateways[number].api));
    let mut times = Times::new()?;
    for round in 0..REPEATS {
        let contents = format!("key-{round}");
        let claimed = here.claim(&contents).await?;
        there.send("/v1/claims", &json!({ "contents": contents, "wait": "10s" })).await?;
        sleep(ENTERED).await;
        let began = Instant::now();
        let (answered, settled) =
            tokio::join!(async { (there.answer(409).await, began.elapsed()) }, here.settle(&claimed, "success"));
        settled?;
        answered.0?;
        times.add(answered.1);
    }
    running.stop().await;
    Ok(figures(&format!("an outcome to the answer at another gateway, {engine}"), &times))
}

async fn two(bench: &Bench, engine: Contender) -> anyhow::Result<Running> {
    Running::start_gateways(engine, 2, "", &bench.installed, &bench.parent()).await
}

fn figures(what: &str, times: &Times) -> Taken {
    let [p50, p99] = [0.5, 0.99].map(|share| times.ms(share));
    let targets = vec![
        at_most(&format!("p50 from {what}, in ms"), Some(p50), 3.0),
        at_most(&format!("p99 from {what}, in ms"), Some(p99), 20.0),
    ];
    Taken::new(targets, format!("{what}: slowest of {REPEATS} {:.1} ms", times.ms(1.0)))
}
