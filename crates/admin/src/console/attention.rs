//! `/console/attention`: unknown outcomes, and overlaps and suspected doubles that no operator has checked yet. `several` works off many
//! of them with one form.

pub(super) mod several;
pub(super) mod suspects;

use std::sync::Arc;

use futures_util::future::join_all;
use maud::{Markup, html};
use oncegate_core::tenant::AppKey;
use oncegate_web::problem::Problem;
use serde::Deserialize;
use serde_json::value::RawValue;

use self::several::{Kind, Row};
use super::apps::{self, KnownApps};
use super::context::{Answer, Context};
use super::masks::masked;
use super::parts::{address, claim_page, pager, refusal, table};
use super::texts::{Notice, Text};
use super::untrusted::Untrusted;
use super::{layout, times};
use crate::attention::Kind as ItemKind;
use crate::audit::Change;

/// Rows of unknown claims.
const ROWS: usize = 50;

/// Most apps that are asked one by one.
const APPS_MAX: usize = 16;

/// Characters of contents that a row shows.
const CONTENTS_CHARS: usize = 80;

/// `GET /admin/v1/unknowns`.
#[derive(Deserialize)]
struct UnknownsPage {
    unknowns: Vec<Unknown>,
    more: bool,
    failed: Vec<Unanswered>,
}

/// A claim whose outcome is unknown.
#[derive(Deserialize)]
struct Unknown {
    app: Untrusted,
    realm: String,
    since: String,
    operation: Option<Untrusted>,
    global_id: Untrusted,
    attempt_hash: Untrusted,
    contents: Option<Box<RawValue>>,
}

/// An app whose store did not answer.
#[derive(Deserialize)]
struct Unanswered {
    app: Untrusted,
    detail: Untrusted,
}

/// Draws the page.
pub(super) async fn show(context: Arc<Context>) -> Result<Answer, Problem> {
    let t = context.texts();
    let [kind, app] = ["kind", "app"].map(|name| context.query(name).unwrap_or_default());
    let (suspects, unknowns) = tokio::join!(
        async { if kind == "unknown" { None } else { Some(suspects::find(&context, kind, app).await) } },
        async { if ["", "unknown"].contains(&kind) { Some(unknowns(&context, app).await) } else { None } },
    );
    // A wrong address is the page's fault, not a region's.
    let suspects = suspects.transpose()?;
    let apps = KnownApps::of(&context);
    let main = html! {
        h1 { (t.of(Text::Attention)) }
        (done(&context))
        (kinds(&context, kind, app))
        p.notice #new data-rows="summary" role="status" hidden {
            strong {} " " (t.of(Text::NewRows)) " "
            a href=(address("/console/attention", &[("kind", kind), ("app", app)])) { (t.of(Text::LoadAgain)) }
        }
        @if apps.keys.len() > 1 { (apps::choose(t, "/console/attention", &apps, app, true, Some(("kind", kind)))) }
        @if let Some(found) = &unknowns {
            (layout::heading(&t.of(Text::Unknowns), &t.of(Text::ScopeStore)))
            (of_unknowns(&context, found))
        }
        @if let Some(found) = &suspects {
            (layout::heading(&t.of(Text::MayHaveRunTwice), &t.of(Text::SeenHere)))
            (suspects::draw(&context, found))
            (pager(t, "/console/attention", &[("kind", kind), ("app", app)], found.next().as_deref()))
        }
        (layout::sources(t, &["unknowns", "suspects?checked=false&oldest_first=true"], "oncegate unknowns, oncegate suspects list --oldest-first"))
    };
    Ok(Answer::Page(Text::Attention, main))
}

async fn unknowns(context: &Context, app: &str) -> Result<UnknownsPage, Problem> {
    let apps: Vec<_> = context.console.admin.registry.apps().iter().map(|app| app.key.to_string()).collect();
    let mut found = if app.is_empty() && (2..=APPS_MAX).contains(&apps.len()) {
        unknowns_of_each(context, &apps).await
    } else {
        unknowns_of(context, app).await?
    };
    if !context.is_click {
        // The script only counts new rows, which is no look at contents.
        found.unknowns.iter_mut().for_each(|unknown| unknown.contents = None);
    }
    if found.unknowns.iter().any(|unknown| unknown.contents.is_some()) {
        note(context, app, format!("{} unknown claims", found.unknowns.len()));
    }
    Ok(found)
}

/// Writes a look at contents into the audit trail. All rows of one page are one entry, so that a list cannot fill the trail.
fn note(context: &Context, app: &str, rows: String) {
    let change = Change { app: app.parse().ok(), detail: Some(rows), ..Change::without_reason("claim.view") };
    context.console.admin.audit.note(&context.operator, &change);
}

async fn unknowns_of(context: &Context, app: &str) -> Result<UnknownsPage, Problem> {
    context.get(&address("/admin/v1/unknowns", &[("app", app), ("limit", &ROWS.to_string())])).await
}

