//! A lock that no other caller wants, compared with a claim on the same engine: one caller for the times, 16 for the rates.

use std::{cell::Cell, rc::Rc, sync::Arc, time::Duration};

use futures_util::future::try_join_all;
use serde_json::json;
use tokio::time::Instant;

use super::{
    caller::Caller,
    taken::{Taken, Times},
};
use crate::{
    client::Target,
    contender::Contender,
    goals::{at_least, at_most},
    report::ratio,
    running::Running,
    trial::Bench,
};

const CONNECTIONS: usize = 16;

/// Part of the first run that is not measured.
const WARM_UP: u32 = 10;

pub(super) async fn measure(bench: &Bench, engine: Contender) -> anyhow::Result<Taken> {
    let running = Running::start_gateways(engine, 1, "", &bench.installed, &bench.parent()).await?;
    let target = &running.gateways[0].api;
    let (mut claims, mut locks) = (Times::new()?, Times::new()?);
    let (mut caller, began) = (Caller::new(target), Instant::now());
    while began.elapsed() < bench.measured || locks.is_empty() {
        let before = Instant::now();
        claim_and_settle(&mut caller).await?;
        let between = Instant::now();
        acquire_and_release(&mut caller, "solo").await?;
        if began.elapsed() > bench.measured / WARM_UP {
            claims.add(between - before);
            locks.add(between.elapsed());
        }
    }
    let [claim, lock] = [&claims, &locks].map(|times| times.ms(0.5));
    let (mut claimed, mut locked) = (0, 0);
    for _ in 0..bench.rounds {
        claimed += pairs(target, bench.measured, false).await?;
        locked += pairs(target, bench.measured, true).await?;
    }
    running.stop().await;
    let rate = |pairs: u64| ratio(pairs, bench.rounds) / bench.measured.as_secs_f64();
    let (claimed, locked) = (rate(claimed), rate(locked));
    let targets = vec![
        at_most(&format!("p50 of acquire and release, to claim and outcome, {engine}"), Some(lock / claim), 1.25),
        at_least(
            &format!("acquire and release/s, {CONNECTIONS} connections, to claim and outcome, {engine}"),
            Some(locked / claimed),
            0.5,
        ),
    ];
    let note = format!(
        "{engine}: claim and outcome p50 {claim:.2} ms, {claimed:.0}/s; acquire and release p50 {lock:.2} ms, {locked:.0}/s"
    );
    Ok(Taken::new(targets, note))
}

/// Returns the pairs of calls of all connections in this time.
async fn pairs(target: &Arc<Target>, measured: Duration, locks: bool) -> anyhow::Result<u64> {
    let (done, began) = (Rc::new(Cell::new(0)), Instant::now());
    let callers = (0..CONNECTIONS).map(|number| {
        let (mut caller, done) = (Caller::new(target), Rc::clone(&done));
        async move {
            let name = format!("own-{number}");
            while began.elapsed() < measured {
                if locks {
                    acquire_and_release(&mut caller, &name).await?;
                } else {
                    claim_and_settle(&mut caller).await?;
                }
                done.set(done.get() + 1);
            }
            anyhow::Ok(())
        }
    });
    try_join_all(callers).await?;
    Ok(done.get())
}

async fn acquire_and_release(caller: &mut Caller, name: &str) -> anyhow::Result<()> {
    let held = caller.acquire(name, &json!({})).await?;
    caller.release(name, &held).await
}

async fn claim_and_settle(caller: &mut Caller) -> anyhow::Result<()> {
    let claimed = caller.claim(&format!("order-{:032x}", rand::random::<u128>())).await?;
    caller.settle(&claimed, "success").await
}
