//! Suspects: operations that may have been executed twice. Operators list them, look each one up, and record their
//! findings.

use std::sync::Arc;

use axum::Extension;
use axum::extract::{Path, RawQuery, State};
use axum::response::Response;
use oncegate_core::suspect::{Check, Suspect, SuspectFilter, SuspectKind};
use oncegate_core::tenant::AppKey;
use oncegate_web::body::JsonBytes;
use oncegate_web::problem::{Code, Problem};
use oncegate_web::response::json;
use serde::Serialize;

use super::Admin;
use super::audit::Change;
use super::auth::Operator;
use super::bodies::CheckSuspect;
use super::query::{ID_MAX, Query, page};

/// Default and largest number of suspects on a page.
const PAGE: usize = 50;
const PAGE_MAX: usize = 1000;

#[derive(Serialize)]
struct SuspectsBody {
    suspects: Vec<Suspect>,
    next: Option<u64>,
}

#[derive(Serialize)]
struct OverlapsBody {
    overlaps: Vec<Suspect>,
    next: Option<u64>,
}

/// `GET /admin/v1/suspects`: the suspects that this gateway has found, in pages.
pub(super) async fn list(State(admin): State<Arc<Admin>>, RawQuery(query): RawQuery) -> Result<Response, Problem> {
    let mut query = Query::parse(query)?;
    let kinds = query.take("kind").map(|text| kinds(&text)).transpose()?.unwrap_or_default();
    let (suspects, next) = find(&admin, query, kinds)?;
    Ok(json(&SuspectsBody { suspects, next }))
}

/// `GET /admin/v1/overlaps`: those of kind `overlap`.
pub(super) async fn overlaps(State(admin): State<Arc<Admin>>, RawQuery(query): RawQuery) -> Result<Response, Problem> {
    let (overlaps, next) = find(&admin, Query::parse(query)?, vec![SuspectKind::Overlap])?;
    Ok(json(&OverlapsBody { overlaps, next }))
}

/// `POST /admin/v1/suspects/{id}/check`: records the finding of an operator. A later check replaces an earlier one.
pub(super) async fn check(
    State(admin): State<Arc<Admin>>,
    Extension(operator): Extension<Operator>,
    Path(id): Path<String>,
    body: JsonBytes,
) -> Result<Response, Problem> {
    let CheckSuspect { found, reason } = body.parse()?;
    let is_canonical = !id.starts_with(['+', '0']);
    let id = id.parse().ok().filter(|id| is_canonical && (1..=ID_MAX).contains(id));
    let id: u64 = id.ok_or_else(|| Problem::invalid("The ID of a suspect is a whole number, such as 42."))?;
    let suspect = admin.journal.suspect(id).ok_or_else(unknown)?;
    let check = Check {
        found,
        reason: reason.text().to_owned(),
        who: operator.name.to_string(),
        checked_at: admin.clock.wall(),
    };
    let change = Change {
        app: Some(suspect.app),
        operation: suspect.operation,
        global_id: Some(suspect.global_id),
        attempt_hash: Some(suspect.ours.hash),
        detail: Some(format!("suspect: {id}, found: {}", found.name())),
        ..Change::new("suspect.check", reason).of_realm(suspect.realm)
    };
    let journal = admin.journal.clone();
    let action = async move {
        let checked = journal.check_suspect(id, check).await.map_err(|error| {
            Problem::new(Code::StoreUnavailable, format!("The check cannot be kept: {error}. Send it again later."))
        })?;
        Ok((checked.ok_or_else(unknown)?, found.name()))
    };
    Ok(json(&admin.audit.execute(&operator, change, action).await?))
}

fn find(admin: &Admin, mut query: Query, kinds: Vec<SuspectKind>) -> Result<(Vec<Suspect>, Option<u64>), Problem> {
    let app = query.take_as::<AppKey>("app")?;
    let checked = query.flag("checked")?;
    let oldest_first = query.flag("oldest_first")?.unwrap_or(false);
    let after = query.number("after", ID_MAX, 42)?;
    let limit = query.count("limit", PAGE, PAGE_MAX)?;
    query.end()?;
    let filter = SuspectFilter { kinds, app, checked, oldest_first, after };
    Ok(page(admin.journal.suspects(&filter, limit + 1), limit, |last| last.id))
}

fn kinds(text: &str) -> Result<Vec<SuspectKind>, Problem> {
    let kind = |name: &str| match name {
        "double" => Ok(SuspectKind::Double),
        "overlap" => Ok(SuspectKind::Overlap),
        _ => Err(Problem::invalid("`kind` is double, overlap, or double,overlap.")),
    };
    text.split(',').map(kind).collect()
}

fn unknown() -> Problem {
    Problem::new(
        Code::NotFound,
        "This gateway has no suspect of this ID; GET /admin/v1/suspects lists those that it has. Each gateway has its own.",
    )
}
