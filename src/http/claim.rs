//! `POST /v1/claims`: asking before an operation.

use axum::extract::Request;
use axum::http::{HeaderMap, header};
use axum::response::Response;
use serde::Deserialize;
use serde_json::value::RawValue;

use super::answer;
use super::body::{self, JsonBytes, RequestBody};
use super::extract::Visit;
use super::problem::{Code, Problem};
use super::{Api, success};
use crate::domain::attempt::Nonce;
use crate::domain::canonical::{Canonical, NotCanonical, canonicalize, canonicalize_any};
use crate::domain::limits::Limits;
use crate::domain::tenant::Operation;
use crate::domain::terms::{Retention, Span};
use crate::gateway::claim::ClaimCall;

/// The header that may carry the nonce instead of the body.
pub(super) const NONCE_HEADER: &str = "oncegate-attempt-nonce";

/// The body of a PRE.
#[derive(Deserialize)]
#[serde(deny_unknown_fields)]
pub struct ClaimBody<'a> {
    #[serde(borrow, default, deserialize_with = "body::present")]
    contents: Option<&'a RawValue>,
    operation: Option<Operation>,
    #[serde(borrow)]
    fingerprint: Option<&'a RawValue>,
    attempt_nonce: Option<String>,
    lease: Option<Span>,
    retention: Option<Retention>,
    take_over: Option<bool>,
}

/// Handles the call.
pub async fn claim(api: &Api, visit: &Visit, request: Request<impl RequestBody>) -> Result<Response, Problem> {
    let (parts, body) = request.into_parts();
    let app = visit.enter(api, &parts.headers)?;
    let body = JsonBytes::of_visit(visit, &parts.headers, body, api).await?;
    let mut body: ClaimBody<'_> = body.parse()?;
    body.merge_nonce(&parts.headers)?;
    let request = body.into_request(&api.limits)?;
    let granted = answer::granted(api.gateway.claim(app, request).await?)?;
    let mut response = success(&granted);
    response.headers_mut().insert(header::LOCATION, granted.location());
    Ok(response)
}

impl ClaimBody<'_> {
    /// Takes the nonce of the header; headers and body must not contradict each other.
    fn merge_nonce(&mut self, headers: &HeaderMap) -> Result<(), Problem> {
        let mut sent = headers.get_all(NONCE_HEADER).iter();
        let Some(header) = sent.next() else { return Ok(()) };
        if sent.any(|other| other != header) {
            return Err(Problem::invalid(
                "The header Oncegate-Attempt-Nonce is there twice and differs; send it once.",
            ));
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

    /// The request in the gateway's terms, within all bounds.
    pub fn into_request(self, limits: &Limits) -> Result<ClaimCall, Problem> {
        let nonce = self.attempt_nonce.map(|nonce| nonce.parse::<Nonce>()).transpose();
        let fingerprint = self
            .fingerprint
            .map(|raw| bounded(canonicalize_any(raw.get().as_bytes(), "fingerprint"), "`fingerprint`", limits));
        if let Some(lease) = self.lease {
            limits.check_lease(lease.0).map_err(|wrong| Problem::invalid(format!("`lease`: {wrong}.")))?;
        }
        check_retention(self.retention, limits)?;
        Ok(ClaimCall {
            operation: check_operation(self.operation)?.unwrap_or_default(),
            contents: required_contents(self.contents, limits)?,
            fingerprint: fingerprint.transpose()?,
            nonce: nonce.map_err(|wrong| Problem::invalid(format!("`attempt_nonce`: {wrong}.")))?,
            lease: self.lease.map(|lease| lease.0),
            retention: self.retention,
            take_over: self.take_over.unwrap_or(false),
        })
    }
}

/// The canonical form of contents that must be there.
pub fn required_contents(contents: Option<&RawValue>, limits: &Limits) -> Result<Canonical, Problem> {
    let contents = contents.ok_or_else(|| {
        Problem::invalid(
            "`contents` is missing: send what makes two operations the same, such as {\"order_id\": \"A-1001\"}.",
        )
    })?;
    bounded(canonicalize(contents.get().as_bytes()), "`contents`", limits)
}

/// Returns an operation that callers may use.
///
/// # Errors
/// That its prefix is reserved.
pub fn check_operation(operation: Option<Operation>) -> Result<Option<Operation>, Problem> {
    match operation {
        Some(operation) if operation.is_internal() => Err(Problem::invalid(format!(
            "`operation`: the prefix `{}` is reserved for the gateway; choose another name.",
            Operation::INTERNAL_PREFIX
        ))),
        operation => Ok(operation),
    }
}

/// A retention within its bounds.
pub fn check_retention(retention: Option<Retention>, limits: &Limits) -> Result<(), Problem> {
    let checked = retention.map_or(Ok(()), |retention| limits.check_retention(retention));
    checked.map_err(|wrong| Problem::invalid(format!("`retention`: {wrong}.")))
}

/// A canonical form, if there is one and it is no longer than contents may be.
fn bounded(json: Result<Canonical, NotCanonical>, what: &str, limits: &Limits) -> Result<Canonical, Problem> {
    match json {
        Ok(json) if json.as_str().len() > limits.contents_bytes => Err(body::too_large(what, limits.contents_bytes)),
        Ok(json) => Ok(json),
        Err(why) => {
            let code = if why == NotCanonical::Empty { Code::ContentsEmpty } else { Code::ContentsNotCanonical };
            Err(Problem::new(code, format!("{why}.")))
        }
    }
}
