//! `/console/claims/{app}/{id}/settle`: reports an operator's finding about an operation, instead of its holder.

use std::sync::Arc;

use maud::html;
use oncegate_web::problem::Problem;
use serde::Serialize;
use serde_json::Value;
use serde_json::value::RawValue;

use super::{Named, heading, state};
use crate::console::context::{Answer, Context, value};
use crate::console::texts::Text;
use crate::console::{forms, layout};

/// Draws the page of the action.
pub(in crate::console) async fn ask(context: Arc<Context>) -> Result<Answer, Problem> {
    let (t, named) = (context.texts(), Named::of(&context));
    let claim = named.claim(&context).await?;
    let outcomes = [("success", Text::ItWasDone), ("failure", Text::NothingHappened)];
    let fields = html! {
        (forms::choice(&context, "outcome", Text::WhatYouFound, &outcomes))
        p {
            label for="result" { (t.of(Text::ResultForRepeats)) }
            textarea #result name="result" rows="2" spellcheck="false" aria-describedby="result-hint" { (value(&context.draft, "result").unwrap_or_default()) }
            span.muted #result-hint { (t.of(Text::ResultHint)) }
        }
    };
    let command = format!(
        "oncegate claim settle {} --attempt-hash {} --outcome … --reason …",
        named.command(),
        claim.attempt_hash.raw()
    );
    let bound = [("attempt_hash", claim.attempt_hash.raw())];
    let main = html! {
        (heading(&claim))
        (state(t, &named, &claim))
        p { (t.of(Text::LookFirst)) }
        (forms::form(&context, &named.address(&["settle"], ""), &bound, &fields, Text::SettleIt))
        (layout::same_as(t, "POST /admin/v1/claims/settle", &command))
    };
    Ok(Answer::Page(Text::SettleIt, main))
}

/// The body of `POST /admin/v1/claims/settle`.
#[derive(Serialize)]
struct Body<'a> {
    #[serde(flatten)]
    named: Value,
    #[serde(skip_serializing_if = "Option::is_none")]
    attempt_hash: Option<&'a str>,
    #[serde(skip_serializing_if = "Option::is_none")]
    outcome: Option<&'a str>,
    /// The text that was typed: parsing it would change numbers.
    #[serde(skip_serializing_if = "Option::is_none")]
    result: Option<&'a RawValue>,
    #[serde(skip_serializing_if = "Option::is_none")]
    reason: Option<&'a str>,
}

/// Settles the claim that was shown.
pub(in crate::console) async fn act(context: Arc<Context>) -> Result<Answer, Problem> {
    let named = Named::of(&context);
    let field = |name| value(&context.form, name);
    let typed = field("result").map(str::trim).filter(|text| !text.is_empty());
    let result = typed.map(serde_json::from_str::<&RawValue>).transpose().map_err(|_| {
        Problem::invalid("The result is not JSON. A text needs quotes, such as \"paid\". Nothing was changed.")
    })?;
    let [attempt_hash, outcome, reason] = ["attempt_hash", "outcome", "reason"].map(field);
    let body = Body { named: named.body(), attempt_hash, outcome, result, reason };
    let body = serde_json::to_string(&body).map_err(|_| Problem::invalid("The form cannot be read."))?;
    let done = named.address(&[], outcome.unwrap_or_default());
    forms::send(&context, "/admin/v1/claims/settle".to_owned(), body, done).await
}
