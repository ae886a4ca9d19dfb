//! The entries of the outage journal that wait for their stores.

use std::sync::Arc;

use axum::extract::{RawQuery, State};
use axum::response::Response;
use oncegate_core::spool::{SpoolFilter, SpooledEntry};
use oncegate_web::problem::Problem;
use oncegate_web::response::json;
use serde::Serialize;

use super::Admin;
use super::query::{ID_MAX, Query, page};

/// Default and largest number of entries on a page.
const PAGE: usize = 50;
const PAGE_MAX: usize = 1000;

#[derive(Serialize)]
struct SpoolBody {
    entries: Vec<SpooledEntry>,
    next: Option<u64>,
}

/// `GET /admin/v1/spool`: the undelivered entries of this gateway, oldest first, in pages.
pub(super) async fn list(State(admin): State<Arc<Admin>>, RawQuery(query): RawQuery) -> Result<Response, Problem> {
    let mut query = Query::parse(query)?;
    let filter = SpoolFilter { app: query.take_as("app")?, after: query.number("after", ID_MAX, 42)? };
    let limit = query.count("limit", PAGE, PAGE_MAX)?;
    query.end()?;
    // Those of chains that the configuration does not have wait too.
    let mut entries = admin.journal.unconfigured_entries(&filter, limit + 1);
    entries.extend(admin.gateway.spooled(&filter, limit + 1));
    entries.sort_unstable_by_key(|entry| entry.id);
    let (entries, next) = page(entries, limit, |last| last.id);
    Ok(json(&SpoolBody { entries, next }))
}
