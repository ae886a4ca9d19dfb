//! Claims for operators: naming one, showing it, and lists. `change` changes them, `forget` erases stored responses.

pub(super) mod change;
pub(super) mod forget;

use std::sync::Arc;

use axum::Extension;
use axum::extract::{RawQuery, State};
use axum::response::Response;
use oncegate_core::canonical::Canonical;
use oncegate_core::global_id::GlobalId;
use oncegate_core::record::{ClaimId, ClaimState, Realm};
use oncegate_core::tenant::{AppKey, Operation};
use oncegate_core::terms::{Retention, Span};
use oncegate_gateway::operator::{Filter, ListError};
use oncegate_gateway::tenants::App;
use oncegate_gateway::{ClaimView, Gateway};
use oncegate_web::body::JsonBytes;
use oncegate_web::fields::{parsed, required_contents};
use oncegate_web::problem::{Code, Problem};
use oncegate_web::record::RecordBody;
use oncegate_web::response::json;
use serde::Serialize;
use serde_json::value::RawValue;

use self::change::superseded;
use super::Admin;
use super::auth::Operator;
use super::bodies::ShowClaim;
use super::query::Query;
use super::role::Role;

/// Default and largest number of claims on a page.
const PAGE: usize = 50;
const PAGE_MAX: usize = 100;

/// Apps that an error about an unknown app lists.
const APPS_NAMED_MAX: usize = 20;

/// The claim that a request is about.
struct Target {
    app: Arc<App>,
    operation: Option<Operation>,
    contents: Option<Canonical>,
    id: ClaimId,
}

/// The claim as a request names it: by operation and contents, or by global ID.
struct Named<'a> {
    app: AppKey,
    operation: Option<Operation>,
    contents: Option<&'a RawValue>,
    /// The realm of a global ID. An operation has its own.
    realm: Option<Realm>,
    global_id: Option<String>,
}

impl Named<'_> {
    /// Finds the claim.
    ///
    /// # Errors
    /// The app is unknown, or the name is incomplete or ambiguous.
    fn find(self, admin: &Admin) -> Result<Target, Problem> {
        let app = app(admin, &self.app)?;
        let (operation, contents, id) = match (self.contents, self.global_id) {
            (Some(contents), None) if self.realm.is_none() => {
                let operation = self.operation.unwrap_or_default();
                let contents = required_contents(Some(contents), &admin.limits)?;
                let global_id = Gateway::global_id(&app, &operation, &contents);
                let id = ClaimId { realm: Realm::of(&operation), global_id };
                (Some(operation), Some(contents), id)
            }
            (None, Some(global_id)) if self.operation.is_none() => {
                let (realm, global_id) = (self.realm.unwrap_or(Realm::Api), parsed("global_id", &global_id)?);
                (None, None, ClaimId { realm, global_id })
            }
            _ => {
                return Err(Problem::invalid(
                    "Name the claim by `contents` and `operation` (which is `default` if left out), or by `global_id` alone; a \
                     record of the proxy also needs `\"realm\": \"proxy\"`.",
                ));
            }
        };
        Ok(Target { app, operation, contents, id })
    }
}

impl Target {
    /// Returns the live claim. If a request names the attempt that its operator saw, that attempt must still hold the
    /// claim.
    async fn inspect(&self, admin: &Admin, shown: Option<&str>) -> Result<ClaimView, Problem> {
        let found = admin.gateway.inspect(&self.app, self.id).await?.ok_or_else(|| self.nothing())?;
        let record = &found.claim.record;
        if self.contents.as_ref().is_some_and(|contents| !record.contents.matches(contents)) {
            return Err(Problem::new(
                Code::ContentsMismatch,
                "There is a claim with this global ID, but with other contents; name it by `global_id` if that is what you mean.",
            ));
        }
        if shown.is_some_and(|shown| shown != record.attempt.hash().to_string()) {
            return Err(superseded(Some(record.state)));
        }
        Ok(found)
    }

    fn nothing(&self) -> Problem {
        let (app, global_id) = (&self.app.key, self.id.global_id);
        let of = self.operation.as_ref().map(|operation| format!(" of operation `{operation}`")).unwrap_or_default();
        let advice = match (self.contents.is_some(), self.id.realm) {
            (true, _) => "Check that app, operation and contents are as the caller sends them.",
            (false, Realm::Api) => "Check the app; a record of the proxy also needs the realm `proxy`.",
            (false, Realm::Proxy) => "Check the app; a claim of the API needs the realm `api`.",
        };
        let detail = format!(
            "App `{app}` has no claim{of} under {global_id}: it was never claimed, was released, or has ended. {advice}"
        );
        Problem::new(Code::NotFound, detail)
    }
}

/// Returns the app of this key, disabled or not.
pub(super) fn app(admin: &Admin, key: &AppKey) -> Result<Arc<App>, Problem> {
    let apps = admin.registry.apps();
    if let Some(app) = apps.iter().find(|app| app.key == *key) {
        return Ok(app.clone());
    }
    let mut names: Vec<_> = apps.iter().map(|app| app.key.as_ref()).collect();
    names.sort_unstable();
    let more = if names.len() > APPS_NAMED_MAX { ", …" } else { "" };
    names.truncate(APPS_NAMED_MAX);
    let detail = format!("This gateway knows no app `{key}`; it knows: {}{more}.", names.join(", "));
    Err(Problem::new(Code::NotFound, detail))
}

