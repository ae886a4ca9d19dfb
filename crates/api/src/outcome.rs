//! `POST /v1/claims/{global_id}/outcome`: the outcome call, after an operation.

use axum::response::{IntoResponse as _, Response};
use oncegate_core::global_id::GlobalId;
use oncegate_core::limits::Limits;
use oncegate_core::record::ClaimId;
use oncegate_core::tenant::Operation;
use oncegate_core::terms::Retention;
use oncegate_gateway::outcome::OutcomeCall;
use oncegate_web::body;
use oncegate_web::choice::OutcomeName;
use oncegate_web::fields::{check_operation, check_retention, parsed, required_contents};
use oncegate_web::problem::{Code, Problem};
use serde::Deserialize;
use serde_json::value::RawValue;

use super::answer;
use super::call::ApiCall;

/// The body of an outcome call.
#[derive(Deserialize)]
#[serde(deny_unknown_fields)]
pub(super) struct OutcomeBody<'a> {
    pub(super) attempt: String,
    pub(super) outcome: OutcomeName,
    #[serde(borrow, default, deserialize_with = "body::present")]
    pub(super) result: Option<&'a RawValue>,
    pub(super) retention: Option<Retention>,
    pub(super) operation: Option<Operation>,
    #[serde(borrow)]
    pub(super) contents: Option<&'a RawValue>,
}

/// Handles an outcome call.
pub(super) async fn outcome(call: ApiCall<'_>, global_id: GlobalId) -> Result<Response, Problem> {
    let body: OutcomeBody<'_> = call.parse()?;
    let report = body.into_report(global_id, &call.api.limits)?;
    let operation = report.operation.clone();
    let answer = call.api.gateway.settle(call.app, report).await.map_err(Problem::from);
    let response = match answer.and_then(|answer| answer::reported(&answer)) {
        Ok(body) => answer::success(&body),
        Err(problem) => problem.into_response(),
    };
    Ok(answer::with_call(response, || (operation, None)))
}

impl OutcomeBody<'_> {
    /// Converts it, and checks all bounds. `result` and `retention` go with `success` only.
    pub(super) fn into_report(self, global_id: GlobalId, limits: &Limits) -> Result<OutcomeCall, Problem> {
        let attempt = parsed("attempt", &self.attempt)?;
        check_retention(self.retention, limits)?;
        let result = self.result.map(|result| match self.outcome {
            OutcomeName::Success => body::result(result, limits.result_bytes).map_err(not_recorded),
            // Any result is refused below.
            OutcomeName::Failure | OutcomeName::Unknown => Ok(Box::default()),
        });
        let result = result.transpose()?;
        let contents = self.contents.map(|contents| required_contents(Some(contents), limits)).transpose()?;
        let outcome = self.outcome.with(result, self.retention)?;
        let operation = check_operation(self.operation)?;
        Ok(OutcomeCall { id: ClaimId::of_api(global_id), attempt, outcome, operation, contents })
    }
}

/// Adds to the problem of a result what to do, since the operation has had its effect.
fn not_recorded(problem: Problem) -> Problem {
    let smaller = if problem.code == Code::BodyTooLarge { "smaller" } else { "flatter" };
    problem.and(&format!(
        "The outcome was not recorded: report success with a {smaller} `result`, or without one, before the lease ends."
    ))
}
