//! The yardstick and a gateway on each engine, measured in turns: A B C D, A B C D, … so that a machine that slows down for a
//! while slows all of them, and the medians are told.

use std::{collections::BTreeMap, env, fmt, path::PathBuf, time::Duration};

use anyhow::{Context as _, bail};
use serde::Serialize;

use crate::{
    client::Target,
    contender::{Contender, Installed, Running},
    pace::Pacing,
    report::{self, Report},
    runner::{self, Plan},
    scenario::Scenario,
};

const WARM_UP: Duration = Duration::from_secs(1);

/// What to compare, and for how long.
#[derive(Debug)]
pub(crate) struct Comparison {
    pub(crate) scenario: Scenario,
    pub(crate) measured: Duration,
    pub(crate) rounds: u64,
    pub(crate) connections: u64,
    /// Only these, beside the yardstick; all if empty.
    pub(crate) only: Vec<Contender>,
    pub(crate) gateway: Option<PathBuf>,
    pub(crate) dir: Option<PathBuf>,
}

/// The figures of all contenders.
#[derive(Debug, Serialize)]
pub(crate) struct Table {
    scenario: Scenario,
    rounds: u64,
    connections: u64,
    seconds: u64,
    rows: Vec<Row>,
    /// What was left out, and why.
    skipped: Vec<String>,
}

/// Medians over the rounds.
#[derive(Debug, Serialize)]
struct Row {
    contender: Contender,
    claims_per_second: f64,
    lowest: f64,
    highest: f64,
    /// To the yardstick.
    ratio: f64,
    gateway_us_per_request: Option<f64>,
    store_us_per_request: Option<f64>,
    generator_cores: f64,
    /// As the callers of a gateway see it.
    p99_us: Option<f64>,
    generator_was_the_limit: bool,
}

/// The table, and whether every contender was measured and kept its promises.
pub(crate) async fn run(comparison: &Comparison) -> anyhow::Result<(Table, bool)> {
    let installed = Installed::find(comparison.gateway.as_deref())?;
    if installed.gateway.is_none() {
        bail!("there is no gateway to compare: build it with `cargo build --release`, or name it with --gateway PATH");
    }
    let wanted = |it: &Contender| *it == Contender::Noop || comparison.only.is_empty() || comparison.only.contains(it);
    let mut skipped = Vec::new();
    let mut contenders = Vec::new();
    for contender in Contender::ALL.into_iter().filter(wanted) {
        if let Some(lack) = installed.lacks(contender) {
            skipped.push(format!("{contender}: {lack}"));
        } else if contender.only_claims() && comparison.scenario != Scenario::Unique {
            skipped.push(format!("{contender}: it knows nothing but claims, so it cannot do this scenario"));
        } else {
            contenders.push(contender);
        }
    }
    for line in &skipped {
        report::say(&format!("!! LEFT OUT {line}"));
    }
    let mut reports: BTreeMap<Contender, Vec<Report>> = BTreeMap::new();
    let mut sound = true;
    for round in 1..=comparison.rounds {
        for contender in contenders.clone() {
            let report = match measure(contender, comparison, &installed).await {
                Ok(report) => report,
                // Nothing can be told without the yardstick; a gateway without one of its engines leaves the others.
                Err(error) if contender == Contender::Noop => return Err(error),
                Err(error) => {
                    sound = false;
                    contenders.retain(|it| *it != contender);
                    reports.remove(&contender);
                    report::say(&format!("!! LEFT OUT {contender}: {error:#}"));
                    skipped.push(format!("{contender}: {error:#}"));
                    continue;
                }
            };
            report::say(&format!(
                "round {round} of {}  {contender:<14} {:>8.0} claims/s",
                comparison.rounds, report.claims_per_second
            ));
            if !report.is_sound() {
                sound = false;
                report::say(&format!("!! {contender}{report}"));
            }
            reports.entry(contender).or_default().push(report);
        }
    }
    let yardstick = reports.get(&Contender::Noop).map_or(0.0, |reports| median(reports, |it| it.claims_per_second));
    let rows = reports.iter().map(|(contender, reports)| Row::of(*contender, reports, yardstick)).collect();
    let Comparison { scenario, rounds, connections, measured, .. } = *comparison;
    Ok((Table { scenario, rounds, connections, seconds: measured.as_secs(), rows, skipped }, sound))
}