/// A claim with its app, chain and engine.
#[derive(Serialize)]
pub(super) struct ShownBody {
    app: AppKey,
    chain: String,
    engine: String,
    #[serde(flatten)]
    record: RecordBody,
    lease: Span,
    unknown_retention: Retention,
}

/// `POST /admin/v1/claims/show`: the record of a live claim, without the attempt.
pub(super) async fn show(
    State(admin): State<Arc<Admin>>,
    Extension(operator): Extension<Operator>,
    body: JsonBytes,
) -> Result<Response, Problem> {
    let ShowClaim { app, operation, contents, realm, global_id } = body.parse()?;
    let target = Named { app, operation, contents, realm, global_id }.find(&admin)?;
    let found = target.inspect(&admin, None).await?;
    Ok(json(&shown(&admin, operator.role, &target.app, found)))
}

fn shown(admin: &Admin, role: Role, app: &App, found: ClaimView) -> ShownBody {
    let terms = found.claim.record.terms;
    ShownBody {
        app: app.key.clone(),
        chain: app.chain.clone(),
        engine: admin.gateway.engine_name(app),
        record: shown_to(role, found),
        lease: Span(terms.lease),
        unknown_retention: terms.unknown_retention,
    }
}

/// Returns the live claim of the proxy with these contents, as this role may see it.
pub(super) async fn shown_of_proxy(
    admin: &Admin,
    role: Role,
    app_key: &AppKey,
    operation: &Operation,
    contents: &Canonical,
) -> Result<Option<ShownBody>, Problem> {
    let app = app(admin, app_key)?;
    let id = ClaimId::of_proxy(Gateway::global_id(&app, operation, contents));
    let found = admin.gateway.inspect(&app, id).await?;
    Ok(found.map(|found| shown(admin, role, &app, found)))
}

/// A page of claims.
#[derive(Serialize)]
struct ListBody<'a> {
    app: &'a AppKey,
    engine: String,
    claims: Vec<RecordBody>,
    next: Option<GlobalId>,
}

/// `GET /admin/v1/claims`: the claims of an app, by global ID, in pages.
pub(super) async fn list(
    State(admin): State<Arc<Admin>>,
    Extension(operator): Extension<Operator>,
    RawQuery(query): RawQuery,
) -> Result<Response, Problem> {
    let mut query = Query::parse(query)?;
    let key = query.take_as::<AppKey>("app")?;
    let realm = query.take("realm").map(|realm| read_realm(&realm)).transpose()?.unwrap_or(Realm::Api);
    let state = query.take("state").map(|state| read_state(&state)).transpose()?;
    let operation = query.take_as::<Operation>("operation")?;
    let claimed_after = query.instant("claimed_after")?;
    let claimed_before = query.instant("claimed_before")?;
    let after = query.take_as::<GlobalId>("after")?;
    let limit = query.count("limit", PAGE, PAGE_MAX)?;
    query.end()?;
    let key = key.ok_or_else(|| Problem::invalid("`app` is missing: name the app, such as ?app=shop."))?;
    let app = app(&admin, &key)?;
    let filter = Filter { realm, state, operation, claimed_after, claimed_before, after };
    let (found, next) = admin.gateway.list(&app, filter, limit).await.map_err(not_listed)?;
    Ok(json(&ListBody {
        app: &app.key,
        engine: admin.gateway.engine_name(&app),
        claims: found.into_iter().map(|found| shown_to(operator.role, found)).collect(),
        next,
    }))
}

/// Returns the record as this role may see it.
pub(super) fn shown_to(role: Role, found: ClaimView) -> RecordBody {
    let record = RecordBody::from(found);
    if role == Role::View { record.without_contents() } else { record }
}

fn read_state(text: &str) -> Result<ClaimState, Problem> {
    match text {
        "in_progress" => Ok(ClaimState::InProgress),
        "succeeded" => Ok(ClaimState::Succeeded),
        "unknown" => Ok(ClaimState::Unknown),
        _ => Err(Problem::invalid("`state` is in_progress, succeeded or unknown; leave it out for all.")),
    }
}

fn read_realm(text: &str) -> Result<Realm, Problem> {
    match text {
        "api" => Ok(Realm::Api),
        "proxy" => Ok(Realm::Proxy),
        _ => Err(Problem::invalid("`realm` is api, for claims of the API, or proxy, for records of the proxy.")),
    }
}

/// Says why claims or locks cannot be listed.
pub(super) fn not_listed(none: ListError) -> Problem {
    match none {
        ListError::Failed(failure) => failure.into(),
        ListError::NotSupported { engine, able } => {
            let able = if able.is_empty() { "none that is configured".to_owned() } else { able.join(", ") };
            let detail = format!(
                "Engine `{engine}`, which keeps claims and locks of this app, cannot list them; engines that can: {able}. \
                 Show a claim by its contents or its global ID, and a lock by its name."
            );
            Problem::new(Code::NotSupported, detail)
        }
    }
}
