//! `POST /v1/claims/{global_id}/outcome`: reporting after an operation.

use axum::extract::Request;
use axum::response::Response;
use serde::Deserialize;
use serde_json::value::RawValue;

use super::extract::{ClaimId, Visit};
use super::{Api, answer, success};
use crate::domain::attempt::Attempt;
use crate::domain::global_id::GlobalId;
use crate::domain::limits::Limits;
use crate::domain::tenant::Operation;
use crate::domain::terms::Retention;
use crate::gateway::outcome::OutcomeCall;
use crate::web::body::{self, JsonBytes, RequestBody};
use crate::web::choice::OutcomeName;
use crate::web::fields::{check_operation, check_retention, required_contents};
use crate::web::problem::Problem;

/// The body of a POST.
#[derive(Deserialize)]
#[serde(deny_unknown_fields)]
pub struct OutcomeBody<'a> {
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
pub async fn outcome(
    api: &Api,
    visit: &Visit,
    claim: Result<ClaimId, Problem>,
    request: Request<impl RequestBody>,
) -> Result<Response, Problem> {
    let (parts, body) = request.into_parts();
    let app = visit.enter(api, &parts.headers)?;
    let ClaimId(global_id) = claim?;
    let body = JsonBytes::of_visit(visit, &parts.headers, body, api).await?;
    let body: OutcomeBody<'_> = body.parse()?;
    let report = body.into_report(global_id, &api.limits)?;
    let body = answer::reported(&api.gateway.settle(app, report).await?)?;
    Ok(success(&body))
}

impl<'a> OutcomeBody<'a> {
    /// A body of these parts, for reports that come in a batch.
    pub fn new(
        attempt: String,
        outcome: OutcomeName,
        result: Option<&'a RawValue>,
        retention: Option<Retention>,
        operation: Option<Operation>,
        contents: Option<&'a RawValue>,
    ) -> Self {
        Self { attempt, outcome, result, retention, operation, contents }
    }

    /// The report in the gateway's terms, within all bounds. `result` and `retention` go with `success` only.
    pub fn into_report(self, global_id: GlobalId, limits: &Limits) -> Result<OutcomeCall, Problem> {
        let attempt =
            self.attempt.parse::<Attempt>().map_err(|wrong| Problem::invalid(format!("`attempt`: {wrong}.")))?;
        check_retention(self.retention, limits)?;
        let result = self.result.map(|result| body::result(result, limits.result_bytes)).transpose()?;
        let contents = self.contents.map(|contents| required_contents(Some(contents), limits)).transpose()?;
        let outcome = self.outcome.with(result, self.retention)?;
        let operation = check_operation(self.operation)?;
        Ok(OutcomeCall { global_id, attempt, outcome, operation, contents })
    }
}
