//! `/console/locks`: the locks of an app, one lock, and the end of its holds by an operator.

use std::sync::Arc;
use std::time::Duration;

use maud::{Markup, html};
use oncegate_web::problem::Problem;
use serde::Deserialize;
use serde_json::json;

use super::apps::{AppsPage, choose};
use super::context::{Answer, Context};
use super::parts::{address, facts, pager, path, refusal, table};
use super::texts::Text;
use super::untrusted::Untrusted;
use super::{forms, layout, times};
use crate::role::Role;

/// `GET /admin/v1/locks`.
#[derive(Deserialize)]
struct Locks {
    locks: Vec<Lock>,
    next: Option<Untrusted>,
}

/// A lock.
#[derive(Deserialize)]
struct Lock {
    name: Untrusted,
    mode: Option<Untrusted>,
    fence: Option<u64>,
    limit: Option<usize>,
    holders: Vec<Holder>,
    waiting: usize,
}

/// A hold.
#[derive(Deserialize)]
struct Holder {
    hash: Untrusted,
    mode: Untrusted,
    claimed_at: String,
    lease_ms: u64,
    caller: Option<Untrusted>,
}

/// Draws the list of an app's locks.
pub(super) async fn list(context: Arc<Context>) -> Result<Answer, Problem> {
    let t = context.texts();
    let AppsPage { apps } = context.get("/admin/v1/apps").await?;
    let first = apps.first().map(|app| app.key.raw()).unwrap_or_default();
    let app = context.query("app").unwrap_or(first);
    let call = address(
        "/admin/v1/locks",
        &[("app", app), ("after", context.query("after").unwrap_or_default()), ("limit", "50")],
    );
    let found = context.get::<Locks>(&call).await;
    let main = html! {
        div.heading { h1 { (t.of(Text::Locks)) } span.muted { (t.of(Text::ScopeStore)) } }
        (choose(t, "/console/locks", &apps, app, false, None))
        @match &found {
            Ok(Locks { locks, .. }) if locks.is_empty() => { p { (t.of(Text::NoLocks(app))) } pre { "oncegate lock run nightly-report -- /usr/local/bin/report" } },
            Ok(Locks { locks, next }) => {
                (table_of(&context, app, locks))
                (pager(t, "/console/locks", &[("app", app)], next.as_ref().map(Untrusted::raw)))
            },
            Err(problem) => p.notice { (refusal(t, problem)) },
        }
        form.inline method="get" action="/console/locks/show" {
            input type="hidden" name="app" value=(app);
            label for="name" { (t.of(Text::LockName)) }
            input #name type="text" name="name" required spellcheck="false";
            button type="submit" { (t.of(Text::Open)) }
        }
        (layout::sources(t, &[&address("locks", &[("app", app)])], &format!("oncegate lock list --app {app}")))
    };
    Ok(Answer::Page(Text::Locks, main))
}

fn table_of(context: &Context, app: &str, locks: &[Lock]) -> Markup {
    let rows = html! {
        @for lock in locks {
            tr {
                th scope="row" { a href=(path(&["locks", app, lock.name.raw()])) { (lock.name) } }
                td { @if let Some(mode) = &lock.mode { (mode) } @else { (context.texts().of(Text::Free)) } }
                td.number { (lock.holders.len()) }
                td.number { (lock.waiting) }
            }
        }
    };
    table(context.texts(), Text::Locks, &[Text::Lock, Text::Mode, Text::Holders, Text::Waiting], &rows)
}

/// Leads from the name of a lock to its page.
pub(super) async fn named(context: Arc<Context>) -> Result<Answer, Problem> {
    let (app, name) = (context.query("app").unwrap_or_default(), context.query("name").unwrap_or_default());
    Ok(Answer::SeeOther(path(&["locks", app, name])))
}

/// The lock that an address names.
struct Named {
    app: String,
    name: String,
}

impl Named {
    fn of(context: &Context) -> Self {
        let part = |name: &str| context.parameters.get(name).cloned().unwrap_or_default();
        Self { app: part("app"), name: part("name") }
    }

    async fn lock(&self, context: &Context) -> Result<Lock, Problem> {
        context.post("/admin/v1/locks/show", &json!({ "app": self.app, "name": self.name })).await
    }
}

