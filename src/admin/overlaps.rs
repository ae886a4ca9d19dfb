//! `GET /admin/v1/overlaps`: operations that were granted to two attempts, because a store was unavailable.

use std::sync::Arc;

use axum::extract::{RawQuery, State};
use axum::response::Response;
use serde::Serialize;

use super::Admin;
use super::query::{Query, page};
use crate::domain::overlap::Overlap;
use crate::domain::tenant::AppKey;
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
    overlaps: Vec<Overlap>,
    next: Option<u64>,
}

/// Returns the overlaps that this gateway has found, newest first, in pages.
pub(super) async fn list(State(admin): State<Arc<Admin>>, RawQuery(query): RawQuery) -> Result<Response, Problem> {
    let mut query = Query::parse(query)?;
    let app = query.take_as::<AppKey>("app")?;
    let after = query.number("after", ID_MAX, 42)?;
    let limit = query.count("limit", PAGE, PAGE_MAX)?;
    query.end()?;
    let (overlaps, next) = page(admin.journal.overlaps(app.as_ref(), after, limit + 1), limit, |last| last.id);
    Ok(json(&OverlapsBody { overlaps, next }))
}
