//! `/console/live`: a stream of the names of changed regions, while its session lives. The script of a page then loads
//! the page again, and asks for a sign-in once the session has ended. It calls no store: it reads only the knowledge of this gateway.

use std::sync::Arc;
use std::time::Duration;

use axum::body::{Body, Bytes};
use axum::extract::{Request, State};
use axum::http::{StatusCode, header};
use axum::response::{IntoResponse as _, Response};
use futures_util::stream;
use oncegate_gateway::tenants::secret::SecretDigest;
use serde_json::value::RawValue;

use super::context::Console;
use super::session::SessionId;
use super::site::Site;
use super::streams::Seen;
use crate::auth::{Operator, Via};
use crate::health::Stage;

/// Time between two checks for changes.
const INTERVAL: Duration = Duration::from_secs(2);

/// Looks without an event after which a comment is sent. The gateway notices only when it writes that a page was left, and the place of
/// its stream is free then.
const QUIET_LOOKS: u32 = 2;

/// Watched regions: the name of a region, and the call of the admin API that it shows.
const REGIONS: [(&str, &str); 3] =
    [("summary", "/admin/v1/summary"), ("waiting", "/admin/v1/waiting?limit=20"), ("history", "/admin/v1/history")];

/// Members that change with every answer without new information.
const RESTLESS: [&str; 7] = [
    "uptime_ms",
    "checked_at",
    "repeated_operations",
    "repeat_answers",
    "mismatch_answers",
    "observed_answers",
    "ran_twice_operations",
];

/// The event of a stream whose session has ended. The page asks for a sign-in then, and opens no other stream.
const ENDED: &str = "data: ended\n\n";

/// An open stream.
struct Stream {
    console: Arc<Console>,
    session: SessionId,
    /// Names its session among the open streams.
    key: String,
    operator: Operator,
    known: Vec<Option<SecretDigest>>,
    quiet: u32,
    /// Its session has ended, and its last event was sent.
    has_ended: bool,
}

impl Drop for Stream {
    fn drop(&mut self) {
        self.console.streams.leave(&self.key);
    }
}

/// Opens a stream. Beyond the limits the answer is 204, which ends an `EventSource`. Without a session its only event is [`ENDED`].
pub(super) async fn open(State(console): State<Arc<Console>>, request: Request) -> Response {
    let session = request.extensions().get::<Site>().and_then(|site| site.session(request.headers()));
    let found = session.and_then(|session| console.sessions.peek(&session).map(|token| (session, token)));
    let Some((session, token)) = found else { return events(ENDED) };
    let key = session.form_token();
    if !console.streams.enter(&key) {
        return StatusCode::NO_CONTENT.into_response();
    }
    let operator = Operator { name: token.name, role: token.role, request_id: String::new(), via: Via::Console };
    let stream = Stream { console, session, key, operator, known: Vec::new(), quiet: 0, has_ended: false };
    let texts = stream::unfold(stream, |stream| async move {
        let (text, stream) = stream.next().await?;
        Some((Ok::<_, std::convert::Infallible>(Bytes::from(text)), stream))
    });
    events(Body::from_stream(texts))
}

fn events(body: impl Into<Body>) -> Response {
    ([(header::CONTENT_TYPE, "text/event-stream")], body.into()).into_response()
}

impl Stream {
    /// Returns the next event, or nothing if the stream has ended: with its session, or because the gateway stops.
    async fn next(mut self) -> Option<(String, Self)> {
        if self.has_ended {
            return None;
        }
        if self.known.is_empty() {
            self.known = self.look().await;
            return Some((": open\n\n".to_owned(), self));
        }
        loop {
            tokio::time::sleep(INTERVAL).await;
            if self.console.admin.lifecycle.stage() == Stage::Draining {
                return None;
            }
            if self.console.sessions.peek(&self.session).is_none() {
                self.has_ended = true;
                return Some((ENDED.to_owned(), self));
            }
            let digests = self.look().await;
            let pairs = REGIONS.iter().zip(digests.iter().zip(&self.known));
            let changed: Vec<&str> = pairs.filter(|(_, (new, old))| new != old).map(|((name, _), _)| *name).collect();
            let event = format!("data: {}\n\n", changed.join(" ").replace("summary", "summary engines"));
            let has_changed = !changed.is_empty();
            self.known = digests;
            if has_changed {
                self.quiet = 0;
                return Some((event, self));
            }
            self.quiet += 1;
            if self.quiet >= QUIET_LOOKS {
                self.quiet = 0;
                return Some((": alive\n\n".to_owned(), self));
            }
        }
    }

    /// Returns the digests of the regions, at most a moment old.
    async fn look(&self) -> Vec<Option<SecretDigest>> {
        let console = &self.console;
        let mut seen = console.streams.seen.lock().await;
        let now = console.admin.clock.monotonic();
        if seen.at.is_none_or(|at| now.saturating_sub(at) >= INTERVAL / 2) {
            let mut digests = Vec::new();
            for (_, call) in REGIONS {
                let answer = console.calls.get::<Box<RawValue>>(&self.operator, call).await;
                digests.push(answer.ok().map(|answer| SecretDigest::of(&steady(answer.get()))));
            }
            *seen = Seen { at: Some(now), digests };
        }
        seen.digests.clone()
    }
}

/// Returns JSON text without the members that change with every answer.
fn steady(text: &str) -> String {
    let parts = text.split_inclusive(',');
    let is_restless = |part: &&str| RESTLESS.iter().any(|name| part.contains(&format!("\"{name}\":")));
    parts.filter(|part| !is_restless(part)).collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn an_age_is_no_change() {
        let one =
            "{\"stage\":\"ready\",\"uptime_ms\":1,\"engines\":[{\"up\":true,\"checked_at\":\"a\",\"chains\":[]}]}";
        let other = one.replace(":1,", ":2,").replace("\"a\"", "\"b\"");
        assert_eq!(steady(one), steady(&other));
        assert_ne!(steady(one), steady(&one.replace("true", "false")));
    }
}
