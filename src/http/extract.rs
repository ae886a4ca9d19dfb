//! What handlers are given besides the body: who calls, and which claim the path names. Also what the edge is told of
//! who calls.

use std::sync::{Arc, OnceLock};

use axum::extract::{FromRequestParts, Path};
use axum::http::header;
use axum::http::request::Parts;

use super::Api;
use super::problem::Problem;
use crate::domain::global_id::GlobalId;
use crate::telemetry::metrics::Endpoint;
use crate::tenants::App;
use crate::tenants::quota::{Place, Purpose};

/// A request on its way, as the edge and the handler both know it: what it asks for, and, once that is proved, for whom.
#[derive(Clone)]
pub struct Visit {
    purpose: Purpose,
    app: Arc<OnceLock<Arc<App>>>,
    /// Kept here, so that it is given back when the edge knows the answer, whatever becomes of the handler.
    place: Arc<OnceLock<Place>>,
}

impl Visit {
    /// A request at this endpoint, of nobody yet.
    pub fn at(endpoint: Endpoint) -> Self {
        let purpose = match endpoint {
            Endpoint::Outcome | Endpoint::Renewal | Endpoint::OutcomeBatch => Purpose::Settle,
            Endpoint::Claim | Endpoint::ClaimBatch | Endpoint::Inspect | Endpoint::GlobalId | Endpoint::Other => {
                Purpose::Ask
            }
        };
        Self { purpose, app: Arc::default(), place: Arc::default() }
    }

    /// What the request is for.
    pub fn purpose(&self) -> Purpose {
        self.purpose
    }

    /// The app that asks, if it has proved itself.
    pub fn app(&self) -> Option<&Arc<App>> {
        self.app.get()
    }

    /// Draws this request of the app's rates.
    pub fn draw(&self, api: &Api) -> Result<(), Problem> {
        let drawn = self.app().map_or(Ok(()), |app| api.gateway.draw_request(app, self.purpose));
        drawn.map_err(Problem::from)
    }
}

/// The app that the credential proves. It is taken from there alone. It takes a place among the app's requests in flight,
/// which nobody does who has not proved to be of the app. Of its rates a request is drawn before the body is read, or by
/// the handler where there is none.
pub struct Caller(pub Arc<App>);

impl FromRequestParts<Arc<Api>> for Caller {
    type Rejection = Problem;

    async fn from_request_parts(parts: &mut Parts, api: &Arc<Api>) -> Result<Self, Problem> {
        let authorization = parts.headers.get(header::AUTHORIZATION).and_then(|value| value.to_str().ok());
        let app = api.registry.authenticate(authorization, api.clock.wall())?;
        let visit = parts.extensions.get::<Visit>().cloned().unwrap_or_else(|| Visit::at(Endpoint::Other));
        let _first = visit.app.set(app.clone());
        let place = api.gateway.enter(&app, visit.purpose)?;
        let _first = visit.place.set(place);
        Ok(Self(app))
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
