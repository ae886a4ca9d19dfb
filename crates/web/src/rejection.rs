//! Responses of a listener that rejects a client before there is a request for a service.

use axum::response::{IntoResponse as _, Response};
use oncegate_core::attempt::SystemEntropy;
use oncegate_core::limits::Limits;
use oncegate_transport::Rejection;

use super::head;
use super::problem::{Code, Problem, ProblemBase};
use super::request_id::RequestId;
use super::response::finish;

/// Returns the response to a rejected client.
pub fn response(rejection: Rejection, limits: &Limits, base: &ProblemBase) -> Response {
    finish(problem(rejection, limits).into_response(), &RequestId::random(&SystemEntropy), base)
}

fn problem(rejection: Rejection, limits: &Limits) -> Problem {
    match rejection {
        Rejection::TooManyConnections => {
            let detail =
                "The gateway has as many connections as it may have; reuse yours, and try again after Retry-After.";
            Problem::new(Code::Overloaded, detail).retry_soon()
        }
        Rejection::TlsRequired => Problem::invalid("This port speaks HTTPS only. Use https:// instead of http://."),
        Rejection::HeadTooLarge => head::too_large(limits),
        Rejection::UnknownTransferCoding => head::unknown_transfer_coding(),
        Rejection::TwoFramings => Problem::invalid(
            "The request has a Content-Length and a Transfer-Encoding, which could be read in two ways. Send one of them.",
        ),
        Rejection::Http2 => Problem::invalid(
            "This listener speaks HTTP/1.1 only. Do not begin with HTTP/2: with curl, leave `--http2-prior-knowledge` out.",
        ),
        Rejection::MalformedHead => Problem::invalid(
            "The request line or a header field could not be read as HTTP/1.1. Send a request as RFC 9112 has it.",
        ),
    }
}
