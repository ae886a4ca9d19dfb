//! Problem documents (RFC 9457): the HTTP meaning of errors, duplicates and refusals, the same in every language.

use std::fmt;
use std::time::Duration;

use bytes::Bytes;
use http::header::{CACHE_CONTROL, CONTENT_TYPE, RETRY_AFTER};
use http::{HeaderName, HeaderValue, Response, StatusCode};
use serde::Serialize;

use crate::duplicate::{Duplicate, Mismatch};
use crate::error::{Error, IDENTITY_DIFFERS, Rejected};
use crate::state::State;

const SOON: Duration = Duration::from_secs(1);

/// A problem as a service answers it.
#[derive(Clone, PartialEq, Debug)]
#[non_exhaustive]
pub struct Problem {
    /// Status of the response.
    pub status: u16,
    /// Stable code.
    pub code: String,
    /// Explanation of the error, and its correction.
    pub detail: String,
    /// State of the operation: `in_progress`, `succeeded` or `unknown`.
    pub state: Option<String>,
    /// Status of the first response, if it was not stored.
    pub response_status: Option<u16>,
    /// Time after which a repeat is useful.
    pub retry_after: Option<Duration>,
    /// Further fields of the response.
    pub headers: Vec<(HeaderName, HeaderValue)>,
}

#[derive(Serialize)]
struct Document<'a> {
    r#type: String,
    title: String,
    status: u16,
    detail: &'a str,
    code: &'a str,
    #[serde(skip_serializing_if = "Option::is_none")]
    state: Option<&'a str>,
    #[serde(skip_serializing_if = "Option::is_none")]
    response_status: Option<u16>,
}

impl Problem {
    pub(crate) fn new(status: u16, code: impl Into<String>, detail: impl Into<String>) -> Self {
        Self {
            status,
            code: code.into(),
            detail: detail.into(),
            state: None,
            response_status: None,
            retry_after: None,
            headers: Vec::new(),
        }
    }

    fn retry_after(self, after: Duration) -> Self {
        Self { retry_after: Some(after), ..self }
    }

    pub(crate) fn state(self, state: &State) -> Self {
        Self { state: Some(state.name().to_owned()), ..self }
    }

    /// Returns the document as JSON.
    pub fn json(&self) -> String {
        let words = self.code.replace('_', " ");
        let mut letters = words.chars();
        let document = Document {
            r#type: format!("urn:oncegate:problem:{}", self.code),
            title: letters.next().map_or_else(String::new, |first| first.to_uppercase().chain(letters).collect()),
            status: self.status,
            detail: &self.detail,
            code: &self.code,
            state: self.state.as_deref(),
            response_status: self.response_status,
        };
        // Texts and numbers: nothing in it can fail.
        serde_json::to_string(&document).unwrap_or_default()
    }

    /// Returns the problem as a response.
    pub fn response(&self) -> Response<Bytes> {
        let mut response = Response::new(Bytes::from(self.json()));
        *response.status_mut() = StatusCode::from_u16(self.status).unwrap_or(StatusCode::INTERNAL_SERVER_ERROR);
        let fields = response.headers_mut();
        fields.extend(self.headers.iter().cloned());
        fields.insert(CONTENT_TYPE, HeaderValue::from_static("application/problem+json"));
        fields.insert(CACHE_CONTROL, HeaderValue::from_static("no-store"));
        if let Some(after) = self.retry_after {
            // In whole seconds, at least one.
            let seconds = u64::try_from(after.as_millis().div_ceil(1000).max(1)).unwrap_or(u64::MAX);
            fields.insert(RETRY_AFTER, HeaderValue::from(seconds));
        }
        response
    }
}

impl fmt::Display for Problem {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{} {}: {}", self.status, self.code, self.detail)
    }
}

impl std::error::Error for Problem {}

impl From<&Error> for Problem {
    fn from(error: &Error) -> Self {
        match error {
            Error::Rejected(rejected) => of_rejected(rejected),
            Error::Unavailable { may_have_acted, .. } => unavailable(*may_have_acted),
            Error::NotCanonical(why) => {
                Self::new(422, "contents_not_canonical", format!("{} at {}.", why.detail, why.path))
            }
            Error::LockNotAcquired { code, retry_after, .. } => {
                Self::new(409, code.clone(), "The lock is held.").retry_after(*retry_after)
            }
            Error::OutcomeRefused { code } => {
                Self::new(500, code.clone(), "The work is done, and its outcome was refused.")
            }
            Error::NotSettled { .. } => {
                Self::new(500, "not_settled", "The work is done, and its outcome is not recorded yet.")
            }
            Error::ResultNotRead(_) | Error::Argument(_) => {
                Self::new(500, "internal", "The service uses its client wrongly; its log says how.")
            }
        }
    }
}

fn of_rejected(rejected: &Rejected) -> Problem {
    match rejected.status {
        429 => Problem::new(429, "quota_exceeded", "Too many operations; repeat after Retry-After, with the same key.")
            .retry_after(rejected.retry_after.unwrap_or(SOON)),
        // Mistakes of this service: a repeat helps once its operator has corrected them.
        401 | 403 | 404 => unavailable(false),
        _ if rejected.code == IDENTITY_DIFFERS => Problem::new(
            500,
            IDENTITY_DIFFERS,
            "The service and its gateway name the operation differently; nothing was done.",
        ),
        _ => Problem::new(500, "internal", "The gateway refused the call of this service; nothing was done."),
    }
}

fn unavailable(may_have_acted: bool) -> Problem {
    let detail = if may_have_acted {
        "Nothing was done, but a gateway may have taken the key. Repeat with the same key: if it was taken, the answer is 409 until the \
         claim ends or is settled."
    } else {
        "Repeats cannot be recognised at the moment, so nothing was done; repeat with the same key."
    };
    Problem::new(503, "store_unavailable", detail).retry_after(SOON)
}

impl<T> From<&Duplicate<T>> for Problem {
    fn from(duplicate: &Duplicate<T>) -> Self {
        let problem = match duplicate.state {
            State::InProgress => {
                let detail = "The first attempt at this operation is still running; repeat after Retry-After.";
                Self::new(409, "duplicate", detail).retry_after(duplicate.retry_after)
            }
            State::Succeeded if duplicate.result_omitted.is_some() => {
                Self::new(409, "response_not_stored", "The operation is done, but its result was not stored.")
            }
            State::Succeeded => Self::new(409, "duplicate", "The operation is done."),
            _ => {
                let detail =
                    "The outcome of the first attempt is not known, so it is not run again: look up its effect.";
                Self::new(409, "duplicate", detail)
            }
        };
        problem.state(&duplicate.state)
    }
}

impl From<&Mismatch> for Problem {
    fn from(mismatch: &Mismatch) -> Self {
        let detail = "The operation was claimed with other values; use a new key or identity for another operation.";
        Self::new(422, mismatch.code.clone(), detail)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_lost_answer_may_have_taken_the_key() {
        for may_have_acted in [true, false] {
            let problem = Problem::from(&Error::Unavailable { causes: Vec::new(), may_have_acted });
            assert_eq!(problem.status, 503);
            assert_eq!(problem.detail.contains("may have taken the key"), may_have_acted, "{problem}");
        }
    }
}
