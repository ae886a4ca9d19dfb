//! Refusals and their form in each dialect: problem documents for `ietf` (draft-ietf-httpapi-idempotency-key-header-07), error
//! objects for `stripe` (`docs.stripe.com/api/idempotent_requests` and `/error-codes`) and for `oasis` (OASIS Repeatable Requests 1.0, as
//! Azure has it).

pub(super) mod oasis;

use std::time::Duration;

use axum::http::{HeaderMap, HeaderName, HeaderValue, StatusCode, header};
use axum::response::{IntoResponse as _, Response};
use oncegate_core::record::ClaimState;
use oncegate_web::problem::{Code, Members, Problem, sentence};
use oncegate_web::response;
use serde::{Deserialize, Serialize};

use super::principal_source::PrincipalSource;
use super::status::{Meaning, StatusRule};

/// Time after which a repeat of a running request may get its response.
const SOON: Duration = Duration::from_secs(1);

/// The header that tells Stripe's clients whether a repeat can help.
const SHOULD_RETRY: HeaderName = HeaderName::from_static("stripe-should-retry");

/// The dialect of a route.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default, Deserialize, Serialize)]
#[serde(rename_all = "snake_case")]
pub enum Dialect {
    /// The IETF draft.
    #[default]
    Ietf,
    /// Stripe's API.
    Stripe,
    /// OASIS Repeatable Requests.
    Oasis,
}

/// Reason why a request is not forwarded, or its response not replayed.
#[derive(Clone, Debug)]
pub(super) enum Refusal {
    /// The request has no key.
    NoKey(String),
    /// The request has no key that can be used.
    Key(String),
    /// The caller is not known.
    Principal(String),
    /// The first request is still running.
    InProgress,
    /// The outcome of the first request is unknown.
    Unknown,
    /// The first request is done, and its response is not there any more.
    NotStored { status: Option<StatusCode>, headers: HeaderMap },
    /// The key was used with another request.
    Mismatch,
    /// The first request is older than the retention of keys.
    Expired(String),
    /// Any other problem.
    Problem(Problem),
    /// A problem of a request whose key was claimed.
    AfterClaim(Problem),
    /// Refused with further fields: the outage policy that answered, the granted wait.
    With(Box<HeaderMap>, Box<Self>),
}

impl Refusal {
    /// Returns the label in metrics.
    pub(super) fn label(&self) -> ProxyResult {
        match self {
            Self::InProgress => ProxyResult::InProgress,
            Self::Unknown => ProxyResult::Unknown,
            Self::NotStored { .. } => ProxyResult::NotStored,
            Self::Mismatch => ProxyResult::Mismatch,
            Self::NoKey(_) => ProxyResult::NoKey,
            Self::Problem(problem) | Self::AfterClaim(problem) if problem.code.status().is_server_error() => {
                ProxyResult::Unavailable
            }
            Self::With(_, refusal) => refusal.label(),
            Self::Key(_) | Self::Principal(_) | Self::Expired(_) | Self::Problem(_) | Self::AfterClaim(_) => {
                ProxyResult::Refused
            }
        }
    }
}

pub(super) use oncegate_telemetry::metrics::proxy::ProxyResult;

impl Dialect {
    /// Returns the meaning of a 5xx response on a route that sets none.
    pub(super) fn on_5xx(self) -> Meaning {
        match self {
            Self::Ietf | Self::Oasis => Meaning::Unknown,
            Self::Stripe => Meaning::Done,
        }
    }

    /// Returns the default statuses of responses without an effect, for a route that names none. Stripe stores a 403.
    pub(super) fn release(self) -> Vec<StatusRule> {
        let is_released = |rule: &StatusRule| self != Self::Stripe || *rule != StatusRule::Exact(403);
        let rules = ["307", "308", "401", "403", "405", "407", "408", "413", "421", "425", "429"];
        StatusRule::list(&rules).into_iter().filter(is_released).collect()
    }

    /// Reports whether responses with `Cache-Control: no-store` are stored on a route without that setting. Stripe sends it with
    /// each response.
    pub(super) fn stores_private(self) -> bool {
        self == Self::Stripe
    }

    /// Returns the name of the field with the key on a route that sets none.
    pub(super) fn key_header(self) -> HeaderName {
        match self {
            Self::Ietf | Self::Stripe => HeaderName::from_static("idempotency-key"),
            Self::Oasis => oasis::REQUEST_ID,
        }
    }

    /// Returns the sources that are part of every principal: a key of Stripe's belongs to the account for which a
    /// platform acts.
    pub(super) fn principal(self) -> impl Iterator<Item = PrincipalSource> {
        const ACCOUNTS: [HeaderName; 2] =
            [HeaderName::from_static("stripe-account"), HeaderName::from_static("stripe-context")];
        let is_stripe = self == Self::Stripe;
        ACCOUNTS.into_iter().filter(move |_| is_stripe).map(PrincipalSource::OptionalField)
    }

    /// Returns the field that is a part of every fingerprint.
    pub(super) fn fingerprint_field(self) -> Option<&'static HeaderName> {
        (self == Self::Oasis).then_some(&oasis::FIRST_SENT)
    }

    /// Adds the dialect's fields to a response that is forwarded or replayed.
    pub(super) fn accept(self, headers: &mut HeaderMap) {
        if self == Self::Oasis {
            headers.insert(oasis::RESULT, HeaderValue::from_static("accepted"));
        }
    }

    /// Returns the response to a refused request.
    pub(super) fn refuse(self, refusal: Refusal) -> Response {
        if let Refusal::With(fields, refusal) = refusal {
            let mut response = self.refuse(*refusal);
            response.headers_mut().extend(*fields);
            return response;
        }
        let fields = match &refusal {
            Refusal::NotStored { headers, .. } => headers.clone(),
            _ => HeaderMap::new(),
        };
        let mut response = match self {
            Self::Ietf => ietf(refusal),
            Self::Stripe => stripe(refusal),
            Self::Oasis => oasis::response(refusal),
        };
        response.headers_mut().extend(fields);
        response
    }
}