/// Draws the page of a lock.
pub(super) async fn show(context: Arc<Context>) -> Result<Answer, Problem> {
    let (t, named) = (context.texts(), Named::of(&context));
    let done = context.done() == Some("released");
    let lock = named.lock(&context).await;
    let main = html! {
        div.heading { h1 { (Untrusted::from(named.app.clone())) " / " (Untrusted::from(named.name.clone())) } span.muted { (t.of(Text::ScopeStore)) } }
        @if done { p.notice role="status" { (t.of(Text::HoldEnded)) } }
        @match &lock {
            Ok(lock) => (holds(&context, &named, lock)),
            Err(problem) => p { (refusal(t, problem)) },
        }
        (layout::sources(
            t,
            &[&address("locks/show", &[("app", &named.app), ("name", &named.name)])],
            &format!("oncegate lock show --app {} {}", named.app, named.name),
        ))
    };
    Ok(Answer::Page(Text::Lock, main))
}

fn holds(context: &Context, named: &Named, lock: &Lock) -> Markup {
    let t = context.texts();
    let rows = html! {
        @for holder in &lock.holders {
            tr {
                th scope="row" { code { (holder.hash) } @if let Some(caller) = &holder.caller { br; (caller) } }
                td { (holder.mode) }
                td { (times::since(&holder.claimed_at, context.now())) }
                td { (times::age(Duration::from_millis(holder.lease_ms))) }
                td {
                    @if context.operator.role >= Role::Act {
                        a href=(path(&["locks", &named.app, &named.name, "release", holder.hash.raw()])) { (t.of(Text::EndHold)) }
                    }
                }
            }
        }
    };
    let number = |number: Option<u64>| html! { @if let Some(number) = number { (number) } @else { "–" } };
    html! {
        (facts(t, &[
            (Text::Mode, html! { @if let Some(mode) = &lock.mode { (mode) } @else { (t.of(Text::Free)) } }),
            (Text::Fence, number(lock.fence)),
            (Text::LimitOf, number(lock.limit.map(|limit| limit as u64))),
            (Text::Waiting, html! { (lock.waiting) }),
        ]))
        (table(t, Text::Holders, &[Text::Hold, Text::Mode, Text::Since, Text::LeaseLeft, Text::Action], &rows))
    }
}

/// Draws the page that ends a hold.
pub(super) async fn ask(context: Arc<Context>) -> Result<Answer, Problem> {
    let (t, named) = (context.texts(), Named::of(&context));
    let hash = context.parameters.get("hash").cloned().unwrap_or_default();
    let lock = named.lock(&context).await?;
    let holder = lock.holders.iter().find(|holder| holder.hash.raw() == hash);
    let holder = holder.ok_or_else(|| Problem::new(oncegate_web::problem::Code::NotHeld, t.of(Text::HoldIsGone)))?;
    let target = path(&["locks", &named.app, &named.name, "release", &hash]);
    let command = format!("oncegate lock release --app {} {} --holder {hash} --reason …", named.app, named.name);
    let main = html! {
        h1 { (t.of(Text::EndHold)) }
        (facts(t, &[
            (Text::Lock, html! { (lock.name) }),
            (Text::Hold, html! { code { (holder.hash) } }),
            (Text::Since, html! { (times::since(&holder.claimed_at, context.now())) }),
            (Text::LeaseLeft, html! { (times::age(Duration::from_millis(holder.lease_ms))) }),
        ]))
        p { (t.of(Text::EndHoldWhen)) }
        (forms::form(&context, &target, &[], &html! {}, Text::EndHold))
        (layout::same_as(t, "POST /admin/v1/locks/release", &command))
    };
    Ok(Answer::Page(Text::EndHold, main))
}

/// Ends the hold that was shown.
pub(super) async fn act(context: Arc<Context>) -> Result<Answer, Problem> {
    let named = Named::of(&context);
    let hash = context.parameters.get("hash").cloned().unwrap_or_default();
    let done = format!("{}?done=released", path(&["locks", &named.app, &named.name]));
    let body = json!({ "app": named.app, "name": named.name, "holder": hash });
    forms::act(context, "/admin/v1/locks/release".to_owned(), body, &["reason"], done).await
}
