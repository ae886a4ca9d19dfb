//! `/console/attention`: overlaps and suspected doubles that no operator has checked yet.

use std::sync::Arc;

use maud::{Markup, html};
use percent_encoding::{NON_ALPHANUMERIC, utf8_percent_encode};
use serde::Deserialize;

use super::context::{Answer, Context};
use super::layout;
use super::texts::{Text, Texts};
use super::times;
use super::untrusted::Untrusted;
use crate::web::problem::Problem;

/// Rows of a page.
const ROWS: usize = 50;

/// `GET /admin/v1/suspects`.
#[derive(Deserialize)]
pub(super) struct Suspects {
    pub(super) suspects: Vec<Suspect>,
    pub(super) next: Option<u64>,
}

/// An operation that may have run twice.
#[derive(Deserialize)]
pub(super) struct Suspect {
    kind: String,
    cause: Untrusted,
    app: Untrusted,
    operation: Option<Untrusted>,
    global_id: Untrusted,
    ours: Contender,
    theirs: Option<Contender>,
    noticed_at: String,
}

/// One of its attempts.
#[derive(Deserialize)]
struct Contender {
    attempt_hash: Untrusted,
}

/// Returns the sentence about this many suspects.
pub(super) fn advice(count: usize, more: bool) -> Text<'static> {
    Text::Suspects { count, more }
}

/// Draws the page.
pub(super) async fn show(context: Arc<Context>) -> Result<Answer, Problem> {
    let t = context.texts();
    let kind = context.query("kind");
    let filters = [("kind", kind), ("app", context.query("app")), ("after", context.query("after"))];
    let query = filters.iter().filter_map(|(name, value)| value.map(|value| format!("&{name}={}", escaped(value))));
    let path = format!("/admin/v1/suspects?checked=false&limit={ROWS}{}", query.collect::<String>());
    let found: Suspects = context.get(&path).await?;
    let main = html! {
        div.heading { h1 { (t.of(Text::Attention)) } span.muted { (t.of(Text::SeenHere)) } }
        (kinds(t, kind))
        @if found.suspects.is_empty() {
            p { (t.of(Text::NoneOpen)) }
        } @else {
            p { (t.of(Text::CheckAdvice)) }
            (table(t, &found.suspects))
        }
        @if let Some(next) = found.next {
            @let kind = kind.map(|kind| format!("&kind={}", escaped(kind))).unwrap_or_default();
            p { a href={ "/console/attention?after=" (next) (kind) } { (t.of(Text::Older)) } }
        }
        (layout::same_as(t, "GET /admin/v1/suspects?checked=false", "oncegate suspects list"))
    };
    Ok(Answer::Page(Text::Attention, main))
}

fn kinds(t: Texts, chosen: Option<&str>) -> Markup {
    let all = [(None, Text::AllKinds), (Some("overlap"), Text::Overlaps), (Some("double"), Text::Doubles)];
    html! {
        p.filters {
            @for (kind, title) in all {
                @let href = kind.map_or("/console/attention".to_owned(), |kind| format!("/console/attention?kind={kind}"));
                a href=(href) aria-current=[(kind == chosen).then_some("true")] { (t.of(title)) } " "
            }
        }
    }
}

fn table(t: Texts, suspects: &[Suspect]) -> Markup {
    html! {
        div.scroll tabindex="0" role="region" aria-label=(t.of(Text::Attention)) {
            table {
                thead { tr {
                    th scope="col" { (t.of(Text::Noticed)) }
                    th scope="col" { (t.of(Text::App)) }
                    th scope="col" { (t.of(Text::Operation)) }
                    th scope="col" { (t.of(Text::What)) }
                    th scope="col" { (t.of(Text::Why)) }
                } }
                tbody {
                    @for suspect in suspects {
                        tr {
                            td { (times::instant(&suspect.noticed_at)) }
                            td { (suspect.app) }
                            td { @if let Some(operation) = &suspect.operation { (operation) } @else { "–" } }
                            td {
                                code { (suspect.global_id) } br;
                                span.muted {
                                    (t.of(Text::Ours)) " " code { (suspect.ours.attempt_hash) }
                                    @if let Some(theirs) = &suspect.theirs { " · " (t.of(Text::Theirs)) " " code { (theirs.attempt_hash) } }
                                }
                            }
                            td { (t.of(reason(suspect))) }
                        }
                    }
                }
            }
        }
    }
}

fn reason(suspect: &Suspect) -> Text<'_> {
    match (suspect.kind.as_str(), suspect.cause.raw()) {
        ("overlap", policy) => Text::TwoGrants(policy),
        (_, "superseded_success") => Text::SupersededSuccess,
        _ => Text::SupersededUnknown,
    }
}

fn escaped(value: &str) -> String {
    utf8_percent_encode(value, NON_ALPHANUMERIC).to_string()
}
