//! `GET /admin/v1/operations`: what the operations of this gateway have been answered since its start, and their rates. Calls no store.

use std::sync::Arc;

use axum::extract::{RawQuery, State};
use axum::response::Response;
use oncegate_core::clock::Timestamp;
use oncegate_core::tenant::{AppKey, Operation};
use oncegate_core::terms::Mode;
use oncegate_telemetry::operations::{OperationTotals, ResultGroup, totals};
use oncegate_web::problem::Problem;
use oncegate_web::response::json;
use serde::{Deserialize, Serialize};

use super::Admin;
use super::query::Query;

/// Default and largest number of operations.
const SHOWN: usize = 50;
const SHOWN_MAX: usize = 1000;

/// Points of ten seconds over which a rate is the mean.
const RATE_POINTS: u64 = 6;

#[derive(Serialize)]
struct OperationsBody {
    /// Since when it is counted: the start of this gateway.
    since: Timestamp,
    operations: Vec<OperationBody>,
    more: bool,
}

/// An operation.
#[derive(Serialize)]
struct OperationBody {
    app: String,
    operation: String,
    /// `None`: this gateway does not know the app any more.
    mode: Option<Mode>,
    claims: u64,
    granted: u64,
    duplicates: Duplicates,
    mismatches: u64,
    refused: u64,
    observed: u64,
    ran_twice: u64,
    /// Claim calls per second over the last minute. `None` if the history has no points of it yet.
    claims_per_second: Option<f32>,
    /// Of all operations of the app: the highest of the last minute.
    app_p99_seconds: Option<f32>,
}

/// Repeats by the state of their claim.
#[derive(Clone, Copy, Deserialize, Serialize)]
pub(super) struct Duplicates {
    pub(super) in_progress: u64,
    pub(super) succeeded: u64,
    pub(super) unknown: u64,
}

/// Answers with the operations, the busiest first.
pub(super) async fn list(State(admin): State<Arc<Admin>>, RawQuery(query): RawQuery) -> Result<Response, Problem> {
    let mut query = Query::parse(query)?;
    let app = query.take_as::<AppKey>("app")?;
    let operation = query.take_as::<Operation>("operation")?;
    let limit = query.count("limit", SHOWN, SHOWN_MAX)?;
    query.end()?;
    let is_wanted = |(of, name): &(String, String)| {
        app.as_ref().is_none_or(|app| app.as_ref() == of)
            && operation.as_ref().is_none_or(|operation| operation.as_ref() == name)
    };
    let found = totals(&admin.metrics.render());
    let mut found: Vec<_> = found.into_iter().filter(|(name, _)| is_wanted(name)).collect();
    found.sort_by(|(one, of_one), (other, of_other)| {
        of_other.claims().cmp(&of_one.claims()).then_with(|| one.cmp(other))
    });
    let more = found.len() > limit;
    found.truncate(limit);
    let operations = found.into_iter().map(|((app, operation), totals)| body(&admin, app, operation, &totals));
    Ok(json(&OperationsBody { since: admin.started.at(), operations: operations.collect(), more }))
}

fn body(admin: &Admin, app: String, operation: String, totals: &OperationTotals) -> OperationBody {
    let apps = admin.registry.apps();
    let known = apps.iter().find(|known| known.key.as_ref() == app);
    let mode = known.and_then(|known| Some(known.terms_of(&operation.parse().ok()?).mode));
    let newest = admin.clock.wall().as_micros() / 10_000_000;
    let points = |name: &str| {
        let points = admin.history.points(name, 0, newest.saturating_sub(RATE_POINTS), newest);
        points.unwrap_or_default().into_iter().flatten().collect::<Vec<f32>>()
    };
    let rates = ResultGroup::ALL.map(|group| mean(&points(&group.series(&app, &operation))));
    let [in_progress, succeeded, unknown] = totals.duplicates;
    OperationBody {
        mode,
        claims: totals.claims(),
        granted: totals.granted,
        duplicates: Duplicates { in_progress, succeeded, unknown },
        mismatches: totals.mismatches,
        refused: totals.refused,
        observed: totals.observed,
        ran_twice: totals.ran_twice,
        claims_per_second: rates.into_iter().flatten().reduce(|sum, rate| sum + rate),
        app_p99_seconds: points(&format!("{app}/p99")).into_iter().reduce(f32::max),
        app,
        operation,
    }
}

#[expect(clippy::cast_precision_loss, reason = "few points")]
fn mean(points: &[f32]) -> Option<f32> {
    (!points.is_empty()).then(|| points.iter().sum::<f32>() / points.len() as f32)
}
