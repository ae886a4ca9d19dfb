//! Claims and locks that callers of this gateway wait for, on pages.

use maud::{Markup, html};
use serde::Deserialize;

use super::parts::{claim_page, path, table};
use super::texts::{Text, Texts};
use super::times;
use super::untrusted::Untrusted;

/// Claims, and locks, that a page shows at most.
pub(super) const SHOWN: usize = 20;

/// `GET /admin/v1/waiting`.
#[derive(Deserialize)]
pub(super) struct Waits {
    pub(super) callers: usize,
    more: bool,
    claims: Vec<Claim>,
    locks: Vec<Lock>,
}

/// A claim that callers wait for.
#[derive(Deserialize)]
struct Claim {
    app: Untrusted,
    operation: Option<Untrusted>,
    realm: String,
    global_id: Untrusted,
    callers: usize,
    names: Vec<Untrusted>,
    since: String,
}

/// A lock that callers wait for.
#[derive(Deserialize)]
struct Lock {
    app: Untrusted,
    name: Untrusted,
    callers: usize,
    names: Vec<Untrusted>,
    since: String,
}

/// Returns the table of what callers wait for.
pub(super) fn draw(t: Texts, waits: &Waits) -> Markup {
    if waits.callers == 0 {
        return html! { p { (t.of(Text::NobodyWaits)) } };
    }
    let rows = html! {
        @for claim in &waits.claims {
            tr {
                td { (times::instant(&claim.since)) }
                td.number { (claim.callers) (names(&claim.names)) }
                td { (claim.app) @if let Some(operation) = &claim.operation { " / " (operation) } }
                td { (t.of(Text::Claim)) " " a href=(claim_page(&claim.app, &claim.global_id, &claim.realm)) { code { (claim.global_id) } } }
            }
        }
        @for lock in &waits.locks {
            tr {
                td { (times::instant(&lock.since)) }
                td.number { (lock.callers) (names(&lock.names)) }
                td { (lock.app) }
                td { (t.of(Text::Lock)) " " a href=(path(&["locks", lock.app.raw(), lock.name.raw()])) { (lock.name) } }
            }
        }
    };
    html! {
        p { (t.of(Text::CallersWait(waits.callers))) @if waits.more { " " (t.of(Text::LongestOnly)) } }
        (table(t, Text::WaitingCalls, &[Text::Since, Text::Callers, Text::Operation, Text::WaitFor], &rows))
    }
}

/// Returns the names of callers, beneath their number.
fn names(names: &[Untrusted]) -> Markup {
    html! { @for name in names { br; code { (name) } } }
}
