//! Trials: a contender under one load, with fresh processes. Trials alternate, A B C A B C, so that a slow phase of the
//! machine affects all of them, and medians are reported.

use std::{collections::BTreeMap, env, path::PathBuf, time::Duration};

use anyhow::{Context as _, bail};
use futures_util::future::join;
use serde::Serialize;
use tokio::time::sleep;

use crate::{
    client::Target,
    contender::{Contender, Installed},
    cores::Cores,
    fill,
    pace::Pacing,
    report::{self, Report},
    runner::{self, Plan},
    running::Running,
    scenario::Scenario,
    sizes::Sizes,
    way::{Surroundings, Way},
};

const WARM_UP: Duration = Duration::from_secs(1);

/// Measurement of one contender in each round.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Serialize)]
pub(crate) struct Trial {
    pub(crate) contender: Contender,
    pub(crate) scenario: Scenario,
    pub(crate) pacing: Pacing,
    pub(crate) connections: u64,
    /// Live claims in the store.
    pub(crate) live: u64,
    /// True if a primary is killed.
    pub(crate) failover: bool,
    pub(crate) way: Way,
}

/// Parameters and results of all trials.
#[derive(Debug)]
pub(crate) struct Bench {
    pub(crate) installed: Installed,
    pub(crate) dir: Option<PathBuf>,
    pub(crate) measured: Duration,
    pub(crate) rounds: u64,
    /// Cores of each process.
    pub(crate) cores: Cores,
    /// Time that the network to a far store takes.
    pub(crate) round_trip: Duration,
    reports: BTreeMap<Trial, Vec<Report>>,
    /// Contenders that were left out, and the reasons.
    pub(crate) skipped: Vec<String>,
    /// True if every contender was measured and kept its promises.
    pub(crate) sound: bool,
}

impl Bench {
    pub(crate) fn new(installed: Installed, dir: Option<PathBuf>, measured: Duration, rounds: u64) -> Self {
        let (cores, round_trip) = (Cores::default(), Duration::ZERO);
        let (reports, skipped) = (BTreeMap::new(), Vec::new());
        Self { installed, dir, measured, rounds, cores, round_trip, reports, skipped, sound: true }
    }

    /// Measures all trials in each round. A contender that fails is left out; only the reference server must succeed.
    pub(crate) async fn measure(&mut self, trials: &[Trial]) -> anyhow::Result<()> {
        let mut trials = trials.to_vec();
        for round in 1..=self.rounds {
            for trial in trials.clone() {
                let Trial { contender, .. } = trial;
                let report = match self.measure_once(trial).await {
                    Ok(report) => report,
                    Err(error) if contender == Contender::reference(trial.scenario) => return Err(error),
                    Err(error) => {
                        self.sound = false;
                        trials.retain(|it| *it != trial);
                        self.reports.remove(&trial);
                        self.leave_out(format!("{contender}: {error:#}"));
                        continue;
                    }
                };
                report::say(&format!(
                    "round {round} of {}  {:<24} {:>8.0} claims/s  {:?}, {} connections",
                    self.rounds,
                    format!("{contender}{}", trial.way.suffix(self.round_trip)),
                    report.claims_per_second,
                    trial.pacing,
                    trial.connections
                ));
                if let Some(cores) = report.other_cores.filter(|_| report.was_disturbed()) {
                    report::say(&format!("!! DISTURBED: other programs took {cores:.2} cores"));
                }
                // Losses that a failover may cause, with asynchronous replicas or with a library that repeats writes,
                // are a figure of the report.
                if !report.is_sound() && (!trial.failover || contender == Contender::Acknowledged) {
                    self.sound = false;
                    report::say(&format!("!! {contender}{report}"));
                }
                self.reports.entry(trial).or_default().push(report);
            }
        }
        Ok(())
    }

    /// Returns the engines to measure: those of `only`, or all of these, without any that is not installed.
    pub(crate) fn engines(&mut self, all: &[Contender], only: &[Contender]) -> anyhow::Result<Vec<Contender>> {
        if let Some(other) = only.iter().find(|it| !all.contains(it)) {
            let names: Vec<_> = all.iter().map(ToString::to_string).collect();
            bail!("there are no figures of {other}: --only takes {}", names.join(", "));
        }
        let mut engines = Vec::new();
        for engine in all.iter().copied().filter(|it| only.is_empty() || only.contains(it)) {
            match self.installed.lacks(engine) {
                Some(lack) => self.leave_out(format!("{engine}: {lack}")),
                None => engines.push(engine),
            }
        }
        Ok(engines)
    }

    pub(crate) fn leave_out(&mut self, line: String) {
        report::say(&format!("!! LEFT OUT {line}"));
        self.skipped.push(line);
    }

    /// Returns the reports of a trial, one per round; nothing if it was not measured.
    pub(crate) fn reports(&self, trial: &Trial) -> Option<&[Report]> {
        self.reports.get(trial).map(Vec::as_slice)
    }

    /// Returns the median of a figure that every round has.
    pub(crate) fn median(&self, trial: &Trial, figure: impl Fn(&Report) -> Option<f64>) -> Option<f64> {
        median(self.reports(trial)?.iter().map(figure).collect::<Option<_>>()?)
    }

