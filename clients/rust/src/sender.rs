//! A middleware of reqwest for callers of services that understand `Idempotency-Key`: one key per operation, the same key and bytes with
//! each repeat.
//! Give [`IdempotencyKeys`] to `reqwest_middleware::ClientBuilder::with`.

use std::pin::Pin;
use std::task::{Context, Poll};
use std::time::{Duration, Instant, SystemTime};

use async_trait::async_trait;
use bytes::{Bytes, BytesMut};
use http::{Extensions, HeaderValue, Method, StatusCode, header};
use hyper::body::Frame;
use reqwest::{Body, Request, Response, ResponseBuilderExt as _};
use reqwest_middleware::{Error, Middleware, Next, Result};

use crate::call::jitter;
use crate::client::nonce;

const KEY: &str = "idempotency-key";
/// A longer body of a 409 is not a problem document.
const PROBLEM_BYTES_MAX: usize = 64 << 10;

/// Adds an `Idempotency-Key` to requests with an effect, and repeats them until there is an answer.
///
/// Each `send` is one operation. A request with a key keeps it. To repeat an operation after a crash, set a key that
/// outlives the process, such as a number of your records. A body that is a stream cannot be repeated, so it is sent
/// once.
///
/// A request is repeated if there is no answer, after the statuses 408, 425, 429, 502, 503 and 504, and after 409 while
/// the first request is still running. The pause is at least `Retry-After`. 409 with `state: unknown` is an answer: a
/// person or program must look its effect up.
#[derive(Clone, Debug)]
#[must_use]
pub struct IdempotencyKeys {
    within: Duration,
}

impl Default for IdempotencyKeys {
    fn default() -> Self {
        Self::new()
    }
}

impl IdempotencyKeys {
    /// Returns the middleware.
    pub fn new() -> Self {
        Self { within: Duration::from_secs(60) }
    }

    /// Limits all tries of one operation. Default 60 s. One try has the timeout of the client of reqwest.
    pub fn within(mut self, limit: Duration) -> Self {
        self.within = limit;
        self
    }
}

#[async_trait]
impl Middleware for IdempotencyKeys {
    async fn handle(&self, mut request: Request, extensions: &mut Extensions, next: Next<'_>) -> Result<Response> {
        if matches!(*request.method(), Method::GET | Method::HEAD | Method::OPTIONS | Method::TRACE | Method::CONNECT) {
            return next.run(request, extensions).await;
        }
        if !request.headers().contains_key(KEY) {
            let key = nonce().map_err(Error::middleware)?;
            request.headers_mut().insert(KEY, HeaderValue::try_from(key).map_err(Error::middleware)?);
        }
        let begin = Instant::now();
        for round in 1.. {
            let Some(copy) = request.try_clone() else { break };
            let (answered, is_running) = match next.clone().run(copy, extensions).await {
                Ok(response) if response.status() == StatusCode::CONFLICT => match read_conflict(response).await {
                    Ok((response, is_running)) => (Ok(response), is_running),
                    Err(broken) => (Err(broken.into()), false),
                },
                answered => (answered, false),
            };
            let Some(asked) = repeat_after(&answered, is_running) else { return answered };
            let pause = asked.max(jitter(round));
            if begin.elapsed() + pause > self.within {
                return answered;
            }
            tokio::time::sleep(pause).await;
        }
        // A stream: there is no second try.
        next.run(request, extensions).await
    }
}

/// Reads the body of a 409, and reports whether the first request is still running. The response can still be read.
async fn read_conflict(mut response: Response) -> reqwest::Result<(Response, bool)> {
    let mut start = BytesMut::new();
    let mut is_whole = false;
    while !is_whole && start.len() <= PROBLEM_BYTES_MAX {
        match response.chunk().await? {
            Some(piece) => start.extend_from_slice(&piece),
            None => is_whole = true,
        }
    }
    let is_running = is_whole && is_in_progress(&start);
    let url = response.url().clone();
    let (mut head, rest) = http::Response::<Body>::from(response).into_parts();
    // It is kept apart from the head, and would be lost.
    head.extensions.extend(http::Response::builder().url(url).body(()).unwrap_or_default().into_parts().0.extensions);
    let body = Body::wrap(PutBack { start: start.freeze(), rest });
    Ok((http::Response::from_parts(head, body).into(), is_running))
}

fn is_in_progress(problem: &[u8]) -> bool {
    let Ok(said) = serde_json::from_slice::<serde_json::Value>(problem) else { return false };
    // The second is that of Stripe, and of the proxy's dialect of it.
    said["state"] == "in_progress" || said["error"]["code"] == "idempotency_key_in_use"
}

/// A body whose start was read already.
struct PutBack {
    start: Bytes,
    rest: Body,
}

impl hyper::body::Body for PutBack {
    type Data = Bytes;
    type Error = reqwest::Error;

    fn poll_frame(mut self: Pin<&mut Self>, context: &mut Context<'_>) -> Poll<Option<reqwest::Result<Frame<Bytes>>>> {
        if self.start.is_empty() {
            return Pin::new(&mut self.rest).poll_frame(context);
        }
        Poll::Ready(Some(Ok(Frame::data(std::mem::take(&mut self.start)))))
    }
}

/// Returns the least time before a repeat; `None` for an answer that is final.
fn repeat_after(answered: &Result<Response>, is_running: bool) -> Option<Duration> {
    match answered {
        Ok(response) => {
            let after = response.headers().get(header::RETRY_AFTER).and_then(retry_after);
            match response.status() {
                StatusCode::CONFLICT if is_running => Some(after.unwrap_or_default()),
                StatusCode::REQUEST_TIMEOUT
                | StatusCode::TOO_EARLY
                | StatusCode::TOO_MANY_REQUESTS
                | StatusCode::BAD_GATEWAY
                | StatusCode::SERVICE_UNAVAILABLE
                | StatusCode::GATEWAY_TIMEOUT => Some(after.unwrap_or_default()),
                _ => None,
            }
        }
        // It was not sent, or it is not known if it arrived: with its key a repeat does no harm.
        Err(Error::Reqwest(error)) if !error.is_builder() && !error.is_redirect() => Some(Duration::ZERO),
        Err(_) => None,
    }
}

/// Reads `Retry-After`: seconds, or a date (RFC 9110, 10.2.3).
fn retry_after(value: &HeaderValue) -> Option<Duration> {
    let text = value.to_str().ok()?.trim();
    let seconds = text.parse().ok().map(Duration::from_secs);
    let date = || httpdate::parse_http_date(text).ok();
    seconds.or_else(|| date().map(|at| at.duration_since(SystemTime::now()).unwrap_or_default()))
}
