//! `POST /v1/locks/{name}/holds`: requests a hold of a lock.

use std::future::pending;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::Duration;

use axum::http::StatusCode;
use axum::response::{IntoResponse, Response};
use oncegate_core::caller::Caller;
use oncegate_core::clock::{Timestamp, millis};
use oncegate_core::limits::Limits;
use oncegate_core::lock::{HOLDS_MAX, InvalidPermits, LockBound, LockMode, LockName, Permits, TICKETS_MAX};
use oncegate_core::terms::Span;
use oncegate_gateway::lock::{AcquireAnswer, AcquireCall, GrantedLock, HeldLock};
use oncegate_web::fields::{checked_lease, parsed};
use oncegate_web::lock::{ModeName, shown_mode};
use oncegate_web::prefer;
use oncegate_web::problem::{Code, LockHeldMembers, Members, Problem};
use oncegate_web::response::json;
use serde::{Deserialize, Serialize};
use serde_json::Value;
use tokio::sync::oneshot;

use super::call::ApiCall;

#[derive(Deserialize)]
#[serde(deny_unknown_fields)]
struct HoldBody {
    mode: Option<ModeName>,
    limit: Option<Value>,
    owner: Option<String>,
    attempt_nonce: Option<String>,
    caller: Option<Caller>,
    lease: Option<Span>,
    wait: Option<Span>,
    fair: Option<bool>,
}

/// Body of the 201 response.
#[derive(Serialize)]
struct GrantedBody {
    name: LockName,
    mode: &'static str,
    attempt: String,
    fence: u64,
    holds: usize,
    lease_ms: u64,
    lease_expires_at: Timestamp,
    repeated: bool,
    waited_ms: u64,
}

/// Handles a request for a hold.
pub(super) async fn lock_hold(mut call: ApiCall<'_>, name: LockName) -> Result<Response, Problem> {
    let mut body: HoldBody = call.parse()?;
    body.wait = body.wait.or_else(|| prefer::wait(call.headers).map(Span));
    let request = body.into_request(name, &call.api.limits)?;
    let wait = request.wait;
    if wait.is_zero() {
        return answer(call.api.gateway.acquire_lock(call.app, request).await?);
    }
    call.drop_body();
    let (begins, begun) = oneshot::channel();
    let has_waited = AtomicBool::new(false);
    // Until it waits, it holds its permits.
    let gone = async {
        match begun.await {
            Ok(()) => {
                has_waited.store(true, Ordering::Relaxed);
                call.wait_ended().await;
            }
            Err(_) => pending().await,
        }
    };
    let acquired = tokio::select! {
        biased;
        acquired = call.api.gateway.acquire_lock_or_wait(call.app, request, begins) => acquired.map_err(Problem::from),
        () = gone => Err(Problem::new(Code::LockHeld, "The caller has left.")),
    };
    // A hold that crosses the revocation or the move ends with its lease, since a repeat may have it.
    call.admit_again()?;
    let mut response = acquired.and_then(answer).unwrap_or_else(IntoResponse::into_response);
    if has_waited.into_inner() {
        prefer::apply_wait(response.headers_mut(), wait);
    }
    Ok(response)
}

fn answer(acquired: AcquireAnswer) -> Result<Response, Problem> {
    match acquired {
        AcquireAnswer::Granted(granted) => {
            let mut response = json(&GrantedBody::from(granted));
            *response.status_mut() = StatusCode::CREATED;
            Ok(response)
        }
        AcquireAnswer::Held(held) => Err(held_problem(&held)),
        AcquireAnswer::UpgradeRefused => Err(Problem::new(
            Code::UpgradeRefused,
            "The owner shares the lock with others, so it cannot get it exclusively: two owners that wait for each other \
             would wait for ever. Release the shared holds, then request an exclusive one.",
        )),
        AcquireAnswer::LimitDiffers(used) => {
            let limit = used.holds();
            let detail = format!(
                "The holders share the lock with a limit of {limit}; all that hold it at the same time must name the same \
                 `limit`. Request it with that one, or when the lock is free."
            );
            Err(Problem { members: Members::LimitDiffers { limit }, ..Problem::new(Code::LimitDiffers, detail) })
        }
        AcquireAnswer::Withdrawn => Err(Problem::new(
            Code::Withdrawn,
            "This attempt_nonce was withdrawn; nothing is held under it. Send a fresh one to request the lock again.",
        )),
        AcquireAnswer::NonceReused => Err(Problem::invalid(
            "`attempt_nonce`: it was used for this lock with another mode, owner or limit. Send a fresh one for each hold.",
        )),
        AcquireAnswer::Full(bound) => Err(full(bound)),
    }
}

