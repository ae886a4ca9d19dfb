//! `/console/audit`: what operators have changed at this gateway, newest first.

use std::sync::Arc;

use maud::{Markup, html};
use oncegate_web::problem::Problem;
use serde::Deserialize;

use super::context::{Answer, Context};
use super::parts::{address, claim_page, pager, refusal, table};
use super::texts::{Text, Texts};
use super::untrusted::Untrusted;
use super::{layout, times};

/// Parameters that choose entries.
const FILTERS: [&str; 4] = ["who", "action", "app", "global_id"];

/// `GET /admin/v1/audit`.
#[derive(Deserialize)]
struct Trail {
    entries: Vec<Entry>,
    next: Option<Untrusted>,
}

/// An entry.
#[derive(Deserialize)]
struct Entry {
    at: String,
    who: Untrusted,
    via: Option<Untrusted>,
    action: Untrusted,
    app: Option<Untrusted>,
    realm: Option<String>,
    global_id: Option<Untrusted>,
    detail: Option<Untrusted>,
    reason: Option<Untrusted>,
    result: Option<Untrusted>,
}

/// Draws the page.
pub(super) async fn show(context: Arc<Context>) -> Result<Answer, Problem> {
    let t = context.texts();
    let filters = FILTERS.map(|name| (name, context.query(name).unwrap_or_default()));
    let rest = [("after", context.query("after").unwrap_or_default()), ("limit", "50")];
    let found = context.get::<Trail>(&address("/admin/v1/audit", &[&filters[..], &rest].concat())).await;
    let main = html! {
        div.heading { h1 { (t.of(Text::Audit)) } span.muted { (t.of(Text::ThisGateway)) } }
        p { (t.of(Text::AuditAbout)) }
        form.inline method="get" action="/console/audit" {
            @for (name, value) in &filters {
                label for=(name) { (t.of(title(name))) }
                input id=(name) type="text" name=(name) value=(value) spellcheck="false";
            }
            button type="submit" { (t.of(Text::Search)) }
        }
        @match &found {
            Ok(Trail { entries, .. }) if entries.is_empty() => p { (t.of(Text::NoEntries)) },
            Ok(Trail { entries, next }) => {
                (rows(t, entries))
                (pager(t, "/console/audit", &filters, next.as_ref().map(Untrusted::raw)))
            },
            Err(problem) => p.notice role="alert" { (refusal(t, problem)) },
        }
        (layout::sources(t, &["audit"], "oncegate audit"))
    };
    Ok(Answer::Page(Text::Audit, main))
}

fn title(name: &str) -> Text<'static> {
    match name {
        "who" => Text::Who,
        "action" => Text::Action,
        "app" => Text::App,
        _ => Text::GlobalId,
    }
}

fn rows(t: Texts, entries: &[Entry]) -> Markup {
    let rows = html! {
        @for entry in entries {
            tr {
                td { (times::instant(&entry.at)) }
                td { (entry.who) @if let Some(via) = &entry.via { br; span.muted { (via) } } }
                td { (entry.action) @if let Some(detail) = &entry.detail { br; span.muted { (detail) } } }
                td {
                    @if let Some(app) = &entry.app {
                        (app)
                        @if let Some(id) = &entry.global_id { br; a href=(claim_page(app, id, entry.realm.as_deref().unwrap_or_default())) { code { (id) } } }
                    }
                }
                td { @if let Some(reason) = &entry.reason { (reason) } }
                td { @if let Some(result) = &entry.result { (result) } @else { span.warn { "▲ " (t.of(Text::ResultNotKnown)) } } }
            }
        }
    };
    table(t, Text::Audit, &[Text::When, Text::Who, Text::Action, Text::Claim, Text::Reason, Text::ResultTitle], &rows)
}
