//! `POST /v1/outcomes/batch`: many outcome calls in one, each with its own response.

use axum::response::Response;
use oncegate_core::limits::Limits;
use oncegate_core::tenant::Operation;
use oncegate_core::terms::Retention;
use oncegate_gateway::outcome::OutcomeCall;
use oncegate_web::body;
use oncegate_web::choice::OutcomeName;
use oncegate_web::fields::parsed;
use oncegate_web::problem::Problem;
use serde::Deserialize;
use serde_json::value::RawValue;

use super::answer;
use super::batch::{self, Items};
use super::call::ApiCall;
use super::outcome::OutcomeBody;

/// An outcome call with its claim. Repeats the fields of [`OutcomeBody`], because serde cannot both flatten a struct and
/// reject unknown fields.
#[derive(Deserialize)]
#[serde(deny_unknown_fields)]
struct OutcomeItem<'a> {
    global_id: String,
    attempt: String,
    outcome: OutcomeName,
    #[serde(borrow, default, deserialize_with = "body::present")]
    result: Option<&'a RawValue>,
    retention: Option<Retention>,
    operation: Option<Operation>,
    #[serde(borrow)]
    contents: Option<&'a RawValue>,
}

/// Handles a batch of outcome calls.
pub(super) async fn outcome_batch(call: ApiCall<'_>, items: Items<'_>) -> Result<Response, Problem> {
    let reports = items.read(|item: OutcomeItem<'_>| item.into_report(&call.api.limits))?;
    let answers = call.api.gateway.settle_many(call.app, reports).await;
    let answers = answers.into_iter().map(|answer: Result<_, Problem>| answer::reported(&answer?)).collect::<Vec<_>>();
    let name = |item: &RawValue| {
        let OutcomeItem { global_id, operation, .. } = body::object(item.get()).ok()?;
        Some((operation, global_id.parse().ok()))
    };
    Ok(batch::response(&answers, &call, name))
}

impl OutcomeItem<'_> {
    fn into_report(self, limits: &Limits) -> Result<OutcomeCall, Problem> {
        let Self { global_id, attempt, outcome, result, retention, operation, contents } = self;
        let global_id = parsed("global_id", &global_id)?;
        OutcomeBody { attempt, outcome, result, retention, operation, contents }.into_report(global_id, limits)
    }
}
