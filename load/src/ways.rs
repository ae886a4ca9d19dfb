//! What TLS costs, and a network that takes time: each gateway on its plain way and on these, in alternation.

use std::{fmt, path::PathBuf, time::Duration};

use serde::Serialize;

use crate::{
    compare::{percent, us},
    contender::{Contender, Installed},
    cores::Cores,
    goals::{self, Loads},
    report::Report,
    scenario::Scenario,
    setting,
    trial::{Bench, Trial},
    way::Way,
};

/// Claims per second below the peak: a rate that every way carries on a small machine.
const PER_SECOND: u64 = 2000;

/// Contenders if none are named. The handler that decides nothing is always measured.
const USUAL: [Contender; 3] = [Contender::Memory, Contender::Redis, Contender::Postgres];

/// Extent of the measurement.
#[derive(Debug)]
pub(crate) struct Extent {
    pub(crate) tls: bool,
    /// Round trip time of the network to a store.
    pub(crate) network: Option<Duration>,
    /// Contenders; the usual ones if empty.
    pub(crate) only: Vec<Contender>,
    pub(crate) measured: Duration,
    pub(crate) rounds: u64,
    pub(crate) connections: u64,
    pub(crate) cores: Cores,
    pub(crate) gateway: Option<PathBuf>,
    pub(crate) dir: Option<PathBuf>,
}

/// Figures of all ways.
#[derive(Debug, Serialize)]
pub(crate) struct Ways {
    rounds: u64,
    connections: u64,
    seconds: u64,
    peaks: Vec<Row>,
    below: Vec<Row>,
    /// Contenders and ways that were left out, and the reasons.
    skipped: Vec<String>,
    setting: String,
}

/// Medians over the rounds.
#[derive(Debug, Serialize)]
struct Row {
    name: String,
    claims_per_second: f64,
    /// Ratio to the plain way of the same contender.
    ratio: Option<f64>,
    mean_us: Option<f64>,
    p99_us: Option<f64>,
    gateway_us: Option<f64>,
    store_us: Option<f64>,
    network_us: Option<f64>,
    generator_us: Option<f64>,
    /// Share of all cores that was busy with anything.
    busy_share: Option<f64>,
    /// Cores that the generator's pacer used.
    pacer_cores: Option<f64>,
    generator_was_the_limit: bool,
    /// Rounds in which other processes took CPU time.
    disturbed: usize,
}

/// Measures all ways. Returns the figures, and whether every one was measured and all promises held.
pub(crate) async fn run(extent: Extent) -> anyhow::Result<(Ways, bool)> {
    let installed = Installed::with_gateway(extent.gateway.as_deref())?;
    let Extent { tls, network, only, measured, rounds, connections, cores, dir, .. } = extent;
    let mut bench = Bench::new(installed, dir, measured, rounds);
    bench.round_trip = network.unwrap_or_default();
    bench.cores = cores;
    let mut wanted = vec![Contender::Noop];
    wanted.extend(if only.is_empty() { USUAL.to_vec() } else { only });
    wanted.dedup();
    let mut contenders = Vec::new();
    for contender in wanted {
        match bench.installed.lacks(contender) {
            Some(lack) => bench.leave_out(format!("{contender}: {lack}")),
            None => contenders.push(contender),
        }
    }
    let loads = Loads { connections, live: 0 };
    let ways = ways(tls, network.is_some());
    let paths = |contender: Contender| ways.iter().copied().filter(move |way| way.leads_to(contender));
    let trials = |of: &dyn Fn(Contender) -> Trial| -> Vec<Trial> {
        let all = contenders.iter().flat_map(|it| paths(*it).map(|way| Trial { way, ..of(*it) }));
        all.collect()
    };
    let peaks = trials(&|it| loads.peak(it));
    let below = trials(&|it| loads.at(it, PER_SECOND));
    bench.measure(&peaks).await?;
    bench.measure(&below).await?;
    let rows = |trials: &[Trial]| trials.iter().filter_map(|trial| Row::of(&bench, trial)).collect();
    let figures = Ways {
        rounds,
        connections,
        seconds: measured.as_secs(),
        peaks: rows(&peaks),
        below: rows(&below),
        skipped: bench.skipped.clone(),
        setting: setting::describe(&bench),
    };
    Ok((figures, bench.sound))
}

fn ways(tls: bool, far: bool) -> Vec<Way> {
    let mut ways = vec![Way::Plain];
    ways.extend(Way::TLS.into_iter().filter(|_| tls));
    ways.extend(far.then_some(Way::Far));
    ways
}

