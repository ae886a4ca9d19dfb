//! The Idempotency-Key proxy: a listener in front of an HTTP API that claims before it forwards, and replays the stored response
//! to repeats. A caller of claims like any other.

mod app;
mod authorizer;
mod body;
mod caller;
mod cors;
mod destination;
mod dialect;
mod encryption;
mod exchange;
pub mod explain;
mod fields;
mod fingerprint;
#[cfg(any(test, fuzzing))]
pub mod fuzzing;
mod gate;
mod hourly;
mod identify;
pub mod identities;
mod key;
pub mod options;
mod pace;
mod peer_fields;
mod principal;
mod principal_source;
mod protect;
mod receive;
mod repeat;
mod reply;
mod route;
mod shares;
mod status;
mod stored_response;
mod target;
mod token;
mod torn;
mod upload;
mod upstream;
mod websocket;

use std::net::{IpAddr, Ipv4Addr};
use std::pin::pin;
use std::sync::Arc;
use std::sync::atomic::AtomicU64;

use axum::body::{Body, HttpBody as _};
use axum::http::{Extensions, HeaderValue, Method, Request, StatusCode, Version, header};
use axum::response::{IntoResponse as _, Response};
use futures_util::FutureExt as _;
use futures_util::future::join_all;
use oncegate_core::attempt::{Attempt, Entropy};
use oncegate_core::canonical::Canonical;
use oncegate_core::clock::Clock;
use oncegate_core::global_id::GlobalId;
use oncegate_core::limits::Limits;
use oncegate_gateway::Gateway;
use oncegate_gateway::tenants::Registry;
use oncegate_telemetry::metrics::proxy::{Bound, BoundMetrics};
use oncegate_transport::{Buffered, CallerWatch, HttpService, Incoming, Peer, Rejection};
use oncegate_web::problem::{Code, Problem, ProblemBase};
use oncegate_web::recent::Recent;
use oncegate_web::request_id::RequestId;
use oncegate_web::response::{contain, finish};
use oncegate_web::{head, rejection};
use tokio_util::task::TaskTracker;

use self::body::{Arriving, Counted, Timed, response_within};
use self::cors::{CrossOrigin, FromUpstream};
use self::destination::Destination;
pub use self::dialect::Dialect;
use self::dialect::Refusal;
use self::encryption::{EncryptionKeys, Owner};
use self::fields::Client;
use self::gate::{Passage, Unprotected};
use self::key::IdempotencyKey;
use self::options::ProxyOptions;
use self::peer_fields::PeerFields;
use self::route::{Route, Routes};
use self::target::Target;
use self::token::Issuers;
use self::upstream::{Always, BUFFER_BYTES, Failed, names};

/// Parts of the program that the proxy uses.
pub struct Dependencies {
    /// Use cases of claims.
    pub gateway: Arc<Gateway>,
    /// Apps.
    pub registry: Arc<Registry>,
    /// Source of randomness.
    pub entropy: Arc<dyn Entropy>,
    /// Clock.
    pub clock: Arc<dyn Clock>,
    /// Limits for all apps.
    pub limits: Limits,
    /// Base of the types of problems.
    pub problem_base: ProblemBase,
    /// Recent requests, for operators.
    pub recent: Arc<Recent>,
}

/// The proxy.
pub struct Proxy {
    gateway: Arc<Gateway>,
    registry: Arc<Registry>,
    entropy: Arc<dyn Entropy>,
    clock: Arc<dyn Clock>,
    limits: Limits,
    problem_base: ProblemBase,
    recent: Arc<Recent>,
    routes: Routes,
    peer_fields: Arc<PeerFields>,
    cors_origins: Vec<HeaderValue>,
    /// Keys of stored responses.
    encryption: Arc<EncryptionKeys>,
    issuers: Arc<Issuers>,
    is_tls: bool,
    /// Names this process in `Via`, so that a loop is noticed.
    via: HeaderValue,
    unprotected: Unprotected,
    exchanges: TaskTracker,
    /// Counts bodies that arrive too slowly.
    body_rate: BoundMetrics,
}

