//! Performance targets of the gateway compared with alternatives, each as one line with the measured figure.

use std::fmt;

use serde::Serialize;

use crate::{
    contender::Contender::{
        self, Acknowledged, Cluster, Disk, Memory, Nginx, Noop, Pgbench, PipelinedSets, Postgres, ProxyMemory,
        ProxyNginx, ProxyRedis, ProxyUnprotected, Redis, Webdis,
    },
    footprint::Footprint,
    pace::Pacing,
    quorum,
    report::{Report, ratio},
    scenario::Scenario,
    streamed::Streamed,
    trial::{Bench, Trial},
    way::Way,
};

/// Connections in comparisons where many callers share an fsync.
pub(crate) const MANY: u64 = 256;

/// Claims per request of the batch scenario.
pub(crate) const BATCHED: f64 = 100.0;

/// Claims per second during a failover.
const FAILOVER_RATE: u64 = 2000;

/// Claims per second at which latencies of different contenders can be compared: all have cores left at that rate.
const FIXED_RATE: u64 = 10_000;

/// Claims per second of a gateway that has little to do.
const LOW_RATES: [u64; 2] = [1000, 5000];

/// Performance target.
#[derive(Debug, Serialize)]
pub(crate) struct Goal {
    what: String,
    measured: Option<f64>,
    wanted: f64,
    at_least: bool,
}

/// Loads of a comparison.
#[derive(Debug, Clone, Copy)]
pub(crate) struct Loads {
    pub(crate) connections: u64,
    pub(crate) live: u64,
}

impl Loads {
    /// At full speed, each order once.
    pub(crate) fn peak(self, contender: Contender) -> Trial {
        let Self { connections, .. } = self;
        let scenario = if contender.is_proxied() { Scenario::Proxied } else { Scenario::Unique };
        Trial { contender, scenario, pacing: Pacing::Closed, connections, live: 0, failover: false, way: Way::Plain }
    }

    pub(crate) fn batched(self, contender: Contender) -> Trial {
        Trial { scenario: Scenario::Batch, ..self.peak(contender) }
    }

    /// At a rate that three primaries and their replicas carry on a small machine, while one of them dies.
    pub(crate) fn failover(self, contender: Contender) -> Trial {
        Trial { failover: true, ..self.at(contender, FAILOVER_RATE) }
    }

    pub(crate) fn many(self, contender: Contender) -> Trial {
        Trial { connections: MANY, ..self.peak(contender) }
    }

    pub(crate) fn in_use(self, contender: Contender) -> Trial {
        Trial { live: self.live, ..self.peak(contender) }
    }

    /// Storms of repeats, on Redis and on what else can play them.
    pub(crate) fn storms(self) -> Vec<Trial> {
        let of = |contender, scenario| Trial { scenario, ..self.peak(contender) };
        let running = [Redis, Webdis, Nginx].map(|contender| of(contender, Scenario::RunningStorm));
        [Scenario::Storm, Scenario::LargeStorm].map(|scenario| of(Redis, scenario)).into_iter().chain(running).collect()
    }

    /// At rates far below the peak.
    pub(crate) fn low(self) -> Vec<Trial> {
        LOW_RATES.into_iter().flat_map(|rate| [Noop, Memory, Redis].map(|contender| self.at(contender, rate))).collect()
    }

    /// At one rate for all.
    pub(crate) fn fixed(self) -> Vec<Trial> {
        [Noop, Memory, Redis].map(|contender| self.at(contender, FIXED_RATE)).to_vec()
    }

    pub(crate) fn at(self, contender: Contender, per_second: u64) -> Trial {
        Trial { pacing: Pacing::Open { per_second }, ..self.peak(contender) }
    }

    /// At half of the peak of `of`, in an open loop; nothing if that was not measured.
    pub(crate) fn half(self, bench: &Bench, contender: Contender, of: Contender) -> Option<Trial> {
        let peak = bench.median(&self.peak(of), claims_per_second)?;
        Some(self.at(contender, whole(peak / 2.0).max(1)))
    }
}

