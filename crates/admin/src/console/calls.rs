//! Calls of the admin API, made in process with the operator of a session: same checks, same roles, same audit trail.

use std::sync::Arc;
use std::time::Duration;

use axum::Router;
use axum::body::{Body, Bytes, to_bytes};
use axum::http::{Method, Request, StatusCode, header};
use oncegate_web::problem::{Code, Problem};
use serde::de::DeserializeOwned;
use tower::Service as _;

use crate::Admin;
use crate::auth::Operator;

/// Time for one region of a page. A store that hangs is probed for a second.
const REGION_TIMEOUT: Duration = Duration::from_millis(1800);

/// Largest answer: a page of claims with long contents.
const ANSWER_BYTES_MAX: usize = 16 << 20;

/// The admin API without its authentication.
pub(super) struct Calls {
    routes: Router,
}

impl Calls {
    /// Returns the calls of these routes. Their requests need an [`Operator`].
    pub(super) fn new(routes: Router<Arc<Admin>>, admin: Arc<Admin>) -> Self {
        Self { routes: routes.with_state(admin) }
    }

    /// Returns the answer to a read, in time for its region of a page.
    pub(super) async fn get<T: DeserializeOwned>(&self, operator: &Operator, path: &str) -> Result<T, Problem> {
        read(path, &in_time(self.call(operator, Method::GET, path, Body::empty())).await?)
    }

    /// Returns the answer to a call that looks something up, in time for its region of a page.
    pub(super) async fn look_up<T: DeserializeOwned>(
        &self,
        operator: &Operator,
        path: &str,
        body: String,
    ) -> Result<T, Problem> {
        read(path, &in_time(self.call(operator, Method::POST, path, Body::from(body))).await?)
    }

    /// Makes a change, and returns its answer.
    pub(super) async fn change<T: DeserializeOwned>(
        &self,
        operator: &Operator,
        path: &str,
        body: String,
    ) -> Result<T, Problem> {
        read(path, &self.call(operator, Method::POST, path, Body::from(body)).await?)
    }

    /// Returns the bytes of an answer. It does not depend on what is read from them, so that the program has it once.
    async fn call(&self, operator: &Operator, method: Method, path: &str, body: Body) -> Result<Bytes, Problem> {
        let request = Request::builder().method(method).uri(path).header(header::CONTENT_TYPE, "application/json");
        let request = request.extension(operator.clone()).body(body);
        let request =
            request.map_err(|_| Problem::invalid("The address has a part that no call of the admin API has."))?;
        let Ok(mut response) = self.routes.clone().call(request).await;
        if let Some(mut problem) = response.extensions_mut().remove::<Problem>() {
            problem.tell_reason();
            return Err(problem);
        }
        if matches!(response.status(), StatusCode::NOT_FOUND | StatusCode::METHOD_NOT_ALLOWED) {
            return Err(Problem::new(Code::NotFound, "The admin API has no such call that only reads."));
        }
        to_bytes(response.into_body(), ANSWER_BYTES_MAX).await.map_err(|_| unread())
    }
}

fn unread() -> Problem {
    Problem::new(Code::Internal, "An answer of the admin API could not be read; report the request_id.")
}

fn read<T: DeserializeOwned>(path: &str, answer: &[u8]) -> Result<T, Problem> {
    serde_json::from_slice(answer).map_err(|error| wrong_form(path, &error))
}

fn wrong_form(path: &str, error: &serde_json::Error) -> Problem {
    tracing::error!(error = %error, path, "An answer of the admin API does not have the form that the console expects");
    unread()
}

async fn in_time(call: impl Future<Output = Result<Bytes, Problem>>) -> Result<Bytes, Problem> {
    tokio::time::timeout(REGION_TIMEOUT, call).await.unwrap_or_else(|_| {
        let detail = format!("There was no answer within {} ms.", REGION_TIMEOUT.as_millis());
        Err(Problem::new(Code::StoreUnavailable, detail))
    })
}
