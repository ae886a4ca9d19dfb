//! A tower layer: a request with an `Idempotency-Key` runs once, and its repeats get the stored response.

use std::collections::BTreeMap;
use std::future::Future;
use std::pin::Pin;
use std::sync::Arc;
use std::task::{Context, Poll};
use std::time::Duration;

use base64::Engine as _;
use base64::engine::general_purpose::STANDARD;
use bytes::Bytes;
use http::header::{CONTENT_TYPE, RETRY_AFTER};
use http::request::Parts;
use http::{HeaderMap, HeaderName, HeaderValue, Method, Request, Response, StatusCode};
use http_body_util::{BodyExt as _, Limited};
use hyper::body::Body;
use serde::{Deserialize, Serialize};
use sha2::{Digest as _, Sha256};
use tower_layer::Layer;
use tower_service::Service;

use crate::claim::{Claimed, Duplicate, IDENTITY_DIFFERS, State, Terms, Unfinished};
use crate::client::Client;
use crate::contents;
use crate::contents::hex;
use crate::error::{BoxError, Error};
use crate::grant::Grant;

/// Set by a handler to decide itself: `success`, `failure` (nothing happened) or `unknown`. It is not sent on.
const OUTCOME: &str = "oncegate-outcome";

/// Longest body that is stored: with its Base64 it fits into a result.
const STORED_BYTES_MAX: usize = 45 << 10;

/// Default of [`IdempotencyLayer::body_bytes_max`].
const BODY_BYTES_MAX: usize = 1 << 20;

/// Fields that belong to one connection or one caller.
const NEVER_STORED: [&str; 12] = [
    OUTCOME,
    "connection",
    "keep-alive",
    "proxy-authenticate",
    "proxy-authorization",
    "proxy-connection",
    "set-cookie",
    "te",
    "trailer",
    "transfer-encoding",
    "upgrade",
    "www-authenticate",
];

/// Protects POST, PATCH and other unsafe methods of the services that it wraps.
///
/// 2xx, 301 to 303 and 4xx are final, and repeats get them; 307, 308, 401, 407, 408, 421, 425 and 429 release the key; after others, and
/// after an error of the service, the outcome is unknown. A response of more than 45 KiB is not stored: its repeats get 409. A response
/// is kept in memory until its outcome is reported.
///
/// The service runs in a task: a caller that hangs up changes nothing. It finds its [`Grant`] in the extensions of the request.
pub struct IdempotencyLayer<P>(Arc<Rules<P>>);

struct Rules<P> {
    client: Client,
    operation: String,
    principal: Arc<P>,
    terms: Terms,
    is_required: bool,
    body_bytes_max: usize,
}

// Not derived: `P` needs no `Clone`.
impl<P> Clone for Rules<P> {
    fn clone(&self) -> Self {
        Self {
            client: self.client.clone(),
            operation: self.operation.clone(),
            principal: Arc::clone(&self.principal),
            terms: self.terms.clone(),
            is_required: self.is_required,
            body_bytes_max: self.body_bytes_max,
        }
    }
}

impl<P: Fn(&Parts) -> Option<String>> IdempotencyLayer<P> {
    /// Returns a layer for one service: another one has another operation, such as `order.submit`.
    ///
    /// `principal` distinguishes callers, so that no caller gets the response of another with the same key: the verified account of the
    /// request, never an address. A request without one is refused.
    pub fn new(client: Client, operation: impl Into<String>, principal: P) -> Self {
        let (operation, terms) = (operation.into(), Terms::new());
        Self(Arc::new(Rules {
            client,
            operation,
            principal: Arc::new(principal),
            terms,
            is_required: false,
            body_bytes_max: BODY_BYTES_MAX,
        }))
    }

    /// Answers 400 to requests without a key. Otherwise they are passed on without protection.
    #[must_use]
    pub fn required(self) -> Self {
        self.with(|rules| rules.is_required = true)
    }

