//! `/console/attention`: unknown outcomes, and overlaps and suspected doubles that no operator has checked yet. `several` works off many
//! of them with one form.

pub(super) mod several;

use std::sync::Arc;

use futures_util::future::join_all;
use maud::{Markup, html};
use oncegate_core::tenant::AppKey;
use oncegate_web::problem::Problem;
use serde::Deserialize;
use serde_json::value::RawValue;

use self::several::{Kind, Row};
use super::apps::{self, AppsPage};
use super::claims::Named;
use super::context::{Answer, Context};
use super::masks::masked;
use super::parts::{address, claim_page, pager, path, refusal, table};
use super::texts::Text;
use super::untrusted::Untrusted;
use super::{layout, times};
use crate::attention::Kind as ItemKind;
use crate::audit::Change;
use crate::role::Role;

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

/// `GET /admin/v1/suspects`.
#[derive(Deserialize)]
pub(super) struct Suspects {
    pub(super) suspects: Vec<Suspect>,
    next: Option<u64>,
}

/// An operation that may have run twice.
#[derive(Deserialize)]
pub(super) struct Suspect {
    pub(super) id: u64,
    kind: String,
    cause: Untrusted,
    pub(super) app: Untrusted,
    pub(super) operation: Option<Untrusted>,
    realm: String,
    pub(super) global_id: Untrusted,
    ours: Contender,
    theirs: Option<Contender>,
    pub(super) noticed_at: String,
}

/// One of its attempts.
#[derive(Deserialize)]
struct Contender {
    attempt_hash: Untrusted,
}

impl Suspect {
    /// Returns the page of its claim.
    pub(super) fn claim(&self) -> String {
        claim_page(&self.app, &self.global_id, &self.realm)
    }

    /// Returns its claim. The store may have another attempt's by now, or none.
    pub(super) fn named(&self) -> Named {
        Named::new(self.app.raw(), self.global_id.raw(), &self.realm)
    }

    /// Returns why it is suspected.
    pub(super) fn reason(&self) -> Text<'_> {
        match (self.kind.as_str(), self.cause.raw()) {
            ("overlap", policy) => Text::TwoGrants(policy),
            (_, "superseded_success") => Text::SupersededSuccess,
            _ => Text::SupersededUnknown,
        }
    }
}

/// Draws the page.
pub(super) async fn show(context: Arc<Context>) -> Result<Answer, Problem> {
    let t = context.texts();
    let [kind, app] = ["kind", "app"].map(|name| context.query(name).unwrap_or_default());
    let (suspects, unknowns, known) = tokio::join!(
        async { if kind == "unknown" { None } else { Some(suspects(&context, kind, app).await) } },
        async { if ["", "unknown"].contains(&kind) { Some(unknowns(&context, app).await) } else { None } },
        context.get::<AppsPage>("/admin/v1/apps"),
    );
    // A wrong address is the page's fault, not a region's.
    let suspects = suspects.transpose()?;
    let apps = known.map(|known| known.apps).unwrap_or_default();
    let main = html! {
        h1 { (t.of(Text::Attention)) }
        (done(&context))
        (kinds(&context, kind, app))
        p.notice #new data-rows="summary" role="status" hidden {
            strong {} " " (t.of(Text::NewRows)) " "
            a href=(address("/console/attention", &[("kind", kind), ("app", app)])) { (t.of(Text::LoadAgain)) }
        }
        @if apps.len() > 1 { (apps::choose(t, "/console/attention", &apps, app, true, Some(("kind", kind)))) }
        @if let Some(found) = &unknowns {
            (layout::heading(&t.of(Text::Unknowns), &t.of(Text::ScopeStore)))
            (of_unknowns(&context, found))
        }
        @if let Some(found) = &suspects {
            (layout::heading(&t.of(Text::MayHaveRunTwice), &t.of(Text::SeenHere)))
            (of_suspects(&context, found))
            @let next = found.next.map(|next| next.to_string());
            (pager(t, "/console/attention", &[("kind", kind), ("app", app)], next.as_deref()))
        }
        (layout::sources(t, &["unknowns", "suspects?checked=false"], "oncegate unknowns, oncegate suspects list"))
    };
    Ok(Answer::Page(Text::Attention, main))
}

