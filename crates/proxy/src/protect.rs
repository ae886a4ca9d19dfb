//! Requests on protected routes: identifies them, claims their keys, and forwards them or replays the stored response.

use std::sync::{Arc, Mutex};
use std::time::Duration;

use axum::body::HttpBody as _;
use axum::http::Request;
use axum::response::Response;
use bytes::Bytes;
use oncegate_core::call;
use oncegate_core::record::{ClaimState, Realm};
use oncegate_core::terms::Mode;
use oncegate_gateway::claim::{ClaimAnswer, ClaimCall, Granted};
use oncegate_gateway::tenants::App;
use oncegate_gateway::tenants::quota::{Permit, Purpose};
use oncegate_gateway::{ClaimView, Failure, Gateway, WaitedClaim};
use oncegate_transport::{CallerWatch, Incoming};
use oncegate_web::prefer;
use oncegate_web::problem::{Code, Members, Problem};
use oncegate_web::recent::keys::KeyedRequest;
use oncegate_web::request_id::RequestId;

use super::body::Arriving;
use super::dialect::{ProxyResult, Refusal};
use super::exchange::Exchange;
use super::fields::{self, Client};
use super::fingerprint::Content;
use super::identify::{NoKey, contents};
use super::key::IdempotencyKey;
use super::options::OnUnknown;
use super::receive::Read;
use super::repeat::with_fields;
use super::reply::Reply;
use super::route::Route;
use super::shares::Share;
use super::target::Target;
use super::upload::Upload;
use super::{Proxy, fingerprint};

/// A request on a protected route, read and identified.
struct Identified {
    route: Arc<Route>,
    app: Arc<App>,
    key: IdempotencyKey,
    principal: [u8; 32],
    target: Target,
    /// Its body is empty if there is an upload.
    request: Request<Bytes>,
    upload: Option<Upload>,
    client: Client,
}

/// Resources of a request until its claim is answered.
struct Held {
    permit: Option<Permit>,
    exchange: Option<Share>,
    request: Request<Bytes>,
    upload: Option<Upload>,
}

/// The answer to the claim of a key.
struct AnsweredClaim {
    answer: Result<call::Answered<ClaimAnswer>, Failure>,
    /// Start of the lease of a grant, by the monotonic clock.
    claimed_at: Duration,
    /// The wait that the caller preferred and got.
    applied: Option<Duration>,
}

impl Identified {
    /// Returns what operators see of the request once it is answered.
    fn noted(&self) -> Option<KeyedRequest> {
        let global_id = Gateway::global_id(&self.app, &self.route.operation, &contents(&self.key, &self.principal)?);
        let (operation, app) = (self.route.operation.clone(), self.app.key.clone());
        let request_id = self.request.extensions().get::<RequestId>();
        Some(KeyedRequest::new(operation, app, self.key.as_str(), global_id, request_id))
    }
}

impl Held {
    /// Frees permits and body, since the caller waits. The digest of the body is in the fingerprint.
    fn give_up(&mut self) {
        (self.permit, self.exchange) = (None, None);
        *self.request.body_mut() = Bytes::new();
        if let Some(upload) = &mut self.upload {
            upload.keep_digest();
        }
    }
}