    /// Sets the terms of the claims, but for their fingerprint, which is the request.
    #[must_use]
    pub fn terms(self, terms: Terms) -> Self {
        self.with(|rules| rules.terms = terms)
    }

    /// Sets the longest body of a request with a key, in bytes; 1 MiB by default. A longer one is answered 413.
    #[must_use]
    pub fn body_bytes_max(self, bytes: usize) -> Self {
        self.with(|rules| rules.body_bytes_max = bytes)
    }

    /// Changes a copy if the rules are shared: services that were wrapped before keep theirs.
    fn with(mut self, set: impl FnOnce(&mut Rules<P>)) -> Self {
        set(Arc::make_mut(&mut self.0));
        self
    }
}

impl<P> Clone for IdempotencyLayer<P> {
    fn clone(&self) -> Self {
        Self(Arc::clone(&self.0))
    }
}

impl<S, P> Layer<S> for IdempotencyLayer<P> {
    type Service = Idempotency<S, P>;

    fn layer(&self, service: S) -> Self::Service {
        Idempotency { service, rules: Arc::clone(&self.0) }
    }
}

/// A service behind an [`IdempotencyLayer`].
pub struct Idempotency<S, P> {
    service: S,
    rules: Arc<Rules<P>>,
}

impl<S: Clone, P> Clone for Idempotency<S, P> {
    fn clone(&self) -> Self {
        Self { service: self.service.clone(), rules: Arc::clone(&self.rules) }
    }
}

type Answering<B, E> = Pin<Box<dyn Future<Output = Result<Response<B>, E>> + Send>>;

impl<S, P, B, R> Service<Request<B>> for Idempotency<S, P>
where
    S: Service<Request<B>, Response = Response<R>> + Clone + Send + 'static,
    S::Future: Send,
    S::Error: Send + 'static,
    P: Fn(&Parts) -> Option<String> + Send + Sync + 'static,
    B: Body<Data: Send, Error: Into<BoxError>> + From<Bytes> + Send + 'static,
    R: Body<Data: Send, Error: Into<BoxError>> + From<Bytes> + Send + 'static,
{
    type Response = Response<R>;
    type Error = S::Error;
    type Future = Answering<R, S::Error>;

    fn poll_ready(&mut self, cx: &mut Context<'_>) -> Poll<Result<(), S::Error>> {
        self.service.poll_ready(cx)
    }

    fn call(&mut self, request: Request<B>) -> Self::Future {
        let is_safe = [Method::GET, Method::HEAD, Method::OPTIONS, Method::TRACE].contains(request.method());
        let has_key = request.headers().contains_key("idempotency-key");
        if is_safe || !(has_key || self.rules.is_required) {
            return Box::pin(self.service.call(request));
        }
        // The one that is ready is used; its clone may not be.
        let next = self.service.clone();
        let (service, rules) = (std::mem::replace(&mut self.service, next), Arc::clone(&self.rules));
        let exchange = tokio::spawn(async move { rules.run(service, request).await });
        Box::pin(async move {
            match exchange.await {
                Ok(answer) => answer,
                Err(ended) => match ended.try_into_panic() {
                    Ok(panic) => std::panic::resume_unwind(panic),
                    Err(_) => {
                        Ok(problem(StatusCode::SERVICE_UNAVAILABLE, "unavailable", "The server is stopping.", None))
                    }
                },
            }
        })
    }
}

