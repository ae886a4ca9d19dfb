//! `/console/gateways`: the gateways that share a chain, from the lines that they write about themselves. The page links to their consoles,
//! and calls none.

use std::sync::Arc;
use std::time::Duration;

use maud::{Markup, html};
use oncegate_web::problem::Problem;
use serde::Deserialize;

use super::context::{Answer, Context};
use super::options::ConsoleOptions;
use super::parts::{path, table};
use super::texts::{Text, Texts};
use super::untrusted::Untrusted;
use super::{layout, times};

/// `GET /admin/v1/gateways`.
#[derive(Deserialize)]
pub(super) struct Gateways {
    chains: Vec<ListedChain>,
}

/// A chain and its gateways.
#[derive(Deserialize)]
struct ListedChain {
    chain: Untrusted,
    read_at: Option<String>,
    detail: Option<Untrusted>,
    more: bool,
    gateways: Vec<Gateway>,
}

/// A gateway.
#[derive(Deserialize)]
struct Gateway {
    id: Untrusted,
    here: bool,
    host: Untrusted,
    version: Untrusted,
    started_at: String,
    stage: Untrusted,
    epoch: u64,
    settings: Untrusted,
    attention: usize,
    origin: Option<Untrusted>,
    age_ms: u64,
}

/// Draws the page.
pub(super) async fn show(context: Arc<Context>) -> Result<Answer, Problem> {
    let t = context.texts();
    let Gateways { chains } = context.get("/admin/v1/gateways").await?;
    let main = html! {
        h1 { (t.of(Text::Gateways)) }
        p { (t.of(Text::GatewaysAbout)) }
        @for chain in &chains {
            div.heading {
                h2 { (t.of(Text::Chain)) " " a href=(path(&["chains", chain.chain.raw()])) { (chain.chain) } }
                span.muted { (scope(t, chain)) }
            }
            @if let Some(detail) = &chain.detail { p.notice { (detail.prose()) } }
            (rows(t, chain))
            @if chain.more { p { (t.of(Text::MoreGateways)) } }
        }
        (layout::sources(t, &["gateways"], "oncegate gateways"))
    };
    Ok(Answer::Page(Text::Gateways, main))
}

/// Returns the gateways of one chain, which follow its switches.
pub(super) fn of_chain(t: Texts, gateways: &Gateways, name: &Untrusted) -> Markup {
    let listed = gateways.chains.iter().find(|listed| listed.chain == *name && listed.gateways.len() > 1);
    html! {
        @if let Some(listed) = listed {
            (layout::heading(&t.of(Text::Gateways), &scope(t, listed)))
            @if let Some(detail) = &listed.detail { p.notice { (detail.prose()) } }
            (rows(t, listed))
        }
    }
}

/// Returns whose data it is: the fleet's, as of its last read.
fn scope(t: Texts, chain: &ListedChain) -> String {
    let read = chain.read_at.as_deref().map(|at| t.of(Text::AsOf(&times::instant(at))).to_string());
    read.map_or_else(|| t.of(Text::ThisGateway).to_string(), |read| format!("{} · {read}", t.of(Text::ScopeFleet)))
}

fn rows(t: Texts, chain: &ListedChain) -> Markup {
    let here = chain.gateways.iter().find(|gateway| gateway.here);
    let rows = html! {
        @for gateway in &chain.gateways {
            tr {
                th scope="row" { (gateway.host) " " code { (gateway.id) } @if gateway.here { " " (t.of(Text::Here)) } }
                td { (gateway.version) }
                td { (gateway.stage) }
                td { (times::instant(&gateway.started_at)) }
                td.number { (gateway.epoch) @if here.is_some_and(|here| here.epoch != gateway.epoch) { " " span.warn { "▲ " (t.of(Text::OtherEpoch)) } } }
                td { code { (gateway.settings) } @if here.is_some_and(|here| here.settings != gateway.settings) { " " span.warn { "▲ " (t.of(Text::OtherSettings)) } } }
                td {
                    @let things = t.of(Text::ThingsOf(gateway.attention));
                    @match console(gateway) {
                        Some(console) => a href=(console) rel="noreferrer" { (things) },
                        None => (things),
                    }
                }
                td { @if gateway.here { "–" } @else { (times::age(Duration::from_millis(gateway.age_ms))) } }
            }
        }
    };
    let columns = [
        Text::Gateway,
        Text::Version,
        Text::State,
        Text::Since,
        Text::Epoch,
        Text::Settings,
        Text::Attention,
        Text::SeenAgo,
    ];
    table(t, Text::Gateways, &columns, &rows)
}

/// Returns the address of a gateway's console. What a store has is no address before it was checked.
fn console(gateway: &Gateway) -> Option<String> {
    if gateway.here {
        return Some("/console/attention".to_owned());
    }
    let origin = gateway.origin.as_ref()?.raw();
    let is_origin = ConsoleOptions { origin: origin.to_owned(), ..ConsoleOptions::default() }.authority().is_some();
    is_origin.then(|| format!("{origin}/console/attention"))
}

/// Returns the line of the overview: the gateways of each chain, and what they need.
pub(super) fn line(t: Texts, gateways: &Gateways) -> Markup {
    html! {
        @for chain in gateways.chains.iter().filter(|chain| chain.gateways.len() > 1) {
            p {
                a href="/console/gateways" { (t.of(Text::Gateways)) " · " (chain.chain) } ": "
                @for (index, gateway) in chain.gateways.iter().enumerate() {
                    @if index > 0 { " · " }
                    (gateway.host) " " code { (gateway.id) }
                    @if gateway.here { " " (t.of(Text::Here)) } @else { ": " (t.of(Text::ThingsOf(gateway.attention))) }
                }
                " " span.muted { (scope(t, chain)) }
            }
        }
    }
}
