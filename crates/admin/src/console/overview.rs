//! `/console/`: the items that need a person now, the engines in one line each, and the waiting callers. Its calls
//! reach no store.

use std::sync::Arc;

use maud::{Markup, html};
use oncegate_core::clock::Timestamp;
use oncegate_web::problem::Problem;

use super::context::{Answer, Context};
use super::gateways::Gateways;
use super::parts::{address, health, path, refusal, table};
use super::prose::Prose;
use super::summary::{Chain, Engine, Summary, Thing, Today};
use super::texts::{Item, Language, Notice, Text, Texts};
use super::traffic::{self, History};
use super::untrusted::Untrusted;
use super::waiting::{self, Waits};
use super::{gateways, layout, times};
use crate::attention::{Kind, Severity};

/// Draws the page.
pub(super) async fn show(context: Arc<Context>) -> Result<Answer, Problem> {
    let t = context.texts();
    let waits = format!("/admin/v1/waiting?limit={}", waiting::SHOWN);
    let (summary, waits, history, gateways) = tokio::join!(
        context.get::<Summary>("/admin/v1/summary"),
        context.get::<Waits>(&waits),
        context.get::<History>("/admin/v1/history"),
        context.get::<Gateways>("/admin/v1/gateways"),
    );
    let Summary { open, engines, chains, spool, attention, today } = summary?;
    let scope = format!("{} · {}", t.of(Text::ThisGateway), t.of(Text::AsOf(&times::time_of_day(context.now()))));
    let main = html! {
        div data-live="summary" {
            div.heading {
                h1 {
                    @if attention.is_empty() { (t.of(Text::NothingNeedsYou)) }
                    @else { (t.of(Text::ThingsNeedYou(attention.len()))) }
                }
                span.muted { (scope) }
            }
            @if open { p.notice { (t.of(Text::Notice(Notice::Open))) " " a href="/console/apps" { (t.of(Text::Apps)) } } }
            @if !attention.is_empty() { ul.things { @for thing in &attention { (item(t, thing, context.now())) } } }
        }
        div data-live="history" {
            (layout::heading(&t.of(Text::Traffic), &t.of(Text::ThisGateway)))
            @match &history {
                Ok(history) => { (traffic::newest(t, history)) (traffic::draw(t, history)) }
                Err(problem) => p.notice { (refusal(t, problem)) },
            }
            (headline(t, &today))
        }
        div data-live="engines" {
            (layout::heading(&t.of(Text::Engines), &t.of(Text::ThisGateway)))
            (table_of_engines(t, &engines, &chains, context.now()))
            @if let Ok(gateways) = &gateways { (gateways::line(t, gateways)) }
            p {
                (t.of(Text::Spool)) ": "
                @if spool.entries == 0 { (t.of(Text::SpoolEmpty)) }
                @else { a href="/console/spool" { (t.of(Text::SpoolHas { entries: spool.entries, bytes: spool.bytes })) } }
            }
        }
        div data-live="waiting" {
            (layout::heading(&t.of(Text::WaitingCalls), &t.of(Text::ThisGateway)))
            @match &waits {
                Ok(waits) => (waiting::draw(t, waits)),
                Err(problem) => p.notice { (refusal(t, problem)) },
            }
        }
        (layout::sources(t, &["summary", "history", "waiting"], "oncegate summary, oncegate history, oncegate waiting"))
    };
    Ok(Answer::Page(Text::Overview, main))
}

/// Returns what repeats would have done twice today, and what ran twice because observe mode let it pass.
fn headline(t: Texts, today: &Today) -> Markup {
    let Today { since, repeated_operations: operations, repeat_answers: answers, mismatch_answers, at_least, .. } =
        today;
    let Today { observed_answers: passed, ran_twice_operations: twice, .. } = today;
    html! {
        p.today {
            @if *passed > 0 {
                strong { (t.of(Text::RanTwiceToday { operations: *twice, at_least: *at_least })) } " " (t.of(Text::PassedToday(*passed))) " "
            }
            @if *operations > 0 {
                strong { @if *at_least { (t.of(Text::AtLeast)) " " } (t.of(Text::RepeatsToday { operations: *operations, answers: *answers })) }
            } @else if *passed == 0 { (t.of(Text::NoRepeatsToday)) }
            @if *mismatch_answers > 0 { " " (t.of(Text::MismatchesToday(*mismatch_answers))) }
            " " span.muted { (t.of(Text::SinceTime(&times::instant(since)))) }
        }
    }
}

