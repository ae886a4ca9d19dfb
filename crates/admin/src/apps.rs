//! Apps for operators: apps and their secrets. Only the response to its creation shows a secret.

mod in_force;

use std::sync::Arc;

use axum::Extension;
use axum::extract::{FromRequestParts, Path, State};
use axum::http::StatusCode;
use axum::http::request::Parts;
use axum::response::{IntoResponse, Response};
use oncegate_core::tenant::AppKey;
use oncegate_gateway::tenants::secret::Secret;
use oncegate_gateway::tenants::stored::{CatalogError, ListedApp, RevokeScope};
use oncegate_telemetry::quotas::refusals;
use oncegate_web::body::JsonBytes;
use oncegate_web::problem::{Code, Problem};
use oncegate_web::response::json;
use serde::Serialize;
use serde_json::value::RawValue;

use self::in_force::InForce;
use super::Admin;
use super::audit::Change;
use super::auth::Operator;
use super::bodies::{CreateApp, RevokeSecret, RotateSecret, WithReason};

#[derive(Serialize)]
struct AppsBody {
    apps: Vec<ListedApp>,
}

/// An app, with what this gateway applies to its calls.
#[derive(Serialize)]
struct AppBody {
    #[serde(flatten)]
    app: ListedApp,
    /// Operators can change it here, rather than in the configuration file.
    changeable: bool,
    /// `None` if this gateway does not know the app yet.
    in_force: Option<InForce>,
}

/// A new secret. No other response contains it.
#[derive(Serialize)]
struct NewSecretBody {
    app: AppKey,
    secret: String,
    secret_id: String,
}

impl NewSecretBody {
    fn new(app: AppKey, secret: &Secret) -> Self {
        Self { app, secret: secret.reveal().to_owned(), secret_id: secret.digest().id() }
    }
}

/// The app in the path.
pub(super) struct Named(AppKey);

impl FromRequestParts<Arc<Admin>> for Named {
    type Rejection = Problem;

    async fn from_request_parts(parts: &mut Parts, admin: &Arc<Admin>) -> Result<Self, Problem> {
        let text = Path::<String>::from_request_parts(parts, admin).await;
        let wrong = |wrong| Problem::invalid(format!("The path must name an app: {wrong}."));
        let Ok(Path(text)) = text else { return Err(Problem::invalid("The path must name an app.")) };
        text.parse().map(Self).map_err(wrong)
    }
}

/// `GET /admin/v1/apps`: every app, by name.
pub(super) async fn list(State(admin): State<Arc<Admin>>) -> Result<Response, Problem> {
    Ok(json(&AppsBody { apps: admin.apps.list().await.map_err(|error| not_changed(&error))? }))
}

/// `GET /admin/v1/apps/{app}`: one app.
pub(super) async fn show(State(admin): State<Arc<Admin>>, Named(key): Named) -> Result<Response, Problem> {
    let apps = admin.apps.list().await.map_err(|error| not_changed(&error))?;
    let unknown = || {
        let detail = format!("There is no app `{key}`. GET /admin/v1/apps lists them.");
        Problem::new(Code::NotFound, detail)
    };
    let app = apps.into_iter().find(|app| app.key == key).ok_or_else(unknown)?;
    let known = admin.registry.apps().into_iter().find(|app| app.key == key);
    let refused = || refusals(&admin.metrics.render(), key.as_ref());
    let in_force = known.map(|app| InForce::of(&app, admin.clock.monotonic(), refused()));
    Ok(json(&AppBody { app, changeable: admin.apps.is_changeable(), in_force }))
}

/// `POST /admin/v1/apps`: a new app, and its first secret.
pub(super) async fn create(
    State(admin): State<Arc<Admin>>,
    Extension(operator): Extension<Operator>,
    body: JsonBytes,
) -> Result<Response, Problem> {
    let CreateApp { app, settings, chain, reason } = body.parse()?;
    let settings = settings.map_or("{}", RawValue::get).to_owned();
    let chain = chain.map(String::from);
    let detail = chain.as_ref().map(|chain| format!("chain: {chain}"));
    let change = Change { app: Some(app.clone()), detail, ..Change::new("app.create", reason) };
    let apps = admin.apps.clone();
    let action = async move {
        let secret = apps.create(&app, settings, chain).await.map_err(|error| not_changed(&error))?;
        Ok(((app, secret), "created"))
    };
    let (app, secret) = admin.audit.execute(&operator, change, action).await?;
    Ok((StatusCode::CREATED, json(&NewSecretBody::new(app, &secret))).into_response())
}

