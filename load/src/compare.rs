//! Comparison on this machine: the reference server, a gateway on each engine, alternatives to a gateway, and the
//! stores alone. Prints a table of ratios, then the targets.

use std::{
    fmt::{self, Write as _},
    path::PathBuf,
    time::Duration,
};

use serde::Serialize;

use crate::{
    capacity::{self, Capacities, Capacity},
    contender::{Contender, Installed},
    cores::Cores,
    failover::{Failover, Failovers},
    footprint::{self, Footprint, Footprints},
    goals::{self, Goal, Goals, Loads},
    quorum,
    report::Report,
    scenario::Scenario,
    setting,
    streamed::{self, Streamed, Streams},
    trial::{Bench, Trial},
};

/// Contenders and duration of a comparison.
#[derive(Debug)]
pub(crate) struct Comparison {
    pub(crate) scenario: Scenario,
    pub(crate) measured: Duration,
    pub(crate) rounds: u64,
    pub(crate) connections: u64,
    /// Contenders in addition to the reference server; all if empty.
    pub(crate) only: Vec<Contender>,
    pub(crate) targets: Vec<Measurement>,
    /// Live claims in a store in use.
    pub(crate) live: u64,
    pub(crate) cores: Cores,
    pub(crate) gateway: Option<PathBuf>,
    pub(crate) dir: Option<PathBuf>,
}

/// Measurements that some targets need in addition to the peaks.
#[derive(Debug, Clone, Copy, PartialEq, Eq, clap::ValueEnum)]
pub(crate) enum Measurement {
    /// Batches on Redis and on a cluster; disk and memory with many connections
    Rates,
    /// Latencies at half of each peak
    Latencies,
    /// Storms of repeats on Redis
    Storms,
    /// CPU times at 1000 and 5000 claims a second
    Low,
    /// Answers while a primary of a cluster dies
    Failover,
    /// Bytes of a claim and of an idle gateway
    Sizes,
    /// Memory of a proxy while 1 GiB passes it
    Streams,
    /// Memory and disk with --live claims; takes minutes
    Live,
}

/// Figures of all contenders.
#[derive(Debug, Serialize)]
pub(crate) struct Compared {
    scenario: Scenario,
    rounds: u64,
    connections: u64,
    seconds: u64,
    rows: Vec<Row>,
    latencies: Vec<Row>,
    failovers: Vec<Failover>,
    footprints: Vec<Footprint>,
    streamed: Vec<Streamed>,
    capacities: Vec<Capacity>,
    targets: Vec<Goal>,
    /// Contenders that were left out, and the reasons.
    skipped: Vec<String>,
    /// Machine and versions.
    setting: String,
}

/// Medians over the rounds.
#[derive(Debug, Serialize)]
struct Row {
    trial: Trial,
    claims_per_second: f64,
    lowest: f64,
    highest: f64,
    /// Ratio to the reference server.
    ratio: Option<f64>,
    gateway_us_per_request: Option<f64>,
    store_us_per_request: Option<f64>,
    generator_us_per_request: Option<f64>,
    mean_us: Option<f64>,
    /// Latency as callers see it.
    p99_us: Option<f64>,
    /// Share of all cores that was busy with anything.
    busy_share: Option<f64>,
    /// Cores that the generator's pacer used.
    pacer_cores: Option<f64>,
    generator_was_the_limit: bool,
    /// Rounds in which other processes took CPU time.
    disturbed: usize,
}