/// Returns all targets with their measured figures.
pub(crate) fn all(bench: &Bench, loads: Loads, footprints: &[Footprint]) -> Vec<Goal> {
    let peak = |contender| bench.median(&loads.peak(contender), claims_per_second);
    let cpu = |contender| bench.median(&loads.peak(contender), gateway_us);
    let many = |contender| bench.median(&loads.many(contender), claims_per_second);
    let batched = bench.median(&loads.batched(Redis), claims_per_second);
    let half =
        |contender, of, figure: fn(&Report) -> Option<f64>| bench.median(&loads.half(bench, contender, of)?, figure);
    let mean_ms = |contender| half(contender, contender, mean_us).map(|us| us / 1e3);
    let in_use = |contender| {
        if loads.live == 0 {
            None
        } else {
            over(bench.median(&loads.in_use(contender), claims_per_second), peak(contender))
        }
    };
    let own = footprints.iter().find_map(|it| it.own_bytes).map(|bytes| ratio(bytes, 1));
    let idle_mib = footprints.iter().map(|it| ratio(it.idle_bytes, 1 << 20)).max_by(f64::total_cmp);
    let live =
        if loads.live == 0 { "millions of live claims".to_owned() } else { format!("{} live claims", loads.live) };
    let storm = |scenario, figure: fn(&Report) -> Option<f64>| {
        over(bench.median(&Trial { scenario, ..loads.peak(Redis) }, figure), bench.median(&loads.peak(Redis), figure))
    };
    let at = |contender, rate, figure: fn(&Report) -> Option<f64>| bench.median(&loads.at(contender, rate), figure);
    let mut goals = vec![
        at_least("claims/s on Redis, to webdis", over(peak(Redis), peak(Webdis)), 1.35),
        at_least("claims/s on Redis, to nginx with Lua", over(peak(Redis), peak(Nginx)), 1.55),
        at_most("gateway CPU per claim on Redis, to the no-op handler's", over(cpu(Redis), cpu(Noop)), 1.35),
        at_most("gateway CPU per claim on Redis, to webdis'", over(cpu(Redis), cpu(Webdis)), 0.80),
        at_least("claims/s on Redis, 100 per call, to redis-benchmark -P 16", over(batched, peak(PipelinedSets)), 0.6),
        at_most("gateway CPU per claim on a cluster, to a single server's", over(cpu(Cluster), cpu(Redis)), 1.1),
        at_least(
            "claims/s on a cluster, 100 per call, to a single server's",
            over(bench.median(&loads.batched(Cluster), claims_per_second), batched),
            0.9,
        ),
        at_most(
            "p99 at half of peak with replicas=1, to the cluster's at that rate without",
            over(half(Acknowledged, Acknowledged, p99_us), half(Cluster, Acknowledged, p99_us)),
            3.0,
        ),
        at_least("durable claims/s on disk, to memory, 256 connections", over(many(Disk), many(Memory)), 0.6),
        at_least("durable claims/s on PostgreSQL, to pgbench", over(peak(Postgres), peak(Pgbench)), 1.6),
        at_most(
            "p99 at half of peak on Redis, to the no-op handler's at that rate",
            over(half(Redis, Redis, p99_us), half(Noop, Redis, p99_us)),
            2.5,
        ),
        at_most(
            &format!("p99 at {FIXED_RATE}/s on Redis, to the no-op handler's"),
            over(at(Redis, FIXED_RATE, p99_us), at(Noop, FIXED_RATE, p99_us)),
            2.0,
        ),
        at_least(&format!("claims/s with {live}, to none, memory"), in_use(Memory), 0.9),
        at_least(&format!("claims/s with {live}, to none, disk"), in_use(Disk), 0.9),
        at_most("bytes of a value in Redis, without its contents", own, 64.0),
    ];
    for scenario in [Scenario::Storm, Scenario::LargeStorm, Scenario::RunningStorm] {
        let suffix = scenario.suffix();
        let (rate, cpu) = (storm(scenario, claims_per_second), storm(scenario, gateway_us));
        goals.push(at_least(&format!("claims/s on Redis{suffix}, to new claims"), rate, 0.9));
        goals.push(at_most(&format!("gateway CPU per claim on Redis{suffix}, to new claims"), cpu, 1.15));
    }
    for rate in LOW_RATES {
        let cpu = over(at(Redis, rate, gateway_us), at(Noop, rate, gateway_us));
        goals.push(at_most(&format!("gateway CPU per claim on Redis at {rate}/s, to the no-op handler's"), cpu, 1.3));
    }
    for engine in Contender::ENGINES {
        goals.push(at_most(&format!("mean answer at half of peak, {engine}, in ms"), mean_ms(engine), 2.0));
    }
    goals.push(at_most("resident memory of an idle gateway, in MiB", idle_mib, 30.0));
    goals.extend(quorum::goals(bench, loads));
    goals
}

