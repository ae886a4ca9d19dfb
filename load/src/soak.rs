//! A long run: rounds of mixed traffic on each engine, with a fault in most of them. Promises must hold, and what gateway and store
//! use must not grow from round to round.

mod fault;
mod growth;
#[cfg(test)]
mod tests;

use std::{fmt, path::PathBuf, time::Duration};

use anyhow::ensure;
use futures_util::future::join;
use serde::Serialize;
use tokio::time::sleep;

use crate::{
    contender::{Contender, Installed},
    footprint,
    pace::Pacing,
    report::{self, Report},
    runner::{self, Plan},
    running::Running,
    scenario::Scenario,
    setting,
    sizes::Sizes,
    trial::Bench,
    wire::Dialect,
};

use self::fault::Fault;
use self::growth::{Growth, Usage};

/// Fewest rounds: growth is judged between the second and the last third.
pub(crate) const ROUNDS_MIN: u64 = 6;

/// Time after a round for which its claims last. Its checks take less, and the store soon holds as many claims as end.
const KEPT_AFTER: Duration = Duration::from_secs(30);

/// Time for which gateway and store rest before their use is read.
const REST: Duration = Duration::from_secs(2);

/// Connections of the callers.
const CONNECTIONS: u64 = 32;

/// Extent of a long run.
#[derive(Debug)]
pub(crate) struct Soak {
    /// Engines; all if empty.
    pub(crate) only: Vec<Contender>,
    /// Rounds on each engine.
    pub(crate) rounds: u64,
    /// Duration of each.
    pub(crate) measured: Duration,
    /// Operations per second.
    pub(crate) per_second: u64,
    pub(crate) gateway: Option<PathBuf>,
    pub(crate) dir: Option<PathBuf>,
}

/// Results of a long run.
#[derive(Debug, Serialize)]
pub(crate) struct Soaked {
    rounds: u64,
    seconds: f64,
    per_second: u64,
    engines: Vec<EngineResult>,
    /// Engines that were left out, and the reasons.
    skipped: Vec<String>,
    /// Machine and versions.
    setting: String,
}

/// Result of one engine.
#[derive(Debug, Serialize)]
struct EngineResult {
    engine: Contender,
    /// Requests with an answer.
    answered: u64,
    /// Requests that were refused for now, or had no answer, during faults.
    refused: u64,
    /// Checks that passed.
    held: u64,
    broken: u64,
    /// First broken promises.
    examples: Vec<String>,
    growth: Vec<Growth>,
}

/// Measures one engine after the other. Returns the results, and false if an engine failed, broke a promise or grew.
pub(crate) async fn run(soak: Soak) -> anyhow::Result<(Soaked, bool)> {
    let installed = Installed::with_gateway(soak.gateway.as_deref())?;
    let Soak { only, rounds, measured, per_second, dir, .. } = soak;
    ensure!(rounds >= ROUNDS_MIN, "growth cannot be judged in fewer than {ROUNDS_MIN} rounds");
    let mut bench = Bench::new(installed, dir, measured, rounds);
    let mut engines = Vec::new();
    for engine in bench.engines(&Contender::ENGINES, &only)? {
        match one(&bench, engine, per_second).await {
            Ok(result) => {
                bench.sound &= result.is_sound();
                engines.push(result);
            }
            Err(error) => {
                bench.sound = false;
                bench.leave_out(format!("{engine}: {error:#}"));
            }
        }
    }
    let setting = setting::describe(&bench);
    let soaked =
        Soaked { rounds, seconds: measured.as_secs_f64(), per_second, engines, skipped: bench.skipped, setting };
    Ok((soaked, bench.sound))
}

async fn one(bench: &Bench, engine: Contender, per_second: u64) -> anyhow::Result<EngineResult> {
    let running = Running::start(engine, bench.surroundings(), &bench.installed, &bench.parent()).await?;
    let mut result = EngineResult::new(engine);
    let mut rounds = Vec::new();
    for round in 0..bench.rounds {
        let fault = Fault::of_round(round);
        let plan = Plan {
            target: running.target()?,
            upstream: None,
            dialect: Dialect::Gateway,
            scenario: Scenario::Mixed,
            sizes: Sizes::of(Scenario::Mixed),
            pacing: Pacing::Open { per_second },
            warm_up: Duration::ZERO,
            measured: bench.measured,
            kept_after: KEPT_AFTER,
            connections: CONNECTIONS,
            checks: true,
            watched: running.watched.clone(),
            cores: bench.cores.clone(),
            progress: false,
        };
        let fault_happens = async {
            sleep(bench.measured / 3).await;
            fault.happen(&running).await
        };
        let (report, happened) = join(runner::run(plan), fault_happens).await;
        happened?;
        result.add(&report?);
        sleep(REST).await;
        let gateway = running.gateway()?;
        let used = Usage {
            memory_bytes: gateway.resident_bytes()?,
            descriptors: gateway.descriptors()?,
            threads: gateway.threads()?,
            store_bytes: footprint::kept_bytes(bench, &running, engine).await?,
        };
        report::say(&format!("{engine:<10} round {} of {}, {fault:<24} {used}", round + 1, bench.rounds));
        rounds.push(used);
    }
    running.stop().await;
    result.growth = growth::judge(&rounds);
    Ok(result)
}

impl EngineResult {
    fn new(engine: Contender) -> Self {
        let (examples, growth) = (Vec::new(), Vec::new());
        Self { engine, answered: 0, refused: 0, held: 0, broken: 0, examples, growth }
    }

    /// Adds the results of a round.
    fn add(&mut self, round: &Report) {
        self.answered += round.answers.values().sum::<u64>() - round.refused;
        self.refused += round.refused;
        self.held += round.checks.held;
        self.broken += round.checks.broken;
        self.examples.extend(round.checks.examples.iter().cloned());
        self.examples.truncate(10);
    }

    fn is_sound(&self) -> bool {
        self.broken == 0 && !self.growth.iter().any(Growth::is_too_much)
    }
}

impl fmt::Display for Soaked {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        writeln!(
            f,
            "\n{} rounds of {} s on each engine, {} operations/s of the mixed scenario; generator, gateway and store on {}",
            self.rounds, self.seconds, self.per_second, self.setting
        )?;
        writeln!(f, "\n| Engine | answered | refused or lost in faults | checks | broken promises |")?;
        writeln!(f, "| --- | ---: | ---: | ---: | ---: |")?;
        for it in &self.engines {
            writeln!(f, "| {} | {} | {} | {} | {} |", it.engine, it.answered, it.refused, it.held, it.broken)?;
        }
        writeln!(f, "\n| Engine | what | most in the second third | most in the last third | ratio | |")?;
        writeln!(f, "| --- | --- | ---: | ---: | ---: | --- |")?;
        for it in &self.engines {
            for growth in &it.growth {
                writeln!(f, "| {} | {growth} |", it.engine)?;
            }
        }
        for it in self.engines.iter().filter(|it| it.broken > 0) {
            writeln!(f, "\n{}: BROKEN\n  {}", it.engine, it.examples.join("\n  "))?;
        }
        for line in &self.skipped {
            writeln!(f, "\nLEFT OUT {line}")?;
        }
        Ok(())
    }
}
