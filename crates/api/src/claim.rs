//! `POST /v1/claims`: the claim call, before an operation. It may wait for a claim in progress.

use std::time::Duration;

use axum::http::{HeaderMap, HeaderName, HeaderValue, header};
use axum::response::{IntoResponse as _, Response};
use oncegate_core::caller::Caller;
use oncegate_core::canonical::canonicalize_any;
use oncegate_core::clock::millis;
use oncegate_core::limits::Limits;
use oncegate_core::record::Realm;
use oncegate_core::tenant::Operation;
use oncegate_core::terms::{Retention, Span};
use oncegate_gateway::claim::ClaimCall;
use oncegate_gateway::{Gateway, WaitedClaim};
use oncegate_web::body;
use oncegate_web::fields::{self, check_operation, check_retention, checked_lease, parsed, required_contents};
use oncegate_web::prefer;
use oncegate_web::problem::{Members, Problem};
use serde::Deserialize;
use serde_json::value::RawValue;

use super::answer::{self, Named};
use super::call::ApiCall;

/// The header for the nonce, instead of the field of the body.
pub(super) const NONCE_HEADER: &str = "oncegate-attempt-nonce";

/// The header that names a mistake in a call that was answered.
const WARNING: HeaderName = HeaderName::from_static("oncegate-warning");

/// The body of a claim call.
#[derive(Deserialize)]
#[serde(deny_unknown_fields)]
pub struct ClaimBody<'a> {
    #[serde(borrow, default, deserialize_with = "body::present")]
    contents: Option<&'a RawValue>,
    operation: Option<Operation>,
    #[serde(borrow)]
    fingerprint: Option<&'a RawValue>,
    attempt_nonce: Option<String>,
    caller: Option<Caller>,
    lease: Option<Span>,
    retention: Option<Retention>,
    take_over: Option<bool>,
    on_lease_end: Option<AskedLeaseEnd>,
    wait: Option<Span>,
}

/// Meaning of the lease's end that a caller may request: more caution than the operation's term, never less.
#[derive(Deserialize)]
#[serde(rename_all = "snake_case")]
enum AskedLeaseEnd {
    Unknown,
}

/// Handles a claim call.
pub(super) async fn claim(mut call: ApiCall<'_>) -> Result<Response, Problem> {
    let mut body: ClaimBody<'_> = call.parse()?;
    let names_operation = body.names_operation();
    let wait = body.wait.map(|Span(wait)| wait).or_else(|| prefer::wait(call.headers));
    let request = body.merge_nonce(call.headers).and_then(|()| body.into_request(&call.api.limits));
    let mut response = match request {
        Ok(request) => answered(&mut call, request, wait).await,
        Err(problem) => problem.into_response(),
    };
    if !names_operation {
        warn_of_missing_operation(&call, &mut response);
    }
    Ok(response)
}

/// Claims, and waits if the call asks for it and its app waits.
async fn answered(call: &mut ApiCall<'_>, request: ClaimCall, wait: Option<Duration>) -> Response {
    if let Some(wait) = wait.and_then(|wait| call.api.gateway.wait_granted(call.app, &request, wait)) {
        call.drop_body();
        // Boxed: every claim would take memory for this.
        return Box::pin(claim_or_wait(call, request, wait)).await;
    }
    let answer = call.api.gateway.claim(call.app, request).await.map_err(Problem::from);
    let granted = answer.and_then(answer::granted).map(|granted| {
        let mut response = answer::success(&granted);
        response.headers_mut().insert(header::LOCATION, granted.location());
        response
    });
    // Few responses need the body again.
    let named_claim = || call.parse().map(|body| name(call, body)).unwrap_or_default();
    named(granted.unwrap_or_else(Problem::into_response), named_claim)
}

/// Marks the response to a call that names no operation, and warns of it once in an hour for each app: all such calls of an app
/// share their identities, terms and metrics.
pub(super) fn warn_of_missing_operation(call: &ApiCall<'_>, response: &mut Response) {
    response.headers_mut().insert(WARNING, HeaderValue::from_static("operation_missing"));
    if call.app.usage.may_warn_of_missing_operation(call.api.clock.monotonic()) {
        tracing::warn!(
            app.key = %call.app.key,
            "A claim call names no operation. Send `operation`, such as order.submit: without it, equal contents of two kinds of \
             operations are one claim"
        );
    }
}