impl Proxy {
    /// Serves a request on a protected route.
    pub(super) async fn protect(
        self: &Arc<Self>,
        route: &Arc<Route>,
        mut request: Request<Incoming>,
        target: Target,
        client: Client,
        caller: &CallerWatch,
    ) -> Response {
        let app = match self.app_of(route) {
            Ok(app) => app,
            Err(refusal) => return refuse(route, refusal),
        };
        let is_observed = app.terms_of(&route.operation).mode == Mode::Observe;
        let hidden = IdempotencyKey::of_connection(request.headers(), &route.key_headers);
        fields::end_hop(request.headers_mut());
        let (parts, body) = request.into_parts();
        if let Some(why) = hidden.filter(|_| !is_observed) {
            return refuse(route, Refusal::Key(why.to_string()));
        }
        let early = route.options.key_in_body.is_none().then(|| self.identify(route, &parts, None, client));
        let early = match early {
            Some(Err(NoKey::Refused(refusal))) if !is_observed => return refuse(route, refusal),
            Some(Err(no_key)) => {
                let request = Request::from_parts(parts, Arriving::from(body));
                return self.pass(route, no_key.label(), request, client).await;
            }
            Some(Ok(identity)) => Some(identity),
            None => None,
        };
        let (body, upload) = match self.read(body, &route.upstream.bytes).await {
            Read::Whole(body) => (body, None),
            Read::TooLarge(body) if is_observed => {
                return self.pass(route, ProxyResult::Refused, Request::from_parts(parts, body), client).await;
            }
            Read::TooLarge(_) if route.options.reads_json() => {
                let detail = format!(
                    "The route reads the JSON of a body before it claims a key, so a body has {} bytes at most.",
                    self.limits.body_bytes
                );
                return refuse(route, Refusal::Problem(Problem::new(Code::BodyTooLarge, detail)));
            }
            Read::TooLarge(body) => match self.upload(&parts.headers, body, &route.upstream.bytes) {
                Ok(upload) => (Bytes::new(), Some(upload)),
                Err(problem) => return refuse(route, Refusal::Problem(problem)),
            },
            Read::Failed(problem) => return refuse(route, Refusal::Problem(problem)),
        };
        let identity = early.map_or_else(|| self.identify(route, &parts, Some(&body), client), Ok);
        let (key, principal) = match identity {
            Ok(identity) => identity,
            Err(NoKey::Refused(refusal)) if !is_observed => return refuse(route, refusal),
            Err(no_key) => {
                let request = Request::from_parts(parts, Arriving::from(Incoming::Whole(body)));
                return self.pass(route, no_key.label(), request, client).await;
            }
        };
        let request = Request::from_parts(parts, body);
        let is_upload = upload.is_some();
        let identified = Identified { route: route.clone(), app, key, principal, target, request, upload, client };
        let (reply, awaited) = Reply::new(identified.noted(), self.recent.clone());
        // Runs in a task, so that no unused grant remains if the caller hangs up. Boxed: a task copies its future.
        self.exchanges.spawn(Box::pin(self.clone().answer(identified, reply)));
        let answer = awaited.answer(caller).await.unwrap_or_else(|| {
            let detail = "The exchange with the upstream took too long; whether it did what was asked is not known.";
            Err(Refusal::AfterClaim(Problem::new(Code::UpstreamTimeout, detail)))
        });
        match answer {
            Ok((answered, mut response)) => {
                route.metrics.answered(answered);
                route.options.dialect.accept(response.headers_mut());
                response
            }
            Err(refusal) => {
                let mut response = refuse(route, refusal);
                if is_upload {
                    fields::close(response.headers_mut());
                }
                response
            }
        }
    }

