//! `POST /v1/claims/batch`: many claim calls in one, each with its own response.

use axum::response::Response;
use oncegate_web::body;
use oncegate_web::problem::Problem;
use serde_json::value::RawValue;

use super::answer;
use super::batch::{self, Items};
use super::call::ApiCall;
use super::claim::{self, ClaimBody, NONCE_HEADER, warn_of_missing_operation};

/// Handles a batch of claim calls.
pub(super) async fn claim_batch(call: ApiCall<'_>, items: Items<'_>) -> Result<Response, Problem> {
    if call.headers.contains_key(NONCE_HEADER) {
        return Err(Problem::invalid(
            "The header Oncegate-Attempt-Nonce is for one claim; in a batch give each item its own `attempt_nonce`.",
        ));
    }
    let mut name_operations = true;
    let requests = items.read(|item: ClaimBody<'_>| {
        name_operations &= item.names_operation();
        item.check_batch_item()?.into_request(&call.api.limits)
    })?;
    let results_max = batch::results_max(requests.len(), &call.api.limits);
    let (answers, _kept) = call.api.gateway.claim_many(call.app, requests, results_max).await;
    let answers = answers.into_iter().map(|answer| answer.and_then(answer::granted)).collect::<Vec<_>>();
    let name = |item: &RawValue| Some(claim::name(&call, body::object(item.get()).ok()?));
    let mut response = batch::response(&answers, &call, name);
    if !name_operations {
        warn_of_missing_operation(&call, &mut response);
    }
    Ok(response)
}
