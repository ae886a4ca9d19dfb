//! `/console/locks`: the locks of an app, one lock, and the end of its holds by an operator.

use std::sync::Arc;
use std::time::Duration;

use maud::{Markup, html};
use oncegate_core::lock::LockName;
use oncegate_core::tenant::AppKey;
use oncegate_web::problem::{Code, Problem};
use serde::Deserialize;
use serde_json::json;

use super::apps::{KnownApps, choose};
use super::context::{Answer, Context};
use super::parts::{address, facts, pager, path, refusal, table};
use super::texts::{LockText, Text};
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
    let apps = KnownApps::of(&context);
    let first = apps.keys.first().map(Untrusted::raw).unwrap_or_default();
    let app = context.query("app").unwrap_or(first);
    let call = address(
        "/admin/v1/locks",
        &[("app", app), ("after", context.query("after").unwrap_or_default()), ("limit", "50")],
    );
    let found = context.get::<Locks>(&call).await;
    let is_not_listed = found.as_ref().is_err_and(|problem| problem.code == Code::NotSupported);
    // Any other text could be a command to a shell that someone copies.
    let named = if app.parse::<AppKey>().is_ok() { app } else { "…" };
    let command = if is_not_listed {
        format!("oncegate lock show --app {named} …")
    } else {
        format!("oncegate lock list --app {named}")
    };
    let main = html! {
        div.heading { h1 { (t.of(Text::Locks)) } span.muted { (t.of(Text::ScopeStore)) } }
        (choose(t, "/console/locks", &apps, app, false, None))
        @match &found {
            Ok(Locks { locks, .. }) if locks.is_empty() => { p { (t.of(Text::OfLock(LockText::NoneOf(app)))) } pre { "oncegate lock run nightly-report -- /usr/local/bin/report" } },
            Ok(Locks { locks, next }) => {
                (table_of(&context, app, locks))
                (pager(t, "/console/locks", &[("app", app)], next.as_ref().map(Untrusted::raw)))
            },
            Err(problem) => p.notice {
                @if is_not_listed { strong { (t.of(Text::OfLock(LockText::NotListed))) } " " }
                (refusal(t, problem))
            },
        }
        form.inline method="get" action="/console/locks/show" {
            input type="hidden" name="app" value=(app);
            label for="name" { (t.of(Text::OfLock(LockText::Name))) }
            input #name type="text" name="name" required spellcheck="false";
            button type="submit" { (t.of(Text::Open)) }
        }
        (layout::sources(t, &[&address("locks", &[("app", app)])], &command))
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
    table(context.texts(), Text::Locks, &[Text::Lock, Text::Mode, Text::Holders, Text::OfLock(LockText::Queue)], &rows)
}

/// Leads from the name of a lock to its page.
pub(super) async fn named(context: Arc<Context>) -> Result<Answer, Problem> {
    let (app, name) = (context.query("app").unwrap_or_default(), context.query("name").unwrap_or_default());
    Ok(Answer::SeeOther(path(&["locks", app, name])))
}

/// Returns the page of the lock that a text names: `app/name` of any lock, or in this app the name of one that is held or waited for.
pub(super) async fn found(context: &Context, app: &str, text: &str) -> Option<String> {
    let named = |app: &str, name: &str| Named { app: app.to_owned(), name: name.to_owned() };
    let is_name = |name: &str| name.parse::<LockName>().is_ok();
    if let Some((app, name)) = text.split_once('/').filter(|(_, name)| is_name(name)) {
        let named = named(app, name);
        if named.has_app(context) {
            return Some(named.page());
        }
    }
    let named = named(app, text);
    let is_used = !app.is_empty() && is_name(text) && named.lock(context).await.is_ok();
    is_used.then(|| named.page())
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

    fn page(&self) -> String {
        path(&["locks", &self.app, &self.name])
    }

    /// Reports whether a lock can have this name. Any other text is only shown: it could be a command to a shell that someone copies.
    fn is_valid(&self) -> bool {
        self.app.parse::<AppKey>().is_ok() && self.name.parse::<LockName>().is_ok()
    }

    /// Reports whether there is its app. Without it, the admin API knows no lock either.
    fn has_app(&self, context: &Context) -> bool {
        context.console.admin.registry.apps().iter().any(|app| app.key.to_string() == self.app)
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
        @if done { p.notice role="status" { (t.of(Text::OfLock(LockText::HoldEnded))) } }
        @match &lock {
            Ok(lock) => (holds(&context, &named, lock)),
            Err(problem) if problem.code == Code::NotFound && named.has_app(&context) => p { (t.of(Text::OfLock(LockText::IsFree))) },
            Err(problem) => p { (refusal(t, problem)) },
        }
        @if named.is_valid() {
            (layout::sources(
                t,
                &[&address("locks/show", &[("app", &named.app), ("name", &named.name)])],
                &format!("oncegate lock show --app {} {}", named.app, named.name),
            ))
        }
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
                        a href=(path(&["locks", &named.app, &named.name, "release", holder.hash.raw()])) { (t.of(Text::OfLock(LockText::EndHold))) }
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
            (Text::OfLock(LockText::Queue), html! { (lock.waiting) }),
        ]))
        p.muted { (t.of(Text::OfLock(LockText::QueueAbout))) }
        (table(t, Text::Holders, &[Text::Hold, Text::Mode, Text::Since, Text::LeaseLeft, Text::Action], &rows))
    }
}

/// Draws the page that ends a hold.
pub(super) async fn ask(context: Arc<Context>) -> Result<Answer, Problem> {
    let (t, named) = (context.texts(), Named::of(&context));
    let hash = context.parameters.get("hash").cloned().unwrap_or_default();
    let lock = named.lock(&context).await?;
    let holder = lock.holders.iter().find(|holder| holder.hash.raw() == hash);
    let holder = holder.ok_or_else(|| Problem::new(Code::NotHeld, t.of(Text::OfLock(LockText::HoldIsGone))))?;
    let target = path(&["locks", &named.app, &named.name, "release", &hash]);
    let command = format!("oncegate lock release --app {} {} --holder {hash} --reason …", named.app, named.name);
    let main = html! {
        h1 { (t.of(Text::OfLock(LockText::EndHold))) }
        (facts(t, &[
            (Text::Lock, html! { (lock.name) }),
            (Text::Hold, html! { code { (holder.hash) } }),
            (Text::Since, html! { (times::since(&holder.claimed_at, context.now())) }),
            (Text::LeaseLeft, html! { (times::age(Duration::from_millis(holder.lease_ms))) }),
        ]))
        p { (t.of(Text::OfLock(LockText::EndHoldWhen))) }
        (forms::form(&context, &target, &[], &html! {}, Text::OfLock(LockText::EndHold)))
        (layout::same_as(t, "POST /admin/v1/locks/release", &command))
    };
    Ok(Answer::Page(Text::OfLock(LockText::EndHold), main))
}

/// Ends the hold that was shown.
pub(super) async fn act(context: Arc<Context>) -> Result<Answer, Problem> {
    let named = Named::of(&context);
    let hash = context.parameters.get("hash").cloned().unwrap_or_default();
    let done = format!("{}?done=released", named.page());
    let body = json!({ "app": named.app, "name": named.name, "holder": hash });
    forms::act(context, "/admin/v1/locks/release".to_owned(), body, &["reason"], done).await
}
