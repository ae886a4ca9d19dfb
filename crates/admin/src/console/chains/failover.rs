//! The automatic switches of a chain: the part of its page, and `/console/chains/{chain}/failover`, which holds and allows them.

use std::sync::Arc;

use maud::{Markup, html};
use oncegate_web::problem::{Code, Problem};
use serde::Deserialize;
use serde_json::json;

use super::Chain;
use crate::console::context::{Answer, Context, value};
use crate::console::parts::{facts, health, path};
use crate::console::texts::{FailoverText, Text, Texts};
use crate::console::untrusted::Untrusted;
use crate::console::{forms, layout, times};
use crate::role::Role;

/// Automatic switches in `GET /admin/v1/chains`.
#[derive(Deserialize)]
pub(super) struct Failover {
    mode: String,
    witness: Witness,
    next_switch: Untrusted,
    hold: Option<Hold>,
    last_switch: Option<LastSwitch>,
}

#[derive(Deserialize)]
struct Witness {
    engine: Untrusted,
    up: bool,
    detail: Untrusted,
}

#[derive(Deserialize)]
struct Hold {
    until: Option<String>,
    who: Untrusted,
}

#[derive(Deserialize)]
struct LastSwitch {
    from: Untrusted,
    to: Untrusted,
    cause: String,
    at: String,
    reason: Untrusted,
}

impl Failover {
    fn is_automatic(&self) -> bool {
        self.mode == "automatic"
    }

    /// Returns what distinguishes its hold from others, to bind an action to it.
    fn bound(&self) -> String {
        let of = |hold: &Hold| format!("{}@{}", hold.who.raw(), hold.until.as_deref().unwrap_or_default());
        self.hold.as_ref().map(of).unwrap_or_default()
    }
}

const fn text(text: FailoverText<'_>) -> Text<'_> {
    Text::OfFailover(text)
}

/// Returns the part of a chain's page.
pub(super) fn part(context: &Context, chain: &Chain) -> Markup {
    let t = context.texts();
    let Some(failover) = &chain.failover else { return html! {} };
    html! {
        (layout::heading(&t.of(text(FailoverText::Automatic)), &t.of(Text::ThisGateway)))
        (state(t, failover))
        @if context.operator.role >= Role::Act && failover.is_automatic() {
            p { a.button href=(path(&["chains", chain.name.raw(), "failover"])) { (t.of(text(FailoverText::Change))) } }
        }
    }
}

fn state(t: Texts, failover: &Failover) -> Markup {
    let Witness { engine, up, detail } = &failover.witness;
    let witness = html! { (engine) " " (health(t, Some(*up))) @if !up { br; (detail.prose()) } };
    let is_possible = failover.next_switch.raw() == "possible";
    let next = html! {
        @if is_possible { (t.of(text(FailoverText::Possible))) } @else { (failover.next_switch.prose()) }
    };
    let last = html! {
        @match &failover.last_switch {
            Some(LastSwitch { from, to, cause, at, reason }) => {
                (t.of(text(FailoverText::FromTo(from.raw(), to.raw(), cause == "automatic")))) " · " (times::instant(at)) br; (reason.prose())
            }
            None => (t.of(text(FailoverText::Never))),
        }
    };
    let [of_witness, of_next, of_last] = [FailoverText::Witness, FailoverText::Next, FailoverText::Last].map(text);
    facts(t, &[(of_witness, witness), (of_next, next), (of_last, last)])
}

/// Draws the page of the action.
pub(in crate::console) async fn ask(context: Arc<Context>) -> Result<Answer, Problem> {
    let t = context.texts();
    let chain = Chain::of(&context).await?;
    let choices = [
        ("hold", text(FailoverText::Hold)),
        ("manual", text(FailoverText::Manual)),
        ("automatic", text(FailoverText::Gateways)),
    ];
    let time = value(&context.draft, "for").unwrap_or("30m");
    let fields = html! {
        (forms::choice(&context, "action", text(FailoverText::Who), &choices))
        p {
            label for="for" { (t.of(text(FailoverText::Time))) }
            input #for type="text" name="for" value=(time) autocomplete="off" spellcheck="false";
        }
    };
    let main = html! {
        div.heading { h1 { (t.of(text(FailoverText::Change))) ": " (chain.name) } span.muted { (t.of(Text::ScopeFleet)) } }
        @match chain.failover.as_ref().filter(|failover| failover.is_automatic()) {
            Some(failover) => {
                (state(t, failover))
                p { (t.of(text(FailoverText::When))) }
                @let target = path(&["chains", chain.name.raw(), "failover"]);
                (forms::form(&context, &target, &[("hold", &failover.bound())], &fields, text(FailoverText::Change)))
            }
            None => p.notice { (t.of(text(FailoverText::PeopleOnly))) },
        }
        (layout::same_as(t, "POST /admin/v1/chains/{name}/failover", &format!("oncegate chain failover {} hold --for 30m --reason …", chain.name.raw())))
    };
    Ok(Answer::Page(text(FailoverText::Change), main))
}

/// Holds automatic switches, or allows them, if the hold is still the shown one.
pub(in crate::console) async fn act(context: Arc<Context>) -> Result<Answer, Problem> {
    let chain = Chain::of(&context).await?;
    let is_shown = chain
        .failover
        .as_ref()
        .is_some_and(|failover| value(&context.form, "hold").unwrap_or_default() == failover.bound());
    // After the change itself the hold is another one; the form's nonce finds its result.
    if !is_shown && !forms::has_run(&context) {
        return Err(Problem::new(Code::AlreadyActive, context.texts().of(text(FailoverText::HasChanged))));
    }
    let action = value(&context.form, "action").unwrap_or_default();
    let fields: &[&str] = if action == "hold" { &["for", "reason"] } else { &["reason"] };
    let body = json!({ "action": action });
    let done = format!("{}?done=failover", path(&["chains", chain.name.raw()]));
    let call = format!("/admin/v1/chains/{}/failover", chain.name.raw());
    forms::act(context, call, body, fields, done).await
}