impl Row {
    fn of(bench: &Bench, trial: &Trial) -> Option<Self> {
        let us = |name: &'static str| bench.median(trial, move |it| it.cpu.get(name).map(|cpu| cpu.us_per_request));
        let claims_per_second = bench.median(trial, goals::claims_per_second)?;
        let plain = bench.median(&Trial { way: Way::Plain, ..*trial }, goals::claims_per_second);
        let reports = bench.reports(trial)?;
        Some(Self {
            name: format!("{}{}", trial.contender, trial.way.suffix(bench.round_trip)),
            claims_per_second,
            ratio: plain.filter(|it| *it > 0.0).map(|plain| claims_per_second / plain),
            mean_us: bench.median(trial, goals::mean_us),
            p99_us: bench.median(trial, goals::p99_us),
            gateway_us: us("gateway"),
            store_us: us("store"),
            network_us: us("network"),
            generator_us: us("generator"),
            busy_share: bench.median(trial, |it| it.busy_share),
            pacer_cores: bench.median(trial, Report::pacer_cores),
            generator_was_the_limit: reports.iter().any(Report::generator_was_the_limit),
            disturbed: reports.iter().filter(|it| it.was_disturbed()).count(),
        })
    }

    /// Writes the columns that both tables have.
    fn fmt_times(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        for latency in [self.mean_us, self.p99_us] {
            write!(f, " {} |", us(latency, 0))?;
        }
        for time in [self.gateway_us, self.store_us, self.network_us, self.generator_us] {
            write!(f, " {} |", us(time, 1))?;
        }
        writeln!(f)
    }
}

impl fmt::Display for Ways {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Self { connections, rounds, seconds, setting, .. } = self;
        writeln!(
            f,
            "\n{:?}, closed loop, {connections} connections, medians of {rounds} rounds of {seconds} s; generator, gateway and store on {setting}\n",
            Scenario::Unique
        )?;
        let columns = "mean | p99 | gateway CPU/claim | store CPU/claim | network CPU/claim | generator CPU/claim |";
        let lines = "---: | ---: | ---: | ---: | ---: | ---: |";
        writeln!(f, "| Contender | claims/s | to plain | {columns}\n| --- | ---: | ---: | {lines}")?;
        for row in &self.peaks {
            let ratio = row.ratio.map_or("–".to_owned(), |ratio| format!("{ratio:.2}"));
            write!(f, "| {} | {:.0} | {ratio} |", row.name, row.claims_per_second)?;
            row.fmt_times(f)?;
        }
        writeln!(f, "\nOpen loop, from the scheduled time\n")?;
        writeln!(
            f,
            "| Contender | claims/s | all cores busy | pacer, of a core | {columns}\n| --- | ---: | ---: | ---: | {lines}"
        )?;
        for row in &self.below {
            let (busy, pacer) = (percent(row.busy_share), percent(row.pacer_cores));
            write!(f, "| {} | {:.0} | {busy} | {pacer} |", row.name, row.claims_per_second)?;
            row.fmt_times(f)?;
        }
        let all = || self.peaks.iter().chain(&self.below);
        for row in all().filter(|row| row.generator_was_the_limit) {
            writeln!(f, "\nThe generator was the limit for {}, which may be faster than this.", row.name)?;
        }
        let disturbed: Vec<_> = all().filter(|row| row.disturbed > 0).map(|row| row.name.as_str()).collect();
        if !disturbed.is_empty() {
            writeln!(f, "\nDISTURBED, so that the rate means little: {}.", disturbed.join("; "))?;
        }
        for line in &self.skipped {
            writeln!(f, "\nLEFT OUT {line}")?;
        }
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::{report, tests::built_gateway};

    /// Every way must carry claims and their checks, and the network must take its time.
    #[tokio::test]
    async fn claims_take_every_way() {
        let round_trip = Duration::from_millis(30);
        let Some(gateway) = built_gateway() else {
            report::say("SKIPPED the ways of claims: no gateway is built");
            return;
        };
        let installed = Installed::find(Some(&gateway)).expect("no gateway");
        let mut bench = Bench::new(installed, None, Duration::from_secs(1), 1);
        bench.round_trip = round_trip;
        let loads = Loads { connections: 4, live: 0 };
        for contender in [Contender::Memory, Contender::Redis] {
            if let Some(lack) = bench.installed.lacks(contender) {
                report::say(&format!("SKIPPED {contender}: {lack}"));
                continue;
            }
            for way in ways(true, true).into_iter().filter(|way| way.leads_to(contender)) {
                let trial = Trial { way, ..loads.at(contender, 50) };
                bench.measure(&[trial]).await.expect("not measured");
                let skipped = bench.skipped.join("; ");
                let report = &bench.reports(&trial).unwrap_or_else(|| panic!("left out: {skipped}"))[0];
                assert!(report.is_sound() && report.checks.held > 30, "{contender}, {way:?}: {report}");
                let mean = Duration::from_secs_f64(goals::mean_us(report).unwrap_or_default() / 1e6);
                assert!(way != Way::Far || mean >= round_trip, "{contender} answered after {mean:?}");
            }
        }
    }
}
