//! `/console/attention/{id}`: records an operator's finding about an operation that may have run twice.

use std::sync::Arc;

use maud::html;
use oncegate_web::problem::{Code, Problem};
use serde_json::{Value, json};

use super::attention::suspects::{Suspect, Suspects};
use super::claims;
use super::context::{Answer, Context, value};
use super::parts::{facts, path, refusal};
use super::texts::Text;
use super::{forms, layout, times};
use crate::attention::Kind;

/// Draws the page of the action.
pub(super) async fn ask(context: Arc<Context>) -> Result<Answer, Problem> {
    let t = context.texts();
    let suspect = suspect(&context).await?;
    let answers = [("once", Text::RanOnce), ("twice", Text::RanTwice), ("never", Text::RanNever)];
    let fields = forms::choice(&context, "found", Text::WhatYouFound, &answers);
    let (id, link, claim) = (suspect.id.to_string(), suspect.claim(), suspect.named());
    let found = claim.claim(&context).await;
    let main = html! {
        h1 { (t.of(Text::CheckIt)) }
        (facts(t, &[
            (Text::Noticed, html! { (times::since(&suspect.noticed_at, context.now())) }),
            (Text::App, html! { (suspect.app) }),
            (Text::Operation, html! { @if let Some(operation) = &suspect.operation { (operation) } @else { "–" } }),
            (Text::Claim, html! { a href=(link) { code { (suspect.global_id) } } }),
            (Text::Why, html! { (t.of(suspect.reason())) }),
        ]))
        (layout::heading(&t.of(Text::Claim), &t.of(Text::ScopeStore)))
        @match &found {
            Ok(found) => (claims::brief(&context, &claim, found)),
            Err(problem) => p { (refusal(t, problem)) },
        }
        p { (t.of(Text::Advice(Kind::Double))) }
        (forms::form(&context, &path(&["attention", &id]), &[], &fields, Text::CheckIt))
        (layout::same_as(t, "POST /admin/v1/suspects/{id}/check", &format!("oncegate suspects check {id} --found … --reason …")))
    };
    Ok(Answer::Page(Text::CheckIt, main))
}

async fn suspect(context: &Context) -> Result<Suspect, Problem> {
    let unknown = || Problem::new(Code::NotFound, context.texts().of(Text::NoSuchSuspect));
    let id = id(context).ok_or_else(unknown)?;
    // The list is by number, descending.
    let call = format!("/admin/v1/suspects?after={}&limit=1", id + 1);
    let Suspects { suspects, .. } = context.get(&call).await?;
    suspects.into_iter().find(|suspect| suspect.id == id).ok_or_else(unknown)
}

fn id(context: &Context) -> Option<u64> {
    context.parameters.get("id")?.parse().ok().filter(|id| (1..1 << 52).contains(id))
}

/// Records the check.
pub(super) async fn act(context: Arc<Context>) -> Result<Answer, Problem> {
    let id = id(&context).unwrap_or_default();
    let body: Value = json!({ "found": value(&context.form, "found") });
    let call = format!("/admin/v1/suspects/{id}/check");
    forms::act(context, call, body, &["reason"], "/console/attention?done=checked".to_owned()).await
}
