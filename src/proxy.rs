//! The Idempotency-Key proxy: a listener in front of an HTTP API that claims before it forwards, and replays the stored response
//! to repeats. A caller of claims like any other.

mod dialect;
mod exchange;
mod fields;
mod fingerprint;
mod key;
pub mod options;
pub mod principal;
mod route;
pub mod status;
mod stored_response;
pub mod upstream;

use std::collections::BTreeMap;
use std::net::{IpAddr, Ipv4Addr};
use std::sync::Arc;
use std::time::{Duration, Instant};

use axum::body::Body;
use axum::http::{HeaderValue, Method, Request, StatusCode, Uri, header};
use axum::response::{IntoResponse as _, Response};
use bytes::Bytes;
use http_body_util::{BodyExt as _, LengthLimitError, Limited};
use serde_json::json;
use tokio::sync::oneshot;
use tokio::time::timeout;
use tokio_util::task::TaskTracker;

pub use self::dialect::Dialect;
use self::dialect::{Answered, Refusal};
use self::exchange::Exchange;
use self::fields::Client;
use self::key::IdempotencyKey;
use self::options::{KeyRequirement, Network, OnUnknown, ProxyOptions, REFUSE};
use self::route::{Route, Routes, Way};
use self::stored_response::StoredResponse;
use self::upstream::{Failed, Upstream};
use crate::domain::attempt::Entropy;
use crate::domain::canonical::{Canonical, canonicalize};
use crate::domain::hex;
use crate::domain::limits::Limits;
use crate::domain::record::ClaimState;
use crate::domain::terms::Mode;
use crate::gateway::claim::{ClaimAnswer, ClaimCall, Granted};
use crate::gateway::{ClaimView, Failure, Gateway};
use crate::tenants::quota::Purpose;
use crate::tenants::{App, Registry};
use crate::transport::{HttpService, Incoming, PeerAddress, Rejection};
use crate::web::problem::{Code, Problem};
use crate::web::request_id::RequestId;
use crate::web::response::{contain, finish};
use crate::web::{body, head, rejection};

/// Dependencies and settings of the proxy.
pub struct Proxy {
    gateway: Arc<Gateway>,
    registry: Arc<Registry>,
    entropy: Arc<dyn Entropy>,
    limits: Limits,
    routes: Routes,
    trusted_peers: Vec<Network>,
    is_tls: bool,
    /// Names this process in `Via`, so that a loop is noticed.
    via: HeaderValue,
    exchanges: TaskTracker,
}

/// The proxy as the service of a listener.
#[derive(Clone)]
pub struct ProxyService(Arc<Proxy>);

impl Proxy {
    /// Returns the proxy of these options. `None` if they are not valid, which the configuration has excluded.
    pub fn new(
        options: &ProxyOptions,
        gateway: Arc<Gateway>,
        registry: Arc<Registry>,
        entropy: Arc<dyn Entropy>,
        limits: Limits,
    ) -> Option<Self> {
        let upstreams = options.upstreams.iter();
        let upstreams = upstreams.map(|(name, options)| Some((name.as_str(), Arc::new(Upstream::new(options)?))));
        let upstreams = upstreams.collect::<Option<BTreeMap<_, _>>>()?;
        let route = |options: &options::RouteOptions| {
            Route::new(options, upstreams.get(options.upstream.as_str())?.clone()).map(Arc::new)
        };
        let routes = options.routes.iter().map(route).collect::<Option<_>>()?;
        let unmatched = match options.unmatched.as_str() {
            REFUSE => None,
            name => Some(upstreams.get(name)?.clone()),
        };
        let via = format!("1.1 oncegate-{:08x}", entropy.bits() >> 32);
        Some(Self {
            gateway,
            registry,
            limits,
            routes: Routes::new(routes, unmatched),
            trusted_peers: options.trusted_peers.clone(),
            is_tls: false,
            via: HeaderValue::try_from(via).ok()?,
            exchanges: TaskTracker::new(),
            entropy,
        })
    }

    /// Returns the exchanges that are running. Some have no caller any more.
    pub fn exchanges(&self) -> TaskTracker {
        self.exchanges.clone()
    }
}

impl ProxyService {
    /// Returns the service of this proxy.
    pub fn new(proxy: Proxy) -> Self {
        Self(Arc::new(proxy))
    }
}

impl HttpService for ProxyService {
    const STREAMS: bool = true;
    type Connection = ();

    async fn call(&self, request: Request<Incoming>, _connection: &Arc<()>) -> Response {
        let id = RequestId::of(request.headers(), &*self.0.entropy);
        finish(contain(self.0.serve(request)).await, &id)
    }

