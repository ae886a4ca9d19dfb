//! One exchange with an upstream, in a separate task, so a caller that hangs up changes nothing. Captures the response,
//! reports the outcome, and only then passes on the last piece of the response. `claim` has the part about the claim.

mod claim;
mod outgoing;

use std::pin::pin;
use std::sync::{Arc, Mutex};
use std::time::Duration;

use axum::body::Body;
use axum::http::response::Parts;
use axum::http::{Extensions, HeaderMap, HeaderValue, Request, Response, Version, header};
use bytes::{Bytes, BytesMut};
use futures_util::FutureExt as _;
use http_body_util::BodyExt as _;
use hyper::body::{Body as _, Frame};
use oncegate_core::attempt::Attempt;
use oncegate_core::canonical::Canonical;
use oncegate_core::claim::Outcome;
use oncegate_core::global_id::GlobalId;
use oncegate_core::outage_policy::OutagePolicy;
use oncegate_gateway::tenants::App;
use oncegate_transport::Buffered;
use oncegate_web::problem::{Code, Problem};
use oncegate_web::response::DEGRADED;
use tokio::time::timeout;

use super::Proxy;
use super::body::response_within;
use super::caller::{self, Caller};
use super::cors::FromUpstream;
use super::dialect::{ProxyResult, Refusal};
use super::fields;
use super::reply::Reply;
use super::route::Route;
use super::shares::Share;
use super::status::Meaning;
use super::upload::Upload;
use super::upstream::{Failed, Received};

/// An exchange whose claim is granted.
pub(super) struct Exchange {
    pub(super) proxy: Arc<Proxy>,
    pub(super) route: Arc<Route>,
    pub(super) app: Arc<App>,
    pub(super) global_id: GlobalId,
    pub(super) attempt: Attempt,
    pub(super) contents: Canonical,
    pub(super) degraded: Option<OutagePolicy>,
    /// Monotonic time at which the lease ends if it is not renewed again.
    pub(super) lease_end: Mutex<Duration>,
    /// The request as the upstream gets it.
    pub(super) request: Request<Bytes>,
    /// Its body, if that is not read yet.
    pub(super) upload: Option<Upload>,
    /// True if the request repeats one whose outcome is unknown.
    pub(super) is_repeat: bool,
    /// Held until the exchange is over: it bounds the exchanges of an app with the upstream.
    pub(super) share: Option<Share>,
}

/// The end of an exchange: its outcome, and the rest of the response for the caller once the outcome is reported.
struct Ending {
    outcome: Outcome,
    rest: Rest,
}

enum Rest {
    /// The end of a response, and its beginning if it has no body.
    Response { begin: Option<(Reply, Response<Body>)>, caller: Option<Caller>, is_complete: bool },
    /// No response came.
    Refusal(Option<Reply>, Problem),
    /// The exchange took too long. The caller's response is cut.
    None,
}

impl Exchange {
    /// Runs the exchange to its end, and reports its outcome until it is taken.
    pub(super) async fn run(mut self: Box<Self>, reply: Reply) {
        let (_share, upload) = (self.share.take(), self.upload.take());
        let request = std::mem::take(&mut self.request);
        let exchange_max = self.route.upstream.options.exchange_max.0;
        let mut run = pin!(async {
            let cut = Ending { outcome: Outcome::Unknown, rest: Rest::None };
            let exchange = timeout(exchange_max, self.exchange(reply, request, upload));
            let Ending { outcome, rest } = exchange.await.unwrap_or(cut);
            let mut reporting = pin!(self.report(outcome));
            let deadline = self.app.terms_of(&self.route.operation).deadline;
            let is_reported = timeout(deadline, &mut reporting).await.is_ok();
            rest.pass();
            if !is_reported {
                reporting.await;
            }
        });
        let mut renewing = pin!(timeout(exchange_max, self.renew()));
        tokio::select! {
            biased;
            () = &mut run => {}
            _ = &mut renewing => run.await,
        }
    }

