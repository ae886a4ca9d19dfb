//! Refusals of the middleware, and the result that metrics count for each.

use super::fields::StoredFields;
use super::stored::Stored;
use crate::problem::Problem;
use crate::state::State;

/// A refused request: its problem, and its name in metrics.
pub(crate) struct Refusal {
    pub(super) problem: Box<Problem>,
    pub(super) result: &'static str,
    /// Some of the body may be unread: the connection ends.
    pub(super) closes: bool,
}

impl Refusal {
    fn new(result: &'static str, problem: Problem) -> Self {
        Self { problem: Box::new(problem), result, closes: false }
    }

    pub(super) fn of(problem: Problem) -> Self {
        let result = match (&*problem.code, problem.state.as_deref()) {
            (_, Some("in_progress")) => "in_progress",
            (_, Some("unknown")) => "unknown",
            ("fingerprint_mismatch" | "contents_mismatch", _) => "mismatch",
            _ if problem.status >= 500 => "unavailable",
            _ => "refused",
        };
        Self::new(result, problem)
    }

    pub(super) fn no_key(detail: String) -> Self {
        Self::new("no_key", Problem::new(400, "idempotency_key_invalid", detail))
    }

    pub(super) fn key(detail: String) -> Self {
        Self::new("refused", Problem::new(400, "idempotency_key_invalid", detail))
    }

    pub(super) fn ambiguous() -> Self {
        let detail =
            "The request has a key and a safe method that a field overrides. Send it with the method that is meant.";
        Self::new("refused", Problem::new(400, "ambiguous_target", detail))
    }

    pub(super) fn principal() -> Self {
        let detail = "The request names no caller, so its key has no owner; send the credentials of the service.";
        Self::new("refused", Problem::new(400, "principal_missing", detail))
    }

    pub(super) fn not_supported() -> Self {
        let detail = "WebSockets and gRPC cannot be replayed; send them without a key.";
        Self::new("refused", Problem::new(501, "not_supported", detail))
    }

    pub(super) fn too_large(limit: usize) -> Self {
        let detail = format!("The body of a request with a key has at most {limit} bytes.");
        Self { closes: true, ..Self::new("refused", Problem::new(413, "body_too_large", detail)) }
    }

    pub(super) fn cut_off() -> Self {
        let detail = "The body ended early, so nothing was done; send the request again.";
        Self { closes: true, ..Self::new("refused", Problem::new(400, "invalid_request", detail)) }
    }

    pub(super) fn timed_out() -> Self {
        let detail = "The handler took too long; it is not known if it did what was asked.";
        Self::new("unknown", Problem::new(504, "upstream_timeout", detail))
    }

    /// Returns the refusal of a repeat whose response was not stored.
    pub(super) fn not_stored(stored: Option<&Stored>, fields: &StoredFields) -> Self {
        let detail = "The first request with this key is done, but its response was not stored. `response_status` is its status; \
                      `Location` and `ETag` are its own.";
        let mut problem = Problem::new(409, "response_not_stored", detail).state(&State::Succeeded);
        problem.response_status = stored.map(Stored::status);
        problem.headers = stored.map_or_else(Vec::new, |stored| stored.tombstone_fields(fields));
        Self::new("not_stored", problem)
    }
}
