//! `POST /v1/claims/batch`: many PREs at once, each answered by itself.

use std::sync::Arc;

use axum::Extension;
use axum::extract::State;
use axum::http::HeaderMap;
use axum::response::Response;

use super::claim::{ClaimBody, NONCE_HEADER};
use super::extract::Caller;
use super::{Api, answer, batch};
use crate::tenants::quota::Purpose;
use crate::web::body::JsonBytes;
use crate::web::problem::Problem;
use crate::web::request_id::RequestId;

/// Handles the call.
pub async fn claim_batch(
    State(api): State<Arc<Api>>,
    Caller(app): Caller,
    Extension(request_id): Extension<RequestId>,
    headers: HeaderMap,
    body: JsonBytes,
) -> Result<Response, Problem> {
    if headers.contains_key(NONCE_HEADER) {
        return Err(Problem::invalid(
            "The header Oncegate-Attempt-Nonce is for one claim; in a batch give each item its own `attempt_nonce`.",
        ));
    }
    let request = |raw| batch::item::<ClaimBody<'_>>(raw)?.into_request(&api.limits);
    let requests = batch::admitted(batch::items(&body, &api)?, &api, &app, Purpose::New, request);
    let results_max = batch::results_max(requests.len(), &api.limits);
    let (answers, _kept) = api.gateway.claim_many(&app, requests, results_max).await;
    let answers = answers.into_iter().map(|answer| answer.and_then(answer::granted)).collect::<Vec<_>>();
    Ok(batch::answer(&answers, &request_id))
}
