//! Figures of a run, for people and for programs. All output of this program is here.

use std::{
    collections::BTreeMap,
    fmt, fs,
    io::{self, Write as _},
    path::Path,
    time::Duration,
};

use anyhow::Context as _;
use hdrhistogram::Histogram;
use indicatif::{ProgressBar, ProgressFinish, ProgressStyle};
use serde::Serialize;

use crate::{ledger::Checks, pace::Pacing, proc, recorder::Recorded, scenario::Scenario};

/// Share of a core above which the single-threaded generator measures itself instead of the gateway.
const GENERATOR_LIMIT: f64 = 0.9;

/// Cores busy with other work above which a measurement counts as disturbed.
const DISTURBED: f64 = 0.2;

/// Counts between the end of the warm-up and the end of the run.
#[derive(Debug)]
pub(crate) struct Measured {
    pub(crate) scenario: Scenario,
    pub(crate) pacing: Pacing,
    pub(crate) connections: u64,
    pub(crate) elapsed: Duration,
    pub(crate) operations: u64,
    pub(crate) requests: u64,
    pub(crate) claims: u64,
    pub(crate) cpu_us: Vec<(String, u64)>,
    /// CPU time of the whole machine.
    pub(crate) machine_us: u64,
    /// True if the pacer kept a core busy all the time.
    pub(crate) pacer_spins: bool,
}

#[derive(Debug, Serialize)]
pub(crate) struct Report {
    pub(crate) scenario: Scenario,
    /// Operations scheduled per second; none in a closed loop.
    pub(crate) rate_wanted: Option<u64>,
    pub(crate) connections: u64,
    pub(crate) measured_seconds: f64,
    pub(crate) operations_per_second: f64,
    pub(crate) requests_per_second: f64,
    pub(crate) claims_per_second: f64,
    pub(crate) latencies: BTreeMap<&'static str, Latency>,
    /// By step and answer.
    pub(crate) answers: BTreeMap<String, u64>,
    /// Requests that were refused for now, or had no answer.
    pub(crate) refused: u64,
    pub(crate) cpu: BTreeMap<String, Cpu>,
    /// Cores busy with other work than these processes: the kernel, and other programs.
    pub(crate) other_cores: Option<f64>,
    /// Share of all cores that is busy with anything, except a core on which only the pacer spins.
    pub(crate) busy_share: Option<f64>,
    pub(crate) checks: Checks,
}

/// Latency of a step in microseconds, from its scheduled time.
#[derive(Debug, Serialize)]
pub(crate) struct Latency {
    pub(crate) count: u64,
    pub(crate) mean_us: f64,
    pub(crate) p50_us: u64,
    pub(crate) p90_us: u64,
    pub(crate) p99_us: u64,
    pub(crate) p999_us: u64,
    pub(crate) max_us: u64,
}

#[derive(Debug, Clone, Copy, Serialize)]
pub(crate) struct Cpu {
    /// Cores in use, on average.
    pub(crate) cores: f64,
    pub(crate) us_per_request: f64,
}

impl Measured {
    fn busy_share(&self, seconds: f64) -> Option<f64> {
        // Not those of this process, which may be limited to some.
        let cores = u64::try_from(proc::cores()?).ok()?;
        let of_pacer = self.cpu_us.iter().filter(|(name, _)| self.pacer_spins && name == "pacer").map(|(_, us)| us);
        let of_pacer = of_pacer.sum();
        let rest_us = ratio(cores, 1) * seconds * 1e6 - ratio(of_pacer, 1);
        Some(ratio(self.machine_us.saturating_sub(of_pacer), 1) / rest_us).filter(|share| share.is_finite())
    }
}

impl Report {
    /// Returns the report without the checks, which run last.
    pub(crate) fn new(measured: &Measured, recorded: &Recorded) -> Self {
        let seconds = measured.elapsed.as_secs_f64();
        let cpu = |us: u64| Cpu { cores: ratio(us, 1) / 1e6 / seconds, us_per_request: ratio(us, measured.requests) };
        let ours_us = measured.cpu_us.iter().map(|(_, us)| us).sum();
        // Several processes of one server have the same name.
        let mut cpu_us = BTreeMap::new();
        for (name, us) in &measured.cpu_us {
            *cpu_us.entry(name.clone()).or_insert(0) += us;
        }
        Self {
            scenario: measured.scenario,
            rate_wanted: match measured.pacing {
                Pacing::Open { per_second } => Some(per_second),
                Pacing::Closed => None,
            },
            connections: measured.connections,
            measured_seconds: seconds,
            operations_per_second: ratio(measured.operations, 1) / seconds,
            requests_per_second: ratio(measured.requests, 1) / seconds,
            claims_per_second: ratio(measured.claims, 1) / seconds,
            latencies: recorded.latencies.iter().map(|(step, it)| (*step, Latency::of(it))).collect(),
            answers: recorded.answers.iter().map(|((step, label), n)| (format!("{step}: {label}"), *n)).collect(),
            refused: recorded.answers.iter().filter(|((_, label), _)| !label.is_answer()).map(|(_, n)| n).sum(),
            cpu: cpu_us.into_iter().map(|(name, us)| (name, cpu(us))).collect(),
            other_cores: Some((ratio(measured.machine_us, 1) - ratio(ours_us, 1)) / 1e6 / seconds),
            busy_share: measured.busy_share(seconds),
            checks: Checks::default(),
        }
    }

