//! `/console/proxy/{route}`: a route, what this gateway has answered on it, and its recent requests by their key.

use std::sync::Arc;

use maud::html;
use oncegate_web::problem::{Code, Problem};
use oncegate_web::recent::keys::ANSWERS;

use super::keys::{self, Keys};
use super::{Route, Routes};
use crate::console::context::{Answer, Context};
use crate::console::parts::{address, facts, pager, path};
use crate::console::texts::Text;
use crate::console::{find, layout, times, traffic};

/// Draws the page.
pub(in crate::console) async fn show(context: Arc<Context>) -> Result<Answer, Problem> {
    let t = context.texts();
    let name = context.parameters.get("route").cloned().unwrap_or_default();
    let [answer, after] = ["answer", "after"].map(|name| context.query(name).unwrap_or_default());
    let recent =
        address("/admin/v1/proxy/recent", &[("route", &name), ("answer", answer), ("after", after), ("limit", "50")]);
    let (found, recent) = tokio::join!(context.get::<Routes>("/admin/v1/proxy/routes"), context.get::<Keys>(&recent));
    let Routes { since, routes } = found?;
    let route = routes.iter().find(|route| route.name.raw() == name);
    let route = route.ok_or_else(|| Problem::new(Code::NotFound, t.of(Text::NoSuchRoute)))?;
    let recent = recent?;
    let page = path(&["proxy", &name]);
    let next = recent.next.map(|next| next.to_string());
    let main = html! {
        div.heading {
            h1 { (route.app) " / " (route.name) }
            span.muted { (t.of(Text::ThisGateway)) " · " (t.of(Text::SinceTime(&times::instant(&since)))) }
        }
        p { (route.target()) }
        (numbers(&context, route))
        p { a href=(path(&["operations", route.app.raw(), &format!("proxy:{name}")])) { (t.of(Text::Operation)) " " code { "proxy:" (route.name) } } }
        (layout::heading(&t.of(Text::RecentRequests), &t.of(Text::ThisGateway)))
        (find::by_key(&context, &[&route.name], &find::ByKey::default()))
        p.filters {
            a href=(page) aria-current=[answer.is_empty().then_some("true")] { (t.of(Text::AllKinds)) } " "
            @for one in ANSWERS {
                a href=(address(&page, &[("answer", one)])) aria-current=[(answer == one).then_some("true")] { (t.of(keys::words(one))) } " "
            }
        }
        (keys::list(&context, &recent))
        (pager(t, &page, &[("answer", answer)], next.as_deref()))
        (layout::sources(t, &["proxy/routes", &address("proxy/recent", &[("route", &name), ("answer", answer)])], "oncegate proxy recent"))
    };
    Ok(Answer::Page(Text::ProxyRoutes, main))
}

fn numbers(context: &Context, route: &Route) -> maud::Markup {
    let t = context.texts();
    let counts = ANSWERS.iter().chain(&["no_key", "unprotected"]);
    let counts = counts.filter_map(|name| Some((name, *route.answers.get(*name)?)));
    html! {
        (facts(t, &[
            (Text::Upstream, html! { (route.upstream) }),
            (Text::HighLatency, html! { (traffic::value(t, "p99", route.upstream_p99_seconds)) }),
            (Text::StoredAndNot, html! { (route.stored_bytes) " B / " (route.tombstones) }),
        ]))
        dl.facts { @for (name, count) in counts { div { dt { (t.of(answer_of(name))) } dd { (count) } } } }
    }
}

fn answer_of(name: &str) -> Text<'static> {
    match name {
        "no_key" => Text::WithoutKey,
        "unprotected" => Text::Unprotected,
        name => keys::words(name),
    }
}
