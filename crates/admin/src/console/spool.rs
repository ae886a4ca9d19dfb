//! `/console/spool`: answers of outage policies that wait for a store, without contents.

use std::sync::Arc;

use maud::{Markup, html};
use oncegate_web::problem::Problem;
use serde::Deserialize;

use super::context::{Answer, Context};
use super::parts::{address, pager, path, table};
use super::summary::{Journal, Summary};
use super::texts::{Notice, Text, Texts};
use super::untrusted::Untrusted;
use super::{layout, times};
use crate::attention::Kind;

/// `GET /admin/v1/spool`.
#[derive(Deserialize)]
struct Spool {
    entries: Vec<Entry>,
    next: Option<u64>,
}

/// An entry that waits.
#[derive(Deserialize)]
struct Entry {
    answered_at: String,
    app: Untrusted,
    operation: Option<Untrusted>,
    realm: String,
    global_id: Untrusted,
    answer: Untrusted,
    policy: Untrusted,
    chain: Untrusted,
    last_failure: Option<Untrusted>,
}

/// Draws the page.
pub(super) async fn show(context: Arc<Context>) -> Result<Answer, Problem> {
    let t = context.texts();
    let (app, after) = (context.query("app").unwrap_or_default(), context.query("after").unwrap_or_default());
    let call = address("/admin/v1/spool", &[("app", app), ("after", after), ("limit", "50")]);
    let (page, summary) = tokio::join!(context.get::<Spool>(&call), context.get::<Summary>("/admin/v1/summary"));
    let Spool { entries, next } = page?;
    let next = next.map(|next| next.to_string());
    let main = html! {
        div.heading { h1 { (t.of(Text::Spool)) } span.muted { (t.of(Text::ThisGateway)) } }
        p { (t.of(Text::SpoolAbout)) }
        @if let Ok(Summary { spool, .. }) = &summary { (journal(&context, spool)) }
        @if entries.is_empty() { p { (t.of(Text::SpoolEmpty)) } } @else { (rows(t, &entries)) }
        (pager(t, "/console/spool", &[("app", app)], next.as_deref()))
        (layout::sources(t, &["spool", "summary"], "oncegate spool waiting, oncegate summary"))
    };
    Ok(Answer::Page(Text::Spool, main))
}

/// Returns what the journal has of all apps, since when, and how much more it takes.
fn journal(context: &Context, journal: &Journal) -> Markup {
    let (t, left) = (context.texts(), journal.bytes_max.saturating_sub(journal.bytes));
    let full = journal.minutes_until_full(context.now());
    html! {
        @if !journal.takes { p.notice { "■ " (t.of(Text::Advice(Kind::JournalFailing))) } }
        @if journal.entries > 0 {
            p {
                (t.of(Text::SpoolHas { entries: journal.entries, bytes: journal.bytes })) " · " (t.of(Text::SpoolRoom(left)))
                @if let Some(minutes) = full { " · " (t.of(Text::Notice(Notice::FullIn(minutes)))) }
                @if let Some(oldest) = &journal.oldest_at { " · " (t.of(Text::SpoolOldest)) " " (times::since(oldest, context.now())) }
            }
        }
    }
}

fn rows(t: Texts, entries: &[Entry]) -> Markup {
    let rows = html! {
        @for entry in entries {
            @let realm = if entry.realm == "proxy" { "proxy" } else { "" };
            @let claim = address(&path(&["claims", entry.app.raw(), entry.global_id.raw()]), &[("realm", realm)]);
            tr {
                td { (times::instant(&entry.answered_at)) }
                td { (entry.app) @if let Some(operation) = &entry.operation { " / " (operation) } br; a href=(claim) { code { (entry.global_id) } } }
                td { (entry.answer) br; span.muted { (entry.policy) } }
                td { a href=(path(&["chains", entry.chain.raw()])) { (entry.chain) } }
                td { @if let Some(failure) = &entry.last_failure { (failure.prose()) } @else { (t.of(Text::NotTriedYet)) } }
            }
        }
    };
    table(t, Text::Spool, &[Text::Answered, Text::Claim, Text::AnswerOf, Text::Chain, Text::LastFailure], &rows)
}