async fn suspects(context: &Context, kind: &str, app: &str) -> Result<Suspects, Problem> {
    let after = context.query("after").unwrap_or_default();
    let filters = [("kind", kind), ("app", app), ("after", after), ("checked", "false"), ("limit", "50")];
    context.get(&address("/admin/v1/suspects", &filters)).await
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
        // All views of one page are one entry, so that a list cannot fill the trail.
        let change = Change {
            app: app.parse().ok(),
            detail: Some(format!("{} unknown claims", found.unknowns.len())),
            ..Change::without_reason("claim.view")
        };
        context.console.admin.audit.note(&context.operator, &change);
    }
    Ok(found)
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
    let (count, left) = (number("count"), number("left"));
    let text = match context.done() {
        Some("checked") if count == 0 => Text::CheckedNow,
        Some("checked") => Text::CheckedSeveral(count),
        Some("settled") => Text::SettledSeveral(count),
        _ => return html! {},
    };
    html! {
        p.notice role="status" { (t.of(text)) @if left > 0 { " " (t.of(Text::LeftSeveral(left))) } }
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
                td { (times::since(&unknown.since, context.now())) }
                td { (unknown.app) @if let Some(operation) = &unknown.operation { " / " (operation) } }
                td {
                    a href=(claim_page(&unknown.app, &unknown.global_id, &unknown.realm)) { code { (unknown.global_id) } }
                    @if let Some(contents) = &unknown.contents { br; code { (shortened(context, &unknown.app, contents)) } }
                }
            }
        }
    };
    let columns = [Text::Since, Text::Operation, Text::Claim];
    table(t, Text::Unknowns, &several::columns(context, &columns), &rows)
}

fn shortened(context: &Context, app: &Untrusted, contents: &RawValue) -> Untrusted {
    let masks = context.console.masks(app.raw().parse::<AppKey>().ok().as_ref());
    let text = masked(contents, &masks);
    let mut chars = text.raw().chars();
    let mut short: String = chars.by_ref().take(CONTENTS_CHARS).collect();
    if chars.next().is_some() {
        short.push('…');
    }
    Untrusted::from(short)
}

fn of_suspects(context: &Context, found: &Suspects) -> Markup {
    let t = context.texts();
    html! {
        @if found.suspects.is_empty() {
            p { (t.of(Text::NoneOpen)) }
        } @else {
            p { (t.of(Text::Advice(ItemKind::Double))) }
            (several::form(context, Kind::Check, &found.suspects.iter().map(suspect_row).collect::<Vec<_>>(), &rows_of_suspects(context, &found.suspects)))
        }
    }
}

fn suspect_row(suspect: &Suspect) -> Row<'_> {
    Row { app: &suspect.app, operation: suspect.operation.as_ref(), id: suspect.id.to_string() }
}

fn rows_of_suspects(context: &Context, suspects: &[Suspect]) -> Markup {
    let t = context.texts();
    let rows = html! {
        @for suspect in suspects {
            tr data-row=(suspect_row(suspect).id) {
                (several::cell(context, Kind::Check, &suspect_row(suspect)))
                td { (times::since(&suspect.noticed_at, context.now())) }
                td { (suspect.app) @if let Some(operation) = &suspect.operation { " / " (operation) } }
                td {
                    a href=(suspect.claim()) { code { (suspect.global_id) } } br;
                    span.muted {
                        (t.of(Text::Ours)) " " code { (suspect.ours.attempt_hash) }
                        @if let Some(theirs) = &suspect.theirs { " · " (t.of(Text::Theirs)) " " code { (theirs.attempt_hash) } }
                    }
                }
                td {
                    (t.of(suspect.reason()))
                    @if context.operator.role >= Role::Act {
                        " " a href=(path(&["attention", &suspect.id.to_string()])) { (t.of(Text::CheckIt)) }
                    }
                }
            }
        }
    };
    let columns = [Text::Noticed, Text::Operation, Text::Claim, Text::Why];
    table(t, Text::MayHaveRunTwice, &several::columns(context, &columns), &rows)
}
