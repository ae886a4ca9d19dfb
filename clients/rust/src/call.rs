//! One call and its repeats, at one gateway after the other.

use std::time::{Duration, Instant};

use bytes::Bytes;
use http::{HeaderName, Method};
use serde_json::Value;
use tokio::sync::watch;

use crate::about::About;
use crate::answer::{Answer, Body};
use crate::client::{Client, FOREVER};
use crate::error::{Cause, Error, Kind};
use crate::event::{Level, cause_field};

pub(crate) const PAUSE_MIN: Duration = Duration::from_millis(50);
pub(crate) const PAUSE_MAX: Duration = Duration::from_secs(1);
/// A shorter try shows nothing about the gateway. So a first round is completed, even if it ends a little late.
const TRY_MIN: Duration = Duration::from_millis(100);

/// Ends the tries once its sender is dropped, but not the one in flight.
pub(crate) type Stop = watch::Receiver<()>;

/// One call. All repeats carry the same body, so the gateway recognises the nonce or the attempt in it.
pub(crate) struct Call<'a> {
    /// For metrics: claim, outcome, renewal, lookup, batch or lock.
    pub(crate) endpoint: &'static str,
    pub(crate) method: Method,
    pub(crate) path: &'a str,
    pub(crate) body: Bytes,
    /// Limit of all tries.
    pub(crate) within: Duration,
    /// Time that the call asks the gateway to wait: it is added to the timeout of one try.
    pub(crate) wait: Duration,
    /// Position of the gateway to begin with.
    pub(crate) first: usize,
    pub(crate) stop: Option<Stop>,
    /// Recognises the answer of a gateway.
    pub(crate) genuine: fn(&Body) -> bool,
    pub(crate) about: &'a About,
}

pub(crate) fn has_global_id(body: &Body) -> bool {
    body.global_id.is_some()
}

impl Client {
    /// Calls one gateway after the other until one has answered: with 2xx, 409, 422 or, on a lookup, 404. Other answers are errors.
    /// `uncertain` is set when a try may have had an effect although no answer came.
    pub(crate) async fn call(&self, mut call: Call<'_>, uncertain: &mut bool) -> Result<Answer, Error> {
        let servers = &self.0.servers;
        let ends = self.end_after(call.within.saturating_add(call.wait));
        let mut causes: Vec<Option<Cause>> = vec![None; servers.len()];
        let (mut resent, mut acted, mut shortest, mut tries) = (false, false, FOREVER, 0_usize);
        loop {
            tries += 1;
            if call.stop.as_ref().is_some_and(|stop| stop.has_changed().is_err()) {
                return Err(stopped());
            }
            let at = (call.first + tries - 1) % servers.len();
            let sent = self.now();
            let (mut timeout, mut cut) = (self.0.timeout + call.wait, false);
            if let Some(ends) = ends {
                let left = ends.saturating_duration_since(sent);
                if left < timeout {
                    (timeout, cut) = (timeout.min(left.max(TRY_MIN)), true);
                }
            }
            let (cause, retry_after, refused) = match self.try_at(at, &call, timeout, sent).await {
                Ok(answer) => {
                    match answer.status {
                        ..300 | 409 | 422 => return Ok(answer),
                        404 if call.endpoint == "lookup" => return Ok(answer),
                        status if status < 500 && status != 429 => return Err(answer.rejection()),
                        _ => {}
                    }
                    let asked = answer.body.retry_after_ms.map(Duration::from_millis);
                    let refused = (answer.status == 429).then(|| (answer.retry_after(), answer.rejection()));
                    (answer.cause(&servers[at].url), asked, refused)
                }
                Err(cause) => (cause, None, None),
            };
            acted |= cause.may_have_acted();
            *uncertain |= acted;
            self.event(call.about, "retry", Level::Info, || vec![("cause", cause_field(&cause))]);
            let kind = cause.kind;
            // A try that was cut short adds no information.
            if kind != Kind::Timeout || !cut || causes[at].is_none() {
                causes[at] = Some(cause);
            }
            if kind == Kind::Connection && !resent {
                // Most likely the gateway had closed a kept connection.
                resent = true;
                tries -= 1;
                continue;
            }
            shortest = shortest.min(retry_after.unwrap_or_default());
            let mut pause = refused.as_ref().map_or(Duration::ZERO, |(after, _)| *after);
            if tries.is_multiple_of(servers.len()) {
                pause = pause.max(shortest).max(jitter(tries / servers.len()));
                shortest = FOREVER;
            }
            if !pause.is_zero() && ends.is_some_and(|ends| self.now() + pause > ends) {
                return Err(match refused {
                    Some((_, rejected)) => rejected,
                    None => unavailable(causes, call.first, acted),
                });
            }
            if !sleep(pause, call.stop.as_mut()).await {
                return Err(stopped());
            }
        }
    }

