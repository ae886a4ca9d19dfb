//! The call of an operation: what its handler gets from the pipeline.

use std::sync::Arc;

use axum::http::{HeaderMap, HeaderValue, header};
use oncegate_gateway::tenants::{App, AuthError};
use oncegate_web::body::JsonBytes;
use oncegate_web::problem::Problem;
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
    pub(super) body: &'a JsonBytes,
    pub(super) waiting: Waiting<'a>,
}

/// Services that a call needs for waiting.
#[derive(Clone, Copy)]
pub(super) struct Waiting<'a> {
    pub(super) connection: &'a ApiConnection,
    /// Releases the permits of the request.
    pub(super) release: &'a (dyn Fn() + Sync),
}

impl<'a> ApiCall<'a> {
    /// Reads the body as this type.
    pub(super) fn parse<T: Deserialize<'a>>(&self) -> Result<T, Problem> {
        self.body.parse()
    }

    /// Resolves when the caller has hung up, or its credential is no longer valid. From its first poll on, the call waits: it has
    /// no permits any more.
    pub(super) async fn caller_gone(&self) {
        let Waiting { connection, release } = self.waiting;
        release();
        tokio::select! {
            () = connection.caller.gone() => {}
            () = self.api.registry.until(|| self.authenticate_again().is_err()) => {}
        }
    }

    /// Authenticates the caller again after a wait: its credential may have been revoked in the meantime.
    pub(super) fn authenticate_again(&self) -> Result<(), AuthError> {
        authenticate(self.api, self.headers, self.waiting.connection).map(drop)
    }
}

/// Returns the app of a request's credential.
pub(super) fn authenticate(api: &Api, headers: &HeaderMap, connection: &ApiConnection) -> Result<Arc<App>, AuthError> {
    let authorization = headers.get(header::AUTHORIZATION).map(HeaderValue::as_bytes);
    api.registry.authenticate(authorization, &connection.credential, api.clock.wall())
}