    /// Counts a request, and forwards it without protection. Not an `async fn`, which would hold the request twice.
    fn pass<'a>(
        &'a self,
        route: &'a Route,
        answered: ProxyResult,
        request: Request<Arriving>,
        client: Client,
    ) -> impl Future<Output = Response> + Send + use<'a> {
        route.metrics.answered(answered);
        self.forward(&route.upstream, request, client)
    }

    /// Claims the key, and runs the exchange or replays the stored response.
    async fn answer(self: Arc<Self>, of: Identified, mut reply: Reply) {
        let upstream = of.route.upstream.clone();
        match self.claim(of, &mut reply).await {
            Ok(Claimed::Granted(exchange)) => exchange.run(reply).await,
            Ok(Claimed::TooLate(exchange)) => exchange.give_back(reply).await,
            Ok(Claimed::Replay(response)) => reply.send(Ok((ProxyResult::Replayed, response))),
            Ok(Claimed::Unclaimed(unclaimed)) => {
                let (label, request, client) = *unclaimed;
                let forwarding = Box::pin(self.forward(&upstream, request, client));
                reply.send(Ok((label, forwarding.await)));
            }
            Err(refusal) => reply.send(Err(refusal)),
        }
    }

    async fn claim(self: &Arc<Self>, of: Identified, reply: &mut Reply) -> Result<Claimed, Refusal> {
        let Identified { route, app, key, principal, target, request, upload, client } = of;
        let is_observed = app.terms_of(&route.operation).mode == Mode::Observe;
        let exchange = Some(route.upstream.begin_exchange().map_err(Refusal::Problem)?);
        let permit = match self.admit_to_store(&app) {
            Ok(permit) => Some(permit),
            Err(failure) if is_observed => return Ok(Claimed::unclaimed(failure, request, client)),
            Err(failure) => return Err(problem(failure)),
        };
        let contents =
            contents(&key, &principal).ok_or_else(|| Refusal::Key("the key has no canonical form".into()))?;
        let content = match &upload {
            Some(upload) => Content::Digest(upload.digest()),
            None => Content::Bytes(request.body()),
        };
        let fingerprint = fingerprint::of(&route.options, &target, request.method(), request.headers(), content);
        let call = |take_over| ClaimCall {
            realm: Realm::Proxy,
            operation: route.operation.clone(),
            contents: contents.clone(),
            fingerprint: fingerprint.clone(),
            nonce: None,
            lease: None,
            retention: None,
            take_over,
            caller: None,
            // It is a term of every route.
            unknown_on_lease_end: false,
        };
        let mut held = Held { permit, exchange, request, upload };
        let mut answered = self.claim_or_wait(&route, &app, || call(false), &mut held, client, reply).await?;
        let is_unknown = |found: &ClaimView| found.claim.record.state == ClaimState::Unknown;
        let is_repeat = route.options.on_unknown == OnUnknown::Forward
            && matches!(&answered.answer, Ok(call::Answered { answer: ClaimAnswer::Duplicate(found), .. }) if is_unknown(found));
        if is_repeat && held.exchange.is_none() {
            // A caller that waited has given up its body, so there is nothing to forward: it has to send it again.
            return Err(Refusal::InProgress);
        }
        if is_repeat {
            // Rare parts are boxed: the future of an exchange has room for all of its parts.
            let taken_over = Box::pin(self.gateway.claim(&app, call(true))).await;
            answered.answer = self.repeat_uncertain(&app, taken_over, || call(true)).await;
        }
        let AnsweredClaim { answer, claimed_at, applied } = answered;
        let Held { permit, exchange, mut request, upload } = held;
        let call::Answered { answer, policy: degraded } = match answer {
            // A caller that waited has given up its body.
            Err(failure) if is_observed && exchange.is_some() => {
                return Ok(Claimed::unclaimed(failure, request, client));
            }
            answer => answer.map_err(problem)?,
        };
        let granted = match self.repeated(&route, answer) {
            Err(granted) => granted,
            Ok(response) => {
                drop((permit, exchange, std::mem::take(request.body_mut())));
                let reveals = matches!(response, Ok(_) | Err(Refusal::NotStored { .. }));
                // A response with trailers does not tell its length.
                let bytes = response.as_ref().map_or(Some(0), |response| response.body().size_hint().exact());
                Box::pin(self.check_repeat(&route, &request, upload, reveals, bytes, client)).await?;
                return with_fields(response, degraded, applied).map(Claimed::Replay);
            }
        };
        let Granted { global_id, attempt, lease_ms, .. } = granted;
        let request = self.for_upstream(request, client, is_repeat, degraded);
        let exchange = Box::new(Exchange {
            proxy: self.clone(),
            route,
            app,
            global_id,
            attempt,
            contents,
            degraded,
            lease_end: Mutex::new(claimed_at + Duration::from_millis(lease_ms)),
            request,
            upload,
            is_repeat,
            share: exchange,
        });
        Ok(if exchange.share.is_some() { Claimed::Granted(exchange) } else { Claimed::TooLate(exchange) })
    }

    /// Claims a key. While another request holds it, the caller waits for its own time or that of the route, and
    /// releases its resources.
    async fn claim_or_wait(
        &self,
        route: &Route,
        app: &Arc<App>,
        call: impl Fn() -> ClaimCall,
        held: &mut Held,
        client: Client,
        reply: &mut Reply,
    ) -> Result<AnsweredClaim, Refusal> {
        let preferred = prefer::wait(held.request.headers());
        let mut claimed_at = self.clock.monotonic();
        let mut applied = None;
        let first = match self.gateway.wait_granted(app, &call(), preferred.unwrap_or(route.options.wait.0)) {
            None => self.gateway.claim(app, call()).await,
            Some(wait) => {
                let gone = async {
                    held.give_up();
                    self.wait_ended(route, app, reply).await;
                };
                let waited = Box::pin(self.gateway.claim_or_wait(app, call(), wait, gone)).await;
                // A grant after a wait is given back by the caller of this.
                if held.exchange.is_none() && !waited.as_ref().is_ok_and(WaitedClaim::is_granted) {
                    self.check_again(route, app)?;
                    // Its token may have expired.
                    self.principal(route, held.request.headers(), client)?;
                }
                waited.map(|waited| {
                    // The lease of a grant began some time in the wait; a renewal comes before its end.
                    claimed_at = self.clock.monotonic();
                    applied = waited.waited.and(preferred).map(|_| wait);
                    waited.answer
                })
            }
        };
        Ok(AnsweredClaim { answer: self.repeat_uncertain(app, first, call).await, claimed_at, applied })
    }

    /// Repeats a claim once if it may have taken effect. It uses the same nonce, so it finds its own effect.
    async fn repeat_uncertain(
        &self,
        app: &App,
        first: Result<call::Answered<ClaimAnswer>, Failure>,
        call: impl Fn() -> ClaimCall,
    ) -> Result<call::Answered<ClaimAnswer>, Failure> {
        match first {
            Err(Failure::OutcomeUnknown(Some(nonce))) => Box::pin(self.gateway.claim_again(app, call(), nonce)).await,
            first => first,
        }
    }

    /// Takes a permit for the store, and charges the quota of the app.
    fn admit_to_store(&self, app: &Arc<App>) -> Result<Permit, Failure> {
        let permit = self.gateway.acquire_permit(app, Purpose::New)?;
        self.gateway.charge_request(app, Purpose::New)?;
        Ok(permit)
    }
}

