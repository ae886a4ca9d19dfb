//! `POST /v1/outcomes/batch`: many POSTs at once, each answered by itself.

use std::sync::Arc;

use axum::Extension;
use axum::extract::State;
use axum::response::Response;
use serde::Deserialize;
use serde_json::value::RawValue;

use super::extract::Caller;
use super::outcome::OutcomeBody;
use super::{Api, answer, batch};
use crate::domain::global_id::GlobalId;
use crate::domain::limits::Limits;
use crate::domain::tenant::Operation;
use crate::domain::terms::Retention;
use crate::gateway::outcome::OutcomeCall;
use crate::tenants::quota::Purpose;
use crate::web::body::{self, JsonBytes};
use crate::web::choice::OutcomeName;
use crate::web::problem::Problem;
use crate::web::request_id::RequestId;

/// A POST with the claim it is about. The fields of [`OutcomeBody`], written out because serde cannot both flatten a
/// struct and refuse unknown fields.
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

/// Handles the call.
pub async fn outcome_batch(
    State(api): State<Arc<Api>>,
    Caller(app): Caller,
    Extension(request_id): Extension<RequestId>,
    body: JsonBytes,
) -> Result<Response, Problem> {
    let report = |raw| batch::item::<OutcomeItem<'_>>(raw)?.into_report(&api.limits);
    let reports = batch::admitted(batch::items(&body, &api)?, &api, &app, Purpose::Settle, report);
    let answers = api.gateway.settle_many(&app, reports).await;
    let answers = answers.into_iter().map(|answer: Result<_, Problem>| answer::reported(&answer?)).collect::<Vec<_>>();
    Ok(batch::answer(&answers, &request_id))
}

impl OutcomeItem<'_> {
    fn into_report(self, limits: &Limits) -> Result<OutcomeCall, Problem> {
        let Self { global_id, attempt, outcome, result, retention, operation, contents } = self;
        let global_id: GlobalId =
            global_id.parse().map_err(|wrong| Problem::invalid(format!("`global_id`: {wrong}.")))?;
        OutcomeBody::new(attempt, outcome, result, retention, operation, contents).into_report(global_id, limits)
    }
}
