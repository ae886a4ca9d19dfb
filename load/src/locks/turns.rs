//! A lock that many callers want: how often it changes hands in a second, at two gateways, and with other locks on a store of the
//! same kind.

use std::{sync::Arc, time::Duration};

use anyhow::ensure;
use futures_util::future::try_join_all;
use serde_json::json;

use super::{
    caller::{Caller, store_calls},
    hand_overs::HandOvers,
    peers::Peer,
    taken::Taken,
};
use crate::{
    client::Target,
    contender::Contender,
    goals::{at_least, at_most, over},
    report::ratio,
    running::Running,
    trial::{Bench, median},
};

/// Callers that want the lock.
pub(super) const WAITERS: [usize; 2] = [2, 64];

/// Engines whose lock is compared with others.
pub(super) const ENGINES: [Contender; 3] = [Contender::Redis, Contender::Etcd, Contender::ZooKeeper];

/// Measures the locks alternately. Another lock that is not installed or fails is left out.
pub(super) async fn measure(bench: &mut Bench, engine: Contender, waiters: usize) -> anyhow::Result<Taken> {
    let running = Running::start_gateways(engine, 2, "", &bench.installed, &bench.parent()).await?;
    let mut peers = Vec::new();
    for name in Peer::names(engine).iter().copied() {
        match Peer::find(name, &bench.parent()).await {
            Ok(Some(peer)) => peers.push((name, peer, Vec::new())),
            Ok(None) => bench.leave_out(format!("{name} with {waiters} callers: it is not installed")),
            Err(error) => fail(bench, name, waiters, &error),
        }
    }
    let (mut own, mut calls, mut in_turn) = <(Vec<_>, Vec<_>, Vec<_>)>::default();
    for _ in 0..bench.rounds {
        let (hand_overs, store_calls) = contended(&running, bench.measured, waiters, false).await?;
        own.push(hand_overs.each_second());
        calls.push(ratio(store_calls, hand_overs.grants()));
        let (hand_overs, store_calls) = contended(&running, bench.measured, waiters, true).await?;
        in_turn.push(ratio(store_calls, hand_overs.count()));
        let mut measured = Vec::new();
        for (name, peer, mut rates) in peers {
            match peer.each_second(&running, bench.measured, waiters).await {
                Ok(rate) => {
                    rates.push(rate);
                    measured.push((name, peer, rates));
                }
                Err(error) => fail(bench, name, waiters, &error),
            }
        }
        peers = measured;
    }
    running.stop().await;
    let peers = peers.into_iter().filter_map(|(name, _, rates)| Some((name, median(rates)?))).collect();
    let [own, calls, in_turn] = [own, calls, in_turn].map(median);
    Ok(figures(engine, waiters, own, [calls, in_turn], peers))
}

fn fail(bench: &mut Bench, name: &str, waiters: usize, error: &anyhow::Error) {
    bench.sound = false;
    bench.leave_out(format!("{name} with {waiters} callers: {error:#}"));
}

/// Returns the targets that these medians allow. `calls`: for each grant, and for each hand-over of fair callers.
pub(super) fn figures(
    engine: Contender,
    waiters: usize,
    own: Option<f64>,
    [calls, in_turn]: [Option<f64>; 2],
    peers: Vec<(&str, f64)>,
) -> Taken {
    let mut targets = Vec::new();
    let mut note = format!("hand-overs/s of a lock, {waiters} callers, {engine}: {}", whole(own));
    for (name, rate) in peers {
        let what = format!("hand-overs/s, {waiters} callers at two gateways, {engine}, to {name}'s lock");
        targets.push(at_least(&what, over(own, Some(rate)), wanted(engine, name, waiters)));
        note = format!("{note}; {name}'s lock {}", whole(Some(rate)));
    }
    let per = |what: &str| format!("store calls for each {what}, {engine}");
    targets.push(at_most(&per(&format!("grant of a lock, {waiters} callers")), calls, 4.0));
    targets.push(at_most(&per(&format!("hand-over of a lock, {waiters} fair callers")), in_turn, 4.0));
    Taken::new(targets, note)
}

/// Returns how many times as often as that lock the gateway's is to change hands.
fn wanted(engine: Contender, name: &str, waiters: usize) -> f64 {
    match (engine, name, waiters) {
        (Contender::Redis, Peer::REDIS_PY, 2) => 10.0,
        (Contender::Etcd, _, 2) => 5.0,
        _ => 2.0,
    }
}

fn whole(rate: Option<f64>) -> String {
    rate.map_or("–".to_owned(), |rate| format!("{rate:.0}"))
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
