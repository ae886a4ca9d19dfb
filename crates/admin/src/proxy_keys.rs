//! `GET /admin/v1/proxy/recent` and `POST /admin/v1/proxy/find`: requests of the proxy by their key, as this gateway has answered them.
//! Keys come in bodies only, and leave as their first characters.

use std::sync::Arc;

use axum::Extension;
use axum::extract::{RawQuery, State};
use axum::response::Response;
use oncegate_core::canonical::Canonical;
use oncegate_core::global_id::GlobalId;
use oncegate_core::hex;
use oncegate_core::tenant::{AppKey, Operation};
use oncegate_web::body::JsonBytes;
use oncegate_web::problem::{Code, Problem};
use oncegate_web::recent::keys::{ANSWERS, HiddenKey, KeyedRequest, WantedKeys};
use oncegate_web::response::json;
use serde::Serialize;

use super::Admin;
use super::auth::Operator;
use super::bodies::FindKey;
use super::claims::{ShownBody, shown_of_proxy};
use super::proxy_routes::ProxyRoute;
use super::query::{ID_MAX, Query, page};

/// Default and largest number of requests.
const SHOWN: usize = 50;
const SHOWN_MAX: usize = 1000;

/// The proxy, as operators see it.
pub struct ShownProxy {
    /// Its routes.
    pub routes: Vec<ProxyRoute>,
    /// Returns the key in a text of the form that callers send.
    pub read_key: fn(&str) -> Option<Box<str>>,
    /// Returns the contents of the claim of a key and the digest of its caller.
    pub contents: fn(&str, &[u8; 32]) -> Option<Canonical>,
}

/// Requests, the newest first.
#[derive(Serialize)]
struct RecentBody {
    requests: Vec<KeyedRequest>,
    next: Option<u64>,
    /// Requests that were lost since the start, since too many came at once.
    lost: u64,
}

/// The requests with a key, and its claim if the caller is named.
#[derive(Serialize)]
struct FoundBody {
    route: String,
    app: AppKey,
    requests: Vec<KeyedRequest>,
    more: bool,
    lost: u64,
    #[serde(skip_serializing_if = "Option::is_none")]
    claim: Option<ShownBody>,
}

/// Answers with the recent requests.
pub(super) async fn recent(State(admin): State<Arc<Admin>>, RawQuery(query): RawQuery) -> Result<Response, Problem> {
    let mut query = Query::parse(query)?;
    let wanted = WantedKeys {
        operation: query.take("route").map(|name| operation(route(&admin, &name)?)).transpose()?,
        app: query.take_as::<AppKey>("app")?,
        answer: query.take("answer").map(|name| answer(&name)).transpose()?,
        global_id: query.take_as::<GlobalId>("global_id")?,
        before: query.number("after", ID_MAX, 42)?,
        key: None,
    };
    let limit = query.count("limit", SHOWN, SHOWN_MAX)?;
    query.end()?;
    Ok(json(&find_recent(&admin, &wanted, limit)))
}

/// Answers with the recent requests that had a key, and with its claim if the digest of the caller is named.
pub(super) async fn find(
    State(admin): State<Arc<Admin>>,
    Extension(operator): Extension<Operator>,
    body: JsonBytes,
) -> Result<Response, Problem> {
    let FindKey { route: name, key, principal } = body.parse()?;
    let route = route(&admin, &name)?;
    let key = (admin.proxy.read_key)(&key).ok_or_else(|| {
        Problem::invalid(
            "`key` is the key as its caller sends it: 1 to 255 visible ASCII characters, bare or in quotes, with `\\` before a quote in \
             the key.",
        )
    })?;
    let operation = operation(route)?;
    let wanted =
        WantedKeys { operation: Some(operation.clone()), key: Some(HiddenKey::of(&key)), ..WantedKeys::default() };
    let claim = match principal {
        None => None,
        Some(principal) => {
            let contents = contents(&admin, &key, &principal)?;
            shown_of_proxy(&admin, operator.role, &route.app, &operation, &contents).await?
        }
    };
    let RecentBody { requests, next, lost } = find_recent(&admin, &wanted, SHOWN_MAX);
    let (route, app) = (route.name.clone(), route.app.clone());
    Ok(json(&FoundBody { route, app, requests, more: next.is_some(), lost, claim }))
}

fn find_recent(admin: &Admin, wanted: &WantedKeys, limit: usize) -> RecentBody {
    let (requests, next) = page(admin.recent.find_requests(wanted, limit + 1), limit, |last| last.id);
    RecentBody { requests, next, lost: admin.recent.lost_requests() }
}

/// Returns the contents of the claim of a key and a caller.
fn contents(admin: &Admin, key: &str, principal: &str) -> Result<Canonical, Problem> {
    let principal = Some(principal).filter(|text| !text.bytes().any(|byte| byte.is_ascii_uppercase()));
    principal.and_then(hex::decode).and_then(|principal| (admin.proxy.contents)(key, &principal)).ok_or_else(|| {
        Problem::invalid(
            "`principal` is the SHA-256 of the caller as 64 small hex digits. `oncegate proxy check` prints it, and so do the contents of \
             a claim of the proxy.",
        )
    })
}

fn route<'a>(admin: &'a Admin, name: &str) -> Result<&'a ProxyRoute, Problem> {
    admin.proxy.routes.iter().find(|route| route.name == name).ok_or_else(|| {
        let detail = "The proxy of this gateway has no route of this name; GET /admin/v1/proxy/routes lists them.";
        Problem::new(Code::NotFound, detail)
    })
}

fn operation(route: &ProxyRoute) -> Result<Operation, Problem> {
    let operation = format!("{}{}", Operation::PROXY_PREFIX, route.name).parse();
    operation.map_err(|_| Problem::invalid("The route has no valid name."))
}

fn answer(name: &str) -> Result<&'static str, Problem> {
    ANSWERS.into_iter().find(|known| *known == name).ok_or_else(|| {
        let names = ANSWERS.join(", ");
        Problem::invalid(format!("`answer` is one of: {names}."))
    })
}