/// The proxy as the service of a listener.
#[derive(Clone)]
pub struct ProxyService(Arc<Proxy>);

/// Returns a function that erases stored responses and leaves a tombstone of each. Without its keys no readable data
/// remains.
pub fn eraser(options: &ProxyOptions) -> impl Fn(&str, GlobalId, &Attempt) -> Box<str> + Send + Sync + use<> {
    let keys = options.encryption.read().unwrap_or_default();
    move |result, global_id, attempt| stored_response::forget(result, &keys, Owner { global_id, attempt })
}

/// Returns the key that an operator has named as a caller sends it: bare, or as a string of structured fields. `None` if it is no key.
pub fn read_key(text: &str) -> Option<Box<str>> {
    IdempotencyKey::named(text).map(|key| key.as_str().into())
}

/// Returns the contents of the claim of a key and the digest of its caller. `None` if it is no key.
pub fn claim_contents(key: &str, principal: &[u8; 32]) -> Option<Canonical> {
    identify::contents(&IdempotencyKey::verbatim(key)?, principal)
}

impl Proxy {
    /// Returns the proxy of these options, whose listener speaks TLS or not. `None` if they are not valid, which the configuration has excluded.
    pub fn new(options: &ProxyOptions, dependencies: Dependencies, is_tls: bool) -> Option<Self> {
        let Dependencies { gateway, registry, entropy, clock, limits, problem_base, recent } = dependencies;
        for warning in options.encryption.warnings() {
            tracing::warn!("{warning}");
        }
        let via = format!("1.1 oncegate-{:08x}", entropy.bits() >> 32);
        Some(Self {
            gateway,
            registry,
            limits,
            problem_base,
            recent,
            routes: routes(options, &clock)?,
            peer_fields: Arc::new(PeerFields::new(options)?),
            cors_origins: options.cors_origins().ok()?,
            encryption: Arc::new(options.encryption.read().ok()?),
            issuers: Arc::new(Issuers::new(&options.issuers, clock.clone()).ok()?),
            is_tls,
            via: HeaderValue::try_from(via).ok()?,
            unprotected: Unprotected::default(),
            exchanges: TaskTracker::new(),
            body_rate: BoundMetrics::new(Bound::BodyRate),
            entropy,
            clock,
        })
    }

    /// Keeps the keys of tokens up to date.
    pub fn follow_keys(&self) -> impl Future<Output = ()> + Send + use<> {
        self.issuers.clone().follow()
    }

    /// Keeps the addresses of upstreams up to date.
    pub fn follow_names(&self) -> impl Future<Output = ()> + Send + use<> {
        let upstreams = self.routes.upstreams().into_iter();
        join_all(upstreams.map(|upstream| names::follow(upstream, names::INTERVAL, names::lookup))).map(drop)
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
    type Connection = CallerWatch;

    async fn call(&self, request: Request<Incoming>, caller: &Arc<CallerWatch>) -> Response {
        let id = RequestId::of(request.headers(), &*self.0.entropy);
        let cross_origin = CrossOrigin::of(&request, &self.0.cors_origins);
        let mut request = request;
        request.extensions_mut().insert(id.clone());
        let client = self.0.client(&request);
        let (mut response, key_headers) = match self.0.receive(&mut request, client) {
            Ok(target) => {
                let key_headers = self.0.routes.key_headers(&target.host, &target.path);
                (contain(self.0.serve(request, target, client, caller)).await, key_headers)
            }
            Err(problem) => (problem.into_response(), &[][..]),
        };
        // A response has the ID of the server that made it.
        if response.extensions().get::<Problem>().is_some() {
            response = finish(response, &id, &self.0.problem_base);
        }
        keep_from_caches(&mut response);
        if let Some(cross_origin) = cross_origin {
            cross_origin.allow(&mut response, key_headers);
        }
        response
    }

    fn reject(&self, rejection: Rejection) -> Response {
        let mut response = rejection::response(rejection, &self.0.limits, &self.0.problem_base);
        keep_from_caches(&mut response);
        response
    }
}

impl Proxy {
    /// Checks the head of a request, removes the fields that its peer must not send, and returns its target.
    fn receive(&self, request: &mut Request<Incoming>, client: Client) -> Result<Target, Problem> {
        self.check(request)?;
        if !client.is_trusted {
            self.peer_fields.report(request.headers(), client.address, self.clock.monotonic());
            self.peer_fields.remove(request.headers_mut());
        }
        Target::take(request)
    }

