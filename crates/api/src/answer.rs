//! The bodies of responses, as in `openapi.yaml`, made from the answers of the gateway.

mod granted;

use std::time::Duration;

use axum::http::{HeaderValue, StatusCode};
use axum::response::Response;
use oncegate_core::call::Answered;
use oncegate_core::claim::{Mismatch, OutcomeResponse, RenewalResponse};
use oncegate_core::clock::{Timestamp, millis};
use oncegate_core::global_id::GlobalId;
use oncegate_core::outage_policy::OutagePolicy;
use oncegate_core::record::{ClaimState, Contents};
use oncegate_core::tenant::Operation;
use oncegate_gateway::claim::ClaimAnswer;
use oncegate_gateway::outcome::Reported;
use oncegate_gateway::{ClaimView, RenewalAnswer};
use oncegate_web::problem::{Code, DuplicateMembers, Members, Problem};
use oncegate_web::recent::{Kind, Noted};
use oncegate_web::record::raw;
use oncegate_web::response::{DEGRADED, written};
use serde::Serialize;

use self::granted::GrantedBody;

/// Longest Retry-After for an operation in progress. Most operations end long before their lease.
const POLL: Duration = Duration::from_secs(1);

/// State of an outcome that is still to be delivered.
const SPOOLED: &str = "spooled";

/// The body of a success, with the values for its head.
pub trait Success: Serialize {
    /// Returns its status.
    fn status(&self) -> StatusCode;

    /// Returns the outage policy that answered in place of the store.
    fn degraded(&self) -> Option<OutagePolicy>;

    /// Returns what operators want to know of it. Nothing of a plain success.
    fn noted(&self) -> Option<Noted>;

    /// Appends its JSON text.
    fn write(&self, text: &mut Vec<u8>) -> serde_json::Result<()> {
        serde_json::to_writer(text, self)
    }
}

/// Returns the response of a success: its status, its body, and the outage policy that answered in place of the store.
pub fn success<Body: Success>(body: &Body) -> Response {
    let mut response = written(|text| body.write(text));
    if response.status().is_success() {
        *response.status_mut() = body.status();
    }
    if let Some(degraded) = body.degraded() {
        response.headers_mut().insert(DEGRADED, HeaderValue::from_static(degraded.name()));
    }
    if let Some(noted) = body.noted() {
        response.extensions_mut().insert(noted);
    }
    response
}

/// Returns what operators want to know of a response.
pub(super) fn noted(response: &Response) -> Option<Noted> {
    let (noted, problem) = (response.extensions().get::<Noted>(), response.extensions().get::<Problem>());
    noted.cloned().or_else(|| problem.and_then(Noted::of_problem))
}

/// Operation and claim of a call or an item, as far as it names them.
pub(super) type Named = (Option<Operation>, Option<GlobalId>);

/// Adds the operation and the claim of its call to what operators want to know of a response. Nothing is read of a call without it.
pub(super) fn with_call(mut response: Response, call: impl FnOnce() -> Named) -> Response {
    if let Some(noted) = noted(&response) {
        let (operation, global_id) = call();
        response.extensions_mut().insert(noted.of_call(operation, global_id));
    }
    response
}

/// Body of the 200 or 202 response to an outcome call.
#[derive(Debug, Serialize)]
pub(super) struct OutcomeBody {
    global_id: GlobalId,
    state: &'static str,
    expires_at: Option<Timestamp>,
    late: Option<bool>,
    degraded: Option<OutagePolicy>,
    /// In observe mode: the operation ran a second time, since its claim was in this state and let it pass.
    #[serde(skip)]
    ran_twice: Option<ClaimState>,
}

/// Body of the 200 response to a renewal.
#[derive(Debug, Serialize)]
pub(super) struct RenewalBody {
    global_id: GlobalId,
    lease_ms: u64,
    lease_expires_at: Option<Timestamp>,
    degraded: Option<OutagePolicy>,
}

impl Success for OutcomeBody {
    fn status(&self) -> StatusCode {
        if self.state == SPOOLED { StatusCode::ACCEPTED } else { StatusCode::OK }
    }

    fn degraded(&self) -> Option<OutagePolicy> {
        self.degraded
    }

    fn noted(&self) -> Option<Noted> {
        match (self.degraded, self.late) {
            (Some(policy), _) => Some(Noted::of(Kind::Degraded, policy.name(), self.global_id)),
            (None, Some(true)) => Some(Noted::of(Kind::Late, self.state, self.global_id)),
            _ => self.ran_twice.map(|state| Noted::of(Kind::RanTwice, state.name(), self.global_id)),
        }
    }
}

impl Success for RenewalBody {
    fn status(&self) -> StatusCode {
        StatusCode::OK
    }

    fn degraded(&self) -> Option<OutagePolicy> {
        self.degraded
    }

    fn noted(&self) -> Option<Noted> {
        self.degraded.map(|policy| Noted::of(Kind::Degraded, policy.name(), self.global_id))
    }
}

/// Returns the body of a grant, or the problem if it was not granted.
pub fn granted(answered: Answered<ClaimAnswer>) -> Result<GrantedBody, Problem> {
    let Answered { answer, policy: degraded } = answered;
    let problem = match answer {
        ClaimAnswer::Granted(granted) => return Ok(GrantedBody::new(&granted, degraded)),
        ClaimAnswer::Duplicate(found) => duplicate(found),
        ClaimAnswer::Mismatch(mismatch) => mismatched(mismatch),
    };
    Err(Problem { degraded, ..problem })
}

