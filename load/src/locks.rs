//! Costs of locks and of waiting: the figures of one of the two, each with its target. The measurements themselves are
//! in the files of this folder.

mod answers;
mod caller;
mod hand_overs;
mod herd;
mod memory;
mod peers;
mod taken;
#[cfg(test)]
mod tests;
mod turns;
mod uncontended;

use std::{fmt, path::PathBuf, time::Duration};

use serde::Serialize;

use crate::{
    contender::{Contender, Installed},
    goals::{Goal, Goals},
    setting,
    trial::Bench,
};

use self::taken::Taken;

/// Longest wait that a gateway permits by default.
pub(crate) const LONGEST_WAIT: Duration = Duration::from_secs(30);

/// Engines with figures.
const ENGINES: [Contender; 5] =
    [Contender::Memory, Contender::Redis, Contender::Postgres, Contender::Etcd, Contender::ZooKeeper];

/// Subject of the figures.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize)]
#[serde(rename_all = "lowercase")]
pub(crate) enum Subject {
    Locks,
    /// Claim calls that wait for a claim in progress.
    Waiting,
}

/// Extent of the measurements.
#[derive(Debug)]
pub(crate) struct Extent {
    pub(crate) subject: Subject,
    /// Engines; all if empty.
    pub(crate) only: Vec<Contender>,
    /// Duration of each run.
    pub(crate) measured: Duration,
    pub(crate) rounds: u64,
    /// Callers that wait at once.
    pub(crate) callers: usize,
    /// Time for which they wait.
    pub(crate) wait: Duration,
    pub(crate) gateway: Option<PathBuf>,
    pub(crate) dir: Option<PathBuf>,
}

/// All figures of a subject.
#[derive(Debug, Serialize)]
pub(crate) struct Figures {
    subject: Subject,
    rounds: u64,
    seconds: f64,
    callers: usize,
    targets: Vec<Goal>,
    /// Figures without a target.
    notes: Vec<String>,
    /// Contenders that were left out, and the reasons.
    skipped: Vec<String>,
    /// Machine and versions.
    setting: String,
}

/// Measures a subject. Returns the figures, and whether all installed contenders were measured.
pub(crate) async fn run(extent: Extent) -> anyhow::Result<(Figures, bool)> {
    let installed = Installed::with_gateway(extent.gateway.as_deref())?;
    let Extent { subject, only, measured, rounds, callers, wait, dir, .. } = extent;
    let mut bench = Bench::new(installed, dir, measured, rounds);
    let engines = bench.engines(&ENGINES, &only)?;
    let mut taken = Taken::default();
    match subject {
        Subject::Locks => locks(&mut bench, &engines, &mut taken, callers, wait).await,
        Subject::Waiting => waiting(&mut bench, &engines, &mut taken, callers, wait).await,
    }
    let figures = Figures {
        subject,
        rounds,
        seconds: measured.as_secs_f64(),
        callers,
        targets: taken.targets,
        notes: taken.notes,
        skipped: bench.skipped.clone(),
        setting: setting::describe(&bench),
    };
    Ok((figures, bench.sound))
}

async fn locks(bench: &mut Bench, engines: &[Contender], taken: &mut Taken, callers: usize, wait: Duration) {
    for engine in engines.iter().copied() {
        let figures = uncontended::measure(bench, engine).await;
        taken.add(bench, &format!("uncontended locks, {engine}"), figures);
    }
    for engine in engines.iter().copied().filter(|it| turns::ENGINES.contains(it)) {
        for waiters in turns::WAITERS {
            let figures = turns::measure(bench, engine, waiters).await;
            taken.add(bench, &format!("hand-overs with {waiters} callers, {engine}"), figures);
        }
    }
    for engine in engines.iter().copied().filter(|it| *it != Contender::Memory) {
        let figures = answers::of_locks(bench, engine).await;
        taken.add(bench, &format!("answers at another gateway, {engine}"), figures);
    }
    if engines.contains(&Contender::Memory) {
        let figures = memory::of_locks(bench, callers, wait).await;
        taken.add(bench, "memory of callers of a lock", figures);
    }
}

async fn waiting(bench: &mut Bench, engines: &[Contender], taken: &mut Taken, callers: usize, wait: Duration) {
    for engine in engines.iter().copied().filter(|it| *it != Contender::Memory) {
        let figures = answers::of_claims(bench, engine).await;
        taken.add(bench, &format!("answers at another gateway, {engine}"), figures);
    }
    if engines.contains(&Contender::Redis) {
        let figures = herd::measure(bench, callers / 5, callers / 50).await;
        taken.add(bench, "store calls for each release", figures);
    }
    if engines.contains(&Contender::Memory) {
        for keys in [1, callers] {
            let figures = memory::of_claims(bench, callers, keys, wait).await;
            taken.add(bench, &format!("memory of callers of {keys} keys"), figures);
        }
    }
}

impl Figures {
    /// Returns the name of its marks on a page.
    pub(crate) fn marks(&self) -> &'static str {
        match self.subject {
            Subject::Locks => "locks",
            Subject::Waiting => "waiting",
        }
    }
}

impl fmt::Display for Figures {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        writeln!(
            f,
            "\n{:?}, {} round(s) of {} s, {} callers that wait; generator, gateways and store on {}",
            self.subject, self.rounds, self.seconds, self.callers, self.setting
        )?;
        Goals(&self.targets).fmt(f)?;
        if !self.notes.is_empty() {
            writeln!(f)?;
        }
        for note in &self.notes {
            writeln!(f, "- {note}")?;
        }
        for line in &self.skipped {
            writeln!(f, "\nLEFT OUT {line}")?;
        }
        Ok(())
    }
}
