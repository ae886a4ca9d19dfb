//! One run: warm-up, measurement, and the checks after it.

use std::{
    sync::Arc,
    time::{Duration, Instant},
};

use anyhow::ensure;
use tokio::{
    task::JoinSet,
    time::{MissedTickBehavior, interval, sleep, sleep_until},
};

use crate::{
    client::{Connection, Target},
    cores::Cores,
    ledger::Ledger,
    pace::{Pace, Pacing},
    proc::{self, Watched},
    recorder::{Label, Recorder, Totals},
    report::{self, Measured, Report},
    scenario::{Scenario, Stage},
    sizes::Sizes,
    wire::{Dialect, Terms},
};

/// Time after the end of a run in which overdue operations are still sent.
const GRACE: Duration = Duration::from_secs(2);
/// Time after a run for which its claims usually last.
pub(crate) const KEPT_AFTER: Duration = Duration::from_mins(5);
/// Attempts to get a clear answer about an order at the end.
const VERIFY_TRIES: u32 = 5;

/// Parameters of a run.
#[derive(Debug)]
pub(crate) struct Plan {
    pub(crate) target: Target,
    /// Service behind the target, if that is a proxy. Its counts are checked.
    pub(crate) upstream: Option<Target>,
    pub(crate) dialect: Dialect,
    pub(crate) scenario: Scenario,
    pub(crate) sizes: Sizes,
    pub(crate) pacing: Pacing,
    pub(crate) warm_up: Duration,
    pub(crate) measured: Duration,
    /// Time after the run for which its claims last.
    pub(crate) kept_after: Duration,
    pub(crate) connections: u64,
    pub(crate) checks: bool,
    pub(crate) watched: Vec<Watched>,
    pub(crate) cores: Cores,
    pub(crate) progress: bool,
}

/// Totals and CPU times at one moment.
struct Reading {
    at: Instant,
    totals: Totals,
    cpu_us: Vec<u64>,
    machine_us: u64,
}

pub(crate) async fn run(plan: Plan) -> anyhow::Result<Report> {
    let Plan { target, upstream, dialect, scenario, sizes, pacing, .. } = plan;
    let Plan { warm_up, measured, kept_after, connections, checks, mut watched, cores, progress, .. } = plan;
    let starts = Instant::now();
    let measured_from = starts + warm_up;
    let ends = measured_from + measured;
    let stage = Arc::new(Stage {
        scenario,
        dialect,
        sizes,
        terms: terms(&target, scenario, sizes, ends - starts + kept_after),
        ledger: Ledger::new(checks),
        recorder: Recorder::new(measured_from),
    });
    let target = Arc::new(target);
    let pace = Pace::start(pacing, starts, ends, connections, &cores)?;
    watched.push(match pace.pacer() {
        Some(pacer) => Watched::generator().without(&pacer),
        None => Watched::generator(),
    });
    watched.extend(pace.pacer());
    let pace = Arc::new(pace);

    let mut workers = JoinSet::new();
    for _ in 0..connections {
        let (stage, pace, connection) = (Arc::clone(&stage), Arc::clone(&pace), Connection::new(Arc::clone(&target)));
        workers.spawn(work(stage, pace, connection, ends + GRACE));
    }
    let ticker = progress.then(|| tokio::spawn(show_progress(Arc::clone(&stage), warm_up + measured)));
    sleep_until(measured_from.into()).await;
    let first = read(&stage, &watched)?;
    sleep_until(ends.into()).await;
    let last = read(&stage, &watched)?;
    while workers.join_next().await.is_some() {}
    if let Some(ticker) = ticker {
        ticker.abort();
        // The progress bar disappears when it has ended.
        drop(ticker.await);
    }
    let answered = stage.recorder.totals().requests > 0 || stage.ledger.checks().broken > 0;
    ensure!(answered, "no request was answered: is a gateway listening at that address?");

    // Read the figures first: the following checks are not measured.
    let measured = Measured {
        scenario,
        pacing,
        connections,
        elapsed: last.at - first.at,
        operations: last.totals.operations - first.totals.operations,
        requests: last.totals.requests - first.totals.requests,
        claims: last.totals.claims - first.totals.claims,
        machine_us: last.machine_us - first.machine_us,
        pacer_spins: pacing != Pacing::Closed && cores.pacer_spins(),
        cpu_us: watched
            .iter()
            .zip(first.cpu_us.iter().zip(&last.cpu_us))
            .map(|(it, (first, last))| (it.name.clone(), last - first))
            .collect(),
    };
    let mut report = stage.recorder.read(|recorded| Report::new(&measured, recorded));
    stage.ledger.close_contests();
    verify(&stage, Connection::new(target)).await;
    if let Some(upstream) = upstream
        && !stage.verify_counts(&mut Connection::new(Arc::new(upstream))).await
    {
        stage.ledger.could_not_check();
    }
    report.checks = stage.ledger.checks();
    Ok(report)
}

async fn work(stage: Arc<Stage>, pace: Arc<Pace>, mut connection: Connection, last_call: Instant) {
    while let Some(slot) = pace.next().await {
        if Instant::now() < last_call {
            stage.play(&mut connection, slot).await;
        } else {
            // Left out, the longest waits would be missing from the latencies.
            stage.recorder.ended(stage.scenario.first_step(), Label::Unsent, slot.due, 0);
        }
    }
}

/// Claims a sample of all orders again.
async fn verify(stage: &Stage, mut connection: Connection) {
    for (order, known) in stage.ledger.samples() {
        let mut clear = false;
        for _ in 0..VERIFY_TRIES {
            clear = stage.verify(&mut connection, order, known).await;
            if clear {
                break;
            }
            sleep(Duration::from_millis(200)).await;
        }
        if !clear {
            stage.ledger.could_not_check();
            // If the gateway no longer runs, every further order would cost a timeout.
            return;
        }
    }
}

fn terms(target: &Target, scenario: Scenario, sizes: Sizes, kept: Duration) -> Terms {
    let operation = format!("load.{scenario:?}").to_lowercase();
    let terms = Terms::new(&target.app, &operation, Some(&format!("{}s", kept.as_secs())));
    Terms { operations: sizes.operations, ..terms }
}

fn read(stage: &Stage, watched: &[Watched]) -> anyhow::Result<Reading> {
    let cpu_us = watched.iter().map(Watched::cpu_us).collect::<anyhow::Result<_>>()?;
    Ok(Reading { at: Instant::now(), totals: stage.recorder.totals(), cpu_us, machine_us: proc::machine_us()? })
}

/// Shows progress, rate and latency on a terminal.
async fn show_progress(stage: Arc<Stage>, run: Duration) {
    let bar = report::progress(run.as_secs(), "s");
    let mut seconds = interval(Duration::from_secs(1));
    seconds.set_missed_tick_behavior(MissedTickBehavior::Delay);
    seconds.tick().await;
    let mut before = Totals::default();
    loop {
        seconds.tick().await;
        let now = stage.recorder.totals();
        bar.set_message(format!(
            "{} requests/s, p99 {} so far, {} unanswered",
            now.requests - before.requests,
            report::latency(stage.recorder.slowest_p99_us()),
            now.refused,
        ));
        bar.inc(1);
        before = now;
    }
}
