//! The HTTP meaning of errors and duplicates, as responses of axum: a handler returns them with `?` or `into_response()`.

use axum::Json;
use axum::body::Body;
use axum::response::{IntoResponse, Response};
use http::StatusCode;
use serde::Serialize;

use crate::duplicate::{Duplicate, Mismatch};
use crate::error::{Error, OnceError};
use crate::problem::Problem;

impl IntoResponse for Problem {
    fn into_response(self) -> Response {
        self.response().map(Body::from)
    }
}

impl IntoResponse for Error {
    fn into_response(self) -> Response {
        if let Self::Rejected(rejected) = &self
            && rejected.status != 429
        {
            // A mistake of this service, which its caller cannot correct.
            tracing::error!(%rejected, "the gateway refused a call of this service");
        }
        Problem::from(&self).into_response()
    }
}

/// The result of the work, if it has run: an outcome that is not recorded does not replace it. An error of the work is a 500.
impl<T: Serialize> IntoResponse for OnceError<T> {
    fn into_response(self) -> Response {
        match self {
            Self::Call { result: Some(result), .. } => Json(result).into_response(),
            Self::Call { error, result: None } => error.into_response(),
            Self::Work(error) => {
                tracing::error!(%error, "an operation failed");
                StatusCode::INTERNAL_SERVER_ERROR.into_response()
            }
        }
    }
}

impl<T> IntoResponse for Duplicate<T> {
    fn into_response(self) -> Response {
        Problem::from(&self).into_response()
    }
}

impl IntoResponse for Mismatch {
    fn into_response(self) -> Response {
        Problem::from(&self).into_response()
    }
}
