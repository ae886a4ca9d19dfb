//! How the cost of a claim grows with what a gateway has to do or to keep: a curve for each, at one rate, which no contender's peak
//! distorts.

mod axis;
mod table;
#[cfg(test)]
mod tests;

use std::{fmt, path::PathBuf, sync::Arc, time::Duration};

use anyhow::{Context as _, ensure};
use futures_util::future::try_join_all;
use serde::Serialize;

use crate::{
    client::{Connection, Stream, Target},
    contender::{Contender, Installed},
    fill,
    pace::Pacing,
    report::{self, ratio},
    runner::{self, Plan},
    running::Running,
    setting,
    trial::{Bench, median},
    wire::Dialect,
};

pub(crate) use self::axis::Axis;

/// Claims per second while a point is measured: far below the peak of every engine.
const PER_SECOND: u64 = 2000;

/// Connections of the callers that are measured.
const CONNECTIONS: u64 = 32;

/// Connections that prepare a point.
const PREPARING: u64 = 16;

/// Longest wait that a gateway permits by default, and longer than a measurement.
const WAIT: Duration = Duration::from_secs(30);

const MIB: u64 = 1 << 20;

/// Extent of the curves.
#[derive(Debug)]
pub(crate) struct Extent {
    /// Curves; all if empty.
    pub(crate) axes: Vec<Axis>,
    /// Engines; those of each curve if empty.
    pub(crate) only: Vec<Contender>,
    /// Duration of each measurement.
    pub(crate) measured: Duration,
    /// Measurements of each point. The median is reported.
    pub(crate) rounds: u64,
    /// Greatest value of a curve.
    pub(crate) most: u64,
    pub(crate) gateway: Option<PathBuf>,
    pub(crate) dir: Option<PathBuf>,
}

/// All curves.
#[derive(Debug, Serialize)]
pub(crate) struct Curves {
    seconds: f64,
    rounds: u64,
    all: Vec<Curve>,
    /// Engines and points that were left out, and the reasons.
    skipped: Vec<String>,
    /// Machine and versions.
    setting: String,
}

/// A curve.
#[derive(Debug, Serialize)]
struct Curve {
    axis: Axis,
    engine: Contender,
    points: Vec<Point>,
}

/// A point of a curve.
#[derive(Debug, Clone, Copy, Serialize)]
struct Point {
    value: u64,
    /// CPU time of the gateway for a claim, in microseconds.
    gateway_us: f64,
    /// That of the store, if it is another process.
    store_us: Option<f64>,
    /// Resident memory of the gateway before the measurement.
    memory_mib: f64,
}

/// Place of a point.
#[derive(Debug, Clone, Copy)]
struct Place {
    axis: Axis,
    engine: Contender,
    value: u64,
}

/// Measures the curves. Returns them, and whether all points were measured and all promises held.
pub(crate) async fn run(extent: Extent) -> anyhow::Result<(Curves, bool)> {
    let installed = Installed::with_gateway(extent.gateway.as_deref())?;
    let Extent { axes, only, measured, rounds, most, dir, .. } = extent;
    let mut bench = Bench::new(installed, dir, measured, rounds);
    let engines = bench.engines(&Contender::ENGINES, &only)?;
    let axes = if axes.is_empty() { Axis::ALL.to_vec() } else { axes };
    let mut all = Vec::new();
    for axis in axes {
        for engine in axis.engines().iter().copied().filter(|it| engines.contains(it)) {
            let mut points = Vec::new();
            for value in axis.values().iter().copied().filter(|value| *value <= most) {
                let place = Place { axis, engine, value };
                match point(&mut bench, place).await {
                    Ok(point) => {
                        report::say(&format!("{place}: {point}"));
                        points.push(point);
                    }
                    Err(error) => {
                        bench.sound = false;
                        bench.leave_out(format!("{place}: {error:#}"));
                    }
                }
            }
            all.push(Curve { axis, engine, points });
        }
    }
    let setting = setting::describe(&bench);
    Ok((Curves { seconds: measured.as_secs_f64(), rounds, all, skipped: bench.skipped, setting }, bench.sound))
}

/// Measures a point in each round, and returns the medians.
async fn point(bench: &mut Bench, place: Place) -> anyhow::Result<Point> {
    let mut points = Vec::new();
    for _ in 0..bench.rounds {
        points.push(once(bench, place).await?);
    }
    let of = |figure: fn(&Point) -> Option<f64>| median(points.iter().map(figure).collect::<Option<_>>()?);
    let gateway_us = of(|point| Some(point.gateway_us)).context("no round")?;
    let memory_mib = of(|point| Some(point.memory_mib)).context("no round")?;
    Ok(Point { value: place.value, gateway_us, store_us: of(|point| point.store_us), memory_mib })
}