impl<P: Fn(&Parts) -> Option<String>> Rules<P> {
    async fn run<S, B, R>(&self, mut service: S, request: Request<B>) -> Result<Response<R>, S::Error>
    where
        S: Service<Request<B>, Response = Response<R>>,
        B: Body<Error: Into<BoxError>> + From<Bytes>,
        R: Body<Error: Into<BoxError>> + From<Bytes>,
    {
        let (mut head, body) = request.into_parts();
        let Some(key) = key_of(&head.headers) else {
            let detail = "Send one Idempotency-Key of 1 to 255 visible ASCII characters.";
            return Ok(problem(StatusCode::BAD_REQUEST, "idempotency_key_invalid", detail, None));
        };
        let Some(principal) = (*self.principal)(&head).filter(|principal| !principal.is_empty()) else {
            return Ok(problem(StatusCode::BAD_REQUEST, "principal_missing", "The caller is not known.", None));
        };
        let Ok(body) = Limited::new(body, self.body_bytes_max).collect().await else {
            let detail = "The body is too long or was cut off.";
            return Ok(problem(StatusCode::PAYLOAD_TOO_LARGE, "body_too_large", detail, None));
        };
        let body = body.to_bytes();
        let terms = self.terms.clone().fingerprint(contents! {
            "method" => head.method.as_str(),
            "path" => head.uri.path(),
            "query" => head.uri.query().unwrap_or_default(),
            "body" => digest(&body),
        });
        let contents = contents! { "key" => key, "principal" => digest(principal.as_bytes()) };
        let grant = match self.client.claim_with(&self.operation, contents, terms).await {
            Ok(Claimed::Grant(grant)) => grant,
            Ok(Claimed::Duplicate(duplicate)) => return Ok(repeated(&duplicate)),
            Ok(Claimed::Mismatch(_)) => {
                let detail = "The key was used for another request: use a new one.";
                return Ok(problem(StatusCode::UNPROCESSABLE_ENTITY, "idempotency_key_reused", detail, None));
            }
            Err(error) => return Ok(refused(&error)),
        };
        head.extensions.insert(grant.clone());
        let unfinished = Unfinished::of(&grant);
        let (mut head, body) = service.call(Request::from_parts(head, B::from(body))).await?.into_parts();
        let Ok(body) = body.collect().await else {
            let detail = "The response broke off. The outcome of the request is being checked.";
            return Ok(problem(StatusCode::INTERNAL_SERVER_ERROR, "unknown", detail, None));
        };
        unfinished.disarm();
        let (said, body) = (head.headers.remove(OUTCOME), body.to_bytes());
        // The response is real, also if its report was not accepted: the client has logged that.
        report(&grant, said.as_ref(), &Stored::of(head.status, &head.headers, &body)).await;
        Ok(Response::from_parts(head, R::from(body)))
    }
}

/// Reports what a response means.
async fn report(grant: &Grant, said: Option<&HeaderValue>, response: &Stored) {
    let outcome = said.and_then(|said| said.to_str().ok()).unwrap_or(match response.status {
        307 | 308 | 401 | 407 | 408 | 421 | 425 | 429 => "failure",
        200..=299 | 301..=303 | 400..=499 => "success",
        _ => "unknown",
    });
    match outcome {
        "success" if response.body.len() > STORED_BYTES_MAX / 3 * 4 => drop(grant.succeed(()).await),
        "success" => drop(grant.succeed(response).await),
        "failure" => drop(grant.fail().await),
        _ => drop(grant.give_up().await),
    }
}

/// A response as repeats get it.
#[derive(Serialize, Deserialize)]
struct Stored {
    status: u16,
    /// Values by name, in order.
    headers: BTreeMap<String, Vec<String>>,
    /// In Base64.
    body: String,
}

impl Stored {
    fn of(status: StatusCode, fields: &HeaderMap, body: &[u8]) -> Self {
        let mut headers = BTreeMap::<_, Vec<_>>::new();
        for (name, value) in fields {
            if let (false, Ok(value)) = (NEVER_STORED.contains(&name.as_str()), value.to_str()) {
                headers.entry(name.as_str().to_owned()).or_default().push(value.to_owned());
            }
        }
        Self { status: status.as_u16(), headers, body: STANDARD.encode(body) }
    }

