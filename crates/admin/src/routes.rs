//! The routes of the admin API. Each row names the role that it needs, so that no route is without one.

use std::sync::{Arc, LazyLock};

use axum::extract::{Request, State};
use axum::handler::Handler;
use axum::http::Method;
use axum::middleware::{Next, from_fn_with_state};
use axum::response::Response;
use axum::routing::{self, MethodRouter};
use axum::{Extension, Router};
use oncegate_web::problem::{Code, Problem};

use super::auth::Operator;
use super::role::Role::{self, Act, Read, View};
use super::{
    Admin, apps, audit, backup, chains, claims, config, engines, gateways, history, locks, operations, proxy_keys,
    proxy_routes, recent, spool, summary, suspects, unknowns, waiting,
};

/// A route: its method and path, and the least role that may call it.
struct Row {
    #[cfg_attr(not(test), expect(dead_code, reason = "compared with the document"))]
    method: Method,
    path: &'static str,
    role: Role,
    handler: MethodRouter<Arc<Admin>>,
}

/// Returns the routes. Their requests need an [`Operator`].
pub(super) fn router() -> Router<Arc<Admin>> {
    rows().into_iter().fold(Router::new(), |router, row| {
        router.route(row.path, row.handler.route_layer(from_fn_with_state(row.role, allow)))
    })
}

/// Returns the paths of the routes. Parameters are in braces.
pub(super) fn paths() -> &'static [&'static str] {
    static PATHS: LazyLock<Vec<&str>> = LazyLock::new(|| rows().iter().map(|row| row.path).collect());
    &PATHS
}

fn rows() -> Vec<Row> {
    vec![
        get(View, "/admin/v1/summary", summary::show),
        get(Read, "/admin/v1/config", config::show),
        get(View, "/admin/v1/apps", apps::list),
        post(Act, "/admin/v1/apps", apps::create),
        get(View, "/admin/v1/apps/{app}", apps::show),
        post(Act, "/admin/v1/apps/{app}/rotate", apps::rotate),
        post(Act, "/admin/v1/apps/{app}/revoke", apps::revoke),
        post(Act, "/admin/v1/apps/{app}/disable", |state, operator, app, body| {
            apps::set_disabled(state, operator, app, body, true)
        }),
        post(Act, "/admin/v1/apps/{app}/enable", |state, operator, app, body| {
            apps::set_disabled(state, operator, app, body, false)
        }),
        get(View, "/admin/v1/engines", engines::engines),
        post(Act, "/admin/v1/engines/{name}/backup", backup::backup),
        get(View, "/admin/v1/chains", chains::list),
        post(Act, "/admin/v1/chains/{name}/switch", chains::switch),
        post(Act, "/admin/v1/chains/{name}/failover", chains::hold::set),
        get(View, "/admin/v1/claims", claims::list),
        post(View, "/admin/v1/claims/show", claims::show),
        post(Act, "/admin/v1/claims/release", claims::change::release),
        post(Act, "/admin/v1/claims/settle", claims::change::settle),
        get(View, "/admin/v1/proxy/routes", proxy_routes::list),
        get(View, "/admin/v1/proxy/recent", proxy_keys::recent),
        post(View, "/admin/v1/proxy/find", proxy_keys::find),
        post(Act, "/admin/v1/proxy/forget", claims::forget::forget),
        get(View, "/admin/v1/locks", locks::list),
        post(View, "/admin/v1/locks/show", locks::show),
        post(Act, "/admin/v1/locks/release", locks::release),
        get(View, "/admin/v1/unknowns", unknowns::list),
        get(View, "/admin/v1/waiting", waiting::list),
        get(View, "/admin/v1/operations", operations::list),
        get(View, "/admin/v1/recent", recent::list),
        get(View, "/admin/v1/gateways", gateways::list),
        get(View, "/admin/v1/history", history::show),
        get(View, "/admin/v1/spool", spool::list),
        get(View, "/admin/v1/suspects", suspects::list),
        post(Act, "/admin/v1/suspects/{id}/check", suspects::check),
        get(View, "/admin/v1/overlaps", suspects::overlaps),
        get(View, "/admin/v1/audit", audit::audit),
    ]
}

fn get<H: Handler<T, Arc<Admin>>, T: 'static>(role: Role, path: &'static str, handler: H) -> Row {
    Row { method: Method::GET, path, role, handler: routing::get(handler) }
}

fn post<H: Handler<T, Arc<Admin>>, T: 'static>(role: Role, path: &'static str, handler: H) -> Row {
    Row { method: Method::POST, path, role, handler: routing::post(handler) }
}

/// Passes a request on if its operator has this role or a higher one.
async fn allow(
    State(needed): State<Role>,
    Extension(operator): Extension<Operator>,
    request: Request,
    next: Next,
) -> Result<Response, Problem> {
    if operator.role >= needed {
        return Ok(next.run(request).await);
    }
    let detail = format!(
        "The token `{}` has the role `{}`; this call needs `{}`. Roles are set in [admin.tokens] of the configuration.",
        operator.name,
        operator.role.name(),
        needed.name()
    );
    Err(Problem::new(Code::Forbidden, detail))
}

#[cfg(test)]
mod tests {
    use std::collections::BTreeMap;

    use super::*;

    #[test]
    fn the_document_names_the_role_of_every_route() {
        let document: serde_json::Value = serde_yaml_ng::from_str(include_str!("../../../openapi-admin.yaml")).unwrap();
        let mut documented = BTreeMap::new();
        for (path, operations) in document["paths"].as_object().unwrap() {
            for (method, operation) in operations.as_object().unwrap() {
                if path.starts_with("/admin/v1/") && operation.is_object() {
                    let role = operation["x-role"].as_str().unwrap_or("none").to_owned();
                    documented.insert((path.clone(), method.to_uppercase()), role);
                }
            }
        }
        let role = |row: Row| ((row.path.to_owned(), row.method.to_string()), row.role.name().to_owned());
        assert_eq!(rows().into_iter().map(role).collect::<BTreeMap<_, _>>(), documented);
    }
}
