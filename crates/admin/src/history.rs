//! `GET /admin/v1/history`: rates and latencies of this gateway over the last hour, day or two weeks.

use std::sync::Arc;

use axum::extract::{RawQuery, State};
use axum::response::Response;
use oncegate_core::clock::Timestamp;
use oncegate_telemetry::history::{STEPS, Unit};
use oncegate_web::problem::Problem;
use oncegate_web::response::json;
use serde::Serialize;

use super::Admin;
use super::query::Query;

/// Series of an answer that names none.
const USUAL: &str = "granted,duplicate,mismatch,observed,refused,degraded,p50,p99";

/// Most series of an answer.
const SERIES_MAX: usize = 16;

/// Seconds of an answer that names no time.
const USUAL_SECONDS: u64 = 3600;

/// Longest times that the finer resolutions cover, in seconds.
const COVERED: [u64; 2] = [3600, 86_400];

#[derive(Serialize)]
struct HistoryBody {
    step_ms: u64,
    /// The time of the first point.
    from: Timestamp,
    series: Vec<Series>,
    /// All series that there are.
    names: Vec<String>,
}

#[derive(Serialize)]
struct Series {
    name: String,
    unit: &'static str,
    /// `None` is a gap.
    values: Vec<Option<f32>>,
}

/// Answers with points of the history.
pub(super) async fn show(State(admin): State<Arc<Admin>>, RawQuery(query): RawQuery) -> Result<Response, Problem> {
    let mut query = Query::parse(query)?;
    let asked = query.take("series");
    let now = seconds(admin.clock.wall());
    let to = query.instant("to")?.map_or(now, seconds).min(now);
    let from = query.instant("from")?.map_or(to.saturating_sub(USUAL_SECONDS), seconds);
    query.end()?;
    if from >= to {
        return Err(Problem::invalid("`from` is earlier than `to`, and not in the future."));
    }
    // By the age of the first point: finer ones are not kept for longer.
    let resolution = COVERED.iter().position(|covered| now - from <= *covered).unwrap_or(COVERED.len());
    let step = STEPS[resolution];
    let names: Vec<&str> = asked.as_deref().unwrap_or(USUAL).split(',').collect();
    if names.len() > SERIES_MAX {
        return Err(Problem::invalid(format!("`series` has at most {SERIES_MAX} names, separated by commas.")));
    }
    if names.iter().any(|name| !is_name(name)) {
        return Err(Problem::invalid("`series` has names such as granted, shop/p99 and shop/order.submit/duplicate."));
    }
    let series = names.iter().map(|name| Series {
        name: (*name).to_owned(),
        unit: Unit::of(name).name(),
        values: admin.history.points(name, resolution, from / step, to / step).unwrap_or_default(),
    });
    let (series, known) = (series.collect(), admin.history.names());
    let from = Timestamp::from_micros(from / step * step * 1_000_000);
    Ok(json(&HistoryBody { step_ms: step * 1000, from, series, names: known }))
}

/// Reports whether a series could have this name. A series without counts has no values.
fn is_name(name: &str) -> bool {
    let is_part = |byte: u8| byte.is_ascii_alphanumeric() || b"._:/-".contains(&byte);
    (1..=256).contains(&name.len()) && name.bytes().all(is_part)
}

fn seconds(at: Timestamp) -> u64 {
    at.as_micros() / 1_000_000
}