    /// Returns the response; `None` if this is no stored response.
    fn replay<R: From<Bytes>>(&self) -> Option<Response<R>> {
        let mut response = Response::new(R::from(STANDARD.decode(&self.body).ok()?.into()));
        *response.status_mut() = StatusCode::from_u16(self.status).ok()?;
        for (name, values) in &self.headers {
            for value in values {
                response.headers_mut().append(name.parse::<HeaderName>().ok()?, value.parse().ok()?);
            }
        }
        response.headers_mut().insert("idempotent-replayed", HeaderValue::from_static("true"));
        Some(response)
    }
}

fn repeated<R: From<Bytes>>(duplicate: &Duplicate) -> Response<R> {
    let conflict = |code, detail, after| problem(StatusCode::CONFLICT, code, detail, after);
    match duplicate.state {
        State::InProgress => {
            let detail = "The request is being handled: repeat after Retry-After.";
            conflict("in_progress", detail, Some(duplicate.retry_after))
        }
        State::Succeeded => {
            let stored = duplicate.decode::<Stored>().ok().flatten();
            stored.and_then(|stored| stored.replay()).unwrap_or_else(|| {
                let detail = "The request has succeeded, but its response was not stored.";
                conflict("response_not_stored", detail, None)
            })
        }
        _ => conflict("unknown", "The outcome of the request is being checked.", None),
    }
}

/// Returns the answer to a request that was not claimed.
fn refused<R: From<Bytes>>(error: &Error) -> Response<R> {
    match error {
        Error::Rejected(rejected) if rejected.status == 429 => {
            let detail = "Too many requests: repeat after Retry-After with the same key.";
            problem(
                StatusCode::TOO_MANY_REQUESTS,
                "quota_exceeded",
                detail,
                Some(rejected.retry_after.unwrap_or_default()),
            )
        }
        // A mistake of this service: a repeat does not help.
        Error::Rejected(rejected) if rejected.code == IDENTITY_DIFFERS => {
            problem(StatusCode::INTERNAL_SERVER_ERROR, IDENTITY_DIFFERS, "Nothing was done.", None)
        }
        _ => {
            let detail = "Nothing was done: repeat later with the same key.";
            problem(StatusCode::SERVICE_UNAVAILABLE, "unavailable", detail, Some(Duration::ZERO))
        }
    }
}

/// Returns the only key. A structured-field string and the same bare text are the same key.
fn key_of(headers: &HeaderMap) -> Option<String> {
    let mut values = headers.get_all("idempotency-key").iter();
    let key = values.next()?.to_str().ok().filter(|_| values.next().is_none())?.trim();
    let key = match key.strip_prefix('"').and_then(|key| key.strip_suffix('"')) {
        Some(quoted) => quoted.replace("\\\"", "\"").replace("\\\\", "\\"),
        None => key.to_owned(),
    };
    ((1..=255).contains(&key.len()) && key.bytes().all(|byte| byte.is_ascii_graphic())).then_some(key)
}

fn digest(bytes: &[u8]) -> String {
    hex(&Sha256::digest(bytes))
}

/// Returns a problem document. `after` is rounded up to whole seconds, at least one.
fn problem<R: From<Bytes>>(status: StatusCode, code: &str, detail: &str, after: Option<Duration>) -> Response<R> {
    let title = status.canonical_reason().unwrap_or_default();
    let text = serde_json::json!({
        "type": "about:blank", "title": title, "status": status.as_u16(), "code": code, "detail": detail,
    });
    let mut response = Response::new(R::from(Bytes::from(text.to_string())));
    *response.status_mut() = status;
    response.headers_mut().insert(CONTENT_TYPE, HeaderValue::from_static("application/problem+json"));
    if let Some(after) = after {
        let seconds = after.as_millis().div_ceil(1000).max(1);
        response.headers_mut().insert(RETRY_AFTER, HeaderValue::from(u64::try_from(seconds).unwrap_or(u64::MAX)));
    }
    response
}
