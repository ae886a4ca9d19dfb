//! The terms, quotas and use of an app, as this gateway applies them.

use std::collections::BTreeMap;
use std::num::NonZeroU32;
use std::time::Duration;

use oncegate_core::tenant::Operation;
use oncegate_core::terms::{ClaimOnOutage, LeaseEnd, Mode, OutcomeOnOutage, Retention, Span};
use oncegate_gateway::tenants::quota::QuotaName;
use oncegate_gateway::tenants::{App, OperationTerms};
use serde::Serialize;

/// Settings that this gateway applies to the calls of an app.
#[derive(Debug, Serialize)]
pub(super) struct InForce {
    terms: TermsBody,
    /// Operations with terms of their own, by name.
    operations: Vec<OperationBody>,
    retention_max: Retention,
    quota: QuotaBody,
    usage: UsageBody,
}

/// Terms of an operation that has its own.
#[derive(Debug, Serialize)]
struct OperationBody {
    operation: Operation,
    #[serde(flatten)]
    terms: TermsBody,
}

/// Terms.
#[derive(Debug, Serialize)]
struct TermsBody {
    mode: Mode,
    lease: Span,
    retention: Retention,
    unknown_retention: Retention,
    on_lease_end: LeaseEnd,
    accept_loss: bool,
    deadline: Span,
    claim_on_outage: ClaimOnOutage,
    outcome_on_outage: OutcomeOnOutage,
    contents_stored_bytes: usize,
}

/// Quotas. `None` is unlimited.
#[derive(Debug, Serialize)]
struct QuotaBody {
    requests_per_second: Option<NonZeroU32>,
    claim_bytes_per_second: Option<NonZeroU32>,
    burst: Span,
    requests_in_flight: Option<usize>,
    response_bytes_total: Option<u64>,
}

/// Use of the quotas at this moment, in this process. `None` where there is no quota.
#[derive(Debug, Serialize)]
struct UsageBody {
    requests_left: Option<u64>,
    claim_bytes_left: Option<u64>,
    requests_in_flight: usize,
    response_bytes: Option<u64>,
    /// Refused requests and batch items since the start of this process, by the quota that was used up.
    refused: BTreeMap<String, u64>,
}

impl InForce {
    /// Returns the settings of an app, and how often its quotas have refused calls. `now` is monotonic.
    pub(super) fn of(app: &App, now: Duration, refused: BTreeMap<String, u64>) -> Self {
        let own = |(operation, terms): (&Operation, &OperationTerms)| OperationBody {
            operation: operation.clone(),
            terms: TermsBody::of(terms),
        };
        let mut operations: Vec<_> = app.operations.iter().map(own).collect();
        operations.sort_by(|one, other| one.operation.cmp(&other.operation));
        let left = |name| app.left(name, now).map(|(left, _)| left);
        Self {
            terms: TermsBody::of(&app.terms),
            operations,
            retention_max: app.retention_max,
            quota: QuotaBody {
                requests_per_second: app.quota.requests_per_second,
                claim_bytes_per_second: app.quota.claim_bytes_per_second,
                burst: Span(app.quota.burst),
                requests_in_flight: app.quota.requests_in_flight,
                response_bytes_total: app.quota.response_bytes_total,
            },
            usage: UsageBody {
                requests_left: left(QuotaName::RequestsPerSecond),
                claim_bytes_left: left(QuotaName::ClaimBytesPerSecond),
                requests_in_flight: app.requests_in_flight(),
                response_bytes: app.stored_response_bytes(now),
                refused,
            },
        }
    }
}

impl TermsBody {
    fn of(terms: &OperationTerms) -> Self {
        Self {
            mode: terms.mode,
            lease: Span(terms.terms.lease),
            retention: terms.terms.retention,
            unknown_retention: terms.terms.unknown_retention,
            on_lease_end: terms.terms.on_lease_end,
            accept_loss: terms.accept_loss,
            deadline: Span(terms.deadline),
            claim_on_outage: terms.claim_on_outage,
            outcome_on_outage: terms.outcome_on_outage,
            contents_stored_bytes: terms.contents_stored_bytes,
        }
    }
}