/// Measures a point with fresh processes.
async fn once(bench: &mut Bench, place: Place) -> anyhow::Result<Point> {
    let Place { axis, engine, value } = place;
    let settings = axis.settings(value);
    let running = Running::start_gateways(engine, 1, &settings, &bench.installed, &bench.parent()).await?;
    let target = Arc::clone(&running.gateways[0].api);
    let crowd = prepare(axis, value, &target).await?;
    if axis == Axis::Live {
        fill::rest(&running.watched).await?;
    }
    let memory_mib = ratio(running.gateway()?.resident_bytes()?, MIB);
    let (scenario, claims) = axis.scenario(value);
    let plan = Plan {
        target: Target::clone(&target),
        upstream: None,
        dialect: Dialect::Gateway,
        scenario,
        sizes: axis.sizes(value),
        pacing: Pacing::Open { per_second: (PER_SECOND / claims).max(1) },
        warm_up: Duration::from_secs(1),
        measured: bench.measured,
        kept_after: runner::KEPT_AFTER,
        connections: CONNECTIONS,
        checks: true,
        watched: running.watched.clone(),
        cores: bench.cores.clone(),
        progress: false,
    };
    let report = runner::run(plan).await?;
    drop(crowd);
    running.stop().await;
    if !report.is_sound() {
        bench.sound = false;
        report::say(&format!("!! {place}: {report}"));
    }
    let us = |name: &str| Some(report.cpu.get(name)?.cores * 1e6 / report.claims_per_second);
    let gateway_us = us("gateway").context("the CPU time of the gateway is missing")?;
    Ok(Point { value, gateway_us, store_us: us("store"), memory_mib })
}

impl fmt::Display for Place {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{} {} on {}", self.value, self.axis, self.engine)
    }
}

/// What stays while a point is measured.
enum Crowd {
    Nobody,
    Idle { _streams: Vec<Stream> },
    Waiting { _callers: Vec<Connection> },
}

/// Brings a gateway to this point of a curve.
async fn prepare(axis: Axis, value: u64, target: &Arc<Target>) -> anyhow::Result<Crowd> {
    match axis {
        Axis::Live => fill::fill(Target::clone(target), value, Some(fill::KEPT)).await?,
        Axis::Locks => {
            each(target, value, |lock| (format!("/v1/locks/lock-{lock}/holds"), r#"{"lease":"10m"}"#.into())).await?;
        }
        Axis::Idle => {
            let mut streams = Vec::new();
            for _ in 0..value {
                streams.push(target.connect().await.context("too many connections: raise `ulimit -n`")?);
            }
            return Ok(Crowd::Idle { _streams: streams });
        }
        Axis::Waiting => {
            let held = |key| ("/v1/claims".to_owned(), format!(r#"{{"contents":"key-{key}","lease":"10m"}}"#));
            each(target, value, held).await?;
            let mut callers = Vec::new();
            for key in 0..value {
                let mut caller = Connection::waiting(Arc::clone(target), WAIT);
                let body = format!(r#"{{"contents":"key-{key}","wait":"{}s"}}"#, WAIT.as_secs());
                caller.send("/v1/claims", &body).await.map_err(|why| anyhow::anyhow!("a caller cannot wait: {why}"))?;
                callers.push(caller);
            }
            return Ok(Crowd::Waiting { _callers: callers });
        }
        Axis::Apps | Axis::Operations | Axis::Results | Axis::Batch => {}
    }
    Ok(Crowd::Nobody)
}

/// Sends this many calls, and checks that each is granted.
async fn each(target: &Arc<Target>, count: u64, call: impl Fn(u64) -> (String, String)) -> anyhow::Result<()> {
    let call = &call;
    let callers = (0..PREPARING).map(|first| async move {
        let mut connection = Connection::new(Arc::clone(target));
        for number in (first..count).step_by(usize::try_from(PREPARING)?) {
            let (path, body) = call(number);
            let answer = connection.post(&path, &body).await.map_err(|why| anyhow::anyhow!("{path}: {why}"))?;
            ensure!(answer.status == 201, "{path}: {} {}", answer.status, String::from_utf8_lossy(answer.body));
        }
        anyhow::Ok(())
    });
    try_join_all(callers).await.map(drop)
}
