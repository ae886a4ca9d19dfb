//! Locks of the gateway in memory: exclusive and shared holds, without a queue.

use std::collections::HashMap;
use std::time::{Duration, Instant};

use serde_json::{Value, json};

use super::{Answer, Now, duration, problem};

const LEASE: Duration = Duration::from_secs(30);

#[derive(Default)]
pub(super) struct Locks {
    holds: HashMap<String, Vec<Hold>>,
    grants: i64,
}

struct Hold {
    attempt: String,
    nonce: String,
    owner: Option<String>,
    is_shared: bool,
    fence: i64,
    claimed_at: String,
    ends: Instant,
    lease: Duration,
}

impl Locks {
    pub(super) fn call(&mut self, name: &str, call: &str, request: &Value, now: Now) -> Answer {
        let holds = self.holds.entry(name.to_owned()).or_default();
        holds.retain(|hold| hold.ends > now.at);
        match call {
            "holds" => {
                self.grants += 1;
                acquire(holds, self.grants, request, now)
            }
            "renewal" => match holds.iter_mut().find(|hold| hold.attempt == request["attempt"]) {
                None => problem(409, "not_held", json!({})),
                Some(hold) => {
                    hold.lease = duration(&request["lease"]).unwrap_or(hold.lease);
                    hold.ends = now.at + hold.lease;
                    (200, json!({ "name": name, "lease_ms": millis(hold.lease) }))
                }
            },
            "release" => {
                let before = holds.len();
                holds.retain(|hold| hold.attempt != request["attempt"] && hold.nonce != request["attempt_nonce"]);
                if holds.len() == before && request.get("attempt_nonce").is_none() {
                    return problem(409, "not_held", json!({}));
                }
                (200, json!({ "name": name, "holds": 0 }))
            }
            _ => problem(404, "not_found", json!({})),
        }
    }

    pub(super) fn lookup(&mut self, name: &str, now: Now) -> Answer {
        let holds = self.holds.entry(name.to_owned()).or_default();
        holds.retain(|hold| hold.ends > now.at);
        let Some(first) = holds.first() else { return problem(404, "not_found", json!({})) };
        let holders = holds.iter().map(|hold| {
            json!({
                "hash": format!("{:08x}", hold.fence), "mode": mode(hold.is_shared), "claimed_at": hold.claimed_at,
                "lease_ms": millis(hold.ends.saturating_duration_since(now.at)),
            })
        });
        let holders: Vec<_> = holders.collect();
        let record = json!({
            "name": name, "held": true, "mode": mode(first.is_shared), "fence": first.fence, "holders": holders, "waiting": 0,
        });
        (200, record)
    }
}

fn acquire(holds: &mut Vec<Hold>, number: i64, request: &Value, now: Now) -> Answer {
    let owner = request["owner"].as_str().map(str::to_owned);
    let is_shared = request["mode"] == "shared";
    let nonce = request["attempt_nonce"].as_str().unwrap_or_default();
    let is_repeat = |hold: &Hold| hold.nonce == nonce;
    let is_own = |hold: &Hold| owner.is_some() && hold.owner == owner;
    let is_free = holds.iter().all(|hold| is_own(hold) || (is_shared && hold.is_shared));
    if !is_free && !holds.iter().any(is_repeat) {
        return problem(409, "lock_held", json!({ "state": "held", "retry_after_ms": 50 }));
    }
    if !holds.iter().any(is_repeat) {
        let fence = holds.first().map_or(number, |hold| hold.fence);
        let lease = duration(&request["lease"]).unwrap_or(LEASE);
        let (attempt, claimed_at) = (format!("{number}-{nonce}"), now.text(Duration::ZERO));
        let hold = Hold {
            attempt,
            nonce: nonce.to_owned(),
            owner: owner.clone(),
            is_shared,
            fence,
            claimed_at,
            ends: now.at + lease,
            lease,
        };
        holds.push(hold);
    }
    let count = holds.iter().filter(|hold| is_own(hold)).count().max(1);
    let Some(hold) = holds.iter().find(|hold| is_repeat(hold)) else { return problem(500, "internal", json!({})) };
    let lease_ms = millis(hold.ends.saturating_duration_since(now.at));
    let granted = json!({
        "attempt": hold.attempt, "fence": hold.fence, "mode": mode(hold.is_shared), "holds": count, "lease_ms": lease_ms,
    });
    (201, granted)
}

fn mode(is_shared: bool) -> &'static str {
    if is_shared { "shared" } else { "exclusive" }
}

fn millis(time: Duration) -> u64 {
    u64::try_from(time.as_millis()).unwrap_or(u64::MAX)
}
