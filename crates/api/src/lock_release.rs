//! `POST /v1/locks/{name}/release`: ends a hold by its attempt, or withdraws a request by its nonce.

use axum::response::Response;
use oncegate_core::lock::LockName;
use oncegate_gateway::lock::UnlockAnswer;
use oncegate_web::fields::parsed;
use oncegate_web::lock::not_held;
use oncegate_web::problem::{Code, Members, Problem};
use oncegate_web::response::json;
use serde::{Deserialize, Serialize};

use super::call::ApiCall;

#[derive(Deserialize)]
#[serde(deny_unknown_fields)]
struct ReleaseBody {
    attempt: Option<String>,
    attempt_nonce: Option<String>,
}

/// Body of the 200 response.
#[derive(Serialize)]
struct ReleasedBody {
    name: LockName,
    holds: usize,
    fence: Option<u64>,
    late: Option<bool>,
}

/// Handles a release or a withdrawal.
pub(super) async fn lock_release(call: ApiCall<'_>, name: LockName) -> Result<Response, Problem> {
    let ReleaseBody { attempt, attempt_nonce } = call.parse()?;
    let gateway = &call.api.gateway;
    let (answer, absent) = match (attempt, attempt_nonce) {
        (Some(attempt), None) => {
            (gateway.release_lock(call.app, &name, parsed("attempt", &attempt)?).await?, not_held())
        }
        (None, Some(nonce)) => {
            let nonce = parsed("attempt_nonce", &nonce)?;
            let absent = Problem::new(
                Code::NotHeld,
                "Nothing is held or waits under this attempt_nonce. It is refused from now on for ten seconds, so a request \
                 that is still on its way gets nothing.",
            );
            (gateway.withdraw_lock(call.app, &name, &nonce).await?, absent)
        }
        _ => {
            return Err(Problem::invalid(
                "Send either `attempt`, of the 201 answer, to release a hold; or `attempt_nonce` to withdraw a request.",
            ));
        }
    };
    match answer {
        UnlockAnswer::Done { holds, fence, late } => Ok(json(&ReleasedBody { name, holds, fence, late })),
        UnlockAnswer::NotHeld => Err(absent),
        UnlockAnswer::Full => {
            let detail = "Too many requests for this lock were withdrawn within ten seconds; nothing was changed. Release by \
                          `attempt`, or ask again later.";
            let members = Members::LockQuota { quota: "lock_withdrawals" };
            Err(Problem { members, ..Problem::new(Code::QuotaExceeded, detail) }.retry_soon())
        }
    }
}
