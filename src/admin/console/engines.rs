//! The engines as the admin API answers them, and their table.

use maud::{Markup, html};
use serde::Deserialize;

use super::texts::{Text, Texts};
use super::times;
use super::untrusted::Untrusted;

/// `GET /admin/v1/engines`.
#[derive(Deserialize)]
pub(super) struct Engines {
    pub(super) engines: Vec<Engine>,
    pub(super) spool: Spool,
}

/// An engine.
#[derive(Deserialize)]
pub(super) struct Engine {
    pub(super) name: Untrusted,
    pub(super) up: bool,
    pub(super) detail: Untrusted,
    pub(super) breaker: Option<Breaker>,
    pub(super) chains: Vec<Untrusted>,
}

/// The breaker of an engine.
#[derive(Deserialize)]
pub(super) struct Breaker {
    pub(super) since: String,
}

/// The outage journal.
#[derive(Deserialize)]
pub(super) struct Spool {
    pub(super) entries: usize,
    pub(super) oldest_at: Option<String>,
    pub(super) takes: bool,
}

/// Returns the state of an engine as a word and a shape.
pub(super) fn state(t: Texts, is_up: bool) -> Markup {
    if is_up {
        html! { span.good { "● " (t.of(Text::Answers)) } }
    } else {
        html! { span.bad { "■ " (t.of(Text::DoesNotAnswer)) } }
    }
}

/// Returns the table of engines.
pub(super) fn table(t: Texts, engines: &[Engine]) -> Markup {
    html! {
        div.scroll tabindex="0" role="region" aria-label=(t.of(Text::Engines)) {
            table {
                thead { tr {
                    th scope="col" { (t.of(Text::Engine)) }
                    th scope="col" { (t.of(Text::State)) }
                    th scope="col" { (t.of(Text::Since)) }
                    th scope="col" { (t.of(Text::Chain)) }
                    th scope="col" { (t.of(Text::Why)) }
                } }
                tbody {
                    @for engine in engines {
                        tr {
                            th scope="row" { (engine.name) }
                            td { (state(t, engine.up)) }
                            td { @if let Some(breaker) = &engine.breaker { (times::instant(&breaker.since)) } }
                            td { @for (index, chain) in engine.chains.iter().enumerate() { @if index > 0 { ", " } (chain) } }
                            td { @if !engine.up { (engine.detail) } }
                        }
                    }
                }
            }
        }
    }
}
