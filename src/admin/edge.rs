//! What every request to the admin API meets before its handler: a place among those in flight, and bounds on its head.
//! Metrics and health need neither, so that they are answered whatever operators do.

use std::sync::Arc;
use std::time::Duration;

use axum::extract::{Request, State};
use axum::middleware::Next;
use axum::response::{IntoResponse, Response};
use tokio::sync::Semaphore;

use crate::domain::limits::Limits;
use crate::http::edge::check_head;
use crate::http::problem::{Code, Problem};

/// How many requests to the admin API are worked on at once: a few people and their scripts.
const IN_FLIGHT_MAX: usize = 16;

/// Places for requests in flight, and the bounds of their heads.
pub(super) struct Places {
    free: Semaphore,
    limits: Limits,
}

impl Places {
    /// All free.
    pub(super) fn of(limits: &Limits) -> Self {
        Self { free: Semaphore::new(IN_FLIGHT_MAX), limits: limits.clone() }
    }
}

/// Lets a request in, if there is room and its head keeps the rules.
pub(super) async fn bounded(State(places): State<Arc<Places>>, request: Request, next: Next) -> Response {
    let Ok(_place) = places.free.try_acquire() else {
        let detail = format!("{IN_FLIGHT_MAX} requests to the admin API are in flight; try again after Retry-After.");
        return Problem::new(Code::Overloaded, detail).retry_after(Duration::from_secs(1)).into_response();
    };
    match check_head(request.headers(), &places.limits) {
        Ok(()) => next.run(request).await,
        Err(problem) => problem.into_response(),
    }
}
