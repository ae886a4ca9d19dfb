//! A middleware of reqwest for callers of services that understand `Idempotency-Key`: one key per operation, the same key and bytes with
//! each repeat.
//! Give [`IdempotencyKeys`] to `reqwest_middleware::ClientBuilder::with`.

use std::time::{Duration, Instant, SystemTime};

use async_trait::async_trait;
use http::{Extensions, HeaderValue, Method, StatusCode, header};
use reqwest::{Request, Response};
use reqwest_middleware::{Error, Middleware, Next, Result};

use crate::call::jitter;
use crate::client::nonce;

const KEY: &str = "idempotency-key";

/// Adds an `Idempotency-Key` to requests with an effect, and repeats them until there is an answer.
///
/// Each `send` is one operation. A request that has a key keeps it: set one that outlives the process, such as a number of your
/// records, to repeat an operation after a crash. A body that is a stream cannot be repeated, so it is sent once.
///
/// Repeated are requests without an answer and the statuses 408, 425, 429, 502, 503 and 504, and 409 with `Retry-After`, which says that
/// the first request is still running. 409 without it is an answer: its outcome is unknown, and a person or program must look it up.
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
            let answered = next.clone().run(copy, extensions).await;
            let Some(asked) = repeat_after(&answered) else { return answered };
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

/// Returns the least time before a repeat; `None` for an answer that is final.
fn repeat_after(answered: &Result<Response>) -> Option<Duration> {
    match answered {
        Ok(response) => {
            let after = response.headers().get(header::RETRY_AFTER).and_then(retry_after);
            match response.status() {
                StatusCode::CONFLICT => after,
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
