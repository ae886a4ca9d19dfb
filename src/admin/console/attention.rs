//! `/console/attention`: overlaps and suspected doubles that no operator has checked yet.

use std::sync::Arc;

use maud::{Markup, html};
use serde::Deserialize;

use super::context::{Answer, Context};
use super::parts::{address, choices, pager, path, table};
use super::texts::Text;
use super::untrusted::Untrusted;
use super::{layout, times};
use crate::admin::role::Role;
use crate::web::problem::Problem;

/// `GET /admin/v1/suspects`.
#[derive(Deserialize)]
pub(super) struct Suspects {
    pub(super) suspects: Vec<Suspect>,
    pub(super) next: Option<u64>,
}

/// An operation that may have run twice.
#[derive(Deserialize)]
pub(super) struct Suspect {
    pub(super) id: u64,
    kind: String,
    cause: Untrusted,
    pub(super) app: Untrusted,
    pub(super) operation: Option<Untrusted>,
    realm: String,
    pub(super) global_id: Untrusted,
    ours: Contender,
    theirs: Option<Contender>,
    pub(super) noticed_at: String,
}

/// One of its attempts.
#[derive(Deserialize)]
struct Contender {
    attempt_hash: Untrusted,
}

impl Suspect {
    /// Returns the page of its claim.
    pub(super) fn claim(&self) -> String {
        let realm = if self.realm == "proxy" { "proxy" } else { "" };
        address(&path(&["claims", self.app.raw(), self.global_id.raw()]), &[("realm", realm)])
    }

    /// Returns why it is suspected.
    pub(super) fn reason(&self) -> Text<'_> {
        match (self.kind.as_str(), self.cause.raw()) {
            ("overlap", policy) => Text::TwoGrants(policy),
            (_, "superseded_success") => Text::SupersededSuccess,
            _ => Text::SupersededUnknown,
        }
    }
}

/// Draws the page.
pub(super) async fn show(context: Arc<Context>) -> Result<Answer, Problem> {
    let t = context.texts();
    let [kind, app, after] = ["kind", "app", "after"].map(|name| context.query(name).unwrap_or_default());
    let filters = [("kind", kind), ("app", app)];

    let Suspects { suspects, next } = context
        .get(&address(
            "/admin/v1/suspects",
            &[&filters[..], &[("after", after), ("checked", "false"), ("limit", "50")]].concat(),
        ))
        .await?;
    let next = next.map(|next| next.to_string());
    let kinds = [(None, Text::AllKinds), (Some("overlap"), Text::Overlaps), (Some("double"), Text::Doubles)];
    let main = html! {
        div.heading { h1 { (t.of(Text::Attention)) } span.muted { (t.of(Text::SeenHere)) } }
        @if context.query("done") == Some("checked") { p.notice role="status" { (t.of(Text::CheckedNow)) } }
        (choices(t, "/console/attention", "kind", context.query("kind"), &kinds))
        @if suspects.is_empty() {
            p { (t.of(Text::NoneOpen)) }
        } @else {
            p { (t.of(Text::CheckAdvice)) }
            (rows(&context, &suspects))
        }
        (pager(t, "/console/attention", &filters, next.as_deref()))
        (layout::same_as(t, "GET /admin/v1/suspects?checked=false", "oncegate suspects list"))
    };
    Ok(Answer::Page(Text::Attention, main))
}

fn rows(context: &Context, suspects: &[Suspect]) -> Markup {
    let t = context.texts();
    let rows = html! {
        @for suspect in suspects {
            tr {
                td { (times::instant(&suspect.noticed_at)) }
                td { (suspect.app) @if let Some(operation) = &suspect.operation { " / " (operation) } }
                td {
                    a href=(suspect.claim()) { code { (suspect.global_id) } } br;
                    span.muted {
                        (t.of(Text::Ours)) " " code { (suspect.ours.attempt_hash) }
                        @if let Some(theirs) = &suspect.theirs { " · " (t.of(Text::Theirs)) " " code { (theirs.attempt_hash) } }
                    }
                }
                td { (t.of(suspect.reason())) }
                td {
                    @if context.operator.role >= Role::Act {
                        a href=(path(&["attention", &suspect.id.to_string()])) { (t.of(Text::CheckIt)) }
                    }
                }
            }
        }
    };
    table(t, Text::Attention, &[Text::Noticed, Text::Operation, Text::Claim, Text::Why, Text::Action], &rows)
}
