//! A lock that many callers want: how often it changes hands in a second, at two gateways, and with other locks.

use std::{sync::Arc, time::Duration};

use anyhow::ensure;
use futures_util::future::try_join_all;
use serde_json::json;

use super::{
    caller::{Caller, store_calls},
    hand_overs::HandOvers,
    peers::{Etcd, RedisPy},
    taken::Taken,
};
use crate::{
    client::Target,
    contender::Contender,
    goals::{at_least, at_most},
    report::ratio,
    running::Running,
    trial::{Bench, median},
};

/// Callers that want the lock.
pub(super) const WAITERS: [usize; 2] = [2, 64];

/// Measures the locks alternately. Another lock that is not installed or fails is left out.
pub(super) async fn measure(bench: &mut Bench, waiters: usize) -> anyhow::Result<Taken> {
    let running = Running::start_gateways(Contender::Redis, 2, "", &bench.installed, &bench.parent()).await?;
    let names = ["redis-py", "etcd"].map(|name| format!("{name} with {waiters} callers"));
    let started = Etcd::start(&bench.parent()).await;
    let mut redis_py = present(bench, &names[0], Ok(RedisPy::find().await));
    let mut etcd = present(bench, &names[1], started);
    let (mut own, mut calls, mut in_turn, mut polled, mut theirs) =
        <(Vec<_>, Vec<_>, Vec<_>, Vec<_>, Vec<_>)>::default();
    for _ in 0..bench.rounds {
        let (hand_overs, store_calls) = contended(&running, bench.measured, waiters, false).await?;
        own.push(hand_overs.each_second());
        calls.push(ratio(store_calls, hand_overs.grants()));
        let (hand_overs, store_calls) = contended(&running, bench.measured, waiters, true).await?;
        in_turn.push(ratio(store_calls, hand_overs.count()));
        if let Some(lock) = redis_py.take() {
            let rate = lock.each_second(running.port, bench.measured, waiters).await;
            redis_py = rated(bench, &names[0], rate, &mut polled).then_some(lock);
        }
        if let Some(lock) = etcd.take() {
            let rate = lock.each_second(bench.measured, waiters).await;
            etcd = rated(bench, &names[1], rate, &mut theirs).then_some(lock);
        }
    }
    running.stop().await;
    let [own, calls, in_turn, polled, theirs] = [own, calls, in_turn, polled, theirs].map(median);
    Ok(figures(waiters, own, [calls, in_turn], polled, theirs))
}

/// Returns another lock, or leaves it out.
fn present<T>(bench: &mut Bench, name: &str, found: anyhow::Result<Option<T>>) -> Option<T> {
    match found {
        Ok(None) => bench.leave_out(format!("{name}: it is not installed")),
        Ok(found) => return found,
        Err(error) => fail(bench, name, &error),
    }
    None
}

/// Adds the rate of another lock, or leaves it out with the rates that it had. Returns whether it continues.
fn rated(bench: &mut Bench, name: &str, rate: anyhow::Result<f64>, rates: &mut Vec<f64>) -> bool {
    match rate {
        Ok(rate) => rates.push(rate),
        Err(error) => {
            rates.clear();
            fail(bench, name, &error);
            return false;
        }
    }
    true
}

fn fail(bench: &mut Bench, name: &str, error: &anyhow::Error) {
    bench.sound = false;
    bench.leave_out(format!("{name}: {error:#}"));
}

/// Returns the targets that these medians allow. A contender without a figure has none. `calls`: for each grant, and for each
/// hand-over of fair callers.
pub(super) fn figures(
    waiters: usize,
    own: Option<f64>,
    [calls, in_turn]: [Option<f64>; 2],
    polled: Option<f64>,
    etcd: Option<f64>,
) -> Taken {
    let times = |other: Option<f64>| own.zip(other).filter(|(_, it)| *it > 0.0).map(|(own, other)| own / other);
    let wanted = if waiters == 2 { 10.0 } else { 2.0 };
    let mut targets = Vec::new();
    for (name, other, wanted) in [("redis-py", polled, wanted), ("etcd", etcd, 2.0)] {
        if other.is_some() {
            let what = format!("hand-overs/s, {waiters} callers at two gateways, Redis, to {name}'s lock");
            targets.push(at_least(&what, times(other), wanted));
        }
    }
    targets.push(at_most(&format!("store calls for each grant of a lock, {waiters} callers"), calls, 4.0));
    targets.push(at_most(&format!("store calls for each hand-over of a lock, {waiters} fair callers"), in_turn, 4.0));
    let rate = |rate: Option<f64>| rate.map_or("–".to_owned(), |rate| format!("{rate:.0}"));
    let (own, polled, etcd) = (rate(own), rate(polled), rate(etcd));
    Taken::new(
        targets,
        format!("hand-overs/s of a lock, {waiters} callers: {own}; redis-py's lock {polled}, etcd's {etcd}"),
    )
}

/// Returns the hand-overs of a run, and the calls of the store.
pub(super) async fn contended(
    running: &Running,
    measured: Duration,
    waiters: usize,
    fair: bool,
) -> anyhow::Result<(HandOvers, u64)> {
    let before = store_calls(running).await?;
    let hand_overs = HandOvers::start(measured);
    let gateways: Vec<&Arc<Target>> = running.gateways.iter().map(|it| &it.api).collect();
    let callers = (0..waiters).map(|number| {
        let (mut caller, hand_overs) = (Caller::new(gateways[number % gateways.len()]), &hand_overs);
        async move {
            while !hand_overs.is_over() {
                let held = caller.acquire("hot", &json!({ "wait": "25s", "fair": fair })).await?;
                hand_overs.held_by(number);
                caller.release("hot", &held).await?;
            }
            anyhow::Ok(())
        }
    });
    try_join_all(callers).await?;
    ensure!(hand_overs.grants() > 0, "no caller got the lock");
    let calls = store_calls(running).await? - before;
    Ok((hand_overs, calls))
}
