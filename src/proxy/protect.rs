//! Requests on protected routes: identifies them, claims their keys, and forwards them or replays what is stored.

use std::sync::Arc;
use std::time::Duration;

use axum::http::{HeaderMap, HeaderValue, Request, StatusCode, header};
use axum::response::{IntoResponse as _, Response};
use bytes::Bytes;
use http_body_util::{BodyExt as _, LengthLimitError, Limited};
use serde_json::json;
use tokio::sync::oneshot;
use tokio::time::timeout;

use super::Proxy;
use super::dialect::{Answered, Refusal};
use super::exchange::Exchange;
use super::fields::{self, Client};
use super::key::IdempotencyKey;
use super::options::{KeyRequirement, OnUnknown};
use super::route::Route;
use super::stored_response::StoredResponse;
use super::{fingerprint, principal};
use crate::domain::attempt::Nonce;
use crate::domain::canonical::{Canonical, canonicalize};
use crate::domain::hex;
use crate::domain::record::ClaimState;
use crate::domain::terms::Mode;
use crate::gateway::claim::{ClaimAnswer, ClaimCall, Granted};
use crate::gateway::{ClaimView, Failure};
use crate::tenants::App;
use crate::tenants::quota::Purpose;
use crate::transport::Incoming;
use crate::web::body;
use crate::web::problem::{Code, Problem};
use crate::web::response::DEGRADED;

/// A request on a protected route, read and identified.
struct Identified {
    app: Arc<App>,
    key: IdempotencyKey,
    principal: [u8; 32],
    body: Bytes,
}

impl Proxy {
    /// Serves a request on a protected route.
    pub(super) async fn protect(&self, route: &Arc<Route>, request: Request<Incoming>, client: Client) -> Response {
        let Some(app) = self.registry.app(route.app.as_ref()).filter(|app| !app.disabled) else {
            let detail = "The app of this route is not known to the gateway, or disabled.";
            route.metrics.answered(Answered::Unavailable);
            return Problem::new(Code::StoreUnavailable, detail).retry_after(Duration::from_secs(1)).into_response();
        };
        let is_observed = app.terms_of(&route.operation).mode == Mode::Observe;
        let (key, principal) = match identify(route, &request, client) {
            Ok(Some(identity)) => identity,
            Ok(None) => {
                route.metrics.answered(Answered::Unprotected);
                return self.forward(&route.upstream, request, client).await;
            }
            Err(refusal) => {
                route.metrics.answered(refusal.label());
                if is_observed {
                    return self.forward(&route.upstream, request, client).await;
                }
                return route.dialect.refuse(refusal);
            }
        };
        let (parts, body) = request.into_parts();
        let answered = async {
            let body = self.read(body).await.map_err(Refusal::Problem)?;
            let request = Request::from_parts(parts, body.clone());
            self.answer(route, request, Identified { app, key, principal, body }, client).await
        };
        match answered.await {
            Ok((answered, response)) => {
                route.metrics.answered(answered);
                response
            }
            Err(refusal) => {
                route.metrics.answered(refusal.label());
                route.dialect.refuse(refusal)
            }
        }
    }

    /// Claims the key, and forwards the request or replays what is stored.
    async fn answer(
        &self,
        route: &Arc<Route>,
        request: Request<Bytes>,
        of: Identified,
        client: Client,
    ) -> Result<(Answered, Response), Refusal> {
        let app = &of.app;
        let permit = self.gateway.acquire_permit(app, Purpose::New).map_err(problem)?;
        self.gateway.charge_request(app, Purpose::New).map_err(problem)?;
        let contents = contents(&of).ok_or_else(|| Refusal::Key("the key has no canonical form".to_owned()))?;
        let fingerprint =
            fingerprint::of(&route.fingerprint, request.method(), request.uri(), request.headers(), &of.body);
        let claim = |take_over, nonce| ClaimCall {
            operation: route.operation.clone(),
            contents: contents.clone(),
            fingerprint: fingerprint.clone(),
            nonce,
            lease: None,
            retention: None,
            take_over,
        };
        let claimed_at = self.clock.monotonic();
        let (mut is_repeat, mut answer) = (false, self.claim(app, &|nonce| claim(false, nonce)).await?);
        if route.on_unknown == OnUnknown::Forward
            && matches!(&answer, ClaimAnswer::Duplicate(found) if found.claim.record.state == ClaimState::Unknown)
        {
            is_repeat = true;
            answer = self.claim(app, &|nonce| claim(true, nonce)).await?;
        }
        let granted = match answer {
            ClaimAnswer::Granted(granted) => granted,
            ClaimAnswer::Duplicate(found) => return replay(&found),
            ClaimAnswer::Mismatch(..) => return Err(Refusal::Mismatch),
        };
        let Granted { global_id, attempt, lease_ms, degraded, .. } = granted;
        let (mut parts, body) = request.into_parts();
        fields::to_upstream(&mut parts.headers, client, &self.via);
        parts.headers.remove(header::CONTENT_LENGTH);
        // A replay must fit every caller.
        parts.headers.insert(header::ACCEPT_ENCODING, HeaderValue::from_static("identity"));
        parts.headers.remove(header::RANGE);
        if is_repeat {
            parts.headers.insert(fields::REPEAT, HeaderValue::from_static("unknown"));
        }
        if let Some(degraded) = degraded {
            parts.headers.insert(DEGRADED, HeaderValue::from_static(degraded.name()));
        }
        let exchange = Exchange {
            gateway: self.gateway.clone(),
            entropy: self.entropy.clone(),
            clock: self.clock.clone(),
            route: route.clone(),
            app: of.app,
            global_id,
            attempt,
            contents,
            degraded,
            lease_end: claimed_at + Duration::from_millis(lease_ms),
            request: Request::from_parts(parts, body),
            via: self.via.clone(),
            _permit: permit,
        };
        let (reply, response) = oneshot::channel();
        self.exchanges.spawn(exchange.run(reply));
        let response = response.await.unwrap_or_else(|_| {
            let detail = "The exchange with the upstream took too long; whether it did what was asked is not known.";
            Err(Refusal::Problem(Problem::new(Code::UpstreamTimeout, detail)))
        })?;
        Ok((Answered::Forwarded, response))
    }