    /// Measures with fresh processes, without earlier claims.
    async fn measure_once(&self, trial: Trial) -> anyhow::Result<Report> {
        let surroundings = Surroundings { way: trial.way, spare: trial.failover, ..self.surroundings() };
        let mut running = Running::start(trial.contender, surroundings, &self.installed, &self.parent()).await?;
        let report = match trial.contender {
            Contender::Pgbench => self.pgbench(&running, trial).await,
            Contender::Sets => self.sets(&running, trial, 1).await,
            Contender::PipelinedSets => self.sets(&running, trial, 16).await,
            Contender::EtcdPuts | Contender::ZooKeeperCreates => self.writes(&running, trial).await,
            _ if trial.failover => self.failover(&mut running, trial).await,
            _ => self.load(&running, trial).await,
        };
        running.stop().await;
        report
    }

    async fn load(&self, running: &Running, trial: Trial) -> anyhow::Result<Report> {
        if trial.live > 0 {
            fill::fill(running.target()?, trial.live, Some(fill::KEPT)).await?;
            fill::rest(&running.watched).await?;
        }
        runner::run(self.plan(running, trial)?).await
    }

    /// Kills a primary after a third of the measured time.
    async fn failover(&self, running: &mut Running, trial: Trial) -> anyhow::Result<Report> {
        // The CPU time of a killed process cannot be read.
        let plan = Plan { watched: Vec::new(), ..self.plan(running, trial)? };
        let killing = async {
            sleep(WARM_UP + self.measured / 3).await;
            running.kill_a_primary();
        };
        join(runner::run(plan), killing).await.0
    }

    fn plan(&self, running: &Running, trial: Trial) -> anyhow::Result<Plan> {
        let Trial { contender, scenario, pacing, connections, .. } = trial;
        Ok(Plan {
            target: running.target()?,
            upstream: running.upstream.as_deref().map(|url| Target::parse(url, None, false)).transpose()?,
            dialect: contender.dialect(),
            scenario,
            sizes: Sizes::of(scenario),
            pacing,
            warm_up: WARM_UP,
            measured: self.measured,
            kept_after: runner::KEPT_AFTER,
            connections,
            checks: contender != Contender::Noop,
            watched: running.watched.clone(),
            cores: self.cores.clone(),
            progress: false,
        })
    }

    async fn pgbench(&self, running: &Running, trial: Trial) -> anyhow::Result<Report> {
        let programs = self.installed.postgres.as_ref().context("PostgreSQL is not installed")?;
        running.migrate(&self.installed).await?;
        let store = running.store()?;
        let before = store.cpu_us()?;
        let seconds = self.measured.as_secs();
        let rate = programs.claims_per_second(running.dir(), running.port, trial.connections, seconds).await?;
        let used_us = store.cpu_us()? - before;
        Ok(Report::of_rate(trial.scenario, trial.connections, self.measured, rate, Some(used_us)))
    }

    async fn sets(&self, running: &Running, trial: Trial, pipeline: u32) -> anyhow::Result<Report> {
        let tools = self.installed.redis_tools.as_ref().context("redis-benchmark is not installed")?;
        let seconds = self.measured.as_secs();
        let sets = tools.sets(running.store()?, running.port, trial.connections, pipeline, seconds).await?;
        Ok(Report::of_rate(trial.scenario, trial.connections, sets.elapsed, sets.per_second, Some(sets.server_us)))
    }

    /// By the own client of a quorum, whose servers' CPU time is not known for the measured part alone.
    async fn writes(&self, running: &Running, trial: Trial) -> anyhow::Result<Report> {
        let quorum = running.quorum.as_ref().context("no quorum was started")?;
        let rate = quorum.writes_per_second(trial.connections, self.measured).await?;
        Ok(Report::of_rate(trial.scenario, trial.connections, self.measured, rate, None))
    }

    /// Returns the surroundings of a contender that nothing special is done with.
    pub(crate) fn surroundings(&self) -> Surroundings {
        Surroundings { round_trip: self.round_trip, cores: self.cores.clone(), ..Surroundings::default() }
    }

    pub(crate) fn parent(&self) -> PathBuf {
        self.dir.clone().unwrap_or_else(env::temp_dir)
    }
}

/// Returns the median; nothing without figures.
pub(crate) fn median(mut figures: Vec<f64>) -> Option<f64> {
    figures.sort_by(f64::total_cmp);
    let middle = figures.len() / 2;
    match figures.len() {
        0 => None,
        n if n % 2 == 1 => Some(figures[middle]),
        _ => Some(f64::midpoint(figures[middle - 1], figures[middle])),
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::goals::Loads;

    #[test]
    fn the_median_is_the_middle_or_between_the_middles() {
        assert_eq!(median(vec![3.0, 1.0, 2.0]), Some(2.0));
        assert_eq!(median(vec![4.0, 1.0, 2.0, 3.0]), Some(2.5));
        assert_eq!(median(Vec::new()), None);
    }

    /// One round of each installed peer, with every order claimed once and a sample of them again.
    #[tokio::test]
    async fn the_peers_decide_like_a_gateway() {
        let mut bench = Bench::new(Installed::find(None).expect("no place"), None, Duration::from_secs(1), 1);
        for contender in [Contender::Webdis, Contender::Nginx, Contender::Diom] {
            if let Some(lack) = bench.installed.lacks(contender) {
                report::say(&format!("SKIPPED {contender}: {lack}"));
                continue;
            }
            let pacing = Pacing::Open { per_second: 200 };
            let trial = Trial { pacing, ..Loads { connections: 4, live: 0 }.peak(contender) };
            bench.measure(&[trial]).await.expect("not measured");
            let report = &bench.reports(&trial).expect("left out")[0];
            assert!(report.is_sound() && report.checks.held > 100, "{contender}: {report}");
        }
    }
}