fn ietf(refusal: Refusal) -> Response {
    match refusal {
        Refusal::NoKey(why) | Refusal::Key(why) => Problem::new(Code::IdempotencyKey, format!("{}.", sentence(&why))),
        Refusal::Principal(why) => Problem::new(Code::Principal, format!("{}.", sentence(&why))),
        Refusal::InProgress => {
            let problem = Problem::new(Code::Duplicate, "The first request with this key is still running.");
            let problem = problem.retry_soon();
            Problem { members: Members::State { state: ClaimState::InProgress, status: None }, ..problem }
        }
        Refusal::Unknown => {
            let detail = "The first request with this key was forwarded, and its outcome is not known. It is not forwarded \
                          again: look up its effect, or send a fresh key if a second effect does no harm.";
            let members = Members::State { state: ClaimState::Unknown, status: None };
            Problem { members, ..Problem::new(Code::Duplicate, detail) }
        }
        Refusal::NotStored { status, .. } => {
            let detail = "The first request with this key is done, but its response was not stored. `response_status` is its \
                          status; `Location` and `ETag` are its own.";
            let members = Members::State { state: ClaimState::Succeeded, status: status.map(|status| status.as_u16()) };
            Problem { members, ..Problem::new(Code::ResponseNotStored, detail) }
        }
        Refusal::Mismatch => Problem::new(
            Code::FingerprintMismatch,
            "This key was used with another request; send a fresh key for each operation.",
        ),
        Refusal::Expired(why) => Problem::new(Code::IdempotencyKey, why),
        Refusal::Problem(problem) | Refusal::AfterClaim(problem) => problem,
        Refusal::With(_, refusal) => return ietf(*refusal),
    }
    .into_response()
}

#[derive(Serialize)]
struct StripeBody<'a> {
    error: StripeError<'a>,
}

#[derive(Serialize)]
struct StripeError<'a> {
    r#type: &'static str,
    #[serde(skip_serializing_if = "Option::is_none")]
    code: Option<&'static str>,
    message: &'a str,
}

fn stripe(refusal: Refusal) -> Response {
    const IDEMPOTENCY: &str = "idempotency_error";
    const INVALID: &str = "invalid_request_error";
    let conflict = StatusCode::CONFLICT;
    let (status, r#type, code, message, retry_after) = match refusal {
        Refusal::NoKey(why) | Refusal::Key(why) | Refusal::Principal(why) => {
            (StatusCode::BAD_REQUEST, INVALID, None, format!("{}.", sentence(&why)), None)
        }
        Refusal::InProgress => {
            let message = "The first request with this idempotency key is still running.".to_owned();
            (conflict, IDEMPOTENCY, Some("idempotency_key_in_use"), message, Some(SOON))
        }
        Refusal::Unknown => {
            let message = "The outcome of the first request with this idempotency key is unknown.".to_owned();
            (conflict, IDEMPOTENCY, Some("outcome_unknown"), message, None)
        }
        Refusal::NotStored { status, .. } => {
            let message = format!(
                "The first request with this idempotency key is done{}. Its response was not stored.",
                answered(status)
            );
            (conflict, IDEMPOTENCY, Some("response_not_stored"), message, None)
        }
        Refusal::Mismatch => {
            let message = "Keys for idempotent requests can only be used with the same request.".to_owned();
            (StatusCode::BAD_REQUEST, IDEMPOTENCY, None, message, None)
        }
        Refusal::Expired(why) => (StatusCode::BAD_REQUEST, INVALID, None, why, None),
        Refusal::With(_, refusal) => return stripe(*refusal),
        Refusal::Problem(problem) | Refusal::AfterClaim(problem) => {
            let r#type = if problem.code.status().is_server_error() { "api_error" } else { INVALID };
            let Problem { code, detail, retry_after, .. } = problem;
            (code.status(), r#type, Some(code.name()), detail.into_owned(), retry_after)
        }
    };
    let body = StripeBody { error: StripeError { r#type, code, message: &message } };
    let mut response = json(status, &body);
    let fields = response.headers_mut();
    fields.insert(SHOULD_RETRY, HeaderValue::from_static(if retry_after.is_some() { "true" } else { "false" }));
    if let Some(wait) = retry_after {
        fields.insert(header::RETRY_AFTER, seconds(wait));
    }
    response
}

fn answered(status: Option<StatusCode>) -> String {
    status.map_or_else(String::new, |status| format!(", and was answered {}", status.as_u16()))
}

/// Returns the value of `Retry-After` for this wait.
fn seconds(wait: Duration) -> HeaderValue {
    HeaderValue::from(wait.as_secs().max(1))
}

/// Returns a response with a JSON body.
fn json(status: StatusCode, body: &impl Serialize) -> Response {
    let mut response = response::json(body);
    *response.status_mut() = status;
    response
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn stripes_clients_learn_how_long_to_wait() {
        let of = |wait: u64| {
            let problem = Problem::new(Code::QuotaExceeded, "").retry_after(Duration::from_millis(wait));
            stripe(Refusal::Problem(problem)).headers()[header::RETRY_AFTER].to_str().unwrap().to_owned()
        };
        assert_eq!([of(1), of(1_000), of(30_000)], ["1", "1", "30"]);
    }
}