/// Handles a claim call that waits for up to this time. The response says the time if it did wait.
async fn claim_or_wait(call: &ApiCall<'_>, request: ClaimCall, wait: Duration) -> Response {
    let operation = request.operation.clone();
    let global_id = Gateway::global_id(call.app, &operation, &request.contents);
    let claim = call.api.gateway.claim_or_wait(call.app, request, wait, call.wait_ended()).await;
    // Checked before the grant or the found claim is used. A grant that crosses the revocation or the move ends with its lease,
    // since a repeat may have it.
    if let Err(problem) = call.admit_again() {
        return problem.into_response();
    }
    let did_wait = matches!(claim, Ok(WaitedClaim { waited: Some(_), .. }));
    let response = claim.map_err(Problem::from).and_then(waited).unwrap_or_else(Problem::into_response);
    let mut response = named(response, || (Some(operation), Some(global_id)));
    if did_wait {
        prefer::apply_wait(response.headers_mut(), wait);
    }
    response
}

/// Adds the claim to what operators want to know of a response. A duplicate names its claim.
fn named(response: Response, claim: impl FnOnce() -> Named) -> Response {
    let is_duplicate = |problem: &Problem| matches!(problem.members, Members::Duplicate(_));
    if response.extensions().get().is_some_and(is_duplicate) {
        return response;
    }
    answer::with_call(response, claim)
}

/// Returns operation and claim of a body, if it is valid.
pub(super) fn name(call: &ApiCall<'_>, body: ClaimBody<'_>) -> Named {
    let Ok(ClaimCall { operation, contents, .. }) = body.into_request(&call.api.limits) else { return (None, None) };
    let global_id = Gateway::global_id(call.app, &operation, &contents);
    (Some(operation), Some(global_id))
}

/// Returns the response to a call that may have waited.
fn waited(WaitedClaim { answer, waited }: WaitedClaim) -> Result<Response, Problem> {
    let waited_ms = waited.map(millis);
    let granted = answer::granted(answer).map_err(|mut problem| {
        if let Members::Duplicate(members) = &mut problem.members {
            members.waited_ms = waited_ms;
        }
        problem
    })?;
    let location = granted.location();
    let mut response = match waited_ms {
        Some(waited_ms) => answer::success(&granted.waited(waited_ms)),
        None => answer::success(&granted),
    };
    response.headers_mut().insert(header::LOCATION, location);
    Ok(response)
}

impl ClaimBody<'_> {
    pub(super) fn names_operation(&self) -> bool {
        self.operation.is_some()
    }

    /// Takes the nonce of the header. Headers and body must not contradict each other.
    fn merge_nonce(&mut self, headers: &HeaderMap) -> Result<(), Problem> {
        let mut sent = headers.get_all(NONCE_HEADER).iter();
        let Some(header) = sent.next() else { return Ok(()) };
        if sent.any(|other| other != header) {
            return Err(Problem::invalid("The request has two different Oncegate-Attempt-Nonce headers; send one."));
        }
        let header = header.to_str().unwrap_or_default().to_owned();
        if self.attempt_nonce.as_ref().is_some_and(|body| *body != header) {
            return Err(Problem::invalid(
                "The header Oncegate-Attempt-Nonce and the field `attempt_nonce` differ; send one of them.",
            ));
        }
        self.attempt_nonce = Some(header);
        Ok(())
    }

    /// Rejects an item of a batch that is to wait.
    pub(super) fn check_batch_item(self) -> Result<Self, Problem> {
        if self.wait.is_some() {
            return Err(Problem::invalid(
                "`wait`: batches do not wait; leave it out, or send this claim alone, to POST /v1/claims.",
            ));
        }
        Ok(self)
    }

    /// Converts it, and checks all bounds.
    pub fn into_request(self, limits: &Limits) -> Result<ClaimCall, Problem> {
        let fingerprint = self
            .fingerprint
            .map(|raw| fields::bounded(canonicalize_any(raw.get().as_bytes(), "fingerprint"), "`fingerprint`", limits));
        let lease = checked_lease(self.lease, limits)?;
        check_retention(self.retention, limits)?;
        Ok(ClaimCall {
            realm: Realm::Api,
            operation: check_operation(self.operation)?.unwrap_or_default(),
            contents: required_contents(self.contents, limits)?,
            fingerprint: fingerprint.transpose()?,
            nonce: self.attempt_nonce.map(|nonce| parsed("attempt_nonce", &nonce)).transpose()?,
            caller: self.caller,
            lease,
            retention: self.retention,
            take_over: self.take_over.unwrap_or(false),
            unknown_on_lease_end: self.on_lease_end.is_some(),
        })
    }
}
