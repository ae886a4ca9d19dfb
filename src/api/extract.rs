//! What handlers are given besides the body: who calls, and which claim the path names. Also what the edge is told of
//! who calls.

use std::sync::{Arc, OnceLock};

use axum::Extension;
use axum::extract::{FromRequest, FromRequestParts, Path, Request};
use axum::http::request::Parts;
use axum::http::{HeaderMap, HeaderValue, header};

use super::{Api, Connection};
use crate::domain::global_id::GlobalId;
use crate::telemetry::metrics::Endpoint;
use crate::tenants::App;
use crate::tenants::quota::{Permit, Purpose};
use crate::web::body::{JsonBytes, RequestBody};
use crate::web::problem::{Code, Problem};

/// A request on its way, as the edge and the handler both know it: what it asks for, and, once that is proved, for whom.
#[derive(Clone)]
pub struct Visit(Arc<Known>);

/// What is known of a request.
struct Known {
    purpose: Purpose,
    connection: Arc<Connection>,
    app: OnceLock<Arc<App>>,
    /// Kept here, so that it is given back when the edge knows the answer, whatever becomes of the handler.
    place: OnceLock<Permit>,
}

impl Visit {
    /// A request at this endpoint, of nobody yet, over a connection whose requests have proved this so far.
    pub fn at(endpoint: Endpoint, connection: Arc<Connection>) -> Self {
        let purpose = match endpoint {
            Endpoint::Outcome | Endpoint::Renewal | Endpoint::OutcomeBatch => Purpose::Settle,
            Endpoint::Claim | Endpoint::ClaimBatch | Endpoint::Inspect | Endpoint::GlobalId | Endpoint::Other => {
                Purpose::New
            }
        };
        Self(Arc::new(Known { purpose, connection, app: OnceLock::new(), place: OnceLock::new() }))
    }

    /// What the request is for.
    pub fn purpose(&self) -> Purpose {
        self.0.purpose
    }

    /// The app that asks, if it has proved itself.
    pub fn app(&self) -> Option<&Arc<App>> {
        self.0.app.get()
    }

    /// Lets in whom the credential proves, and takes a place among the app's requests in flight.
    ///
    /// # Errors
    /// That it proves nobody, or that the app has no place left.
    pub fn enter(&self, api: &Api, headers: &HeaderMap) -> Result<&Arc<App>, Problem> {
        let authorization = headers.get(header::AUTHORIZATION).map(HeaderValue::as_bytes);
        let proved = api.registry.authenticate(authorization, &self.0.connection.credential, api.clock.wall())?;
        let app = self.0.app.get_or_init(|| proved);
        let place = api.gateway.acquire_permit(app, self.0.purpose)?;
        let _first = self.0.place.set(place);
        Ok(app)
    }

    /// Draws this request of the app's rates.
    pub fn draw(&self, api: &Api) -> Result<(), Problem> {
        let drawn = self.app().map_or(Ok(()), |app| api.gateway.charge_request(app, self.purpose()));
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
        let Extension(visit) = Extension::<Visit>::from_request_parts(parts, api)
            .await
            .map_err(|_| Problem::new(Code::Internal, "The request came past the edge; report the request_id."))?;
        visit.enter(api, &parts.headers).cloned().map(Self)
    }
}

impl FromRequest<Arc<Api>> for JsonBytes {
    type Rejection = Problem;

    async fn from_request(request: Request, api: &Arc<Api>) -> Result<Self, Problem> {
        let visit = request.extensions().get::<Visit>().cloned();
        let (parts, body) = request.into_parts();
        match visit {
            Some(visit) => Self::of_visit(&visit, &parts.headers, body, api).await,
            None => Self::receive(&parts.headers, body, &api.limits).await,
        }
    }
}

impl JsonBytes {
    /// Draws a request of the app's rates, and reads its body.
    ///
    /// # Errors
    /// That the rates are used up, and what [`JsonBytes::receive`] refuses.
    pub async fn of_visit(
        visit: &Visit,
        headers: &HeaderMap,
        body: impl RequestBody,
        api: &Api,
    ) -> Result<Self, Problem> {
        visit.draw(api)?;
        Self::receive(headers, body, &api.limits).await
    }
}

/// The global ID in the path.
pub struct ClaimId(pub GlobalId);

impl ClaimId {
    /// The claim that a path names in plain text: the third of its segments.
    pub(super) fn of_path(path: &str) -> Option<Self> {
        path.split('/').nth(3)?.parse().ok().map(Self)
    }
}

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
