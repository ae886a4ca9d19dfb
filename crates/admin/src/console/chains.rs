//! `/console/engines` and `/console/chains/{chain}`: engines and their health, and who is active. `switch` changes that, and
//! `failover` whether gateways may.

pub(super) mod failover;
pub(super) mod switch;

use std::sync::Arc;

use maud::{Markup, html};
use oncegate_web::problem::{Code, Problem};
use serde::Deserialize;

use self::failover::Failover;
use super::context::{Answer, Context};
use super::engines::Engines;
use super::gateways::{self, Gateways};
use super::layout;
use super::parts::{facts, health, path, refusal, table};
use super::texts::{FailoverText, Text, Texts};
use super::times;
use super::untrusted::Untrusted;
use crate::role::Role;

/// `GET /admin/v1/chains`.
#[derive(Deserialize)]
struct Chains {
    chains: Vec<Chain>,
}

/// A chain.
#[derive(Deserialize)]
pub(super) struct Chain {
    name: Untrusted,
    engines: Vec<Untrusted>,
    active: Untrusted,
    epoch: u64,
    phase: String,
    switching_to: Option<Untrusted>,
    held_ms: Option<u64>,
    health: Vec<ChainEngine>,
    failover: Option<Failover>,
}

/// An engine of a chain.
#[derive(Deserialize)]
struct ChainEngine {
    engine: Untrusted,
    up: bool,
    detail: Untrusted,
}

impl Chain {
    /// Returns the chain that the address of a page names.
    pub(super) async fn of(context: &Context) -> Result<Self, Problem> {
        let name = context.parameters.get("chain").map_or("", String::as_str);
        let Chains { chains } = context.get("/admin/v1/chains").await?;
        let unknown = || Problem::new(Code::NotFound, context.texts().of(Text::NoSuchChain));
        chains.into_iter().find(|chain| chain.name.raw() == name).ok_or_else(unknown)
    }

    /// Reports whether its active engine answers.
    fn is_answered(&self) -> bool {
        !self.is_out(&self.active)
    }

    /// Reports whether one of its engines does not answer.
    fn is_out(&self, name: &Untrusted) -> bool {
        self.health.iter().any(|engine| engine.engine == *name && !engine.up)
    }
}

/// Draws the page of all engines and chains.
pub(super) async fn list(context: Arc<Context>) -> Result<Answer, Problem> {
    let t = context.texts();
    let (engines, chains) =
        tokio::join!(context.get::<Engines>("/admin/v1/engines"), context.get::<Chains>("/admin/v1/chains"));
    let main = html! {
        div.heading { h1 { (t.of(Text::Engines)) } span.muted { (t.of(Text::ThisGateway)) } }
        @match &engines {
            Ok(engines) => (engines.table(&context)),
            Err(problem) => p.notice { (refusal(t, problem)) },
        }
        (layout::heading(&t.of(Text::Chains), &t.of(Text::ThisGateway)))
        @match &chains {
            Ok(found) => (table_of_chains(&context, &found.chains)),
            Err(problem) => p.notice { (refusal(t, problem)) },
        }
        (layout::sources(t, &["engines", "chains"], "oncegate engine list, oncegate chain list"))
    };
    Ok(Answer::Page(Text::Engines, main))
}

fn table_of_chains(context: &Context, chains: &[Chain]) -> Markup {
    let rows = html! {
        @for chain in chains {
            tr {
                th scope="row" { a href=(path(&["chains", chain.name.raw()])) { (chain.name) } }
                td { (chain.active) }
                td.number { (chain.epoch) }
                td { (phase(context, chain)) }
            }
        }
    };
    table(context.texts(), Text::Chains, &[Text::Chain, Text::Active, Text::Epoch, Text::State], &rows)
}

fn phase(context: &Context, chain: &Chain) -> Markup {
    let t = context.texts();
    match (&chain.switching_to, chain.held_ms) {
        (Some(to), _) => html! { span.warn { "▲ " (t.of(Text::SwitchingTo)) " " (to) } },
        (None, Some(left)) => {
            let left = times::age(std::time::Duration::from_millis(left));
            html! { span.bad { "■ " (t.of(Text::FrozenFor(&left))) } }
        }
        (None, None) if chain.phase == "open" && !chain.is_answered() => {
            html! { span.bad { "■ " (t.of(Text::ActiveIsOut)) } }
        }
        (None, None) if chain.phase == "open" => html! { span.good { "● " (t.of(Text::Grants)) } },
        (None, None) => html! { span.warn { "▲ " (t.of(Text::ClosedNow)) } },
    }
}

/// Returns the table of the engines of a chain, with their state.
fn engines_of(t: Texts, chain: &Chain) -> Markup {
    let rows = html! {
        @for engine in &chain.health {
            tr {
                th scope="row" { (engine.engine) }
                td { @if engine.engine == chain.active { (t.of(Text::Active)) } }
                td { (health(t, Some(engine.up))) @if !engine.up { br; (engine.detail.prose()) } }
            }
        }
    };
    table(t, Text::Engines, &[Text::Engine, Text::Active, Text::State], &rows)
}

/// Draws the page of a chain.
pub(super) async fn show(context: Arc<Context>) -> Result<Answer, Problem> {
    let t = context.texts();
    let (chain, gateways) = tokio::join!(Chain::of(&context), context.get::<Gateways>("/admin/v1/gateways"));
    let chain = chain?;
    let may_switch = context.operator.role >= Role::Act && chain.engines.len() > 1;
    let main = html! {
        div.heading { h1 { (t.of(Text::Chain)) " " (chain.name) } span.muted { (t.of(Text::ThisGateway)) } }
        @match context.done() {
            Some("switched") => p.notice role="status" { (t.of(Text::SwitchedNow)) },
            Some("failover") => p.notice role="status" { (t.of(Text::OfFailover(FailoverText::Changed))) },
            _ => {}
        }
        (facts(t, &[
            (Text::Active, html! { (chain.active) }),
            (Text::Epoch, html! { (chain.epoch) }),
            (Text::State, phase(&context, &chain)),
        ]))
        (engines_of(t, &chain))
        @if let Ok(gateways) = &gateways { (gateways::of_chain(t, gateways, &chain.name)) }
        (failover::part(&context, &chain))
        @if may_switch { p { a.button href=(path(&["chains", chain.name.raw(), "switch"])) { (t.of(Text::SwitchIt)) } } }
        (layout::sources(t, &["chains", "gateways"], "oncegate chain list, oncegate gateways"))
    };
    Ok(Answer::Page(Text::Chain, main))
}