    async fn serve(
        self: &Arc<Self>,
        mut request: Request<Incoming>,
        target: Target,
        client: Client,
        caller: &CallerWatch,
    ) -> Response {
        // Every other offer to upgrade is ignored: after a switch, requests could pass that no route has seen.
        if websocket::is_offered(&request) {
            let accept = match *request.method() {
                Method::GET => match websocket::accept_of(request.headers()) {
                    Ok(accept) => Some(accept),
                    Err(problem) => return problem.into_response(),
                },
                _ => None,
            };
            request.extensions_mut().insert(WebSocket { accept });
        }
        match self.admit(&target, request.method(), request.headers()) {
            Passage::Protected(route) => self.protect(route, request, target, client, caller).await,
            Passage::Unprotected(upstream) => self.forward(upstream, request.map(Arriving::from), client).await,
            Passage::Refused(Some(route), problem) => protect::refuse(route, Refusal::Problem(problem)),
            Passage::Refused(None, problem) => problem.into_response(),
        }
    }

    /// Checks what every request must comply with.
    fn check(&self, request: &Request<Incoming>) -> Result<(), Problem> {
        head::check_for_forwarding(request, &self.limits)?;
        if request.method() == Method::CONNECT {
            return Err(Problem::new(Code::MethodNotAllowed, "The proxy opens no tunnels."));
        }
        if fields::items(request.headers(), &header::VIA).any(|hop| hop == self.via.as_bytes()) {
            let detail = "The request has passed this proxy before: one of its upstreams leads back to it.";
            return Err(Problem::new(Code::Loop, detail));
        }
        Ok(())
    }

    fn client(&self, request: &Request<Incoming>) -> Client {
        let peer = request.extensions().get::<Peer>();
        let address = peer.map_or(IpAddr::V4(Ipv4Addr::UNSPECIFIED), |peer| peer.address.ip());
        let certificate = peer.and_then(|peer| peer.certificate);
        let is_trusted = self.peer_fields.is_trusted(address);
        Client { address, is_trusted, is_tls: self.is_tls, certificate }
    }

