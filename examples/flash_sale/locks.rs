//! Locks of the gateway, as far as the shop needs them.

use std::time::{Duration, Instant};

use serde_json::json;

use crate::http::Http;

/// Lease: longer than the work takes, and short enough to wait for after a crash.
const LEASE: Duration = Duration::from_secs(2);
/// Tries of a call, at one gateway after the other.
const TRIES: usize = 4;

/// Locks at one or more gateways in front of the same store.
pub(crate) struct Locks {
    http: Http,
    urls: Vec<String>,
    /// Limit of one call, in addition to the time that it waits.
    timeout: Duration,
}

/// No gateway answered.
pub(crate) struct Unavailable;

/// Lock that is held until it is released, or its lease ends.
pub(crate) struct Lock {
    name: String,
    attempt: String,
    ends: Instant,
}

impl Locks {
    pub(crate) fn new(urls: Vec<String>, timeout: Duration) -> Self {
        Self { http: Http::new(), urls, timeout }
    }

    /// Requests a lock, and waits for it if `wait` is given. Returns nothing if another caller still holds it.
    pub(crate) async fn acquire(&self, name: String, wait: Option<Duration>) -> Result<Option<Lock>, Unavailable> {
        // One nonce for all tries: if an answer is lost, the next try gets the hold that was granted.
        let request = json!({
            "attempt_nonce": format!("{:016x}", rand::random::<u64>()),
            "lease": format!("{}ms", LEASE.as_millis()),
            "wait": wait.map(|wait| format!("{}ms", wait.as_millis())),
        });
        let within = self.timeout + wait.unwrap_or_default();
        for url in self.urls.iter().cycle().take(TRIES) {
            let sent_at = Instant::now();
            let url = format!("{url}/v1/locks/{name}/holds");
            match self.http.post(&url, &request, within).await {
                Ok((201, granted)) => {
                    let attempt = granted["attempt"].as_str().unwrap_or_default().to_owned();
                    let lease = Duration::from_millis(granted["lease_ms"].as_u64().unwrap_or_default());
                    let waited = Duration::from_millis(granted["waited_ms"].as_u64().unwrap_or_default());
                    return Ok(Some(Lock { name, attempt, ends: sent_at + waited + lease }));
                }
                Ok((409, _)) => return Ok(None),
                Ok(_) | Err(_) => {}
            }
        }
        Err(Unavailable)
    }

    /// Releases a lock. If no gateway answers, its lease ends.
    pub(crate) async fn release(&self, lock: Lock) {
        let hold = json!({ "attempt": lock.attempt });
        for url in self.urls.iter().cycle().take(TRIES) {
            let url = format!("{url}/v1/locks/{}/release", lock.name);
            if matches!(self.http.post(&url, &hold, self.timeout).await, Ok((200 | 409, _))) {
                return;
            }
        }
    }
}

impl Lock {
    /// Reports whether the lease has certainly not ended yet.
    pub(crate) fn is_still_ours(&self) -> bool {
        Instant::now() < self.ends
    }
}