    async fn exchange(&self, reply: Reply, request: Request<Bytes>, upload: Option<Upload>) -> Ending {
        let started = self.proxy.clock.monotonic();
        let limit = self.route.upstream.options.timeout.0;
        let mut reply = Some(reply);
        let progress = upload.as_ref().map(Upload::progress);
        let is_mismatch = || progress.as_ref().is_some_and(|progress| progress.is_mismatch());
        let is_verified = async || match &progress {
            Some(progress) => timeout(limit, progress.verified()).await.unwrap_or(false),
            None => true,
        };
        let mut sending = pin!(self.send(request, upload));
        let sent = match &progress {
            Some(progress) => response_within(limit, sending.as_mut(), &progress.pieces).await,
            None => timeout(limit, &mut sending).await,
        };
        let sent = match sent {
            Ok(sent) => sent,
            Err(_late) => {
                let detail = "The upstream did not answer in time; the gateway still waits for its response. Repeat the request \
                              with the same key: it gets that response once it has come, and is not run again.";
                if let Some(reply) = reply.take() {
                    let problem = Problem::new(Code::UpstreamTimeout, detail).retry_soon();
                    reply.send(Err(Refusal::AfterClaim(problem)));
                }
                // The claim stays in progress and is renewed, so that a repeat can wait for the response.
                sending.await
            }
        };
        self.route.metrics.upstream_answered(self.proxy.clock.monotonic().saturating_sub(started));
        let route = self.route.operation.as_ref();
        let no_effect = |detail| (Outcome::Failure, Problem::new(Code::UpstreamUnavailable, detail).retry_soon());
        let (outcome, problem) = match sent {
            Some(Ok(response)) => {
                let ending = self.receive(response, reply).await;
                // A response to another body than the digest says is none to repeats of the request. It may come before the end of
                // the body.
                let is_success = matches!(ending.outcome, Outcome::Success { .. });
                let is_unknown = is_mismatch() || is_success && !is_verified().await;
                return if is_unknown { Ending { outcome: Outcome::Unknown, ..ending } } else { ending };
            }
            Some(Err(Failed::Broken(why))) if let Some(problem) = progress.as_ref().and_then(|it| it.problem()) => {
                tracing::debug!(reason = why, "The body of a request broke off");
                return Ending { outcome: Outcome::Unknown, rest: Rest::Refusal(reply, problem) };
            }
            None => {
                tracing::warn!(route, "The lease of a key ended before its request could be sent");
                let detail = "The lease of the key ended before the request could be forwarded. Nothing was done: send it again.";
                let problem = Problem::new(Code::StoreUnavailable, detail).retry_soon();
                return Ending { outcome: Outcome::Failure, rest: Rest::Refusal(reply, problem) };
            }
            Some(Err(Failed::NotConnected(why))) => {
                tracing::warn!(route, reason = why, "No server of the upstream accepts connections");
                no_effect("No server of the upstream accepts connections. Nothing was done: send the request again.")
            }
            Some(Err(Failed::Refused(why))) => {
                tracing::warn!(route, reason = why, "The upstream refused a request before it was processed");
                no_effect("The upstream refused the request before it was processed. Nothing was done: send it again.")
            }
            Some(Err(Failed::Broken(why))) => {
                tracing::warn!(route, reason = why, "The exchange with the upstream broke off");
                let detail = "The exchange with the upstream broke off; whether it did what was asked is not known.";
                (Outcome::Unknown, Problem::new(Code::UpstreamUnavailable, detail))
            }
        };
        Ending { outcome, rest: Rest::Refusal(reply, problem) }
    }

    /// Sends the request. `None` if its lease is over, or nearly.
    async fn send(
        &self,
        request: Request<Bytes>,
        upload: Option<Upload>,
    ) -> Option<Result<Response<Received>, Failed>> {
        match upload {
            None => self.route.upstream.send(request, self).await,
            Some(upload) => {
                let request = request.map(|_empty| Body::new(upload.verified()));
                Box::pin(self.route.upstream.forward(request, self)).await
            }
        }
    }

