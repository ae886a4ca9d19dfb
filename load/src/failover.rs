//! Answers while a primary of a cluster dies and its replica takes over.

use std::fmt;

use serde::Serialize;

use crate::{
    contender::Contender,
    report::{Report, latency},
    trial::{Bench, Trial},
};

/// Totals over the rounds.
#[derive(Debug, Serialize)]
pub(crate) struct Failover {
    contender: Contender,
    claims_per_second: u64,
    answered: u64,
    /// Refusals of the contract, 503.
    refused: u64,
    /// Timeouts and closed connections.
    unanswered: u64,
    /// Broken promises in the answers and in a sample of the claims afterwards.
    broken: u64,
    /// The highest of the rounds.
    p99_us: u64,
    max_us: u64,
}

impl Failover {
    /// Returns the totals of a trial, unless it was left out.
    pub(crate) fn of(bench: &Bench, trial: &Trial) -> Option<Self> {
        let reports = bench.reports(trial)?;
        let count = |is_counted: fn(&str) -> bool| {
            let of =
                |it: &Report| it.answers.iter().filter(|(answer, _)| is_counted(answer)).map(|(_, n)| n).sum::<u64>();
            reports.iter().map(of).sum()
        };
        let latencies = || reports.iter().filter_map(|it| it.latencies.get("claim"));
        Some(Self {
            contender: trial.contender,
            claims_per_second: reports.first()?.rate_wanted?,
            answered: count(is_status),
            refused: count(|answer| answer.starts_with("claim: 503")),
            unanswered: count(|answer| !is_status(answer) && !answer.starts_with("claim: 503")),
            broken: reports.iter().map(|it| it.checks.broken).sum(),
            p99_us: latencies().map(|it| it.p99_us).max()?,
            max_us: latencies().map(|it| it.max_us).max()?,
        })
    }
}

/// Distinguishes a response of the contract that decides from a refusal.
fn is_status(answer: &str) -> bool {
    matches!(answer, "claim: 201" | "claim: 409")
}

/// Failovers as a table.
pub(crate) struct Failovers<'a>(pub(crate) &'a [Failover]);

impl fmt::Display for Failovers<'_> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let rate = self.0.first().map_or(0, |it| it.claims_per_second);
        writeln!(
            f,
            "\nA primary is killed, and its replica takes over; open loop, {rate} claims/s, all rounds together\n"
        )?;
        writeln!(f, "| Contender | answered | 503 | no answer | broken promises | p99 of answers | longest |")?;
        writeln!(f, "| --- | ---: | ---: | ---: | ---: | ---: | ---: |")?;
        for it in self.0 {
            let (p99, longest) = (latency(it.p99_us), latency(it.max_us));
            let Failover { contender, answered, refused, unanswered, broken, .. } = it;
            writeln!(f, "| {contender} | {answered} | {refused} | {unanswered} | {broken} | {p99} | {longest} |")?;
        }
        Ok(())
    }
}
