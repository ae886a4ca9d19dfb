//! `/console/claims/{app}/{id}/release`: ends a claim, so that its operation can be claimed again.

use std::sync::Arc;

use maud::html;
use oncegate_web::problem::Problem;

use super::{Named, heading, state};
use crate::console::context::{Answer, Context, value};
use crate::console::texts::Text;
use crate::console::{forms, layout};

/// Word to type for the release of a succeeded claim, whose operation then runs again.
const AGAIN: &str = "again";

/// Returns when a claim in this state may be released.
pub(super) fn when(state: &str) -> Text<'static> {
    match state {
        "succeeded" => Text::ReleaseDoneWhen,
        "in_progress" => Text::ReleaseInProgressWhen,
        _ => Text::ReleaseUnknownWhen,
    }
}

/// Draws the page of the action.
pub(in crate::console) async fn ask(context: Arc<Context>) -> Result<Answer, Problem> {
    let (t, named) = (context.texts(), Named::of(&context));
    let claim = named.claim(&context).await?;
    let is_done = claim.state == "succeeded";
    let fields = html! { @if is_done { (forms::typed(&context, Text::TypeAgain)) } };
    let even = if is_done { " --even-succeeded" } else { "" };
    let command = format!(
        "oncegate claim release {} --attempt-hash {}{even} --reason …",
        named.command(),
        claim.attempt_hash.raw()
    );
    let bound = [("attempt_hash", claim.attempt_hash.raw()), ("state", &claim.state)];
    let main = html! {
        (heading(&claim))
        (state(t, &named, &claim))
        p { (t.of(when(&claim.state))) }
        (forms::form(&context, &named.address(&["release"], ""), &bound, &fields, Text::ReleaseIt))
        (layout::same_as(t, "POST /admin/v1/claims/release", &command))
    };
    Ok(Answer::Page(Text::ReleaseIt, main))
}

/// Releases the claim that was shown.
pub(in crate::console) async fn act(context: Arc<Context>) -> Result<Answer, Problem> {
    let named = Named::of(&context);
    let mut body = named.body();
    if value(&context.form, "state") == Some("succeeded") {
        forms::check_typed(&context, AGAIN)?;
        body["even_succeeded"] = true.into();
    }
    let done = named.address(&[], "released");
    forms::act(context, "/admin/v1/claims/release".to_owned(), body, &["attempt_hash", "reason"], done).await
}
