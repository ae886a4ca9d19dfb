//! What handlers are given besides the body: who calls, and which claim the path names.

use std::sync::Arc;

use axum::extract::{FromRequestParts, Path};
use axum::http::header;
use axum::http::request::Parts;

use super::Api;
use super::problem::Problem;
use crate::domain::global_id::GlobalId;
use crate::tenants::App;

/// The app that the credential proves. It is taken from there alone.
pub struct Caller(pub Arc<App>);

impl FromRequestParts<Arc<Api>> for Caller {
    type Rejection = Problem;

    async fn from_request_parts(parts: &mut Parts, api: &Arc<Api>) -> Result<Self, Problem> {
        let authorization = parts.headers.get(header::AUTHORIZATION).and_then(|value| value.to_str().ok());
        Ok(Self(api.registry.authenticate(authorization, api.clock.wall())?))
    }
}

/// The global ID in the path.
pub struct ClaimId(pub GlobalId);

impl FromRequestParts<Arc<Api>> for ClaimId {
    type Rejection = Problem;

    async fn from_request_parts(parts: &mut Parts, api: &Arc<Api>) -> Result<Self, Problem> {
        let text = Path::<String>::from_request_parts(parts, api).await;
        let global_id = text.ok().and_then(|Path(text)| text.parse().ok());
        global_id.map(Self).ok_or_else(|| {
            Problem::invalid(
                "The path must name a claim by its global ID: the 32 lowercase hex digits of the 201 answer.",
            )
        })
    }
}