    /// Returns the report of a contender that has only a rate, with the CPU time of its store if that is known.
    pub(crate) fn of_rate(
        scenario: Scenario,
        connections: u64,
        measured: Duration,
        claims_per_second: f64,
        store_us: Option<u64>,
    ) -> Self {
        let store = store_us.map(|us| {
            let cores = ratio(us, 1) / 1e6 / measured.as_secs_f64();
            ("store".to_owned(), Cpu { cores, us_per_request: cores * 1e6 / claims_per_second })
        });
        Self {
            scenario,
            rate_wanted: None,
            connections,
            measured_seconds: measured.as_secs_f64(),
            operations_per_second: claims_per_second,
            requests_per_second: claims_per_second,
            claims_per_second,
            latencies: BTreeMap::new(),
            answers: BTreeMap::new(),
            refused: 0,
            cpu: store.into_iter().collect(),
            other_cores: None,
            busy_share: None,
            checks: Checks::default(),
        }
    }

    /// Reports whether other work took CPU time. Then the rates mean little.
    pub(crate) fn was_disturbed(&self) -> bool {
        self.other_cores.is_some_and(|cores| cores > DISTURBED)
    }

    pub(crate) fn is_sound(&self) -> bool {
        self.checks.broken == 0
    }

    /// Returns the cores that the generator's pacer used, in an open loop.
    pub(crate) fn pacer_cores(&self) -> Option<f64> {
        self.cpu.get("pacer").map(|cpu| cpu.cores)
    }

    /// Reports whether the generator was saturated. Then the gateway may be faster.
    pub(crate) fn generator_was_the_limit(&self) -> bool {
        self.cpu.get("generator").is_some_and(|it| it.cores > GENERATOR_LIMIT)
    }
}

impl Latency {
    fn of(histogram: &Histogram<u64>) -> Self {
        Self {
            count: histogram.len(),
            mean_us: histogram.mean(),
            p50_us: histogram.value_at_quantile(0.5),
            p90_us: histogram.value_at_quantile(0.9),
            p99_us: histogram.value_at_quantile(0.99),
            p999_us: histogram.value_at_quantile(0.999),
            max_us: histogram.max(),
        }
    }
}

impl fmt::Display for Report {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let mode = match self.rate_wanted {
            Some(rate) => format!("open loop, {rate} operations/s scheduled"),
            None => "closed loop".to_owned(),
        };
        writeln!(
            f,
            "\n{:?}, {mode}, {} connections, {:.1} s measured",
            self.scenario, self.connections, self.measured_seconds
        )?;
        writeln!(
            f,
            "  {:.0} operations/s · {:.0} requests/s · {:.0} claims/s answered",
            self.operations_per_second, self.requests_per_second, self.claims_per_second
        )?;
        self.fmt_latencies(f)?;
        writeln!(f, "\n  answers")?;
        for (answer, count) in &self.answers {
            writeln!(f, "    {answer:<34} {count:>10}")?;
        }
        writeln!(f, "\n  CPU              cores   µs/request")?;
        for (name, Cpu { cores, us_per_request }) in &self.cpu {
            writeln!(f, "    {name:<12} {cores:>7.2} {us_per_request:>12.1}")?;
        }
        if let Some(cores) = self.other_cores.filter(|_| self.was_disturbed()) {
            writeln!(f, "    all else     {cores:>7.2}   Other programs ran too: the rates mean little.")?;
        }
        if self.generator_was_the_limit() {
            writeln!(f, "  The generator used its core to the full: the gateway may be faster than this.")?;
        }
        self.fmt_checks(f)
    }
}

impl Report {
    fn fmt_latencies(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        writeln!(f, "\n  latency          count      mean       p50       p90       p99     p99.9       max")?;
        for (step, it) in &self.latencies {
            write!(f, "    {step:<8} {:>9}", it.count)?;
            write!(f, " {:>9}", format!("{:.0} µs", it.mean_us))?;
            for us in [it.p50_us, it.p90_us, it.p99_us, it.p999_us, it.max_us] {
                write!(f, " {:>9}", latency(us))?;
            }
            writeln!(f)?;
        }
        Ok(())
    }