impl HoldBody {
    fn into_request(self, name: LockName, limits: &Limits) -> Result<AcquireCall, Problem> {
        let no_owner = |_| {
            Problem::invalid(
                "`owner`: an owner is 16 to 64 of A-Z a-z 0-9 _ -, such as the UUID of the process or the workflow.",
            )
        };
        let lease = checked_lease(self.lease, limits)?;
        let mode = self.mode.map_or(LockMode::Exclusive, LockMode::from);
        Ok(AcquireCall {
            name,
            mode,
            limit: self.limit.map(|limit| permits(mode, &limit)).transpose()?,
            owner: self.owner.map(|owner| owner.parse().map_err(no_owner)).transpose()?,
            nonce: self.attempt_nonce.map(|nonce| parsed("attempt_nonce", &nonce)).transpose()?,
            caller: self.caller,
            lease,
            wait: self.wait.map_or(Duration::ZERO, |wait| wait.0.min(limits.wait_max.0)),
            fair: self.fair.unwrap_or(false),
        })
    }
}

fn permits(mode: LockMode, limit: &Value) -> Result<Permits, Problem> {
    if mode == LockMode::Exclusive {
        return Err(Problem::invalid("`limit`: only shared holds have a limit; send \"mode\": \"shared\" with it."));
    }
    let permits = limit.as_u64().ok_or(InvalidPermits).and_then(Permits::try_from);
    permits.map_err(|why| Problem::invalid(format!("`limit`: {why}.")))
}

impl From<GrantedLock> for GrantedBody {
    fn from(granted: GrantedLock) -> Self {
        Self {
            name: granted.name,
            mode: shown_mode(granted.mode),
            attempt: granted.attempt.text(),
            fence: granted.fence,
            holds: granted.holds,
            lease_ms: granted.lease_ms,
            lease_expires_at: granted.lease_expires_at,
            repeated: granted.repeated,
            waited_ms: millis(granted.waited),
        }
    }
}

fn held_problem(held: &HeldLock) -> Problem {
    let detail = match (held.mode, held.position) {
        (_, Some(_)) => {
            "Others hold the lock or are before this request in its queue. Ask again with the same attempt_nonce after \
             Retry-After, and at least every ten seconds, to keep the place; or send `wait`."
        }
        (None, None) => "The lock is free, and others queue for it. Ask again after Retry-After, or queue with `fair`.",
        (Some(_), None) => "Others hold the lock. Ask again after Retry-After, or send `wait`.",
    };
    let members = LockHeldMembers {
        mode: held.mode.map(shown_mode),
        holders: held.holders,
        waiting: held.waiting,
        position: held.position,
        waited_ms: millis(held.waited),
    };
    Problem { members: Members::LockHeld(members), ..Problem::new(Code::LockHeld, detail) }
        .retry_after(held.retry_after)
}

fn full(bound: LockBound) -> Problem {
    let (quota, detail) = match bound {
        LockBound::Holds => {
            ("lock_holds", format!("The lock has {HOLDS_MAX} holds, and may not have more; nothing was done."))
        }
        LockBound::Tickets => {
            let detail =
                format!("{TICKETS_MAX} requests queue for the lock, and no more may; ask later, or without `fair`.");
            ("lock_tickets", detail)
        }
        LockBound::Withdrawn => {
            ("lock_withdrawals", "Too many requests for the lock were withdrawn; ask again in ten seconds.".into())
        }
    };
    let members = Members::LockQuota { quota };
    Problem { members, ..Problem::new(Code::QuotaExceeded, detail) }.retry_soon()
}

#[cfg(test)]
mod tests {
    use super::*;

    fn request(body: &str) -> Result<AcquireCall, Problem> {
        let body: HoldBody = serde_json::from_str(body).expect("the form of a body");
        body.into_request("a".parse().expect("a name"), &Limits::default())
    }

    #[test]
    fn a_request_has_defaults_and_its_wait_is_bounded() {
        let call = request("{}").unwrap();
        assert_eq!((call.mode, call.wait, call.fair), (LockMode::Exclusive, Duration::ZERO, false));
        let call = request(r#"{"mode":"shared","wait":"1h","fair":true}"#).unwrap();
        assert_eq!((call.mode, call.wait, call.fair), (LockMode::Shared, Limits::default().wait_max.0, true));
    }

    #[test]
    fn owners_nonces_leases_and_limits_out_of_bounds_are_refused_with_advice() {
        for (body, field) in [
            (r#"{"owner":"short"}"#, "`owner`: an owner is"),
            (r#"{"attempt_nonce":"a b"}"#, "`attempt_nonce`: an attempt nonce is"),
            (r#"{"lease":"1ms"}"#, "`lease`: a lease is from"),
            (r#"{"limit":3}"#, "send \"mode\": \"shared\" with it"),
            (r#"{"mode":"shared","limit":1}"#, "`limit`: a limit is a number of holds from 2 to 1000"),
            (r#"{"mode":"shared","limit":1001}"#, "`limit`: a limit is a number of holds from 2 to 1000"),
            (r#"{"mode":"shared","limit":-1}"#, "`limit`: a limit is a number of holds from 2 to 1000"),
            (r#"{"mode":"shared","limit":2.5}"#, "`limit`: a limit is a number of holds from 2 to 1000"),
            (r#"{"mode":"shared","limit":"3"}"#, "`limit`: a limit is a number of holds from 2 to 1000"),
        ] {
            let problem = request(body).unwrap_err();
            assert_eq!(problem.code, Code::InvalidRequest);
            assert!(problem.detail.contains(field), "{}", problem.detail);
        }
    }
}
