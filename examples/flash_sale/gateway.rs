//! The two calls: claim an operation before doing it, settle the claim afterwards. All a caller needs to know about the
//! gateway is in this file, and it is meant to be copied.

use std::time::{Duration, Instant};

use serde_json::{Value, json};
use tokio::time::sleep;

use crate::http::Http;

/// Longer than the work takes; as short as one is willing to wait after a crash.
const LEASE: Duration = Duration::from_secs(2);
/// How long the gateway remembers that it was done: longer than anybody will retry.
const RETENTION: &str = "1d";
/// A gateway that has not answered by then is asked again, or another one is.
const CALL_TIMEOUT: Duration = Duration::from_millis(500);
/// Tries of one call before giving up, over all gateways.
const TRIES: usize = 6;
const PAUSE: Duration = Duration::from_millis(50);

/// Gateways in front of one store: it does not matter which of them is asked.
pub(crate) struct Gateway {
    urls: [String; 2],
    http: Http,
}

/// What the gateway says to "may I do this?". That somebody else did it is an answer, not an error.
pub(crate) enum Claim {
    /// Do it, and then settle the claim.
    Granted(Held),
    /// It was done; this is what came of it.
    Done(Value),
    /// Somebody is at it, or was and died: ask again later.
    InProgress,
}

/// The right to do one operation, until the lease ends.
pub(crate) struct Held {
    global_id: String,
    attempt: String,
    ends_at: Instant,
}

impl Held {
    /// Whether to go ahead with something that cannot be undone. Once the lease has ended, somebody else may be doing it.
    pub(crate) fn is_still_ours(&self) -> bool {
        Instant::now() < self.ends_at
    }
}

/// How it went.
pub(crate) enum Outcome {
    /// It is finished and must never run again, whatever the answer was; everybody who asks again is given this.
    Success(Value),
    /// It certainly did not happen: somebody else may try at once.
    Failure,
}

/// No gateway could tell. Nothing may be done without a claim.
#[derive(Debug)]
pub(crate) struct Unavailable;

impl Gateway {
    /// The nearest first.
    pub(crate) fn new(urls: [String; 2]) -> Self {
        Self { urls, http: Http::new() }
    }

    /// Before the work. The same contents are the same operation, whoever asks, at whichever gateway.
    pub(crate) async fn claim(&self, operation: &str, contents: Value) -> Result<Claim, Unavailable> {
        // The nonce is new for each claim and the same for all tries of it. So if an answer is lost, the next try is
        // recognised and given the claim it already has, instead of being turned away as its own duplicate.
        let nonce = format!("{:032x}", rand::random::<u128>());
        let body = json!({
            "operation": operation,
            "contents": contents,
            "attempt_nonce": nonce,
            "lease": format!("{}ms", LEASE.as_millis()),
            "retention": RETENTION,
        });
        for url in self.tries() {
            // The lease counts from here, before the call: the answer may have been long on its way.
            let asked_at = Instant::now();
            let Ok((status, answer)) = self.http.post(&format!("{url}/v1/claims"), &body, CALL_TIMEOUT).await else {
                sleep(PAUSE).await;
                continue;
            };
            match (status, answer["state"].as_str()) {
                (201, _) => {
                    let lease = Duration::from_millis(answer["lease_ms"].as_u64().unwrap_or_default());
                    let text = |field: &str| answer[field].as_str().unwrap_or_default().to_owned();
                    let (global_id, attempt) = (text("global_id"), text("attempt"));
                    return Ok(Claim::Granted(Held { global_id, attempt, ends_at: asked_at + lease }));
                }
                (409, Some("succeeded")) => return Ok(Claim::Done(answer["result"].clone())),
                (409, _) => return Ok(Claim::InProgress),
                // 503: it could not tell, or is shutting down. The same question again, with the same nonce.
                _ => sleep(PAUSE).await,
            }
        }
        Err(Unavailable)
    }

    /// After the work. Repeating it does no harm, so it is repeated until it is answered. If it never is, the lease ends, and
    /// whoever claims the operation next must look whether it was done.
    pub(crate) async fn settle(&self, held: Held, outcome: Outcome) {
        let body = match outcome {
            Outcome::Success(result) => json!({ "attempt": held.attempt, "outcome": "success", "result": result }),
            Outcome::Failure => json!({ "attempt": held.attempt, "outcome": "failure" }),
        };
        for url in self.tries() {
            let url = format!("{url}/v1/claims/{}/outcome", held.global_id);
            match self.http.post(&url, &body, CALL_TIMEOUT).await {
                Ok((200 | 202 | 409, _)) => return,
                _ => sleep(PAUSE).await,
            }
        }
    }

    fn tries(&self) -> impl Iterator<Item = &String> {
        self.urls.iter().cycle().take(TRIES)
    }
}
