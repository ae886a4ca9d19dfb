//! The pages of the console. Each row names the role that it needs, so that no page is without one.

use std::sync::Arc;

use axum::Router;
use axum::extract::{Request, State};
use axum::http::Method;
use axum::routing::{MethodFilter, on};
use oncegate_web::problem::{Code, Problem};

use super::context::{Answer, Console, Context};
use super::entry::{Page, enter};
use super::texts::Text;
use super::{
    apps, attention, audit, chains, check, claims, config, find, gateways, json, locks, operations, overview, proxy,
    recent, spool,
};
use crate::role::Role::{self, Act, Read, View};

/// A page: its method and path, and the least role that may open it.
struct Row {
    method: Method,
    path: &'static str,
    role: Role,
    page: Page,
}

/// Returns the routes of the pages.
pub(super) fn router() -> Router<Arc<Console>> {
    rows().into_iter().fold(Router::new(), |router, Row { method, path, role, page }| {
        let filter = if method == Method::POST { MethodFilter::POST } else { MethodFilter::GET };
        let answer = move |State(console): State<Arc<Console>>, request: Request| {
            let page = page.clone();
            async move { enter(console, role, page, request).await }
        };
        router.route(path, on(filter, answer))
    })
}

fn rows() -> Vec<Row> {
    vec![
        get(View, "/console/", overview::show),
        get(View, "/console/attention", attention::show),
        post(Act, "/console/attention", attention::several::act),
        get(Act, "/console/attention/{id}", check::ask),
        post(Act, "/console/attention/{id}", check::act),
        get(View, "/console/operations", operations::list),
        get(View, "/console/operations/{app}/{operation}", operations::show),
        get(View, "/console/recent", recent::show),
        get(View, "/console/find", find::show),
        post(View, "/console/find", find::find),
        get(View, "/console/claims/{app}/{id}", claims::show),
        get(Act, "/console/claims/{app}/{id}/settle", claims::settle::ask),
        post(Act, "/console/claims/{app}/{id}/settle", claims::settle::act),
        get(Act, "/console/claims/{app}/{id}/release", claims::release::ask),
        post(Act, "/console/claims/{app}/{id}/release", claims::release::act),
        get(Act, "/console/claims/{app}/{id}/forget", claims::forget::ask),
        post(Act, "/console/claims/{app}/{id}/forget", claims::forget::act),
        get(View, "/console/engines", chains::list),
        get(View, "/console/chains/{chain}", chains::show),
        get(Act, "/console/chains/{chain}/switch", chains::switch::ask),
        post(Act, "/console/chains/{chain}/switch", chains::switch::act),
        get(Act, "/console/chains/{chain}/failover", chains::failover::ask),
        post(Act, "/console/chains/{chain}/failover", chains::failover::act),
        get(View, "/console/locks", locks::list),
        get(View, "/console/locks/show", locks::named),
        get(View, "/console/locks/{app}/{name}", locks::show),
        get(Act, "/console/locks/{app}/{name}/release/{hash}", locks::ask),
        post(Act, "/console/locks/{app}/{name}/release/{hash}", locks::act),
        get(View, "/console/apps", apps::list),
        get(View, "/console/apps/{app}", apps::show::show),
        get(Act, "/console/apps/{app}/rotate", apps::change::ask_rotate),
        post(Act, "/console/apps/{app}/rotate", apps::change::rotate),
        get(Act, "/console/apps/{app}/revoke/{secret}", apps::change::ask_revoke),
        post(Act, "/console/apps/{app}/revoke/{secret}", apps::change::revoke),
        get(Act, "/console/apps/{app}/disable", apps::change::ask_disable),
        post(Act, "/console/apps/{app}/disable", apps::change::disable),
        get(Act, "/console/apps/{app}/enable", apps::change::ask_enable),
        post(Act, "/console/apps/{app}/enable", apps::change::enable),
        get(View, "/console/spool", spool::show),
        get(View, "/console/proxy", proxy::list),
        get(View, "/console/proxy/{route}", proxy::show::show),
        get(View, "/console/gateways", gateways::show),
        get(Read, "/console/config", config::show),
        get(View, "/console/audit", audit::show),
        get(View, "/console/json/{*call}", json::show),
        get(View, "/console/{*rest}", nothing_here),
    ]
}

fn get<Shown>(role: Role, path: &'static str, page: fn(Arc<Context>) -> Shown) -> Row
where
    Shown: Future<Output = Result<Answer, Problem>> + Send + 'static,
{
    Row { method: Method::GET, path, role, page: Arc::new(move |context| Box::pin(page(context))) }
}

fn post<Done>(role: Role, path: &'static str, page: fn(Arc<Context>) -> Done) -> Row
where
    Done: Future<Output = Result<Answer, Problem>> + Send + 'static,
{
    Row { method: Method::POST, ..get(role, path, page) }
}

async fn nothing_here(context: Arc<Context>) -> Result<Answer, Problem> {
    Err(Problem::new(Code::NotFound, context.texts().of(Text::NoSuchPage)))
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Integration tests open each row with each role and each method.
    #[test]
    fn every_route_is_in_the_table_of_the_tests() {
        let table = include_str!("../../../../tests/it/console/routes.txt");
        let row = |Row { method, path, role, .. }: Row| format!("{} {method} {path}", role.name());
        let mut rows: Vec<_> = rows().into_iter().map(row).collect();
        rows.sort();
        let mut tested: Vec<_> = table.lines().filter(|line| !line.starts_with('#')).map(str::to_owned).collect();
        tested.sort();
        assert_eq!(rows, tested);
    }
}
