//! How the cost of a claim grows with what a gateway has to do or to keep: a curve for each, at one rate, which no contender's peak
//! distorts.

mod axis;
mod table;
#[cfg(test)]
mod tests;

use std::{env, path::PathBuf, sync::Arc, time::Duration};

use anyhow::{Context as _, bail, ensure};
use futures_util::future::try_join_all;
use serde::Serialize;
use tokio::net::TcpStream;

use crate::{
    client::{Connection, Target},
    contender::{Contender, Installed},
    fill,
    pace::Pacing,
    report::{self, ratio},
    runner::{self, Plan},
    running::Running,
    setting,
    trial::median,
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

/// Measures the curves. Returns them, and whether all points were measured and all promises held.
pub(crate) async fn run(extent: Extent) -> anyhow::Result<(Curves, bool)> {
    let installed = Installed::find(extent.gateway.as_deref())?;
    if installed.gateway.is_none() {
        bail!(
            "there is no gateway to measure: build it with `cargo build --profile dist`, or name it with --gateway PATH"
        );
    }
    let axes = if extent.axes.is_empty() { Axis::ALL.to_vec() } else { extent.axes.clone() };
    let (mut curves, mut skipped, mut is_sound) = (Vec::new(), Vec::new(), true);
    for axis in axes {
        for engine in axis.engines().iter().copied().filter(|it| extent.only.is_empty() || extent.only.contains(it)) {
            if let Some(lack) = installed.lacks(engine) {
                skipped.push(format!("{axis} on {engine}: {lack}"));
                continue;
            }
            let mut points = Vec::new();
            for value in axis.values().iter().copied().filter(|value| *value <= extent.most) {
                match point(&extent, axis, engine, value, &installed).await {
                    Ok((point, held)) => {
                        report::say(&format!("{axis}, {engine:<10} {value:>9}: {point}"));
                        is_sound &= held;
                        points.push(point);
                    }
                    Err(error) => {
                        is_sound = false;
                        let line = format!("{value} {axis} on {engine}: {error:#}");
                        report::say(&format!("!! LEFT OUT {line}"));
                        skipped.push(line);
                    }
                }
            }
            curves.push(Curve { axis, engine, points });
        }
    }
    let parent = extent.dir.clone().unwrap_or_else(env::temp_dir);
    let setting = setting::describe(&installed, &parent);
    let (seconds, rounds) = (extent.measured.as_secs_f64(), extent.rounds);
    Ok((Curves { seconds, rounds, all: curves, skipped, setting }, is_sound))
}

async fn point(
    extent: &Extent,
    axis: Axis,
    engine: Contender,
    value: u64,
    installed: &Installed,
) -> anyhow::Result<(Point, bool)> {
    let (mut points, mut held) = (Vec::new(), true);
    for _ in 0..extent.rounds {
        let (point, is_sound) = once(extent, axis, engine, value, installed).await?;
        points.push(point);
        held &= is_sound;
    }
    let of = |figure: fn(&Point) -> Option<f64>| median(points.iter().map(figure).collect::<Option<_>>()?);
    let gateway_us = of(|point| Some(point.gateway_us)).context("no round")?;
    let memory_mib = of(|point| Some(point.memory_mib)).context("no round")?;
    Ok((Point { value, gateway_us, store_us: of(|point| point.store_us), memory_mib }, held))
}

/// Measures a point with fresh processes.
async fn once(
    extent: &Extent,
    axis: Axis,
    engine: Contender,
    value: u64,
    installed: &Installed,
) -> anyhow::Result<(Point, bool)> {
    let parent = extent.dir.clone().unwrap_or_else(env::temp_dir);
    let running = Running::start_gateways(engine, 1, &axis.settings(value), installed, &parent).await?;
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
        measured: extent.measured,
        kept_after: runner::KEPT_AFTER,
        connections: CONNECTIONS,
        checks: true,
        watched: running.watched.clone(),
        progress: false,
    };
    let report = runner::run(plan).await?;
    drop(crowd);
    running.stop().await;
    let us = |name: &str| Some(report.cpu.get(name)?.cores * 1e6 / report.claims_per_second);
    let gateway_us = us("gateway").context("the CPU time of the gateway is missing")?;
    if !report.is_sound() {
        report::say(&format!("!! {axis} on {engine}, {value}: {report}"));
    }
    Ok((Point { value, gateway_us, store_us: us("store"), memory_mib }, report.is_sound()))
}

/// What stays while a point is measured.
enum Crowd {
    Nobody,
    Idle { _streams: Vec<TcpStream> },
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

/// Sends as many calls, each of which is to be granted.
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

impl Curves {
    /// Returns the name of their marks on a page.
    pub(crate) fn marks() -> &'static str {
        "curves"
    }
}
