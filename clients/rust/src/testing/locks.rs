//! Locks of the gateway in memory, without a queue.

use std::collections::HashMap;
use std::time::{Duration, Instant};

use serde_json::{Value, json};

use super::{Answer, Now, duration, problem};

const LEASE: Duration = Duration::from_secs(30);

#[derive(Default)]
pub(super) struct Locks {
    by_name: HashMap<String, Lock>,
    attempts: u64,
    fences: u64,
}

/// A lock that is held, if it has holds.
#[derive(Default)]
struct Lock {
    /// The mode that the fence is for.
    is_shared: bool,
    fence: u64,
    /// Named by all holds.
    limit: Option<u64>,
    holds: Vec<Hold>,
}

struct Hold {
    attempt: String,
    nonce: String,
    owner: Option<String>,
    is_shared: bool,
    claimed_at: String,
    ends: Instant,
    lease: Duration,
}

impl Locks {
    pub(super) fn call(&mut self, name: &str, call: &str, request: &Value, now: Now) -> Answer {
        self.sweep(name, now);
        let lock = self.by_name.entry(name.to_owned()).or_default();
        let answer = match call {
            "holds" => {
                self.attempts += 1;
                lock.acquire(self.attempts, request, now)
            }
            "renewal" => match lock.holds.iter_mut().find(|hold| hold.attempt == request["attempt"]) {
                None => problem(409, "not_held", json!({})),
                Some(hold) => {
                    hold.lease = duration(&request["lease"]).unwrap_or(hold.lease);
                    hold.ends = hold.ends.max(now.at + hold.lease);
                    (200, json!({ "name": name, "lease_ms": millis(hold.ends.saturating_duration_since(now.at)) }))
                }
            },
            "release" => lock.release(name, request),
            _ => problem(404, "not_found", json!({})),
        };
        self.sweep(name, now);
        match answer {
            (201, mut granted) => {
                granted["name"] = name.into();
                // The fence may be new.
                granted["fence"] = self.by_name.get(name).map(|lock| lock.fence).into();
                (201, granted)
            }
            other => other,
        }
    }

    pub(super) fn lookup(&mut self, name: &str, now: Now) -> Answer {
        self.sweep(name, now);
        let Some(lock) = self.by_name.get(name) else { return problem(404, "not_found", json!({})) };
        let holders = lock.holds.iter().map(|hold| {
            json!({
                "hash": hash(&hold.nonce), "mode": mode(hold.is_shared), "claimed_at": hold.claimed_at,
                "lease_ms": millis(hold.ends.saturating_duration_since(now.at)),
            })
        });
        let holders: Vec<_> = holders.collect();
        let mut record = json!({
            "name": name, "mode": mode(lock.is_shared), "fence": lock.fence, "holders": holders, "waiting": 0,
        });
        if let Some(limit) = lock.limit {
            record["limit"] = limit.into();
        }
        (200, record)
    }

    /// Ends holds, and assigns a fence if the lock is held now in another mode than the last one is for.
    fn sweep(&mut self, name: &str, now: Now) {
        let Some(lock) = self.by_name.get_mut(name) else { return };
        lock.holds.retain(|hold| hold.ends > now.at);
        if lock.holds.is_empty() {
            self.by_name.remove(name);
            return;
        }
        let is_shared = lock.holds.iter().all(|hold| hold.is_shared);
        if lock.fence == 0 || lock.is_shared != is_shared {
            self.fences += 1;
            (lock.fence, lock.is_shared) = (self.fences, is_shared);
        }
    }
}

impl Lock {
    fn acquire(&mut self, number: u64, request: &Value, now: Now) -> Answer {
        let nonce = request["attempt_nonce"].as_str().unwrap_or_default();
        if let Some(hold) = self.holds.iter().find(|hold| hold.nonce == nonce) {
            return self.granted(hold, true, now);
        }
        let (owner, is_shared) = (request["owner"].as_str(), request["mode"] == "shared");
        let limit = request["limit"].as_u64();
        let used = if self.holds.is_empty() { limit } else { self.limit };
        let others = || self.holds.iter().filter(|hold| !hold.is_of(owner));
        let is_excluded = others().any(|hold| !(is_shared && hold.is_shared));
        let is_busy = match (used, limit) {
            (Some(used), Some(limit)) if used != limit => {
                return problem(409, "limit_differs", json!({ "limit": used }));
            }
            (Some(used), Some(_)) => u64::try_from(self.holds.len()).is_ok_and(|holds| holds >= used),
            (None, None) if is_excluded && !is_shared && others().count() < self.holds.len() => {
                return problem(409, "upgrade_refused", json!({}));
            }
            (None, None) => is_excluded,
            _ => true,
        };
        if is_busy {
            let members = json!({ "mode": mode(self.is_shared), "holders": self.holds.len(), "retry_after_ms": 50 });
            return problem(409, "lock_held", members);
        }
        let lease = duration(&request["lease"]).unwrap_or(LEASE);
        self.holds.push(Hold {
            attempt: format!("{number}-{nonce}"),
            nonce: nonce.to_owned(),
            owner: owner.map(str::to_owned),
            is_shared,
            claimed_at: now.text(Duration::ZERO),
            ends: now.at + lease,
            lease,
        });
        self.limit = limit;
        let Some(hold) = self.holds.last() else { return problem(500, "internal", json!({})) };
        self.granted(hold, false, now)
    }

    fn granted(&self, hold: &Hold, repeated: bool, now: Now) -> Answer {
        let granted = json!({
            "attempt": hold.attempt, "mode": mode(hold.is_shared), "holds": self.count(hold.owner.as_deref()).max(1),
            "lease_ms": millis(hold.ends.saturating_duration_since(now.at)), "repeated": repeated,
        });
        (201, granted)
    }

    fn release(&mut self, name: &str, request: &Value) -> Answer {
        let is_meant = |hold: &Hold| hold.attempt == request["attempt"] || hold.nonce == request["attempt_nonce"];
        let Some(at) = self.holds.iter().position(is_meant) else { return problem(409, "not_held", json!({})) };
        let owner = self.holds.remove(at).owner;
        (200, json!({ "name": name, "holds": self.count(owner.as_deref()) }))
    }

    fn count(&self, owner: Option<&str>) -> usize {
        self.holds.iter().filter(|hold| hold.is_of(owner)).count()
    }
}

impl Hold {
    /// Returns true if it is this owner's. A hold without one is its own owner.
    fn is_of(&self, owner: Option<&str>) -> bool {
        owner.is_some() && self.owner.as_deref() == owner
    }
}

/// Returns 8 hex digits, which are not those of a real gateway.
fn hash(nonce: &str) -> String {
    use std::hash::{DefaultHasher, Hash, Hasher};
    let mut hasher = DefaultHasher::new();
    nonce.hash(&mut hasher);
    format!("{:08x}", hasher.finish() >> 32)
}

fn mode(is_shared: bool) -> &'static str {
    if is_shared { "shared" } else { "exclusive" }
}

fn millis(time: Duration) -> u64 {
    u64::try_from(time.as_millis()).unwrap_or(u64::MAX)
}