/// The answer to a claim.
enum Claimed {
    Granted(Box<Exchange>),
    /// Granted after a wait; the body was not kept for it.
    TooLate(Box<Exchange>),
    Replay(Response),
    /// Observed, and the claim failed: forwarded without one.
    Unclaimed(Box<(ProxyResult, Request<Arriving>, Client)>),
}

impl Claimed {
    /// Returns an observed request whose claim failed. It is no upload: those are not observed.
    fn unclaimed(failure: Failure, request: Request<Bytes>, client: Client) -> Self {
        let request = request.map(|body| Arriving::from(Incoming::Whole(body)));
        Self::Unclaimed(Box::new((problem(failure).label(), request, client)))
    }
}

/// Counts a refusal, and returns its response.
pub(super) fn refuse(route: &Route, refusal: Refusal) -> Response {
    route.metrics.answered(refusal.label());
    route.options.dialect.refuse(refusal)
}

/// Returns the refusal of a request whose claim failed. Its caller cannot send the nonce of the claim.
fn problem(failure: Failure) -> Refusal {
    let problem = Problem::from(failure);
    if problem.code != Code::OutcomeUnknown {
        return Refusal::Problem(problem);
    }
    let detail = "The request was not forwarded, but the store may have taken its key. Send it again: if the key was taken, the answer \
                  is 409 until the claim is settled.";
    Refusal::Problem(Problem { detail: detail.into(), members: Members::None, ..problem })
}