/// Runs a comparison. Returns the figures, and whether every contender was measured and kept its promises.
pub(crate) async fn run(comparison: Comparison) -> anyhow::Result<(Compared, bool)> {
    let installed = Installed::with_gateway(comparison.gateway.as_deref())?;
    let Comparison { scenario, measured, rounds, connections, only, targets, live, cores, dir, .. } = comparison;
    let loads = Loads { connections, live: if targets.contains(&Measurement::Live) { live } else { 0 } };
    let mut bench = Bench::new(installed, dir, measured, rounds);
    bench.cores = cores;
    let is_proxied = scenario == Scenario::Proxied;
    let wanted = |it: &Contender| {
        *it == Contender::reference(scenario)
            || if only.is_empty() { it.is_proxied() == is_proxied } else { only.contains(it) }
    };
    let contenders = available(&mut bench, Contender::ALL.into_iter().filter(wanted), scenario);

    let peaks: Vec<_> = contenders.iter().map(|it| Trial { scenario, ..loads.peak(*it) }).collect();
    bench.measure(&peaks).await?;
    let chosen =
        |trials: Vec<Trial>| -> Vec<_> { trials.into_iter().filter(|it| contenders.contains(&it.contender)).collect() };
    let mut others = Vec::new();
    if targets.contains(&Measurement::Rates) {
        let trials = [
            loads.batched(Contender::Redis),
            loads.batched(Contender::Cluster),
            loads.many(Contender::Disk),
            loads.many(Contender::Memory),
        ];
        others.extend(chosen(trials.to_vec()));
        others.extend(chosen(quorum::trials(loads)));
    }
    if targets.contains(&Measurement::Storms) {
        others.extend(chosen(loads.storms()));
    }
    if loads.live > 0 {
        // Measured in alternation with the trials they are compared to: A B A B.
        let trials = [Contender::Memory, Contender::Disk].map(|it| [loads.peak(it), loads.in_use(it)]).concat();
        others.extend(chosen(trials));
    }
    bench.measure(&others).await?;
    let mut halves = Vec::new();
    if targets.contains(&Measurement::Latencies) {
        use Contender::{
            Acknowledged, Cluster, Disk, Memory, Noop, Postgres, ProxyMemory, ProxyNginx, ProxyRedis, Redis,
        };
        let pairs = [(Noop, Redis), (Memory, Memory), (Disk, Disk), (Redis, Redis), (Postgres, Postgres)];
        let pairs = pairs.into_iter().chain([(Cluster, Acknowledged), (Acknowledged, Acknowledged)]);
        let proxies = [ProxyMemory, ProxyRedis].into_iter().flat_map(|it| [(it, it), (ProxyNginx, it)]);
        let pairs = pairs.chain(proxies).filter(|(contender, _)| contenders.contains(contender));
        halves.extend(pairs.filter_map(|(contender, of)| loads.half(&bench, contender, of)));
        halves.extend(chosen(loads.fixed()));
        bench.measure(&halves).await?;
    }
    if targets.contains(&Measurement::Low) {
        let low = chosen(loads.low());
        bench.measure(&low).await?;
        halves.extend(low);
    }
    let failovers = if targets.contains(&Measurement::Failover) {
        let contenders = [Contender::Cluster, Contender::Acknowledged, Contender::Library];
        chosen(contenders.map(|it| loads.failover(it)).to_vec())
    } else {
        Vec::new()
    };
    bench.measure(&failovers).await?;
    let footprints = if targets.contains(&Measurement::Sizes) {
        footprint::measure(&mut bench, &contenders).await
    } else {
        Vec::new()
    };
    let streamed = if targets.contains(&Measurement::Streams) {
        streamed::measure(&mut bench, &contenders).await
    } else {
        Vec::new()
    };

    let mut all = peaks.clone();
    all.extend(others.into_iter().filter(|trial| !peaks.contains(trial)));
    let targets =
        if is_proxied { goals::proxied(&bench, loads, &streamed) } else { goals::all(&bench, loads, &footprints) };
    let rows = |trials: &[Trial]| trials.iter().filter_map(|trial| Row::of(&bench, trial, peaks[0])).collect();
    let compared = Compared {
        scenario,
        rounds,
        connections,
        seconds: measured.as_secs(),
        rows: rows(&all),
        latencies: rows(&halves),
        capacities: capacity::of(&bench, loads),
        failovers: failovers.iter().filter_map(|trial| Failover::of(&bench, trial)).collect(),
        footprints,
        streamed,
        targets,
        skipped: bench.skipped.clone(),
        setting: setting::describe(&bench),
    };
    Ok((compared, bench.sound))
}

/// Returns the contenders that are installed and support the scenario, and reports the others.
fn available(bench: &mut Bench, wanted: impl Iterator<Item = Contender>, scenario: Scenario) -> Vec<Contender> {
    let mut contenders = Vec::new();
    for contender in wanted {
        if let Some(lack) = bench.installed.lacks(contender) {
            bench.leave_out(format!("{contender}: {lack}"));
        } else if contender.is_proxied() != (scenario == Scenario::Proxied) {
            let only = if contender.is_proxied() { "for the proxied scenario only" } else { "no proxy" };
            bench.leave_out(format!("{contender}: it is {only}"));
        } else if !contender.plays(scenario) {
            bench.leave_out(format!("{contender}: it supports single claims only"));
        } else {
            contenders.push(contender);
        }
    }
    contenders
}

impl Row {
    fn of(bench: &Bench, trial: &Trial, reference: Trial) -> Option<Self> {
        let reports = bench.reports(trial)?;
        let rates = || reports.iter().map(|it| it.claims_per_second);
        let us = |name: &'static str| bench.median(trial, move |it| it.cpu.get(name).map(|cpu| cpu.us_per_request));
        let claims_per_second = bench.median(trial, goals::claims_per_second)?;
        let reference = bench.median(&reference, goals::claims_per_second).filter(|it| *it > 0.0);
        Some(Self {
            trial: *trial,
            claims_per_second,
            lowest: rates().fold(f64::INFINITY, f64::min),
            highest: rates().fold(0.0, f64::max),
            ratio: reference.map(|reference| claims_per_second / reference),
            gateway_us_per_request: us("gateway"),
            store_us_per_request: us("store"),
            generator_us_per_request: us("generator"),
            mean_us: bench.median(trial, goals::mean_us),
            p99_us: bench.median(trial, goals::p99_us),
            busy_share: bench.median(trial, |it| it.busy_share),
            pacer_cores: bench.median(trial, Report::pacer_cores),
            generator_was_the_limit: reports.iter().any(Report::generator_was_the_limit),
            disturbed: reports.iter().filter(|it| it.was_disturbed()).count(),
        })
    }