fn item(t: Texts, thing: &Thing, now: Timestamp) -> Markup {
    let is_urgent = thing.severity == Severity::Critical;
    let (word, link) = guide(thing);
    html! {
        li.urgent[is_urgent] {
            strong { @if is_urgent { "■ " } @else { "▲ " } (t.of(word)) }
            div {
                (words(t, thing))
                @if let Some(since) = &thing.since {
                    " " span.muted {
                        (t.of(Text::SinceTime(&times::instant(since))))
                        @if let Some(age) = times::age_of(since, now) { " (" (age) ")" }
                    }
                }
                details { summary { (t.of(Text::WhatToDo)) } p { (t.of(Text::Advice(thing.kind))) } }
            }
            a href=(link) { (t.of(Text::Open)) }
        }
    }
}

/// Returns an item in words: in those of the page's language, if the admin API has none in it, and the API's own. An item of an app is
/// only a number, so that one of both is enough.
fn words(t: Texts, thing: &Thing) -> Markup {
    let of = thing.app.as_ref().or(thing.subject.as_ref()).map(Untrusted::raw).unwrap_or_default();
    let own = Item { kind: thing.kind, count: thing.count, of }.words(t.0).map(Prose::of);
    let has_more = own.is_none() || thing.app.is_none();
    html! {
        @if let Some(own) = own { (own) " " }
        @if has_more { bdi lang=[(t.0 != Language::English).then_some("en")] { (Prose::of(&*thing.text)) } }
    }
}

/// Returns the word for an item that needs a person, and the page with more.
fn guide(thing: &Thing) -> (Text<'static>, String) {
    let list = |kind| {
        let app = thing.app.as_ref().map(Untrusted::raw).unwrap_or_default();
        address("/console/attention", &[("kind", kind), ("app", app)])
    };
    let chain =
        || thing.subject.as_ref().map_or_else(|| "/console/engines".into(), |chain| path(&["chains", chain.raw()]));
    match thing.kind {
        Kind::StoreDown | Kind::StoreFull | Kind::StoreIncompatible | Kind::DataLost | Kind::NodeDown => {
            (Text::Store, "/console/engines".into())
        }
        Kind::WitnessDown | Kind::Switched | Kind::GrantsFrozen | Kind::RequirementsUnmet => (Text::Chain, chain()),
        Kind::JournalFailing | Kind::SpoolWaiting => (Text::Journal, "/console/spool".into()),
        Kind::AuditFailing => (Text::Audit, "/console/audit".into()),
        Kind::Overlap => (Text::Check, list("overlap")),
        Kind::Double => (Text::Check, list("double")),
        Kind::Unknown => (Text::SettleIt, list("unknown")),
        Kind::ReloadFailed => (Text::Configuration, "/console/config".into()),
    }
}

fn table_of_engines(t: Texts, engines: &[Engine], chains: &[Chain], now: Timestamp) -> Markup {
    let active = |engine: &Engine, name: &Untrusted| {
        chains.iter().find(|chain| chain.name == *name && chain.active == engine.name).map(|chain| chain.epoch)
    };
    let rows = html! {
        @for engine in engines {
            tr {
                th scope="row" { (engine.name) }
                td { (health(t, engine.up)) }
                td { @if let Some(since) = &engine.since { (times::since(since, now)) } }
                td {
                    @for (index, name) in engine.chains.iter().enumerate() {
                        @if index > 0 { ", " }
                        a href=(path(&["chains", name.raw()])) { (name) }
                        @if let Some(epoch) = active(engine, name) { " " (t.of(Text::ActiveInEpoch(epoch))) }
                    }
                }
                td { @if let Some(trouble) = engine.trouble() { (trouble.prose()) } }
            }
        }
    };
    table(t, Text::Engines, &[Text::Engine, Text::State, Text::Since, Text::Chain, Text::Why], &rows)
}