/// Every measurement has fresh processes and an empty store, so that none pays for the claims of an earlier one.
async fn measure(contender: Contender, comparison: &Comparison, installed: &Installed) -> anyhow::Result<Report> {
    let parent = comparison.dir.clone().unwrap_or_else(env::temp_dir);
    let running = Running::start(contender, installed, &parent).await?;
    if contender == Contender::Pgbench {
        let programs = installed.postgres.as_ref().context("PostgreSQL is not installed")?;
        running.migrate(installed).await?;
        let (clients, seconds) = (comparison.connections, comparison.measured.as_secs());
        let claims_per_second = programs.claims_per_second(running.dir(), running.port, clients, seconds).await;
        running.stop().await;
        return Ok(Report::of_rate(comparison.scenario, clients, comparison.measured, claims_per_second?));
    }
    let plan = Plan {
        target: Target::parse(&running.url, Some(&running.credential), false)?,
        dialect: contender.dialect(),
        scenario: comparison.scenario,
        pacing: Pacing::Closed,
        warm_up: WARM_UP,
        measured: comparison.measured,
        connections: comparison.connections,
        checks: contender != Contender::Noop,
        watched: running.watched.clone(),
        progress: false,
    };
    let report = runner::run(plan).await;
    running.stop().await;
    report
}

impl Row {
    fn of(contender: Contender, reports: &[Report], yardstick: f64) -> Self {
        let rates = || reports.iter().map(|it| it.claims_per_second);
        let us = |it: &Report, name: &str| it.cpu.get(name).map(|cpu| cpu.us_per_request);
        let claims_per_second = median(reports, |it| it.claims_per_second);
        let is_watched = |name: &str| reports.iter().all(|it| it.cpu.contains_key(name));
        let median_us = |name: &str| is_watched(name).then(|| median(reports, |it| us(it, name).unwrap_or_default()));
        Self {
            contender,
            claims_per_second,
            lowest: rates().fold(f64::INFINITY, f64::min),
            highest: rates().fold(0.0, f64::max),
            ratio: if yardstick > 0.0 { claims_per_second / yardstick } else { 0.0 },
            gateway_us_per_request: median_us("gateway"),
            store_us_per_request: median_us("store"),
            generator_cores: median(reports, |it| it.cpu.get("generator").map_or(0.0, |cpu| cpu.cores)),
            p99_us: reports.iter().all(|it| !it.latencies.is_empty()).then(|| {
                median(reports, |it| report::ratio(it.latencies.values().map(|it| it.p99_us).max().unwrap_or(0), 1))
            }),
            generator_was_the_limit: reports.iter().any(Report::generator_was_the_limit),
        }
    }
}

fn median(reports: &[Report], figure: impl Fn(&Report) -> f64) -> f64 {
    let mut figures: Vec<_> = reports.iter().map(figure).collect();
    figures.sort_by(f64::total_cmp);
    let middle = figures.len() / 2;
    match figures.len() {
        0 => 0.0,
        n if n % 2 == 1 => figures[middle],
        _ => f64::midpoint(figures[middle - 1], figures[middle]),
    }
}

impl fmt::Display for Table {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        writeln!(
            f,
            "\n{:?}, closed loop, {} connections, medians of {} rounds of {} s\n",
            self.scenario, self.connections, self.rounds, self.seconds
        )?;
        writeln!(
            f,
            "| Contender | claims/s | lowest–highest | to no-op | p99 | gateway CPU/request | store CPU/request |"
        )?;
        writeln!(f, "| --- | ---: | ---: | ---: | ---: | ---: | ---: |")?;
        for row in &self.rows {
            let us = |us: Option<f64>, digits| us.map_or("–".to_owned(), |us| format!("{us:.digits$} µs"));
            writeln!(
                f,
                "| {} | {:.0} | {:.0}–{:.0} | {:.2} | {} | {} | {} |",
                row.contender,
                row.claims_per_second,
                row.lowest,
                row.highest,
                row.ratio,
                us(row.p99_us, 0),
                us(row.gateway_us_per_request, 1),
                us(row.store_us_per_request, 1),
            )?;
        }
        let rate_of =
            |contender| self.rows.iter().find(|row| row.contender == contender).map(|it| it.claims_per_second);
        if let (Some(postgres), Some(pgbench)) = (rate_of(Contender::Postgres), rate_of(Contender::Pgbench)) {
            writeln!(f, "\npostgres to pgbench: {:.2}", postgres / pgbench)?;
        }
        for row in self.rows.iter().filter(|row| row.generator_was_the_limit) {
            writeln!(f, "\nThe generator was the limit for {}: it may be faster than this.", row.contender)?;
        }
        for line in &self.skipped {
            writeln!(f, "\nLEFT OUT {line}")?;
        }
        Ok(())
    }
}