    fn reject(&self, rejection: Rejection) -> Response {
        rejection::response(rejection, &self.0.limits)
    }
}

/// A request on a protected route, read and identified.
struct Identified {
    app: Arc<App>,
    key: IdempotencyKey,
    principal: [u8; 32],
    body: Bytes,
}

impl Proxy {
    async fn serve(&self, request: Request<Incoming>) -> Response {
        if let Err(problem) = self.check(&request) {
            return problem.into_response();
        }
        let client = self.client(&request);
        let host = host(&request);
        match self.routes.find(&host, request.uri().path(), request.method()) {
            Way::Protected(route) => self.protect(route, request, client).await,
            Way::Unprotected(upstream) => self.forward(upstream, request, client).await,
            Way::None => {
                let detail = "No route of the proxy has this host and path.";
                Problem::new(Code::NotFound, detail).into_response()
            }
        }
    }

    /// Checks what every request must comply with.
    fn check(&self, request: &Request<Incoming>) -> Result<(), Problem> {
        head::check_for_forwarding(request, &self.limits)?;
        if let Some(what) = route::ambiguous(request.uri()) {
            let detail =
                format!("The path has {what}: servers do not agree on what it names. Send the path without it.");
            return Err(Problem::invalid(detail));
        }
        if request.method() == Method::CONNECT {
            return Err(Problem::new(Code::MethodNotAllowed, "The proxy opens no tunnels."));
        }
        let via = self.via.as_bytes();
        let passed =
            |value: &HeaderValue| value.as_bytes().split(|byte| *byte == b',').any(|part| part.trim_ascii() == via);
        if request.headers().get_all(header::VIA).iter().any(passed) {
            let detail = "The request has passed this proxy before: one of its upstreams leads back to it.";
            return Err(Problem::new(Code::Loop, detail));
        }
        Ok(())
    }

    fn client(&self, request: &Request<Incoming>) -> Client {
        let peer = request.extensions().get::<PeerAddress>();
        let address = peer.map_or(IpAddr::V4(Ipv4Addr::UNSPECIFIED), |PeerAddress(peer)| peer.ip());
        let is_trusted = self.trusted_peers.iter().any(|network| network.contains(address));
        Client { address, is_trusted, is_tls: self.is_tls }
    }

    /// Forwards a request without protection. Bodies are streamed both ways.
    async fn forward(&self, upstream: &Upstream, request: Request<Incoming>, client: Client) -> Response {
        let (mut parts, body) = request.into_parts();
        fields::to_upstream(&mut parts.headers, client, &self.via);
        // The length is that of the body as it is read, whatever the fields say.
        parts.headers.remove(header::CONTENT_LENGTH);
        let request = Request::from_parts(parts, Body::new(body));
        let failed = match timeout(upstream.timeout, upstream.forward(request)).await {
            Ok(Ok(response)) => {
                let mut response = response.map(Body::new);
                fields::to_caller(response.headers_mut(), &self.via);
                return response;
            }
            Ok(Err(Failed::NotConnected(why) | Failed::Broken(why))) => {
                tracing::warn!(reason = why, "A request was not forwarded");
                Problem::new(Code::UpstreamUnavailable, "The upstream cannot be reached, or broke off.")
            }
            Err(_late) => Problem::new(Code::UpstreamTimeout, "The upstream did not answer in time."),
        };
        failed.into_response()
    }

    /// Serves a request on a protected route.
    async fn protect(&self, route: &Arc<Route>, request: Request<Incoming>, client: Client) -> Response {
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
        let claimed_at = Instant::now();
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
            parts.headers.insert(crate::web::response::DEGRADED, HeaderValue::from_static(degraded.name()));
        }
        let exchange = Exchange {
            gateway: self.gateway.clone(),
            entropy: self.entropy.clone(),
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
        call: &(dyn Fn(Option<crate::domain::attempt::Nonce>) -> ClaimCall + Sync),
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
        return Err(Refusal::NotStored { status: StatusCode::OK, headers: axum::http::HeaderMap::new() });
    };
    match stored.replay() {
        Some(response) => Ok((Answered::Replayed, response)),
        None => Err(Refusal::NotStored { status: stored.status(), headers: stored.headers() }),
    }
}

fn problem(failure: Failure) -> Refusal {
    Refusal::Problem(failure.into())
}

/// Returns the host of a request, without its port.
fn host(request: &Request<Incoming>) -> String {
    let field = request.headers().get(header::HOST).and_then(|host| host.to_str().ok()?.parse::<Uri>().ok());
    let named = request.uri().host().map(str::to_owned);
    named.or_else(|| Some(field?.host()?.to_owned())).unwrap_or_default()
}
