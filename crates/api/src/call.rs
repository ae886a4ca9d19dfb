//! The call of an operation: what its handler gets from the pipeline.

use std::sync::Arc;

use axum::http::{HeaderMap, HeaderValue, header};
use oncegate_gateway::tenants::{App, AuthError};
use oncegate_web::body::JsonBytes;
use oncegate_web::problem::{Code, Problem};
use oncegate_web::request_id::RequestId;
use serde::Deserialize;

use super::{Api, ApiConnection};

/// A call of an operation: authenticated, admitted and charged. Only the pipeline creates one.
pub(super) struct ApiCall<'a> {
    pub(super) api: &'a Api,
    /// The app whose credential the request has.
    pub(super) app: &'a Arc<App>,
    pub(super) request_id: &'a RequestId,
    pub(super) headers: &'a HeaderMap,
    /// The body, unless the handler has dropped it.
    pub(super) body: JsonBytes,
    pub(super) waiting: Waiting<'a>,
}

/// Services that a call needs for waiting.
#[derive(Clone, Copy)]
pub(super) struct Waiting<'a> {
    pub(super) connection: &'a ApiConnection,
    /// Releases the permits of the request.
    pub(super) release: &'a (dyn Fn() + Sync),
}

impl ApiCall<'_> {
    /// Reads the body as this type.
    pub(super) fn parse<'body, T: Deserialize<'body>>(&'body self) -> Result<T, Problem> {
        self.body.parse()
    }

    /// Frees the memory of the body. A call must do it before it waits: then it has no permit that bounds how many bodies exist.
    pub(super) fn drop_body(&mut self) {
        self.body = JsonBytes::default();
    }

    /// Resolves when the caller has hung up, its credential is no longer valid, or its app has moved to another chain, where what
    /// it waits for is not. From its first poll on, the call waits: it has no permits any more.
    pub(super) async fn wait_ended(&self) {
        let Waiting { connection, release } = self.waiting;
        release();
        tokio::select! {
            () = connection.caller.gone() => {}
            () = self.api.registry.until(|| self.admit_again().is_err()) => {}
        }
    }

    /// Checks after a wait whether the call may go on: its credential may have been revoked in the meantime, or its app moved.
    pub(super) fn admit_again(&self) -> Result<(), Problem> {
        let app = authenticate(self.api, self.headers, self.waiting.connection)?;
        if app.chain == self.app.chain { Ok(()) } else { Err(moved()) }
    }
}

/// Returns the problem of a call that waited while its app moved to another chain.
fn moved() -> Problem {
    let detail = "The app has moved to another chain of engines while this call waited. Send it again.";
    Problem::new(Code::StoreUnavailable, detail).retry_soon()
}

/// Returns the app of a request's credential.
pub(super) fn authenticate(api: &Api, headers: &HeaderMap, connection: &ApiConnection) -> Result<Arc<App>, AuthError> {
    let authorization = headers.get(header::AUTHORIZATION).map(HeaderValue::as_bytes);
    api.registry.authenticate(authorization, &connection.credential, api.clock.wall())
}
