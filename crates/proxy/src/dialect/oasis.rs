//! OASIS Repeatable Requests 1.0, with the statuses that Azure documents: `learn.microsoft.com`, "Repeatability of requests" of
//! Communication Services.

use std::time::{Duration, UNIX_EPOCH};

use axum::http::{HeaderMap, HeaderName, HeaderValue, StatusCode, header};
use axum::response::Response;
use oncegate_core::clock::Timestamp;
use oncegate_core::terms::Retention;
use oncegate_web::problem::sentence;
use serde::Serialize;

use super::{Refusal, SOON, answered, json, seconds};
use crate::fields::only;

/// The field with the key.
pub(super) const REQUEST_ID: HeaderName = HeaderName::from_static("repeatability-request-id");

/// The field with the time at which the first request was sent.
pub(super) static FIRST_SENT: HeaderName = HeaderName::from_static("repeatability-first-sent");

/// The field that says if a request was accepted as repeatable.
pub(super) const RESULT: HeaderName = HeaderName::from_static("repeatability-result");

/// Greatest lead of a client's clock.
const SKEW_MAX: Duration = Duration::from_mins(5);

#[derive(Serialize)]
struct Body<'a> {
    error: Error<'a>,
}

#[derive(Serialize)]
struct Error<'a> {
    code: &'a str,
    message: &'a str,
}

/// Checks that a request was first sent while keys are kept: an older one may have been done, and forgotten.
pub(crate) fn check(headers: &HeaderMap, kept: Retention, now: Timestamp) -> Result<(), Refusal> {
    let value = only(headers, &FIRST_SENT).and_then(|value| value.to_str().ok());
    let sent = value.and_then(|text| httpdate::parse_http_date(text).ok()?.duration_since(UNIX_EPOCH).ok());
    let Some(sent) = sent else {
        let why = "`Repeatability-First-Sent` is missing or no date like \"Tue, 15 Nov 1994 08:12:31 GMT\"; send the time at which the \
                   request was first sent, the same with each repeat";
        return Err(Refusal::Key(why.to_owned()));
    };
    let now = Duration::from_micros(now.as_micros());
    if sent > now + SKEW_MAX {
        return Err(Refusal::Key("`Repeatability-First-Sent` is in the future; correct the client's clock".to_owned()));
    }
    if kept.duration().is_some_and(|kept| now.saturating_sub(sent) > kept) {
        let why = "The request was first sent before the time for which keys are kept, so it may have been done. Look up its effect.";
        return Err(Refusal::Expired(why.to_owned()));
    }
    Ok(())
}

/// Returns the response to a refused request.
pub(super) fn response(refusal: Refusal) -> Response {
    let is_claimed = matches!(refusal, Refusal::AfterClaim(_));
    let mut retry_after = None;
    let (status, code, message, is_accepted) = match refusal {
        Refusal::NoKey(why) | Refusal::Key(why) | Refusal::Principal(why) => {
            (StatusCode::BAD_REQUEST, "InvalidRepeatabilityHeaders", format!("{}.", sentence(&why)), false)
        }
        Refusal::Expired(why) => (StatusCode::PRECONDITION_FAILED, "RepeatabilityWindowExpired", why, false),
        Refusal::With(_, refusal) => return response(*refusal),
        Refusal::InProgress => {
            retry_after = Some(SOON);
            let message = "The first request with this ID is still running.".to_owned();
            (StatusCode::CONFLICT, "RequestInProgress", message, true)
        }
        Refusal::Unknown => {
            let message = "The outcome of the first request with this ID is unknown. It is not run again.".to_owned();
            (StatusCode::CONFLICT, "OutcomeUnknown", message, true)
        }
        Refusal::NotStored { status, .. } => {
            let message =
                format!("The first request with this ID is done{}. Its response was not stored.", answered(status));
            (StatusCode::CONFLICT, "ResponseNotStored", message, true)
        }
        Refusal::Mismatch => {
            let message = "This ID was used with another request; send a fresh one for each operation.".to_owned();
            (StatusCode::BAD_REQUEST, "RepeatabilityMismatch", message, false)
        }
        Refusal::Problem(problem) | Refusal::AfterClaim(problem) => {
            retry_after = problem.retry_after;
            (problem.code.status(), problem.code.name(), problem.detail.into_owned(), is_claimed)
        }
    };
    let mut response = json(status, &Body { error: Error { code, message: &message } });
    let fields = response.headers_mut();
    fields.insert(RESULT, result(is_accepted));
    if let Some(wait) = retry_after {
        fields.insert(header::RETRY_AFTER, seconds(wait));
    }
    response
}

fn result(is_accepted: bool) -> HeaderValue {
    HeaderValue::from_static(if is_accepted { "accepted" } else { "rejected" })
}

#[cfg(test)]
mod tests {
    use super::*;

    const NOW: Timestamp = Timestamp::from_micros(784_887_151_000_000);
    const DAY: Retention = Retention::For(Duration::from_hours(24));

    fn of(values: &[&'static str]) -> Result<(), u16> {
        let values = values.iter().map(|value| (FIRST_SENT.clone(), HeaderValue::from_static(value)));
        check(&values.collect(), DAY, NOW).map_err(|refusal| response(refusal).status().as_u16())
    }

    #[test]
    fn every_refusal_says_if_the_request_was_accepted_as_repeatable() {
        use oncegate_web::problem::{Code, Problem};
        for code in [Code::StoreUnavailable, Code::UpstreamUnavailable, Code::UpstreamTimeout] {
            let problem = || Problem::new(code, "");
            for (refusal, result) in
                [(Refusal::Problem(problem()), "rejected"), (Refusal::AfterClaim(problem()), "accepted")]
            {
                assert_eq!(response(refusal).headers()[RESULT], result, "{code:?}");
            }
        }
    }

    #[test]
    fn the_time_of_the_first_request_is_checked() {
        assert_eq!(of(&["Tue, 15 Nov 1994 08:12:31 GMT"]), Ok(()));
        assert_eq!(of(&["Mon, 14 Nov 1994 08:12:31 GMT"]), Ok(()));
        assert_eq!(of(&["Mon, 14 Nov 1994 08:12:30 GMT"]), Err(412), "keys from then are forgotten");
        assert_eq!(of(&["Tue, 15 Nov 1994 08:17:32 GMT"]), Err(400), "the future");
        for wrong in
            [&[][..], &["now"], &["784887151"], &["Tue, 15 Nov 1994 08:12:31 GMT", "Tue, 15 Nov 1994 08:12:31 GMT"]]
        {
            assert_eq!(of(wrong), Err(400), "{wrong:?}");
        }
    }
}