    /// Forwards a request without protection. Bodies are streamed both ways.
    async fn forward(&self, upstream: &Destination, mut request: Request<Arriving>, client: Client) -> Response {
        let exchange = match upstream.begin_exchange() {
            Ok(exchange) => exchange,
            Err(problem) => return problem.into_response(),
        };
        let caller = hyper::upgrade::on(&mut request);
        let (mut parts, body) = request.into_parts();
        let has_body = !body.is_end_stream();
        let (body, torn) = match body.bounded(&upstream.bytes, &self.clock, &self.body_rate) {
            Ok(bounded) => bounded,
            Err(problem) => return problem.into_response(),
        };
        fields::end_hop(&mut parts.headers);
        fields::to_upstream(&mut parts.headers, client, &self.via);
        let accept = parts.extensions.remove::<WebSocket>().and_then(|offered| offered.accept);
        let caller = Some(caller).zip(accept).filter(|_| !upstream.options.http2);
        let caller = match caller.map(|(caller, accept)| Ok((caller, accept, upstream.open_websocket()?))).transpose() {
            Ok(caller) => caller,
            Err(problem) => return Problem::into_response(problem),
        };
        if caller.is_some() {
            websocket::ask(&mut parts.headers);
        }
        // The length of the body that is read counts, not the field. It is written again.
        parts.headers.remove(header::CONTENT_LENGTH);
        parts.version = Version::HTTP_11;
        let pieces = Arc::new(AtomicU64::new(0));
        let body = Body::new(Counted::new(body, pieces.clone(), self.peer_fields.clone()));
        let request = Request::from_parts(parts, body);
        let forwarding = pin!(upstream.forward(request, &Always));
        let forwarded = response_within(upstream.options.timeout.0, forwarding, &pieces).await;
        // `None` only where it may not be sent.
        let failed = match forwarded.map(|sent| sent.unwrap_or(Err(Failed::NotConnected(String::new())))) {
            Ok(Ok(response)) if response.status() == StatusCode::SWITCHING_PROTOCOLS => {
                let idle = upstream.options.websocket_idle.0;
                let switched = caller.and_then(|(caller, accept, share)| {
                    websocket::switch(response, caller, &accept, idle, &self.via, share)
                });
                if let Some(switched) = switched {
                    return switched;
                }
                let detail = "The upstream did not answer the WebSocket handshake as RFC 6455 has it.";
                let mut response = Problem::new(Code::UpstreamUnavailable, detail).into_response();
                fields::close(response.headers_mut());
                return response;
            }
            Ok(Ok(response)) => {
                let (mut head, body) = response.into_parts();
                (head.version, head.extensions) = (Version::HTTP_11, Extensions::new());
                fields::to_caller(&mut head.headers, &self.via);
                head.extensions.insert(FromUpstream);
                head.extensions.insert(Buffered(BUFFER_BYTES));
                return Response::from_parts(head, Body::new(Timed::new(body, upstream.options.timeout.0, exchange)));
            }
            Ok(Err(Failed::NotConnected(why) | Failed::Refused(why) | Failed::Broken(why))) => {
                let torn = torn.problem();
                if torn.is_none() {
                    tracing::warn!(reason = why, "A request was not forwarded");
                }
                let detail = "The upstream cannot be reached, or broke off.";
                torn.unwrap_or_else(|| Problem::new(Code::UpstreamUnavailable, detail))
            }
            Err(_late) => Problem::new(Code::UpstreamTimeout, "The upstream did not answer in time."),
        };
        let mut response = failed.into_response();
        if has_body {
            fields::close(response.headers_mut());
        }
        response
    }
}

/// Lets no cache keep a response of the gateway's own. A replay has the fields of its upstream.
fn keep_from_caches(response: &mut Response) {
    let is_upstreams = response.extensions().get::<FromUpstream>().is_some();
    if !is_upstreams && !response.headers().contains_key(fields::REPLAYED) {
        response.headers_mut().insert(header::CACHE_CONTROL, HeaderValue::from_static("no-store"));
    }
}

/// Returns the routes of these options. `None` if they are not valid.
fn routes(options: &ProxyOptions, clock: &Arc<dyn Clock>) -> Option<Routes> {
    let destinations = Destination::all(options, clock)?;
    let route = |route: &options::RouteOptions| {
        let name = route.upstream.as_str();
        let destination = destinations.get(&(name, Some(route.app.clone())))?;
        Route::new(route, options.upstreams.get(name)?, destination.clone()).map(Arc::new)
    };
    let routes = options.routes.iter().map(route).collect::<Option<_>>()?;
    let unmatched = match options.unmatched() {
        None => None,
        Some(name) => Some(destinations.get(&(name, None))?.clone()),
    };
    Some(Routes::new(routes, unmatched, options))
}

/// A mark on requests that offer to switch to a `WebSocket`.
#[derive(Clone)]
struct WebSocket {
    /// The answer to the handshake. `None` if the method is not that of a handshake.
    accept: Option<HeaderValue>,
}