/// Returns the unknown claims of these apps. One whose store takes too long to be searched leaves the others on the page.
async fn unknowns_of_each(context: &Context, apps: &[String]) -> UnknownsPage {
    let pages = join_all(apps.iter().map(|app| unknowns_of(context, app))).await;
    let mut all = UnknownsPage { unknowns: Vec::new(), more: false, failed: Vec::new() };
    for (app, page) in apps.iter().zip(pages) {
        match page {
            Ok(page) => {
                all.more |= page.more;
                all.unknowns.extend(page.unknowns);
                all.failed.extend(page.failed);
            }
            Err(problem) => {
                let (app, detail) = (Untrusted::from(app.as_str()), Untrusted::from(problem.detail));
                all.failed.push(Unanswered { app, detail });
            }
        }
    }
    // Instants in UTC sort as text.
    all.unknowns.sort_by(|one, other| one.since.cmp(&other.since));
    all.more |= all.unknowns.len() > ROWS;
    all.unknowns.truncate(ROWS);
    all
}

fn kinds(context: &Context, chosen: &str, app: &str) -> Markup {
    let all =
        [("", Text::AllKinds), ("unknown", Text::Unknowns), ("overlap", Text::Overlaps), ("double", Text::Doubles)];
    html! {
        p.filters {
            @for (kind, title) in all {
                @let href = address("/console/attention", &[("kind", kind), ("app", app)]);
                a href=(href) aria-current=[(kind == chosen).then_some("true")] { (context.texts().of(title)) } " "
            }
        }
    }
}

/// Returns the words for a form that led here.
fn done(context: &Context) -> Markup {
    let t = context.texts();
    let number = |name| context.query(name).and_then(|number| number.parse::<usize>().ok()).unwrap_or_default();
    let [count, left, unknown] = ["count", "left", "unknown"].map(number);
    let text = match context.done() {
        Some("checked") if count == 0 => Text::CheckedNow,
        Some("checked") => Text::CheckedSeveral(count),
        Some("settled") => Text::SettledSeveral(count),
        _ => return html! {},
    };
    html! {
        p.notice role="status" { (t.of(text))
            @if unknown > 0 { " " (t.of(Text::Notice(Notice::UnknownSeveral(unknown)))) }
            @if left > 0 { " " (t.of(Text::LeftSeveral(left))) }
        }
    }
}

fn of_unknowns(context: &Context, found: &Result<UnknownsPage, Problem>) -> Markup {
    let t = context.texts();
    let UnknownsPage { unknowns, more, failed } = match found {
        Ok(found) => found,
        Err(problem) => return html! { p.notice { (refusal(t, problem)) } },
    };
    html! {
        @for Unanswered { app, detail } in failed {
            p.notice { (app) ": " (detail.prose()) " " (t.of(Text::AskWithCommand)) " " code { "oncegate unknowns --app " (app) } }
        }
        @if unknowns.is_empty() {
            @if failed.is_empty() { p { (t.of(Text::NoUnknowns)) } }
        } @else {
            p { (t.of(Text::Advice(ItemKind::Unknown))) }
            @if *more { p { (t.of(Text::OldestOnly)) } }
            (several::form(context, Kind::Settle, &unknowns.iter().map(unknown_row).collect::<Vec<_>>(), &rows_of_unknowns(context, unknowns)))
        }
    }
}

fn unknown_row(unknown: &Unknown) -> Row<'_> {
    let id = format!("{} {} {}", unknown.realm, unknown.global_id.raw(), unknown.attempt_hash.raw());
    Row { app: &unknown.app, operation: unknown.operation.as_ref(), id }
}

fn rows_of_unknowns(context: &Context, unknowns: &[Unknown]) -> Markup {
    let t = context.texts();
    let rows = html! {
        @for unknown in unknowns {
            tr data-row=(unknown_row(unknown).id) {
                (several::cell(context, Kind::Settle, &unknown_row(unknown)))
                td {
                    (unknown.app) @if let Some(operation) = &unknown.operation { " / " (operation) }
                    @if let Some(contents) = &unknown.contents { br; code { (shortened(context, unknown.app.raw(), contents)) } }
                }
                td { (times::since(&unknown.since, context.now())) }
                td { a href=(claim_page(&unknown.app, &unknown.global_id, &unknown.realm)) { code { (unknown.global_id) } } }
            }
        }
    };
    let columns = [Text::Operation, Text::Since, Text::Claim];
    table(t, Text::Unknowns, &several::columns(context, &columns), &rows)
}

/// Returns the first characters of contents, without what their app masks.
fn shortened(context: &Context, app: &str, contents: &RawValue) -> Untrusted {
    let masks = context.console.masks(app.parse::<AppKey>().ok().as_ref());
    let text = masked(contents, &masks);
    let mut chars = text.raw().chars();
    let mut short: String = chars.by_ref().take(CONTENTS_CHARS).collect();
    if chars.next().is_some() {
        short.push('…');
    }
    Untrusted::from(short)
}