/// `POST /admin/v1/apps/{app}/rotate`: a new secret. Revokes all older ones but the newest, or all.
pub(super) async fn rotate(
    State(admin): State<Arc<Admin>>,
    Extension(operator): Extension<Operator>,
    Named(app): Named,
    body: JsonBytes,
) -> Result<Response, Problem> {
    let RotateSecret { revoke, reason } = body.parse()?;
    let detail = match revoke {
        RevokeScope::Older => "revoke: older",
        RevokeScope::All => "revoke: all",
    };
    let detail = Some(detail.to_owned());
    let change = Change { app: Some(app.clone()), detail, ..Change::new("app.rotate", reason) };
    let apps = admin.apps.clone();
    let action = async move {
        let secret = apps.rotate(&app, revoke).await.map_err(|error| not_changed(&error))?;
        Ok(((app, secret), "rotated"))
    };
    let (app, secret) = admin.audit.execute(&operator, change, action).await?;
    Ok(json(&NewSecretBody::new(app, &secret)))
}

/// `POST /admin/v1/apps/{app}/revoke`: revokes one secret.
pub(super) async fn revoke(
    State(admin): State<Arc<Admin>>,
    Extension(operator): Extension<Operator>,
    Named(app): Named,
    body: JsonBytes,
) -> Result<Response, Problem> {
    let RevokeSecret { secret_id, reason } = body.parse()?;
    if secret_id.len() != 8 || !secret_id.bytes().all(|byte| byte.is_ascii_hexdigit()) {
        return Err(Problem::invalid(
            "`secret_id`: it is the 8 hex digits that the list of apps shows, not the secret.",
        ));
    }
    let detail = Some(format!("secret_id: {secret_id}"));
    let change = Change { app: Some(app.clone()), detail, ..Change::new("app.revoke", reason) };
    let apps = admin.apps.clone();
    let action =
        async move { Ok((apps.revoke(&app, &secret_id).await.map_err(|error| not_changed(&error))?, "revoked")) };
    Ok(json(&admin.audit.execute(&operator, change, action).await?))
}

/// `POST /admin/v1/apps/{app}/disable` refuses its callers, `…/enable` accepts them again.
pub(super) async fn set_disabled(
    State(admin): State<Arc<Admin>>,
    Extension(operator): Extension<Operator>,
    Named(app): Named,
    body: JsonBytes,
    disabled: bool,
) -> Result<Response, Problem> {
    let WithReason { reason } = body.parse()?;
    let (name, word) = if disabled { ("app.disable", "disabled") } else { ("app.enable", "enabled") };
    let change = Change { app: Some(app.clone()), ..Change::new(name, reason) };
    let apps = admin.apps.clone();
    let action =
        async move { Ok((apps.set_disabled(&app, disabled).await.map_err(|error| not_changed(&error))?, word)) };
    Ok(json(&admin.audit.execute(&operator, change, action).await?))
}

/// Says why apps were not changed or listed.
fn not_changed(not_done: &CatalogError) -> Problem {
    match not_done {
        CatalogError::Exists(_) => Problem::new(
            Code::AppExists,
            format!("Nothing was changed: {not_done}. Rotate it for a new secret, or choose another name."),
        ),
        CatalogError::Unknown(_) => {
            Problem::new(Code::NotFound, format!("Nothing was changed: {not_done}. GET /admin/v1/apps lists them."))
        }
        CatalogError::Invalid(_) => Problem::invalid(format!("Nothing was changed: {not_done}.")),
        CatalogError::InConfiguration => Problem::new(
            Code::AppsInConfiguration,
            format!(
                "Nothing was changed: {not_done}. Change them there; it takes effect within seconds. `oncegate app` without \
                 --admin, and without ONCEGATE_ADMIN_URL, prints what to write."
            ),
        ),
        CatalogError::Unavailable(why) => Problem::new(
            Code::StoreUnavailable,
            format!(
                "The registry of apps cannot be used: {why}. If the call broke off on its way, the change may have been made: look \
                 before you repeat it."
            ),
        )
        .retry_soon(),
    }
}
