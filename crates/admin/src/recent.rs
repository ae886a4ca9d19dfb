//! `GET /admin/v1/recent`: recent calls at this gateway, except plain grants and successes.

use std::sync::Arc;

use axum::extract::{RawQuery, State};
use axum::response::Response;
use oncegate_core::global_id::GlobalId;
use oncegate_core::tenant::{AppKey, Operation};
use oncegate_web::problem::Problem;
use oncegate_web::recent::{Event, Kind, Wanted};
use oncegate_web::response::json;
use serde::Serialize;

use super::Admin;
use super::query::{ID_MAX, Query, page};

/// Default and largest number of events.
const SHOWN: usize = 50;
const SHOWN_MAX: usize = 1000;

/// Events, the newest first.
#[derive(Debug, Serialize)]
struct RecentBody {
    events: Vec<Event>,
    next: Option<u64>,
    /// Events that were lost since the start, since too many came at once.
    lost: u64,
}

/// Answers with the recent calls.
pub(super) async fn list(State(admin): State<Arc<Admin>>, RawQuery(query): RawQuery) -> Result<Response, Problem> {
    let mut query = Query::parse(query)?;
    let wanted = Wanted {
        kind: query.take("kind").map(|name| kind(&name)).transpose()?,
        app: query.take_as::<AppKey>("app")?,
        operation: query.take_as::<Operation>("operation")?,
        global_id: query.take_as::<GlobalId>("global_id")?,
        before: query.number("after", ID_MAX, 42)?,
    };
    let limit = query.count("limit", SHOWN, SHOWN_MAX)?;
    query.end()?;
    let (events, next) = page(admin.recent.find(&wanted, limit + 1), limit, |last| last.id);
    Ok(json(&RecentBody { events, next, lost: admin.recent.lost() }))
}

fn kind(name: &str) -> Result<Kind, Problem> {
    Kind::ALL.into_iter().find(|kind| kind.name() == name).ok_or_else(|| {
        let names = Kind::ALL.map(Kind::name).join(", ");
        Problem::invalid(format!("`kind` is one of: {names}."))
    })
}
