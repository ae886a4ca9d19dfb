//! Operations that may have run twice: their rows, each with the first characters of its contents for operators who may see them.

use std::collections::{BTreeMap, BTreeSet};
use std::time::Duration;

use futures_util::{StreamExt as _, stream};
use maud::{Markup, html};
use oncegate_web::problem::{Code, Problem};
use serde::Deserialize;
use serde_json::value::RawValue;

use super::several::{self, Kind, Row};
use super::{note, shortened};
use crate::attention::Kind as ItemKind;
use crate::console::claims::Named;
use crate::console::context::Context;
use crate::console::parts::{address, claim_page, path, table};
use crate::console::texts::{Text, Texts};
use crate::console::times;
use crate::console::untrusted::Untrusted;
use crate::role::Role;

/// Claims of a page that are looked up at the same time, and the longest time for all. Rows whose store takes longer are shown without
/// contents.
const LOOK_UPS: usize = 8;
const LOOK_UPS_TIMEOUT: Duration = Duration::from_secs(1);

/// `GET /admin/v1/suspects`.
#[derive(Deserialize)]
pub(in crate::console) struct Suspects {
    pub(in crate::console) suspects: Vec<Suspect>,
    next: Option<u64>,
}

/// An operation that may have run twice.
#[derive(Deserialize)]
pub(in crate::console) struct Suspect {
    pub(in crate::console) id: u64,
    kind: String,
    cause: Untrusted,
    pub(in crate::console) app: Untrusted,
    pub(in crate::console) operation: Option<Untrusted>,
    realm: String,
    pub(in crate::console) global_id: Untrusted,
    ours: Contender,
    theirs: Option<Contender>,
    pub(in crate::console) noticed_at: String,
}

/// One of its attempts.
#[derive(Deserialize)]
struct Contender {
    attempt_hash: Untrusted,
}

impl Suspect {
    /// Returns the page of its claim.
    pub(in crate::console) fn claim(&self) -> String {
        claim_page(&self.app, &self.global_id, &self.realm)
    }

    /// Returns its claim. The store may have another attempt's by now, or none.
    pub(in crate::console) fn named(&self) -> Named {
        Named::new(self.app.raw(), self.global_id.raw(), &self.realm)
    }

    /// Returns why it is suspected.
    pub(in crate::console) fn reason(&self) -> Text<'_> {
        match (self.kind.as_str(), self.cause.raw()) {
            ("overlap", policy) => Text::TwoGrants(policy),
            (_, "superseded_success") => Text::SupersededSuccess,
            _ => Text::SupersededUnknown,
        }
    }
}

/// The answer of the store about a claim.
enum About {
    /// The first characters of its contents.
    Contents(Untrusted),
    /// It has ended.
    NoClaim,
}

/// The part of `POST /admin/v1/claims/show` that a row shows.
#[derive(Deserialize)]
struct OfClaim {
    contents: Option<Box<RawValue>>,
}

/// A page of suspects, and what was found about their claims.
pub(super) struct Found {
    list: Suspects,
    about: BTreeMap<Named, About>,
}

impl Found {
    /// Returns where the next page begins, if there is one.
    pub(super) fn next(&self) -> Option<String> {
        self.list.next.map(|next| next.to_string())
    }
}

/// Returns a page of the list, the oldest first. The contents of its claims are looked up for a person only, not for the script, which counts new rows.
pub(super) async fn find(context: &Context, kind: &str, app: &str) -> Result<Found, Problem> {
    let after = context.query("after").unwrap_or_default();
    let filters = [
        ("kind", kind),
        ("app", app),
        ("after", after),
        ("checked", "false"),
        ("oldest_first", "true"),
        ("limit", "50"),
    ];
    let list: Suspects = context.get(&address("/admin/v1/suspects", &filters)).await?;
    let sees_contents = context.operator.role >= Role::Read && context.is_click;
    let about = if sees_contents { look_up(context, &list.suspects).await } else { BTreeMap::new() };
    let count = about.values().filter(|about| matches!(about, About::Contents(_))).count();
    if count > 0 {
        note(context, app, format!("{count} claims that may have run twice"));
    }
    Ok(Found { list, about })
}

/// Looks up the claims of these suspects, each once. One whose store does not answer in time is left out.
async fn look_up(context: &Context, suspects: &[Suspect]) -> BTreeMap<Named, About> {
    let claims: BTreeSet<_> = suspects.iter().map(Suspect::named).collect();
    let look_ups = claims.into_iter().map(async |named| (look_up_one(context, &named).await, named));
    let mut look_ups = std::pin::pin!(stream::iter(look_ups).buffer_unordered(LOOK_UPS));
    let mut about = BTreeMap::new();
    let all = async {
        while let Some((found, named)) = look_ups.next().await {
            about.extend(found.map(|found| (named, found)));
        }
    };
    // What has come by then is shown.
    let _ = tokio::time::timeout(LOOK_UPS_TIMEOUT, all).await;
    about
}

async fn look_up_one(context: &Context, named: &Named) -> Option<About> {
    match context.post::<OfClaim>("/admin/v1/claims/show", &named.body()).await {
        Ok(claim) => Some(About::Contents(shortened(context, &named.app, &claim.contents?))),
        Err(problem) => (problem.code == Code::NotFound).then_some(About::NoClaim),
    }
}

fn about(t: Texts, about: Option<&About>) -> Markup {
    html! {
        @match about {
            Some(About::Contents(contents)) => { br; code { (contents) } }
            Some(About::NoClaim) => { br; span.muted { (t.of(Text::NoLiveClaim)) } }
            None => {}
        }
    }
}

/// Returns the list, and the form that works off its chosen rows.
pub(super) fn draw(context: &Context, found: &Found) -> Markup {
    let t = context.texts();
    html! {
        @if found.list.suspects.is_empty() {
            p { (t.of(Text::NoneOpen)) }
        } @else {
            p { (t.of(Text::Advice(ItemKind::Double))) }
            (several::form(context, Kind::Check, &found.list.suspects.iter().map(row).collect::<Vec<_>>(), &rows(context, found)))
        }
    }
}

fn row(suspect: &Suspect) -> Row<'_> {
    Row { app: &suspect.app, operation: suspect.operation.as_ref(), id: suspect.id.to_string() }
}

fn rows(context: &Context, found: &Found) -> Markup {
    let t = context.texts();
    let rows = html! {
        @for suspect in &found.list.suspects {
            tr data-row=(row(suspect).id) {
                (several::cell(context, Kind::Check, &row(suspect)))
                td {
                    (suspect.app) @if let Some(operation) = &suspect.operation { " / " (operation) }
                    (about(t, found.about.get(&suspect.named())))
                }
                td { (times::since(&suspect.noticed_at, context.now())) }
                td {
                    a href=(suspect.claim()) { code { (suspect.global_id) } } br;
                    span.muted {
                        (t.of(if suspect.theirs.is_some() { Text::Ours } else { Text::Attempt })) " " code { (suspect.ours.attempt_hash) }
                        @if let Some(theirs) = &suspect.theirs { " · " (t.of(Text::Theirs)) " " code { (theirs.attempt_hash) } }
                    }
                }
                td {
                    (t.of(suspect.reason()))
                    @if context.operator.role >= Role::Act {
                        " " a href=(path(&["attention", &suspect.id.to_string()])) { (t.of(Text::CheckIt)) }
                    }
                }
            }
        }
    };
    let columns = [Text::Operation, Text::Noticed, Text::Claim, Text::Why];
    table(t, Text::MayHaveRunTwice, &several::columns(context, &columns), &rows)
}