    /// Returns the name of a row, with the load where it is not the usual one.
    fn name(&self, usual: &Compared) -> String {
        let Trial { contender, scenario, connections, live, .. } = self.trial;
        let mut name = contender.to_string();
        // Writing to a String cannot fail.
        if scenario != usual.scenario {
            name.push_str(scenario.suffix());
        }
        if connections != usual.connections {
            let _ = write!(name, ", {connections} connections");
        }
        if live > 0 {
            let _ = write!(name, ", {live} live claims");
        }
        name
    }
}

impl Compared {
    /// Returns the unit of rates, and the heading of their ratios.
    fn units(&self) -> (&'static str, &'static str) {
        if self.scenario == Scenario::Proxied { ("requests", "to upstream") } else { ("claims", "to no-op") }
    }

    /// Returns the name of its marks on a page.
    pub(crate) fn marks(&self) -> &'static str {
        if self.scenario == Scenario::Proxied { "proxied" } else { "measured" }
    }
}

impl fmt::Display for Compared {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        writeln!(
            f,
            "\n{:?}, closed loop, {} connections, medians of {} rounds of {} s; generator, gateway and store on {}\n",
            self.scenario, self.connections, self.rounds, self.seconds, self.setting
        )?;
        let (unit, reference) = self.units();
        writeln!(
            f,
            "| Contender | {unit}/s | lowest–highest | {reference} | mean | p99 | gateway CPU/request | store CPU/request | generator CPU/request |"
        )?;
        writeln!(f, "| --- | ---: | ---: | ---: | ---: | ---: | ---: | ---: | ---: |")?;
        for row in &self.rows {
            writeln!(
                f,
                "| {} | {:.0} | {:.0}–{:.0} | {} | {} | {} | {} | {} | {} |",
                row.name(self),
                row.claims_per_second,
                row.lowest,
                row.highest,
                row.ratio.map_or("–".to_owned(), |ratio| format!("{ratio:.2}")),
                us(row.mean_us, 0),
                us(row.p99_us, 0),
                us(row.gateway_us_per_request, 1),
                us(row.store_us_per_request, 1),
                us(row.generator_us_per_request, 1),
            )?;
        }
        if !self.latencies.is_empty() {
            writeln!(f, "\nBelow the peak, open loop, from the scheduled time\n")?;
            writeln!(
                f,
                "| Contender | {unit}/s | all cores busy | pacer, of a core | mean | p99 | gateway CPU/request |\n| --- | ---: | ---: | ---: | ---: | ---: | ---: |"
            )?;
        }
        for row in &self.latencies {
            let (mean, p99, gateway) = (us(row.mean_us, 0), us(row.p99_us, 0), us(row.gateway_us_per_request, 1));
            let Row { trial, claims_per_second, .. } = row;
            let (busy, pacer) = (percent(row.busy_share), percent(row.pacer_cores));
            writeln!(
                f,
                "| {} | {claims_per_second:.0} | {busy} | {pacer} | {mean} | {p99} | {gateway} |",
                trial.contender
            )?;
        }
        if !self.failovers.is_empty() {
            Failovers(&self.failovers).fmt(f)?;
        }
        if !self.footprints.is_empty() {
            Footprints(&self.footprints).fmt(f)?;
        }
        if !self.streamed.is_empty() {
            Streams(&self.streamed).fmt(f)?;
        }
        if !self.capacities.is_empty() {
            Capacities(&self.capacities).fmt(f)?;
        }
        Goals(&self.targets).fmt(f)?;
        for row in self.rows.iter().chain(&self.latencies).filter(|row| row.generator_was_the_limit) {
            writeln!(f, "\nThe generator was the limit for {}, which may be faster than this.", row.name(self))?;
        }
        for row in self.rows.iter().chain(&self.latencies).filter(|row| row.disturbed > 0) {
            let (name, rounds) = (row.name(self), row.disturbed);
            writeln!(f, "\nDISTURBED in {rounds} round(s), so that the rate means little: {name}.")?;
        }
        for line in &self.skipped {
            writeln!(f, "\nLEFT OUT {line}")?;
        }
        Ok(())
    }
}

pub(crate) fn percent(share: Option<f64>) -> String {
    share.map_or("–".to_owned(), |share| format!("{:.0} %", share * 100.0))
}

pub(crate) fn us(us: Option<f64>, digits: usize) -> String {
    us.map_or("–".to_owned(), |us| format!("{us:.digits$} µs"))
}
