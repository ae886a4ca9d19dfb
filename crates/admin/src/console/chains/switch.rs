//! `/console/chains/{chain}/switch`: makes another engine the active one, at every gateway.

use std::sync::Arc;
use std::time::Duration;

use maud::{Markup, html};
use oncegate_web::problem::{Code, Problem};
use serde_json::{Value, json};

use super::{Chain, engines_of};
use crate::attention::Kind;
use crate::console::context::{Answer, Context, value};
use crate::console::gateways::{self, Gateways};
use crate::console::parts::{facts, path};
use crate::console::prose::Prose;
use crate::console::summary::Summary;
use crate::console::texts::{Notice, Text};
use crate::console::traffic::History;
use crate::console::untrusted::Untrusted;
use crate::console::waiting::Waits;
use crate::console::{forms, layout};

/// Longest time in which claims are counted. With the time for the state of the chain it is less than that of a page.
const LOSS_TIMEOUT: Duration = Duration::from_millis(500);

/// Draws the page of the action.
pub(in crate::console) async fn ask(context: Arc<Context>) -> Result<Answer, Problem> {
    let t = context.texts();
    let chain = Chain::of(&context).await?;
    let others = || chain.engines.iter().filter(|engine| **engine != chain.active);
    let typed = value(&context.draft, "to");
    let chosen = others().find(|engine| Some(engine.raw()) == typed);
    let chosen = chosen.or_else(|| others().find(|engine| !chain.is_out(engine))).or_else(|| others().next());
    let (lost, stakes, gateways) =
        tokio::join!(lost(&context, &chain, chosen), stakes(&context), context.get::<Gateways>("/admin/v1/gateways"),);
    let fields = html! {
        p {
            label for="to" { (t.of(Text::NewEngine)) }
            select #to name="to" required {
                @for engine in others() { option value=(engine.raw()) selected[Some(engine) == chosen] { (engine.shown()) } }
            }
        }
        p { label.option { input type="checkbox" name="accept_loss" value="true" required; " " (t.of(Text::LossAccepted)) } }
        (forms::typed(&context, Text::TypeChain(chain.name.raw())))
    };
    let epoch = chain.epoch.to_string();
    let bound = [("epoch", epoch.as_str()), ("active", chain.active.raw())];
    let target = path(&["chains", chain.name.raw(), "switch"]);
    let main = html! {
        div.heading { h1 { (t.of(Text::SwitchChain)) " " (chain.name) } span.muted { (t.of(Text::ThisGateway)) } }
        p { (t.of(Text::ActiveNow)) " " strong { (chain.active) } ", " (t.of(Text::EpochIs(chain.epoch))) }
        (engines_of(t, &chain))
        h2.apart { (t.of(Text::WhatIsLost)) }
        @match &lost {
            Some(Ok(lost)) => p { bdi lang="en" { (Prose::of(lost)) } },
            Some(Err(to)) => p { (t.of(Text::Notice(Notice::LossNotCounted(chain.active.raw(), to.raw())))) },
            None => {}
        }
        (stakes)
        p { (t.of(Text::WorseThanWaiting)) }
        @if let Ok(gateways) = &gateways { (gateways::of_chain(t, gateways, &chain.name)) }
        (forms::form(&context, &target, &bound, &fields, Text::SwitchIt))
        (layout::same_as(t, "POST /admin/v1/chains/{name}/switch", &format!("oncegate chain switch {} … --accept-loss --reason …", chain.name.raw())))
    };
    Ok(Answer::Page(Text::SwitchChain, main))
}

/// Returns what this gateway has on its chains that a switch may touch: claims that the new engine will not know, and calls that are open.
async fn stakes(context: &Context) -> Markup {
    let t = context.texts();
    let (summary, waits, history) = tokio::join!(
        context.get::<Summary>("/admin/v1/summary"),
        context.get::<Waits>("/admin/v1/waiting?limit=1"),
        context.get::<History>("/admin/v1/history?series=granted"),
    );
    let granted = history.ok().and_then(|history| history.count("granted"));
    let number = |number: Option<usize>| html! { @if let Some(number) = number { (number) } @else { "–" } };
    let summary = summary.ok();
    let items = |kinds: &[Kind]| {
        let items = summary.as_ref()?.attention.iter().filter(|item| kinds.contains(&item.kind));
        Some(items.map(|item| item.count).sum())
    };
    let granted = html! { @if let Some(granted) = granted { (format!("{granted:.0}")) } @else { "–" } };
    facts(
        t,
        &[
            (Text::GrantedLastHour, granted),
            (Text::Unknowns, number(items(&[Kind::Unknown]))),
            (Text::MayHaveRunTwice, number(items(&[Kind::Overlap, Kind::Double]))),
            (Text::WaitingCalls, number(waits.ok().map(|waits| waits.callers))),
            (Text::Spool, number(summary.as_ref().map(|summary| summary.spool.entries))),
        ],
    )
}

/// Returns the loss that the admin API names when a switch does not accept it, or the new engine if it names none in time. Such a call
/// changes nothing.
async fn lost<'a>(
    context: &Context,
    chain: &Chain,
    to: Option<&'a Untrusted>,
) -> Option<Result<String, &'a Untrusted>> {
    let to = to?;
    let body = json!({ "to": to.raw(), "accept_loss": false, "reason": "what would be lost" });
    let path = switch_call(chain.name.raw());
    let answer = tokio::time::timeout(LOSS_TIMEOUT, context.post::<Value>(&path, &body)).await;
    let named =
        answer.ok().and_then(Result::err).filter(|problem| problem.code == Code::LossNotAccepted).map(|problem| {
            let detail = problem.detail.split(" If that is accepted").next().unwrap_or_default();
            detail.trim_start_matches("Nothing was changed. ").to_owned()
        });
    Some(named.ok_or(to))
}

fn switch_call(chain: &str) -> String {
    format!("/admin/v1/chains/{chain}/switch")
}

/// Switches the chain, if its epoch is still the shown one.
pub(in crate::console) async fn act(context: Arc<Context>) -> Result<Answer, Problem> {
    let name = context.parameters.get("chain").cloned().unwrap_or_default();
    forms::check_typed(&context, &name)?;
    let chain = Chain::of(&context).await?;
    let to = value(&context.form, "to").unwrap_or_default();
    let epoch = chain.epoch.to_string();
    let shown = value(&context.form, "epoch") == Some(epoch.as_str())
        && value(&context.form, "active") == Some(chain.active.raw());
    // After the switch itself the epoch is another one; the form's nonce finds its result.
    if !shown && !forms::has_run(&context) {
        return Err(Problem::new(
            Code::AlreadyActive,
            context.texts().of(Text::ChainHasChanged(chain.active.raw(), chain.epoch)),
        ));
    }
    let body = json!({ "to": to, "accept_loss": value(&context.form, "accept_loss") == Some("true") });
    let done = format!("{}?done=switched", path(&["chains", &name]));
    forms::act(context, switch_call(&name), body, &["reason"], done).await
}