    /// Receives a response, and passes on all of it but the last piece.
    async fn receive(&self, response: Response<Received>, reply: Option<Reply>) -> Ending {
        let (mut head, mut body) = response.into_parts();
        let meaning = self.said(&head.headers).unwrap_or_else(|| self.route.options.meaning(head.status));
        fields::to_caller(&mut head.headers, &self.proxy.via);
        let is_stored = meaning == Meaning::Done
            && body.size_hint().lower() <= self.route.options.response_bytes.0 as u64
            && !self.is_kept_private(&head.headers);
        (head.version, head.extensions) = (Version::HTTP_11, Extensions::new());
        let mut arrived = body.frame().now_or_never();
        if let Some(data) = whole(arrived.as_ref(), &body) {
            let captured =
                Some(data.clone()).filter(|data| is_stored && data.len() <= self.route.options.response_bytes.0);
            let outcome = self.outcome(meaning, &head, captured, &HeaderMap::new());
            let begin = reply.map(|reply| (reply, self.first(head, Body::from(data))));
            return Ending { outcome, rest: Rest::Response { begin, caller: None, is_complete: true } };
        }
        let mut captured = is_stored.then(BytesMut::new);
        let mut trailers = HeaderMap::new();
        let (mut caller, stream) = Caller::new();
        if let Some(reply) = reply {
            let mut first = self.first(head.clone(), stream);
            // Until it is read, the bytes that are kept for repeats also wait for the caller.
            let kept = if is_stored { self.route.options.response_bytes.0 } else { 0 };
            first.extensions_mut().insert(Buffered(kept + caller::BYTES_MAX as usize));
            reply.send(Ok((ProxyResult::Forwarded, first)));
        }
        let is_complete = loop {
            let frame = match arrived.take() {
                Some(frame) => Ok(frame),
                None => timeout(self.route.upstream.options.timeout.0, body.frame()).await,
            };
            match frame {
                Ok(None) => break true,
                Ok(Some(Ok(mut frame))) => {
                    if let Some(fields) = frame.trailers_mut() {
                        fields::trailers_to_caller(fields);
                        trailers = fields.clone();
                    }
                    if let (Some(bytes), Some(data)) = (&mut captured, frame.data_ref()) {
                        bytes.extend_from_slice(data);
                        if bytes.len() > self.route.options.response_bytes.0 {
                            captured = None;
                        }
                    }
                    caller.pass(frame, captured.is_some()).await;
                }
                Ok(Some(Err(_))) | Err(_) => break false,
            }
        };
        let outcome = match meaning {
            Meaning::Done if !is_complete => Outcome::Unknown,
            meaning => self.outcome(meaning, &head, captured.map(BytesMut::freeze), &trailers),
        };
        Ending { outcome, rest: Rest::Response { begin: None, caller: Some(caller), is_complete } }
    }

    /// Reports whether a response must not be stored, because it is private.
    fn is_kept_private(&self, headers: &HeaderMap) -> bool {
        let is_kept = is_private(headers) && !self.route.options.stores_private(!self.proxy.encryption.is_empty());
        if is_kept {
            self.route.metrics.private();
            if self.route.private_reports.is_due((), self.proxy.clock.monotonic()) {
                tracing::warn!(
                    route = self.route.operation.as_ref(),
                    "Responses with Cache-Control: no-store are not stored, so repeats get 409 response_not_stored; to replay them, \
                     write store_private = true under this route, or encrypt stored responses with [proxy.encryption]"
                );
            }
        }
        is_kept
    }

    /// Returns the outcome that the upstream reports. An unreadable value means unknown: the upstream wanted to report
    /// something.
    fn said(&self, headers: &HeaderMap) -> Option<Meaning> {
        let mut values = headers.get_all(fields::OUTCOME).iter();
        let value = values.next()?.as_bytes().trim_ascii();
        Some(match (value, values.next()) {
            (b"success", None) => Meaning::Done,
            (b"failure", None) => Meaning::NothingHappened,
            (b"unknown", None) => Meaning::Unknown,
            _ => {
                let route = self.route.operation.as_ref();
                tracing::warn!(
                    route,
                    "An upstream sent an `Oncegate-Outcome` other than `success`, `failure` or `unknown`; its request is unknown"
                );
                Meaning::Unknown
            }
        })
    }

    /// Returns the first part of a response for the caller.
    fn first(&self, head: Parts, body: Body) -> Response<Body> {
        let mut first = Response::from_parts(head, body);
        first.extensions_mut().insert(FromUpstream);
        if let Some(degraded) = self.degraded {
            first.headers_mut().insert(DEGRADED, HeaderValue::from_static(degraded.name()));
        }
        first
    }
}

impl Rest {
    /// Passes on the rest of the response to the caller.
    fn pass(self) {
        match self {
            Self::Response { begin, caller, is_complete } => {
                if let Some((reply, first)) = begin {
                    reply.send(Ok((ProxyResult::Forwarded, first)));
                }
                if let Some(caller) = caller {
                    caller.end(is_complete);
                }
            }
            Self::Refusal(reply, problem) => {
                if let Some(reply) = reply {
                    reply.send(Err(Refusal::AfterClaim(problem)));
                }
            }
            Self::None => {}
        }
    }
}

/// Returns the whole body, if it came together with its head. Then all of the response waits for its outcome, and is written at
/// once.
fn whole(arrived: Option<&Option<Result<Frame<Bytes>, hyper::Error>>>, rest: &Received) -> Option<Bytes> {
    match arrived? {
        None => Some(Bytes::new()),
        Some(Ok(frame)) if rest.is_end_stream() => frame.data_ref().cloned(),
        Some(_) => None,
    }
}

/// Reports whether a response must not be stored.
fn is_private(headers: &HeaderMap) -> bool {
    fields::items(headers, &header::CACHE_CONTROL).any(|directive| directive.eq_ignore_ascii_case(b"no-store"))
}
