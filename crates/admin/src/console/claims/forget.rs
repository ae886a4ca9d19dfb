//! `/console/claims/{app}/{id}/forget`: erases the response that the proxy has stored for a claim.

use std::sync::Arc;

use maud::html;
use oncegate_web::problem::Problem;
use serde_json::json;

use super::{Named, heading, state};
use crate::console::context::{Answer, Context};
use crate::console::texts::Text;
use crate::console::{forms, layout};

/// Draws the page of the action.
pub(in crate::console) async fn ask(context: Arc<Context>) -> Result<Answer, Problem> {
    let (t, named) = (context.texts(), Named::of(&context));
    let claim = named.claim(&context).await?;
    if !named.is_of_proxy() || claim.state != "succeeded" {
        return Err(Problem::invalid(t.of(Text::NothingToForget)));
    }
    let command = format!(
        "oncegate proxy forget --app {} --global-id {} --attempt-hash {} --reason …",
        named.app,
        named.id,
        claim.attempt_hash.raw()
    );
    let main = html! {
        (heading(&claim))
        (state(t, &named, &claim))
        p { (t.of(Text::ForgetWhen)) }
        (forms::form(&context, &named.address(&["forget"], ""), &[("attempt_hash", claim.attempt_hash.raw())], &html! {}, Text::ForgetIt))
        (layout::same_as(t, "POST /admin/v1/proxy/forget", &command))
    };
    Ok(Answer::Page(Text::ForgetIt, main))
}

/// Erases the response of the claim that was shown.
pub(in crate::console) async fn act(context: Arc<Context>) -> Result<Answer, Problem> {
    let named = Named::of(&context);
    if !named.is_of_proxy() {
        return Err(Problem::invalid(context.texts().of(Text::NothingToForget)));
    }
    let body = json!({ "app": named.app, "global_id": named.id });
    let done = named.address(&[], "forgotten");
    forms::act(context, "/admin/v1/proxy/forget".to_owned(), body, &["attempt_hash", "reason"], done).await
}
