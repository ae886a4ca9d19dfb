//! `/console/proxy`: the routes of the proxy, what this gateway has answered on them, and its recent requests. `show` is the page of one
//! route, `keys` has the requests by their key.

pub(super) mod keys;
pub(super) mod show;

use std::collections::BTreeMap;
use std::sync::Arc;

use maud::{Markup, html};
use oncegate_web::problem::Problem;
use serde::Deserialize;

use self::keys::Keys;
use super::context::{Answer, Context};
use super::parts::{path, table};
use super::texts::{Text, Texts};
use super::untrusted::Untrusted;
use super::{layout, times, traffic};

/// `GET /admin/v1/proxy/routes`.
#[derive(Deserialize)]
pub(super) struct Routes {
    since: String,
    pub(super) routes: Vec<Route>,
}

/// A route.
#[derive(Deserialize)]
pub(super) struct Route {
    pub(super) name: Untrusted,
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
pub(super) async fn list(context: Arc<Context>) -> Result<Answer, Problem> {
    let t = context.texts();
    let (found, recent) = tokio::join!(
        context.get::<Routes>("/admin/v1/proxy/routes"),
        context.get::<Keys>("/admin/v1/proxy/recent?limit=20")
    );
    let Routes { since, routes } = found?;
    let main = html! {
        div.heading {
            h1 { (t.of(Text::ProxyRoutes)) }
            span.muted { (t.of(Text::ThisGateway)) " · " (t.of(Text::SinceTime(&times::instant(&since)))) }
        }
        @if routes.is_empty() {
            p { (t.of(Text::NoProxyRoutes)) }
            pre { "oncegate proxy check http://api.shop.example/v1/orders --header 'Idempotency-Key: 8e03978e'" }
        } @else {
            (rows(t, &routes))
            (layout::heading(&t.of(Text::RecentRequests), &t.of(Text::ThisGateway)))
            (keys::region(&context, &recent))
        }
        (layout::sources(t, &["proxy/routes", "proxy/recent?limit=20"], "oncegate proxy routes, oncegate proxy recent"))
    };
    Ok(Answer::Page(Text::ProxyRoutes, main))
}

fn rows(t: Texts, routes: &[Route]) -> Markup {
    let rows = html! {
        @for route in routes {
            tr {
                th scope="row" {
                    a href=(path(&["proxy", route.name.raw()])) { (route.app) " / " (route.name) }
                    br; span.muted { (route.target()) }
                }
                td { (route.upstream) }
                td.number { (traffic::value(t, "p99", route.upstream_p99_seconds)) }
                @for (name, _) in SHOWN { td.number { (route.answers.get(name).copied().unwrap_or_default()) } }
                td.number { (route.others()) }
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

impl Route {
    /// Returns the requests that it takes.
    fn target(&self) -> Markup {
        html! { @for method in &self.methods { (method) " " } @for host in &self.hosts { (host) " " } (self.path) }
    }

    /// Returns the number of answers without a column of their own.
    fn others(&self) -> u64 {
        let is_other = |name: &str| SHOWN.iter().all(|(shown, _)| *shown != name);
        self.answers.iter().filter(|(name, _)| is_other(name)).map(|(_, count)| count).sum()
    }
}
