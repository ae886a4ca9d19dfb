//! `GET /admin/v1/overlaps`: operations that were granted to two attempts, because a store was unavailable.

use std::sync::Arc;

use axum::extract::{RawQuery, State};
use axum::response::Response;
use serde::Serialize;

use super::Admin;
use super::query::Query;
use crate::domain::clock::Timestamp;
use crate::domain::global_id::GlobalId;
use crate::domain::outage_policy::OutagePolicy;
use crate::domain::overlap::{MaskedAttempt, Overlap};
use crate::domain::record::ClaimState;
use crate::domain::tenant::{AppKey, Operation};
use crate::web::problem::Problem;
use crate::web::response::json;

/// Default and largest number of overlaps on a page.
const PAGE: usize = 50;
const PAGE_MAX: usize = 1000;

/// Largest ID that every JSON reader reads without loss.
const ID_MAX: u64 = (1 << 53) - 1;

/// A page of overlaps.
#[derive(Serialize)]
struct OverlapsBody {
    overlaps: Vec<OverlapBody>,
    next: Option<u64>,
}

#[derive(Serialize)]
struct OverlapBody {
    id: u64,
    app: AppKey,
    operation: Option<Operation>,
    global_id: GlobalId,
    policy: OutagePolicy,
    ours: MaskedAttemptBody,
    theirs: MaskedAttemptBody,
    state: ClaimState,
    noticed_at: Timestamp,
}

/// An attempt without its secret part.
#[derive(Serialize)]
struct MaskedAttemptBody {
    timestamp: u64,
    attempt_hash: String,
}

impl From<MaskedAttempt> for MaskedAttemptBody {
    fn from(masked: MaskedAttempt) -> Self {
        Self { timestamp: masked.timestamp.as_micros(), attempt_hash: masked.hash.to_string() }
    }
}

impl From<Overlap> for OverlapBody {
    fn from(overlap: Overlap) -> Self {
        let Overlap { id, app, operation, global_id, policy, ours, theirs, state, noticed_at } = overlap;
        let (ours, theirs) = (ours.into(), theirs.into());
        Self { id, app, operation, global_id, policy, ours, theirs, state, noticed_at }
    }
}

/// Returns the overlaps that this gateway has found, newest first, in pages.
pub(super) async fn list(State(admin): State<Arc<Admin>>, RawQuery(query): RawQuery) -> Result<Response, Problem> {
    let mut query = Query::parse(query)?;
    let app = query.take_as::<AppKey>("app")?;
    let after = query.number("after", ID_MAX, 42)?;
    let limit = query.count("limit", PAGE, PAGE_MAX)?;
    query.end()?;
    // One more than requested shows whether there is a next page.
    let mut found = admin.overlaps.newest(app.as_ref(), after, limit + 1);
    let more = found.len() > limit;
    found.truncate(limit);
    Ok(json(&OverlapsBody {
        next: found.last().map(|last| last.id).filter(|_| more),
        overlaps: found.into_iter().map(OverlapBody::from).collect(),
    }))
}