fn mismatched(mismatch: Mismatch) -> Problem {
    match mismatch {
        Mismatch::Contents => Problem::new(
            Code::ContentsMismatch,
            "There is a claim with this global ID, but with other contents; nothing was changed. Never retry this: look at how \
             the contents are made.",
        ),
        Mismatch::Fingerprint => Problem::new(
            Code::FingerprintMismatch,
            "The same operation was claimed with another fingerprint; nothing was changed. Two different requests use \
             the same contents, or one was altered on the way.",
        ),
    }
}

fn duplicate(found: ClaimView) -> Problem {
    let ClaimView { global_id, claim, result_omitted } = found;
    let record = claim.record;
    let detail = match record.state {
        ClaimState::InProgress => {
            "Another attempt is doing this operation. Wait for its outcome: ask again after Retry-After, or answer that it \
             is being done."
        }
        ClaimState::Succeeded => {
            "This operation has been done. Do not do it again; `result` is what was reported with it."
        }
        ClaimState::Unknown => {
            "The outcome is unknown. Check whether the operation took effect, then claim it with take_over: true."
        }
    };
    let wait = claim.left.unwrap_or(POLL).min(POLL);
    let retry_after = (record.state == ClaimState::InProgress).then_some(wait);
    let members = DuplicateMembers {
        global_id,
        state: record.state,
        timestamp: record.attempt.timestamp().as_micros(),
        attempt_hash: record.attempt.hash(),
        claimed_at: record.attempt.timestamp(),
        expires_at: claim.ends_at,
        result: record.result.and_then(raw),
        result_omitted: result_omitted.then_some(true),
        waited_ms: None,
        contents_verified: (record.contents == Contents::Unverified).then_some(false),
        operation: record.operation,
    };
    let members = Members::Duplicate(Box::new(members));
    Problem { retry_after, members, ..Problem::new(Code::Duplicate, detail) }
}

/// Returns the body of a recorded outcome, or the problem if it was not recorded.
pub(super) fn reported(answered: &Answered<Reported>) -> Result<OutcomeBody, Problem> {
    let degraded = answered.policy;
    let (global_id, settled, expires_at) = match answered.answer {
        Reported::Settled { global_id, ref settled, expires_at } => (global_id, settled, expires_at),
        Reported::Spooled { global_id } => {
            let state = SPOOLED;
            return Ok(OutcomeBody { global_id, state, expires_at: None, late: None, degraded, ran_twice: None });
        }
        Reported::Observed { global_id, ran_twice } => {
            let (state, late) = ("observed", None);
            return Ok(OutcomeBody { global_id, state, expires_at: None, late, degraded, ran_twice });
        }
    };
    let problem = match settled {
        OutcomeResponse::Done { state, late, .. } => {
            let state = match state {
                None => "released",
                Some(ClaimState::Succeeded) => "succeeded",
                Some(ClaimState::Unknown | ClaimState::InProgress) => "unknown",
            };
            return Ok(OutcomeBody { global_id, state, expires_at, late: *late, degraded, ran_twice: None });
        }
        OutcomeResponse::AlreadySucceeded => already_succeeded(),
        OutcomeResponse::Superseded { state, left } => superseded(*state, *left),
        OutcomeResponse::Expired => Problem::new(
            Code::Expired,
            "There is no claim, and this attempt is older than what its outcome would be kept for; nothing was recorded.",
        ),
    };
    Err(Problem { degraded, ..problem })
}

fn already_succeeded() -> Problem {
    Problem::new(
        Code::AlreadySucceeded,
        "This attempt has reported success before, which is never undone; nothing was changed.",
    )
}

fn superseded(state: ClaimState, left: Option<Duration>) -> Problem {
    let detail = "Another attempt's claim stands and was not touched: this attempt's lease had ended, or it was taken over. \
                  If this attempt has done its operation, it may have been done twice.";
    let retry_after = (state == ClaimState::InProgress).then_some(left.unwrap_or(POLL).min(POLL));
    Problem { retry_after, members: Members::Superseded { state }, ..Problem::new(Code::Superseded, detail) }
}

/// Returns the body of a renewal, or the problem if nothing was renewed.
pub(super) fn renewed(answered: &Answered<RenewalAnswer>) -> Result<RenewalBody, Problem> {
    let Answered { answer, policy: degraded } = answered;
    let degraded = *degraded;
    let problem = match &answer.renewed {
        RenewalResponse::Renewed { left, .. } => {
            return Ok(RenewalBody {
                global_id: answer.global_id,
                lease_ms: millis(*left),
                lease_expires_at: answer.expires_at,
                degraded,
            });
        }
        RenewalResponse::LeaseLost => Problem::new(
            Code::LeaseLost,
            "This attempt holds no claim any more. Stop the operation if you can; if its effect may have happened, report \
             `success` or `unknown`.",
        ),
        RenewalResponse::AlreadySucceeded => already_succeeded(),
        RenewalResponse::Superseded { state, left } => superseded(*state, *left),
    };
    Err(Problem { degraded, ..problem })
}
