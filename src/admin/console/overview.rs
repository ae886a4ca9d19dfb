//! `/console/`: whether a person has to act now, and the engines in one line each.

use std::sync::Arc;

use maud::{Markup, html};
use serde::Deserialize;

use super::attention::Suspects;
use super::context::{Answer, Context};
use super::engines::{self, Engines};
use super::texts::{Text, Texts};
use super::untrusted::Untrusted;
use super::{layout, times};
use crate::web::problem::Problem;

/// Suspects that are counted at most.
const COUNTED_MAX: usize = 1000;

/// `GET /admin/v1/chains`.
#[derive(Deserialize)]
struct Chains {
    chains: Vec<Chain>,
}

/// A chain.
#[derive(Deserialize)]
struct Chain {
    name: Untrusted,
    switching_to: Option<Untrusted>,
    held_ms: Option<u64>,
}

/// Something that needs a person.
struct Thing {
    /// It concerns callers now.
    is_urgent: bool,
    word: Text<'static>,
    sentence: String,
    link: Option<&'static str>,
}

/// Draws the page.
pub(super) async fn show(context: Arc<Context>) -> Result<Answer, Problem> {
    let t = context.texts();
    let suspects = format!("/admin/v1/suspects?checked=false&limit={COUNTED_MAX}");
    let (engines, chains, suspects) = tokio::join!(
        context.get::<Engines>("/admin/v1/engines"),
        context.get::<Chains>("/admin/v1/chains"),
        context.get::<Suspects>(&suspects),
    );
    let mut things = Vec::new();
    if let Ok(found) = &engines {
        things.extend(of_engines(t, found));
        things.extend(of_journal(&context, found));
    }
    things.extend(chains.iter().flat_map(|found| of_chains(t, found)));
    things.extend(suspects.iter().filter_map(|found| of_suspects(t, found)));
    let failures: Vec<&Problem> =
        [engines.as_ref().err(), chains.as_ref().err(), suspects.as_ref().err()].into_iter().flatten().collect();
    let time = times::time_of_day(context.now());
    let scope = format!("{} · {}", t.of(Text::ThisGateway), t.of(Text::AsOf(&time)));
    let main = html! {
        div.heading {
            h1 {
                @if things.is_empty() && failures.is_empty() { (t.of(Text::NothingNeedsYou)) }
                @else { (t.of(Text::ThingsNeedYou(things.len()))) }
            }
            span.muted { (scope) }
        }
        @for problem in failures { p.notice { (Untrusted::from(problem.detail.clone())) } }
        (list(t, &things))
        @if let Ok(found) = &engines {
            (layout::heading(&t.of(Text::Engines), &t.of(Text::ThisGateway)))
            (engines::table(t, &found.engines))
        }
        (layout::same_as(t, "GET /admin/v1/engines, /admin/v1/chains, /admin/v1/suspects", "oncegate engine list, oncegate chain list, oncegate suspects list"))
    };
    Ok(Answer::Page(Text::Overview, main))
}

fn list(t: Texts, things: &[Thing]) -> Markup {
    html! {
        @if !things.is_empty() {
            ul.things {
                @for thing in things {
                    li.urgent[thing.is_urgent] {
                        strong { @if thing.is_urgent { "■ " } @else { "▲ " } (t.of(thing.word)) }
                        span { (Untrusted::from(thing.sentence.clone())) }
                        @if let Some(link) = thing.link { a href=(link) { (t.of(Text::LookThemUp)) } }
                    }
                }
            }
        }
    }
}

fn of_engines(t: Texts, found: &Engines) -> impl Iterator<Item = Thing> {
    found.engines.iter().filter(|engine| !engine.up).map(move |engine| {
        let since = engine.breaker.as_ref().map(|breaker| times::instant(&breaker.since)).unwrap_or_default();
        let sentence = t.of(Text::StoreDown { engine: engine.name.raw(), since: &since }).into_owned();
        Thing { is_urgent: true, word: Text::Store, sentence, link: None }
    })
}

fn of_journal(context: &Context, found: &Engines) -> Option<Thing> {
    let (t, spool) = (context.texts(), &found.spool);
    let thing = |is_urgent, sentence: Text<'_>| Thing {
        is_urgent,
        word: Text::Journal,
        sentence: t.of(sentence).into_owned(),
        link: None,
    };
    if !spool.takes {
        return Some(thing(true, Text::JournalRefuses));
    }
    let oldest = spool.oldest_at.as_deref().map(times::instant).unwrap_or_default();
    (spool.entries > 0).then(|| thing(false, Text::JournalWaits { entries: spool.entries, oldest: &oldest }))
}

fn of_chains(t: Texts, found: &Chains) -> impl Iterator<Item = Thing> {
    found.chains.iter().filter_map(move |chain| {
        let name = chain.name.raw();
        let sentence = match (&chain.switching_to, chain.held_ms) {
            (Some(to), _) => t.of(Text::ChainSwitching { chain: name, to: to.raw() }),
            (None, Some(left)) => {
                let left = times::age(std::time::Duration::from_millis(left));
                t.of(Text::ChainFrozen { chain: name, left: &left })
            }
            (None, None) => return None,
        };
        Some(Thing { is_urgent: true, word: Text::Chain, sentence: sentence.into_owned(), link: None })
    })
}

fn of_suspects(t: Texts, found: &Suspects) -> Option<Thing> {
    let open = &found.suspects;
    (!open.is_empty()).then(|| {
        let sentence = t.of(Text::Suspects { count: open.len(), more: found.next.is_some() }).into_owned();
        Thing { is_urgent: true, word: Text::Check, sentence, link: Some("/console/attention") }
    })
}
