//! A gateway in memory, for tests of applications: no process and no port.

mod claims;
mod client;
mod locks;
#[cfg(test)]
mod tests;

use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::{Duration, Instant, SystemTime};

use bytes::Bytes;
use http::Method;
use serde_json::{Value, json};
use tokio::sync::Notify;

pub use self::claims::Claim;
use self::claims::Claims;
use self::locks::Locks;
use crate::error::{Cause, Kind};
use crate::time;

/// URL of the clients of a [`MemoryGateway`]. Nothing is sent to it.
pub(crate) const URL: &str = "http://memory.invalid";

/// A gateway in memory, with the rules of the gateway's default settings. Clones share it.
#[derive(Clone, Default)]
pub struct MemoryGateway(Arc<Shared>);

#[derive(Default)]
struct Shared {
    state: Mutex<State>,
    /// Wakes the calls that wait for the end of a claim or lock.
    changed: Notify,
}

#[derive(Default)]
struct State {
    claims: Claims,
    locks: Locks,
    /// Steps of the clock.
    ahead: Duration,
    is_unavailable: bool,
    failures: Vec<(u16, String)>,
}

/// Answer to a call: status and document.
type Answer = (u16, Value);

/// One instant, as the store counts it and as documents name it.
#[derive(Clone, Copy)]
struct Now {
    at: Instant,
    wall: SystemTime,
}

impl MemoryGateway {
    /// Returns a gateway without claims.
    pub fn new() -> Self {
        Self::default()
    }

    /// Puts the clock of the gateway and of its clients forward. Timers of the runtime are not changed: renewals in the background come
    /// at their own times.
    pub fn advance(&self, time: Duration) {
        self.state().ahead += time;
        self.0.changed.notify_waiters();
    }

    /// Returns the claims, in the order of their first attempts. A released operation has no claim.
    pub fn claims(&self) -> Vec<Claim> {
        let now = self.now();
        self.state().claims.all(now)
    }

    /// Answers the next call with this status and code, such as 429 and `quota_exceeded`. Several are used one after the other.
    pub fn fail_next(&self, status: u16, code: impl Into<String>) {
        self.state().failures.push((status, code.into()));
    }

    /// Refuses all connections, until this is called with false.
    pub fn unavailable(&self, is_unavailable: bool) {
        self.state().is_unavailable = is_unavailable;
    }

    fn state(&self) -> MutexGuard<'_, State> {
        self.0.state.lock().unwrap_or_else(PoisonError::into_inner)
    }

    fn now(&self) -> Now {
        let ahead = self.state().ahead;
        Now { at: Instant::now() + ahead, wall: SystemTime::now() + ahead }
    }

    /// Answers a call, and waits as it asks for.
    pub(crate) async fn call(
        &self,
        app: &str,
        method: &Method,
        path: &str,
        body: &Bytes,
    ) -> Result<(u16, Bytes), Cause> {
        let request: Value = serde_json::from_slice(body).unwrap_or_default();
        let begin = Instant::now();
        let wait = duration(&request["wait"]).unwrap_or_default();
        loop {
            let mut changed = std::pin::pin!(self.0.changed.notified());
            changed.as_mut().enable();
            let (status, mut document) = self.answer(app, method, path, &request)?;
            let is_waiting = status == 409 && (document["state"] == "in_progress" || document["code"] == "lock_held");
            let left = wait.saturating_sub(begin.elapsed());
            if is_waiting && !left.is_zero() {
                // The clock may end a lease without a call.
                let step = left.min(Duration::from_millis(20));
                drop(tokio::time::timeout(step, changed).await);
                continue;
            }
            if !wait.is_zero() {
                document["waited_ms"] = u64::try_from(begin.elapsed().as_millis()).unwrap_or(u64::MAX).into();
            }
            return Ok((status, Bytes::from(document.to_string())));
        }
    }

    fn answer(&self, app: &str, method: &Method, path: &str, request: &Value) -> Result<Answer, Cause> {
        let now = self.now();
        let mut state = self.state();
        if state.is_unavailable {
            return Err(Cause::of(URL, Kind::Refused, "the memory gateway is unavailable"));
        }
        if !state.failures.is_empty() {
            let (status, code) = state.failures.remove(0);
            return Ok(problem(status, &code, json!({ "retry_after_ms": 10 })));
        }
        let state = &mut *state;
        let parts: Vec<_> = path.trim_start_matches('/').split('/').collect();
        let answer = match (method, &parts[..]) {
            (&Method::POST, ["v1", "claims"]) => state.claims.claim(app, request, now),
            (&Method::POST, ["v1", "claims", "batch"]) => batch(request, |item| state.claims.claim(app, item, now)),
            (&Method::POST, ["v1", "outcomes", "batch"]) => {
                batch(request, |item| state.claims.settle(item["global_id"].as_str().unwrap_or_default(), item, now))
            }
            (&Method::POST, ["v1", "claims", id, "outcome"]) => state.claims.settle(id, request, now),
            (&Method::POST, ["v1", "claims", id, "renewal"]) => state.claims.renew(id, request, now),
            (&Method::GET, ["v1", "claims", id]) => state.claims.lookup(id, now),
            (&Method::POST, ["v1", "locks", name, call]) => state.locks.call(name, call, request, now),
            (&Method::GET, ["v1", "locks", name]) => state.locks.lookup(name, now),
            _ => problem(404, "not_found", json!({})),
        };
        if answer.0 < 300 {
            self.0.changed.notify_waiters();
        }
        Ok(answer)
    }
}

impl std::fmt::Debug for MemoryGateway {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("MemoryGateway").field("claims", &self.claims()).finish()
    }
}

fn batch(request: &Value, mut each: impl FnMut(&Value) -> Answer) -> Answer {
    let items = request["items"].as_array().into_iter().flatten().map(|item| {
        let (status, mut document) = each(item);
        document["status"] = status.into();
        document
    });
    (200, json!({ "items": items.collect::<Vec<_>>() }))
}

/// Returns a problem with these members.
fn problem(status: u16, code: &str, mut members: Value) -> Answer {
    members["status"] = status.into();
    members["code"] = code.into();
    members["detail"] = "of the memory gateway".into();
    (status, members)
}

impl Now {
    /// Names the instant that is so far away.
    fn text(self, after: Duration) -> String {
        let (seconds, nanos) = time::parts_of(self.wall + after);
        time::write(seconds, nanos)
    }
}

/// Reads a duration such as `30s`; nothing if there is none.
fn duration(text: &Value) -> Option<Duration> {
    let text = text.as_str()?;
    if text == "forever" {
        return Some(Duration::from_secs(100 * 365 * 86_400));
    }
    let digits = text.len() - text.trim_start_matches(|digit: char| digit.is_ascii_digit()).len();
    let unit = match &text[digits..] {
        "ms" => 1,
        "s" => 1000,
        "m" => 60_000,
        "h" => 3_600_000,
        "d" => 86_400_000,
        _ => return None,
    };
    Some(Duration::from_millis(text[..digits].parse::<u64>().ok()?.saturating_mul(unit)))
}
