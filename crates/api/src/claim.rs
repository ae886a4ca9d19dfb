//! `POST /v1/claims`: the claim call, before an operation. It may wait for a claim in progress.

use std::time::Duration;

use axum::http::{HeaderMap, header};
use axum::response::{IntoResponse as _, Response};
use oncegate_core::caller::Caller;
use oncegate_core::canonical::canonicalize_any;
use oncegate_core::clock::millis;
use oncegate_core::global_id::GlobalId;
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
use oncegate_web::recent::Noted;
use serde::Deserialize;
use serde_json::value::RawValue;

use super::answer;
use super::call::ApiCall;

/// The header for the nonce, instead of the field of the body.
pub(super) const NONCE_HEADER: &str = "oncegate-attempt-nonce";

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
pub(super) async fn claim(call: ApiCall<'_>) -> Result<Response, Problem> {
    let mut body: ClaimBody<'_> = call.parse()?;
    body.merge_nonce(call.headers)?;
    let wait = body.wait.map(|Span(wait)| wait).or_else(|| prefer::wait(call.headers));
    let request = body.into_request(&call.api.limits)?;
    if let Some(wait) = wait.and_then(|wait| call.api.gateway.wait_granted(call.app, &request, wait)) {
        // Boxed: every claim would take memory for this.
        return Ok(Box::pin(claim_or_wait(&call, request, wait)).await);
    }
    let answer = call.api.gateway.claim(call.app, request).await.map_err(Problem::from);
    let granted = match answer.and_then(answer::granted) {
        Ok(granted) => granted,
        Err(problem) => return Ok(refused(&call, problem)),
    };
    let mut response = answer::success(&granted);
    response.headers_mut().insert(header::LOCATION, granted.location());
    Ok(response)
}

/// Handles a claim call that waits for up to this time. The response says the time if it did wait.
async fn claim_or_wait(call: &ApiCall<'_>, request: ClaimCall, wait: Duration) -> Response {
    let claim = call.api.gateway.claim_or_wait(call.app, request, wait, call.caller_gone()).await;
    // Checked before the grant or the found claim is used. A grant that crosses the revocation ends with its lease,
    // since a repeat may have it.
    if let Err(refused) = call.authenticate_again() {
        return Problem::from(refused).into_response();
    }
    let did_wait = matches!(claim, Ok(WaitedClaim { waited: Some(_), .. }));
    let mut response = match claim.map_err(Problem::from).and_then(waited) {
        Ok(response) => response,
        Err(problem) => refused(call, problem),
    };
    if did_wait {
        prefer::apply_wait(response.headers_mut(), wait);
    }
    response
}

/// Returns the response to a call that was not granted. Operators look for refusals at their claim, which only a duplicate names: the body
/// is read again then.
fn refused(call: &ApiCall<'_>, problem: Problem) -> Response {
    let is_named = matches!(problem.members, Members::Duplicate(_));
    let noted = if is_named { None } else { Noted::of_problem(&problem) };
    let noted = noted.and_then(|noted| {
        let (operation, global_id) = claim_of(call)?;
        Some(Noted { operation: Some(operation), global_id: Some(global_id), ..noted })
    });
    let mut response = problem.into_response();
    if let Some(noted) = noted {
        response.extensions_mut().insert(noted);
    }
    response
}

fn claim_of(call: &ApiCall<'_>) -> Option<(Operation, GlobalId)> {
    let body: ClaimBody<'_> = call.parse().ok()?;
    let ClaimCall { operation, contents, .. } = body.into_request(&call.api.limits).ok()?;
    let global_id = Gateway::global_id(call.app, &operation, &contents);
    Some((operation, global_id))
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