/// Returns the targets of the proxy with their measured figures.
pub(crate) fn proxied(bench: &Bench, loads: Loads, streamed: &[Streamed]) -> Vec<Goal> {
    let peak = |contender, figure: fn(&Report) -> Option<f64>| bench.median(&loads.peak(contender), figure);
    let half = |contender, of| bench.median(&loads.half(bench, contender, of)?, p99_us);
    let to_nginx = |contender, figure| over(peak(contender, figure), peak(ProxyNginx, figure));
    let mut goals = Vec::new();
    for proxy in [ProxyMemory, ProxyRedis] {
        let p99 = over(half(proxy, proxy), half(ProxyNginx, proxy));
        goals.extend([
            at_least(&format!("requests/s, {proxy}, to nginx"), to_nginx(proxy, claims_per_second), 0.6),
            at_most(&format!("CPU per request, {proxy}, to nginx'"), to_nginx(proxy, gateway_us), 2.2),
            at_most(&format!("p99 at half of peak, {proxy}, to nginx' at that rate"), p99, 2.5),
        ]);
    }
    let unprotected = to_nginx(ProxyUnprotected, gateway_us);
    let memory = streamed.iter().map(Streamed::above_idle_mib).max_by(f64::total_cmp);
    goals.push(at_most("CPU per request on an unprotected route, to nginx'", unprotected, 1.3));
    goals.push(at_most("resident memory above idle while 1 GiB passes, in MiB", memory, 40.0));
    goals
}

#[expect(clippy::unnecessary_wraps, reason = "has the signature of the other figures, which may be missing")]
pub(crate) fn claims_per_second(report: &Report) -> Option<f64> {
    Some(report.claims_per_second)
}

pub(crate) fn gateway_us(report: &Report) -> Option<f64> {
    report.cpu.get("gateway").map(|cpu| cpu.us_per_request)
}

pub(crate) fn store_us(report: &Report) -> Option<f64> {
    report.cpu.get("store").map(|cpu| cpu.us_per_request)
}

pub(crate) fn p99_us(report: &Report) -> Option<f64> {
    report.latencies.values().map(|it| it.p99_us).max().map(|us| ratio(us, 1))
}

pub(crate) fn mean_us(report: &Report) -> Option<f64> {
    report
        .latencies
        .get(report.scenario.first_step())
        .filter(|_| report.scenario != Scenario::Batch)
        .map(|it| it.mean_us)
}

pub(crate) fn over(ours: Option<f64>, reference: Option<f64>) -> Option<f64> {
    ours.zip(reference).filter(|(_, reference)| *reference > 0.0).map(|(ours, reference)| ours / reference)
}

pub(crate) fn at_least(what: &str, measured: Option<f64>, wanted: f64) -> Goal {
    Goal { what: what.to_owned(), measured, wanted, at_least: true }
}

pub(crate) fn at_most(what: &str, measured: Option<f64>, wanted: f64) -> Goal {
    Goal { at_least: false, ..at_least(what, measured, wanted) }
}

#[expect(clippy::cast_possible_truncation, clippy::cast_sign_loss, reason = "a rate is positive and far below 2^53")]
fn whole(rate: f64) -> u64 {
    rate as u64
}

impl Goal {
    fn verdict(&self) -> &'static str {
        match self.measured {
            None => "not measured",
            Some(measured) if self.at_least && measured >= self.wanted => "reached",
            Some(measured) if !self.at_least && measured <= self.wanted => "reached",
            Some(_) => "MISSED",
        }
    }
}

/// Targets as a table.
pub(crate) struct Goals<'a>(pub(crate) &'a [Goal]);

impl fmt::Display for Goals<'_> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        writeln!(f, "\n| Target | measured | wanted | |\n| --- | ---: | ---: | --- |")?;
        for goal in self.0 {
            let measured = goal.measured.map_or("–".to_owned(), |measured| format!("{measured:.2}"));
            let sign = if goal.at_least { '≥' } else { '≤' };
            writeln!(f, "| {} | {measured} | {sign} {:.2} | {} |", goal.what, goal.wanted, goal.verdict())?;
        }
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_target_is_met_at_its_bound_and_missed_beyond_it() {
        let verdicts = [
            at_least("", Some(1.35), 1.35).verdict(),
            at_least("", Some(1.34), 1.35).verdict(),
            at_most("", Some(0.8), 0.8).verdict(),
            at_most("", Some(0.81), 0.8).verdict(),
            at_most("", None, 0.8).verdict(),
        ];
        assert_eq!(verdicts, ["reached", "MISSED", "reached", "MISSED", "not measured"]);
    }
}
