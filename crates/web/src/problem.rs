//! Problems (RFC 9457): the table of codes and the document. Every 4xx and 5xx response is one.

mod base;
mod duplicate;
mod failure;

use std::borrow::Cow;
use std::collections::BTreeMap;
use std::fmt;
use std::time::Duration;

use axum::http::StatusCode;
use axum::response::{IntoResponse, Response};
use oncegate_core::attempt::AttemptHash;
use oncegate_core::clock::{Timestamp, millis};
use oncegate_core::global_id::GlobalId;
use oncegate_core::outage_policy::OutagePolicy;
use oncegate_core::record::ClaimState;
use oncegate_core::spool::SpoolStatus;
use oncegate_core::tenant::Operation;
use oncegate_gateway::EngineHealth;
use oncegate_gateway::tenants::quota::QuotaName;
use serde::Serialize;
use serde_json::value::RawValue;

pub use self::base::ProblemBase;
use self::base::ProblemType;
pub use self::failure::sentence;

/// One row of the table: the code, its status, and its title.
macro_rules! codes {
    ($($(#[$doc:meta])* $code:ident = $name:literal, $status:ident, $title:literal;)*) => {
        /// The stable code of an error.
        #[derive(Clone, Copy, PartialEq, Eq, Debug)]
        #[expect(missing_docs, reason = "the titles describe most of them")]
        pub enum Code { $($(#[$doc])* $code,)* }

        impl Code {
            /// Returns its name in documents.
            pub fn name(self) -> &'static str {
                match self { $(Self::$code => $name,)* }
            }

            /// Returns its status.
            pub fn status(self) -> StatusCode {
                match self { $(Self::$code => StatusCode::$status,)* }
            }

            /// Returns its title.
            pub fn title(self) -> &'static str {
                match self { $(Self::$code => $title,)* }
            }
        }
    };
}

codes! {
    MalformedJson = "malformed_json", BAD_REQUEST, "Malformed JSON";
    InvalidRequest = "invalid_request", BAD_REQUEST, "Invalid request";
    IdempotencyKey = "idempotency_key_invalid", BAD_REQUEST, "Idempotency key missing or invalid";
    Principal = "principal_missing", BAD_REQUEST, "Principal missing";
    /// Servers could take the target or the method for another one.
    AmbiguousTarget = "ambiguous_target", BAD_REQUEST, "Ambiguous target";
    /// The request has a key, and no route protects it.
    NoRouteForKey = "no_route_for_key", BAD_REQUEST, "No route for key";
    Unauthenticated = "unauthenticated", UNAUTHORIZED, "Unauthenticated";
    AppDisabled = "app_disabled", FORBIDDEN, "App disabled";
    AdminDisabled = "admin_disabled", FORBIDDEN, "Admin API disabled";
    /// The operator's role is too low.
    Forbidden = "forbidden", FORBIDDEN, "Forbidden";
    /// The response is not for this caller any more.
    ReplayRefused = "replay_refused", FORBIDDEN, "Replay refused";
    NotFound = "not_found", NOT_FOUND, "Not found";
    MethodNotAllowed = "method_not_allowed", METHOD_NOT_ALLOWED, "Method not allowed";
    /// Another attempt holds the operation or has done it, or its outcome is unknown.
    Duplicate = "duplicate", CONFLICT, "Duplicate";
    /// Another attempt holds the claim.
    Superseded = "superseded", CONFLICT, "Superseded";
    AlreadySucceeded = "already_succeeded", CONFLICT, "Already succeeded";
    /// The attempt holds no claim.
    LeaseLost = "lease_lost", CONFLICT, "Lease lost";
    LockHeld = "lock_held", CONFLICT, "Lock held";
    UpgradeRefused = "upgrade_refused", CONFLICT, "Upgrade refused";
    /// The holders share the lock with another limit.
    LimitDiffers = "limit_differs", CONFLICT, "Limit differs";
    NotHeld = "not_held", CONFLICT, "Not held";
    Withdrawn = "withdrawn", CONFLICT, "Withdrawn";
    AppExists = "app_exists", CONFLICT, "App exists";
    AppsInConfiguration = "apps_in_configuration", CONFLICT, "Apps in configuration";
    /// A switch loses claims, and the request does not accept that.
    LossNotAccepted = "loss_not_accepted", CONFLICT, "Loss not accepted";
    AlreadyActive = "already_active", CONFLICT, "Already active";
    SwitchUnderWay = "switch_under_way", CONFLICT, "Switch under way";
    /// The response of the first request was not stored.
    ResponseNotStored = "response_not_stored", CONFLICT, "Response not stored";
    /// Too old to be recorded.
    Expired = "expired", CONFLICT, "Expired";
    /// The body, the contents or the result is too large.
    BodyTooLarge = "body_too_large", PAYLOAD_TOO_LARGE, "Body too large";
    UnsupportedMediaType = "unsupported_media_type", UNSUPPORTED_MEDIA_TYPE, "Unsupported media type";
    ContentsMismatch = "contents_mismatch", UNPROCESSABLE_ENTITY, "Contents mismatch";
    FingerprintMismatch = "fingerprint_mismatch", UNPROCESSABLE_ENTITY, "Fingerprint mismatch";
    ContentsNotCanonical = "contents_not_canonical", UNPROCESSABLE_ENTITY, "Contents not canonical";
    /// The contents have no value, so they would be the same for every operation.
    ContentsEmpty = "contents_empty", UNPROCESSABLE_ENTITY, "Contents empty";
    QuotaExceeded = "quota_exceeded", TOO_MANY_REQUESTS, "Quota exceeded";
    /// The store is unavailable; nothing happened.
    StoreUnavailable = "store_unavailable", SERVICE_UNAVAILABLE, "Store unavailable";
    /// The store has no room; nothing happened.
    StoreFull = "store_full", SERVICE_UNAVAILABLE, "Store full";
    /// The store must not be used in its state; nothing happened.
    StoreIncompatible = "store_incompatible", SERVICE_UNAVAILABLE, "Store incompatible";
    /// The call may have taken effect in the store.
    OutcomeUnknown = "outcome_unknown", SERVICE_UNAVAILABLE, "Outcome unknown";
    Overloaded = "overloaded", SERVICE_UNAVAILABLE, "Overloaded";
    Draining = "draining", SERVICE_UNAVAILABLE, "Draining";
    /// The audit trail cannot be written or read; nothing happened.
    AuditUnavailable = "audit_unavailable", SERVICE_UNAVAILABLE, "Audit trail unavailable";
    NotSupported = "not_supported", NOT_IMPLEMENTED, "Not supported";
    /// The upstream cannot be reached, or broke off.
    UpstreamUnavailable = "upstream_unavailable", BAD_GATEWAY, "Upstream unavailable";
    UpstreamTimeout = "upstream_timeout", GATEWAY_TIMEOUT, "Upstream timeout";
    /// The request came back to this gateway.
    Loop = "loop_detected", LOOP_DETECTED, "Loop detected";
    Internal = "internal", INTERNAL_SERVER_ERROR, "Internal error";
}

/// A problem, without the ID of its request.
#[derive(Clone, Debug)]
pub struct Problem {
    /// Code of the problem.
    pub code: Code,
    /// Explanation, and the correction.
    pub detail: Cow<'static, str>,
    /// Time after which a retry can succeed.
    pub retry_after: Option<Duration>,
    /// Further members.
    pub members: Members,
    /// The outage policy that answered in place of the store.
    pub degraded: Option<OutagePolicy>,
}

/// Members that only some problems have.
#[derive(Clone, Default, Serialize)]
#[serde(untagged)]
pub enum Members {
    /// Nothing.
    #[default]
    None,
    /// Nothing for callers.
    Store {
        /// The reason in the words of the store, which may name its servers: for operators only.
        #[serde(skip)]
        reason: Box<str>,
    },
    /// The live claim.
    Duplicate(Box<DuplicateMembers>),
    /// The state of the live claim.
    Superseded {
        /// Its state.
        state: ClaimState,
    },
    /// The lock that is held.
    LockHeld(LockHeldMembers),
    /// The limit of a lock. It differs from the limit of the request.
    LimitDiffers {
        /// Number of holds at once.
        limit: usize,
    },
    /// The exceeded bound of locks.
    LockQuota {
        /// Its name.
        quota: &'static str,
    },
    /// The state of the claim of a key, and the status of its response.
    State {
        /// Its state.
        state: ClaimState,
        /// The status of the response that was not stored.
        #[serde(rename = "response_status", skip_serializing_if = "Option::is_none")]
        status: Option<u16>,
    },
    /// The exceeded quota.
    QuotaExceeded {
        /// Its name in the configuration.
        quota: QuotaName,
    },
    /// The reason why the gateway is not ready, and the health of its engines.
    NotReady {
        /// Replaces the title of the code.
        #[serde(skip)]
        title: &'static str,
        /// By name.
        #[serde(skip_serializing_if = "Option::is_none")]
        engines: Option<BTreeMap<String, EngineHealth>>,
        /// Entries that wait for their stores.
        #[serde(skip_serializing_if = "Option::is_none")]
        spool: Option<Box<SpoolStatus>>,
    },
    /// Nonce for repeating the claim call.
    OutcomeUnknown {
        /// The nonce of the lost attempt.
        attempt_nonce: String,
    },
}

/// A lock that is held, as the response to a request for it shows it.
#[derive(Clone, Serialize)]
pub struct LockHeldMembers {
    /// `null`: it is free, and others queue for it.
    pub mode: Option<&'static str>,
    /// Number of attempts that hold it.
    pub holders: usize,
    /// Number of attempts that queue for it.
    pub waiting: usize,
    /// Place of the attempt in the queue, from 1.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub position: Option<usize>,
    /// Time that the call has waited, in milliseconds.
    pub waited_ms: u64,
}

/// The live claim, as the response to a duplicate shows it.
#[derive(Clone, Serialize)]
pub struct DuplicateMembers {
    /// ID of the claim.
    pub global_id: GlobalId,
    /// Its state.
    pub state: ClaimState,
    /// Time of its attempt, in microseconds: what `attempt` begins with.
    pub timestamp: u64,
    /// Hash of its attempt.
    pub attempt_hash: AttemptHash,
    /// Time of the claim.
    pub claimed_at: Timestamp,
    /// End of its lease or its retention. `None`: it has none, or it is not known.
    pub expires_at: Option<Timestamp>,
    /// Result that was reported with its success.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub result: Option<Box<RawValue>>,
    /// True if its result was left out to bound the response to a batch.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub result_omitted: Option<bool>,
    /// Time that the call has waited, in milliseconds.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub waited_ms: Option<u64>,
    /// `false` if its contents could not be compared.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub contents_verified: Option<bool>,
    /// Its operation, for operators.
    #[serde(skip)]
    pub operation: Option<Operation>,
}

impl fmt::Debug for Members {
    /// Shows nothing: results and nonces belong to their callers.
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Members").finish_non_exhaustive()
    }
}

impl Problem {
    /// Returns a problem with this code.
    pub fn new(code: Code, detail: impl Into<Cow<'static, str>>) -> Self {
        Self { code, detail: detail.into(), retry_after: None, members: Members::None, degraded: None }
    }

    /// Tells the reason, in a response to an operator.
    pub fn tell_reason(&mut self) {
        if let Members::Store { reason } = &self.members {
            // A person has no field `Retry-After` in view.
            let detail = self.detail.replace(failure::TRY_AGAIN, "");
            self.detail = format!("{detail} The reason: {reason}.").into();
        }
    }

    /// Adds the time after which a retry can succeed.
    #[must_use]
    pub fn retry_after(self, wait: Duration) -> Self {
        Self { retry_after: Some(wait), ..self }
    }

    /// Adds that a retry can succeed within a second.
    #[must_use]
    pub fn retry_soon(self) -> Self {
        self.retry_after(Duration::from_secs(1))
    }

    /// Adds a sentence to its detail.
    #[must_use]
    pub fn and(self, advice: &str) -> Self {
        Self { detail: format!("{} {advice}", self.detail).into(), ..self }
    }

    /// Returns the problem of a field that is missing, unknown or wrong.
    pub fn invalid(detail: impl Into<Cow<'static, str>>) -> Self {
        Self::new(Code::InvalidRequest, detail)
    }

    fn title(&self) -> &'static str {
        if let Members::NotReady { title, .. } = &self.members { title } else { self.code.title() }
    }

    /// Returns the document for the request with this ID.
    pub fn document<'a>(&'a self, request_id: &'a str, base: &'a ProblemBase) -> Document<'a> {
        Document {
            r#type: base.type_of(self.code),
            title: self.title(),
            status: self.code.status().as_u16(),
            detail: &self.detail,
            code: self.code.name(),
            request_id,
            retry_after_ms: self.retry_after.map(|wait| millis(wait).max(1)),
            members: &self.members,
            degraded: self.degraded,
        }
    }
}

/// The document of a problem.
#[derive(Debug, Serialize)]
pub struct Document<'a> {
    r#type: ProblemType<'a>,
    title: &'static str,
    status: u16,
    detail: &'a str,
    code: &'static str,
    request_id: &'a str,
    #[serde(skip_serializing_if = "Option::is_none")]
    retry_after_ms: Option<u64>,
    #[serde(flatten)]
    members: &'a Members,
    #[serde(skip_serializing_if = "Option::is_none")]
    degraded: Option<OutagePolicy>,
}

impl IntoResponse for Problem {
    /// Returns the status and the problem itself. The last step of the pipeline writes the document, with the request's ID.
    fn into_response(self) -> Response {
        let mut response = self.code.status().into_response();
        response.extensions_mut().insert(self);
        response
    }
}