    fn fmt_checks(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let checks = &self.checks;
        if !checks.on {
            return writeln!(f, "\n  Promises were not checked.");
        }
        if checks.unchecked > 0 {
            writeln!(f, "\n  The orders could not be claimed again after the run: no clear answer.")?;
        }
        if checks.broken == 0 {
            return writeln!(f, "\n  All promises held: {} checks.", checks.held);
        }
        writeln!(f, "\n  BROKEN PROMISES: {} of {} checks", checks.broken, checks.broken + checks.held)?;
        for example in &checks.examples {
            writeln!(f, "    {example}")?;
        }
        Ok(())
    }
}

/// Formats a latency with a suitable unit.
pub(crate) fn latency(us: u64) -> String {
    if us < 10_000 { format!("{us} µs") } else { format!("{:.1} ms", ratio(us, 1000)) }
}

/// Returns `whole / part`; 0 for 0 / 0.
#[expect(clippy::cast_precision_loss, reason = "counts of a run are far below 2^53")]
pub(crate) fn ratio(whole: u64, part: u64) -> f64 {
    if part == 0 { 0.0 } else { whole as f64 / part as f64 }
}

/// Writes a result to standard output.
pub(crate) fn show(text: &str) -> anyhow::Result<()> {
    writeln!(io::stdout(), "{text}").context("cannot write to standard output")
}

/// Shows a progress bar on standard error, if that is a terminal, until it is dropped.
pub(crate) fn progress(length: u64, unit: &str) -> ProgressBar {
    let bar = ProgressBar::new(length).with_finish(ProgressFinish::AndClear);
    match ProgressStyle::with_template(&format!("[{{bar:30}}] {{pos}}/{{len}} {unit}  {{msg}}")) {
        Ok(style) => bar.with_style(style.progress_chars("=> ")),
        Err(_) => bar,
    }
}

/// Writes a message to standard error, and ignores errors.
pub(crate) fn say(line: &str) {
    let _ = writeln!(io::stderr(), "{line}");
}

/// Replaces the text between the two marks of this name on a page.
pub(crate) fn write_between(path: &Path, name: &str, text: &str) -> anyhow::Result<()> {
    let page = fs::read_to_string(path).with_context(|| format!("cannot read {}", path.display()))?;
    let [begin, end] = marks(name);
    let page = between(&page, name, text)
        .with_context(|| format!("{} has no lines {begin} and {end} to write between", path.display()))?;
    fs::write(path, page).with_context(|| format!("cannot write {}", path.display()))
}

fn between(page: &str, name: &str, text: &str) -> Option<String> {
    let [begin, end] = marks(name);
    let (before, rest) = page.split_once(&begin)?;
    let (_, after) = rest.split_once(&end)?;
    Some(format!("{before}{begin}\n\n{}\n\n{end}{after}", text.trim()))
}

fn marks(name: &str) -> [String; 2] {
    ["begin", "end"].map(|side| format!("<!-- {name}: {side} -->"))
}

pub(crate) fn write_json(path: &Path, value: &impl Serialize) -> anyhow::Result<()> {
    let json = serde_json::to_string_pretty(value).context("cannot turn the report into JSON")?;
    fs::write(path, json + "\n").with_context(|| format!("cannot write {}", path.display()))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_core_on_which_the_pacer_spins_is_not_busy() {
        let cores = u64::try_from(proc::cores().expect("no cores")).expect("many cores");
        let measured = |pacer_us, pacer_spins| Measured {
            scenario: Scenario::Unique,
            pacing: Pacing::Open { per_second: 1 },
            connections: 1,
            elapsed: Duration::from_secs(1),
            operations: 1,
            requests: 1,
            claims: 1,
            cpu_us: vec![("pacer".to_owned(), pacer_us)],
            machine_us: cores * 500_000,
            pacer_spins,
        };
        let share = |pacer_us, spins| measured(pacer_us, spins).busy_share(1.0).expect("no share");
        assert!((share(400_000, false) - 0.5).abs() < 1e-9, "a pacer that sleeps is a process like others");
        let of_the_rest = (ratio(cores, 2) - 0.4) / (ratio(cores, 1) - 0.4);
        assert!((share(400_000, true) - of_the_rest).abs() < 1e-9);
    }

    #[test]
    fn only_the_text_between_the_marks_is_replaced() {
        let page = |text: &str| format!("<!-- other: begin -->\n<!-- a: begin -->\n{text}\n<!-- a: end -->\nafter\n");
        assert_eq!(between(&page("old"), "a", "\nnew\n"), Some(page("\nnew\n")));
        assert_eq!(between("a page without figures", "a", "new"), None);
    }
}