    /// Claims. A call that may have taken effect is repeated once, with the same nonce.
    async fn claim(
        &self,
        app: &App,
        call: &(dyn Fn(Option<Nonce>) -> ClaimCall + Sync),
    ) -> Result<ClaimAnswer, Refusal> {
        let answer = match self.gateway.claim(app, call(None)).await {
            Err(Failure::OutcomeUnknown(Some(nonce))) => self.gateway.claim(app, call(Some(nonce))).await,
            answer => answer,
        };
        answer.map_err(problem)
    }

    /// Reads the whole body of a request.
    async fn read(&self, body: Incoming) -> Result<Bytes, Problem> {
        let bytes_max = self.limits.body_bytes;
        let read = timeout(self.limits.body_read_timeout.0, Limited::new(body, bytes_max).collect()).await;
        match read {
            Ok(Ok(read)) => Ok(read.to_bytes()),
            Ok(Err(error)) if error.is::<LengthLimitError>() => Err(body::too_large("The body", bytes_max)),
            Ok(Err(_)) => Err(Problem::invalid("The body broke off; send as many bytes as the head says.")),
            Err(_late) => {
                let within = self.limits.body_read_timeout;
                Err(Problem::invalid(format!("The body did not arrive within {within}; send it in one go.")))
            }
        }
    }
}

/// Returns the key and the principal of a request; `None` if it needs no key and has none.
fn identify(
    route: &Route,
    request: &Request<Incoming>,
    client: Client,
) -> Result<Option<(IdempotencyKey, [u8; 32])>, Refusal> {
    let headers = request.headers();
    let key = IdempotencyKey::of(headers, &route.key_headers).map_err(|why| Refusal::Key(why.to_string()))?;
    let Some(key) = key else {
        if route.key == KeyRequirement::Optional {
            return Ok(None);
        }
        let name = route.key_headers.first().map_or("idempotency-key", |name| name.as_str());
        return Err(Refusal::Key(format!(
            "the field `{name}` is missing; send a fresh random value for each operation, such as a UUID, and the same one \
             with each repeat"
        )));
    };
    let is_grpc = |value: &HeaderValue| value.as_bytes().starts_with(b"application/grpc");
    if headers.contains_key(header::UPGRADE) || headers.get(header::CONTENT_TYPE).is_some_and(is_grpc) {
        let detail = "Upgrades and gRPC cannot be replayed; send them without a key, on a path that is not protected.";
        return Err(Refusal::Problem(Problem::new(Code::NotSupported, detail)));
    }
    let principal = principal::of(&route.principal, headers, client.is_trusted);
    Ok(Some((key, principal.map_err(|why| Refusal::Principal(why.to_string()))?)))
}

/// Returns the contents of the claim of a key: the key and the digest of its principal.
fn contents(of: &Identified) -> Option<Canonical> {
    let mut digest = [0; 64];
    hex::write(&of.principal, &mut digest);
    let contents = json!({ "key": of.key.as_str(), "principal": String::from_utf8_lossy(&digest) });
    canonicalize(contents.to_string().as_bytes()).ok()
}

/// Returns the answer to a repeat.
fn replay(found: &ClaimView) -> Result<(Answered, Response), Refusal> {
    let record = &found.claim.record;
    match record.state {
        ClaimState::InProgress => return Err(Refusal::InProgress),
        ClaimState::Unknown => return Err(Refusal::Unknown),
        ClaimState::Succeeded => {}
    }
    let Some(stored) = record.result.as_deref().and_then(StoredResponse::decode) else {
        return Err(Refusal::NotStored { status: StatusCode::OK, headers: HeaderMap::new() });
    };
    match stored.replay() {
        Some(response) => Ok((Answered::Replayed, response)),
        None => Err(Refusal::NotStored { status: stored.status(), headers: stored.headers() }),
    }
}

fn problem(failure: Failure) -> Refusal {
    Refusal::Problem(failure.into())
}