    async fn try_at(&self, at: usize, call: &Call<'_>, timeout: Duration, sent: Instant) -> Result<Answer, Cause> {
        let server = &self.0.servers[at];
        let mut headers = self.0.headers.clone();
        if let Some(traceparent) = &call.about.traceparent {
            headers.insert(HeaderName::from_static("traceparent"), traceparent.clone());
        }
        let sending = server.send(timeout, call.method.clone(), call.path, headers, call.body.clone(), call.genuine);
        let answered = sending.await.map(|(status, body, text)| Answer { status, body, text, sent, at });
        if let Some(metrics) = &self.0.metrics {
            let elapsed = self.now().saturating_duration_since(sent);
            match &answered {
                Ok(answer) => metrics.request(call.endpoint, &answer.status.to_string(), elapsed),
                Err(cause) => metrics.request(call.endpoint, cause.kind.name(), elapsed),
            }
        }
        answered
    }
}

/// Returns a pause with full jitter: callers that failed together do not come back together.
pub(crate) fn jitter(round: usize) -> Duration {
    let limit = PAUSE_MAX.min(PAUSE_MIN * (1 << round.min(10)));
    // Without random numbers callers come back together, which is no error.
    let random = f64::from(getrandom::u32().unwrap_or(u32::MAX)) / f64::from(u32::MAX);
    Duration::from_nanos(1) + limit.mul_f64(random)
}

/// Returns the causes in the order of the tries.
fn unavailable(mut causes: Vec<Option<Cause>>, first: usize, may_have_acted: bool) -> Error {
    let count = causes.len();
    causes.rotate_left(first % count);
    Error::Unavailable { causes: causes.into_iter().flatten().collect(), may_have_acted }
}

/// Returns the result of a call whose caller has left. It is not read.
fn stopped() -> Error {
    Error::unavailable(Vec::new())
}

/// Pauses, and returns false if it was stopped.
pub(crate) async fn sleep(pause: Duration, stop: Option<&mut Stop>) -> bool {
    if pause.is_zero() {
        return true;
    }
    let Some(stop) = stop else {
        tokio::time::sleep(pause).await;
        return true;
    };
    tokio::select! {
        () = tokio::time::sleep(pause) => true,
        _ = stop.changed() => false,
    }
}

/// Adds members to a JSON object in text.
pub(crate) fn object<'a>(members: impl IntoIterator<Item = (&'a str, &'a str)>) -> String {
    let mut text = String::with_capacity(256);
    for (name, value) in members {
        text.push(if text.is_empty() { '{' } else { ',' });
        text.push('"');
        text.push_str(name);
        text.push_str("\":");
        text.push_str(value);
    }
    text.push('}');
    text
}

/// Returns the text as JSON.
pub(crate) fn quoted(text: &str) -> String {
    Value::from(text).to_string()
}

/// Adds the wait to a body.
pub(crate) fn with_wait(body: &str, wait: Duration) -> Bytes {
    if wait < Duration::from_millis(1) {
        return Bytes::copy_from_slice(body.as_bytes());
    }
    let text = written(wait).unwrap_or_else(|_| format!("{}ms", wait.as_millis()));
    Bytes::from(format!("{},\"wait\":\"{text}\"}}", &body[..body.len() - 1]))
}

/// Writes a duration as the gateway reads it, in the largest unit that keeps it whole.
pub(crate) fn written(length: Duration) -> Result<String, Error> {
    if length == FOREVER {
        return Ok("forever".to_owned());
    }
    if length < Duration::from_millis(1) || !length.subsec_nanos().is_multiple_of(1_000_000) {
        return Err(Error::Argument(format!("a duration is whole milliseconds, at least 1: not {length:?}")));
    }
    let (mut number, mut unit) = (length.as_millis(), "ms");
    for (times, larger) in [(1000, "s"), (60, "m"), (60, "h"), (24, "d")] {
        if !number.is_multiple_of(times) {
            break;
        }
        (number, unit) = (number / times, larger);
    }
    if number > 999_999_999 {
        return Err(Error::Argument(format!("a duration is too long: {length:?}")));
    }
    Ok(format!("{number}{unit}"))
}
