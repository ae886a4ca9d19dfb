//! Locks for operators: showing one, listing those of an app, and ending holds, with a reason in the audit trail.

use std::sync::Arc;

use axum::Extension;
use axum::extract::{RawQuery, State};
use axum::response::Response;
use oncegate_core::lock::LockName;
use oncegate_core::tenant::AppKey;
use oncegate_web::body::JsonBytes;
use oncegate_web::fields::parsed;
use oncegate_web::lock::{LockBody, QueuedLockBody, free};
use oncegate_web::problem::{Code, Problem};
use oncegate_web::response::json;
use serde::Serialize;

use super::Admin;
use super::audit::Change;
use super::auth::Operator;
use super::bodies::{ReleaseLock, ShowLock};
use super::claims::{app, not_listed};
use super::query::{Query, page};

/// Default and largest number of locks on a page.
const PAGE: usize = 50;
const PAGE_MAX: usize = 100;

#[derive(Serialize)]
struct ReleasedBody {
    app: AppKey,
    name: LockName,
    released: usize,
}

#[derive(Serialize)]
struct ListBody<'a> {
    app: &'a AppKey,
    locks: Vec<LockBody>,
    next: Option<LockName>,
}

/// `POST /admin/v1/locks/show`: the holders of a lock, and its queue.
pub(super) async fn show(State(admin): State<Arc<Admin>>, body: JsonBytes) -> Result<Response, Problem> {
    let ShowLock { app: key, name } = body.parse()?;
    let found = admin.gateway.view_lock(&*app(&admin, &key)?, &parsed("name", &name)?).await?;
    Ok(json(&QueuedLockBody::from(found.ok_or_else(free)?)))
}

/// `GET /admin/v1/locks`: the locks of an app that are held or waited for, by name, in pages.
pub(super) async fn list(State(admin): State<Arc<Admin>>, RawQuery(query): RawQuery) -> Result<Response, Problem> {
    let mut query = Query::parse(query)?;
    let key = query.take_as::<AppKey>("app")?;
    let after = query.take_as::<LockName>("after")?;
    let limit = query.count("limit", PAGE, PAGE_MAX)?;
    query.end()?;
    let key = key.ok_or_else(|| Problem::invalid("`app` is missing: name the app, such as ?app=shop."))?;
    let app = app(&admin, &key)?;
    let found = admin.gateway.list_locks(&app, after, limit + 1).await.map_err(not_listed)?;
    let (found, next) = page(found, limit, |last| last.name.clone());
    Ok(json(&ListBody { app: &app.key, locks: found.into_iter().map(LockBody::from).collect(), next }))
}

/// `POST /admin/v1/locks/release`: ends the holds of a lock, or the one whose hash is `holder`.
pub(super) async fn release(
    State(admin): State<Arc<Admin>>,
    Extension(operator): Extension<Operator>,
    body: JsonBytes,
) -> Result<Response, Problem> {
    let ReleaseLock { app: key, name, holder, reason } = body.parse()?;
    let (app, name) = (app(&admin, &key)?, parsed::<LockName>("name", &name)?);
    let found = admin.gateway.view_lock(&app, &name).await?.ok_or_else(free)?;
    if let Some(holder) = &holder
        && !found.record.holds.iter().any(|hold| hold.nonce.shown() == *holder)
    {
        return Err(no_holder());
    }
    let named = |holder: &str| holder.chars().filter(char::is_ascii_graphic).take(16).collect::<String>();
    let which = holder.as_deref().map_or_else(|| "all holders".to_owned(), named);
    let detail = Some(format!("lock: {name}, holder: {which}"));
    let change = Change { app: Some(key), detail, ..Change::new("lock.release", reason) };
    let gateway = admin.gateway.clone();
    let action = async move {
        let is_one = holder.is_some();
        let released = gateway.evict_lock(&app, &name, holder).await?;
        if is_one && released == 0 {
            return Err(no_holder());
        }
        Ok((ReleasedBody { app: app.key.clone(), name, released }, "released"))
    };
    Ok(json(&admin.audit.execute(&operator, change, action).await?))
}

/// Returns the answer if no hold of the lock has this hash.
fn no_holder() -> Problem {
    Problem::new(
        Code::NotHeld,
        "No hold of this lock has the hash `holder`; nothing was ended. Send all 8 digits that `oncegate lock show` prints.",
    )
}
