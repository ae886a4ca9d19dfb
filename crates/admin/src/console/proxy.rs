//! `/console/proxy`: the routes of the proxy, and what this gateway has answered on them.

use std::collections::BTreeMap;
use std::sync::Arc;

use maud::{Markup, html};
use oncegate_web::problem::Problem;
use serde::Deserialize;

use super::context::{Answer, Context};
use super::parts::{path, table};
use super::texts::{Text, Texts};
use super::untrusted::Untrusted;
use super::{layout, times, traffic};

/// `GET /admin/v1/proxy/routes`.
#[derive(Deserialize)]
struct Routes {
    since: String,
    routes: Vec<Route>,
}

/// A route.
#[derive(Deserialize)]
struct Route {
    name: Untrusted,
    app: Untrusted,
    hosts: Vec<Untrusted>,
    path: Untrusted,
    methods: Vec<Untrusted>,
    upstream: Untrusted,
    answers: BTreeMap<String, u64>,
    stored_bytes: u64,
    tombstones: u64,
    upstream_p99_seconds: Option<f32>,
}

/// Answers that have a column of their own.
const SHOWN: [(&str, Text<'static>); 3] =
    [("forwarded", Text::Forwarded), ("replayed", Text::Replayed), ("unknown", Text::AnsweredUnknown)];

/// Draws the page.
pub(super) async fn show(context: Arc<Context>) -> Result<Answer, Problem> {
    let t = context.texts();
    let Routes { since, routes } = context.get("/admin/v1/proxy/routes").await?;
    let main = html! {
        div.heading {
            h1 { (t.of(Text::ProxyRoutes)) }
            span.muted { (t.of(Text::ThisGateway)) " · " (t.of(Text::SinceTime(&times::instant(&since)))) }
        }
        @if routes.is_empty() {
            p { (t.of(Text::NoProxyRoutes)) }
            pre { "oncegate proxy check http://api.shop.example/v1/orders --header 'Idempotency-Key: 8e03978e'" }
        } @else { (rows(t, &routes)) }
        (layout::sources(t, &["proxy/routes"], "oncegate proxy routes"))
    };
    Ok(Answer::Page(Text::ProxyRoutes, main))
}

fn rows(t: Texts, routes: &[Route]) -> Markup {
    let rows = html! {
        @for route in routes {
            @let operation = format!("proxy:{}", route.name.raw());
            @let others: u64 = route.answers.iter().filter(|(name, _)| SHOWN.iter().all(|(shown, _)| shown != name)).map(|(_, count)| count).sum();
            tr {
                th scope="row" {
                    a href=(path(&["operations", route.app.raw(), &operation])) { (route.app) " / " (route.name) }
                    br; span.muted { @for method in &route.methods { (method) " " } @for host in &route.hosts { (host) " " } (route.path) }
                }
                td { (route.upstream) }
                td.number { (traffic::value(t, "p99", route.upstream_p99_seconds)) }
                @for (name, _) in SHOWN { td.number { (route.answers.get(name).copied().unwrap_or_default()) } }
                td.number { (others) }
                td.number { (route.stored_bytes) " B" br; span.muted { (route.tombstones) } }
            }
        }
    };
    let [forwarded, replayed, unknown] = SHOWN.map(|(_, title)| title);
    let columns = [
        Text::Route,
        Text::Upstream,
        Text::HighLatency,
        forwarded,
        replayed,
        unknown,
        Text::OtherAnswers,
        Text::StoredAndNot,
    ];
    table(t, Text::ProxyRoutes, &columns, &rows)
}
