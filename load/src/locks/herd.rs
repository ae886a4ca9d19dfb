//! Calls of the store for each release while many callers wait for one key at two gateways.

use std::time::Duration;

use anyhow::{Context as _, ensure};
use futures_util::stream::{FuturesUnordered, StreamExt as _};
use serde_json::json;
use tokio::time::{Instant, sleep};

use super::{
    caller::{Caller, store_calls, waiting},
    taken::Taken,
};
use crate::{contender::Contender, goals::at_most, report::ratio, running::Running, trial::Bench};

/// Time for which the callers wait.
const WAIT: Duration = Duration::from_secs(30);

pub(super) async fn measure(bench: &Bench, callers: usize, releases: usize) -> anyhow::Result<Taken> {
    let running = Running::start_gateways(Contender::Redis, 2, "", &bench.installed, &bench.parent()).await?;
    let mut holders: Vec<_> = running.gateways.iter().map(|it| Caller::new(&it.api)).collect();
    let (mut at, mut claimed, began) = (0, holders[0].claim("hot").await?, Instant::now());
    let mut answers = FuturesUnordered::new();
    for number in 0..callers {
        let gateway = number % 2;
        let mut caller = Caller::new(&running.gateways[gateway].api);
        caller.send("/v1/claims", &json!({ "contents": "hot", "wait": format!("{}s", WAIT.as_secs()) })).await?;
        answers.push(async move { (gateway, caller.answer(201).await) });
    }
    for gateway in &running.gateways {
        while waiting(gateway).await? < u64::try_from(callers / 2)? {
            ensure!(began.elapsed() < WAIT, "not all callers waited at once: the first were answered already");
            sleep(Duration::from_millis(50)).await;
        }
    }
    let before = store_calls(&running).await?;
    for _ in 0..releases {
        holders[at].settle(&claimed, "failure").await?;
        let (gateway, granted) = answers.next().await.context("no caller is left")?;
        (at, claimed) = (gateway, granted?);
    }
    let calls = ratio(store_calls(&running).await? - before, u64::try_from(releases)?);
    drop(answers);
    running.stop().await;
    let what = format!("store calls for each release, {callers} callers of one key at two gateways");
    let note = format!("{callers} callers of one key, {releases} releases: {calls:.2} store calls for each");
    Ok(Taken::new(vec![at_most(&what, Some(calls), 4.0)], note))
}
