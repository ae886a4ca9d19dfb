//! `/console/claims/{app}/{id}`: a claim: its state in words, its timeline, contents, result, terms, and what may be done. `settle`,
//! `release` and `forget` do it.

pub(super) mod forget;
pub(super) mod release;
pub(super) mod settle;

use std::sync::Arc;

use maud::{Markup, html};
use oncegate_core::clock::Timestamp;
use oncegate_core::record::Realm;
use oncegate_core::tenant::AppKey;
use oncegate_core::terms::Retention;
use oncegate_web::problem::{Code, Problem};
use serde::Deserialize;
use serde_json::value::RawValue;
use serde_json::{Value, json};

use super::context::{Answer, Context};
use super::layout;
use super::masks::{self, masked};
use super::options::Link;
use super::parts::{address, facts, logs, path, refusal};
use super::proxy::keys::{self, Keys};
use super::recent::{Group, Recent};
use super::texts::{Notice, Text, Texts};
use super::times;
use super::untrusted::Untrusted;
use crate::audit::Change;
use crate::role::Role;

/// Events of a timeline, and requests of the proxy beneath it.
const EVENTS_MAX: usize = 1000;
const REQUESTS_MAX: usize = 20;

/// `POST /admin/v1/claims/show`.
#[derive(Deserialize)]
pub(super) struct Claim {
    app: Untrusted,
    chain: Untrusted,
    engine: Untrusted,
    global_id: Untrusted,
    operation: Option<Untrusted>,
    pub(super) state: String,
    pub(super) attempt_hash: Untrusted,
    caller: Option<Untrusted>,
    claimed_at: String,
    expires_at: Option<String>,
    fence: Option<u64>,
    #[serde(default)]
    late: bool,
    contents: Option<Box<RawValue>>,
    contents_sha256: Option<Untrusted>,
    contents_bytes: Option<u64>,
    result: Option<Box<RawValue>>,
    retention: Untrusted,
    on_lease_end: String,
    lease: Untrusted,
    unknown_retention: Untrusted,
}

/// The claim that an address names.
#[derive(PartialEq, Eq, PartialOrd, Ord)]
pub(super) struct Named {
    pub(super) app: String,
    id: String,
    realm: String,
}

impl Named {
    /// Returns the claim with this ID.
    pub(super) fn new(app: &str, id: &str, realm: &str) -> Self {
        let realm = if realm == "proxy" { "proxy" } else { "api" };
        Self { app: app.to_owned(), id: id.to_owned(), realm: realm.to_owned() }
    }

    /// Returns the claim in the address of a page.
    pub(super) fn of(context: &Context) -> Self {
        let part = |name: &str| context.parameters.get(name).cloned().unwrap_or_default();
        Self::new(&part("app"), &part("id"), context.query("realm").unwrap_or_default())
    }

    /// Reports whether it is a record of the proxy.
    pub(super) fn is_of_proxy(&self) -> bool {
        self.realm == "proxy"
    }

    /// Returns the members of a call that name it.
    pub(super) fn body(&self) -> Value {
        json!({ "app": self.app, "global_id": self.id, "realm": self.realm })
    }

    /// Returns the address of its page, or of an action on it.
    pub(super) fn address(&self, action: &[&str], done: &str) -> String {
        let realm = if self.is_of_proxy() { "proxy" } else { "" };
        address(&path(&[&["claims", &*self.app, &*self.id], action].concat()), &[("realm", realm), ("done", done)])
    }

    /// Returns the call of the admin API that shows it, as a query.
    fn json(&self) -> String {
        address("claims/show", &[("app", &self.app), ("global_id", &self.id), ("realm", &self.realm)])
    }

    /// Returns the words of a command that name it.
    pub(super) fn command(&self) -> String {
        let realm = if self.is_of_proxy() { " --realm proxy" } else { "" };
        format!("--app {} --global-id {}{realm}", self.app, self.id)
    }

    /// Returns the live claim.
    pub(super) async fn claim(&self, context: &Context) -> Result<Claim, Problem> {
        context.post("/admin/v1/claims/show", &self.body()).await
    }
}

/// Draws the page. A look at contents is in the audit trail.
pub(super) async fn show(context: Arc<Context>) -> Result<Answer, Problem> {
    let (t, named) = (context.texts(), Named::of(&context));
    let limit = EVENTS_MAX.to_string();
    let recent = address("/admin/v1/recent", &[("app", &named.app), ("global_id", &named.id), ("limit", &limit)]);
    let (claim, recent, keys) =
        tokio::join!(named.claim(&context), context.get::<Recent>(&recent), requests(&context, &named));
    let recent = recent.ok();
    let seen = recent.as_ref().map(Recent::groups).unwrap_or_default();
    let done = done(context.done());
    let main = match &claim {
        Ok(claim) => {
            note(&context, &named, claim);
            html! {
                (heading(claim))
                @if let Some(done) = done { p.notice role="status" { (t.of(done)) } }
                (state(t, &named, claim))
                (layout::heading(&t.of(Text::Timeline), &t.of(Text::StoreAndHere)))
                (timeline(&context, claim, &seen))
                (older(t, recent.as_ref()))
                @if let Some(keys) = &keys {
                    (layout::heading(&t.of(Text::RecentRequests), &t.of(Text::ThisGateway)))
                    (some_of(&context, keys))
                }
                (contents(&context, &named, claim))
                (layout::heading(&t.of(Text::Terms), &t.of(Text::ScopeStore)))
                (terms(t, claim))
                h2.apart { (t.of(Text::WhatMayBeDone)) }
                (actions(&context, &named, claim))
                (layout::sources(t, &[&named.json()], &format!("oncegate claim show {}", named.command())))
            }
        }
        // A released claim is absent; if the store does not answer, nothing is known.
        Err(problem) if done.is_some() || !seen.is_empty() || keys.as_ref().is_some_and(Keys::has_any) => html! {
            @let about = if problem.code == Code::NotFound { Text::NotHereAnyMore } else { Text::SeenOfIt };
            div.heading { h1 { (t.of(Text::Claim)) } code { (Untrusted::from(named.id.clone())) } }
            @if let Some(done) = done { p.notice role="status" { (t.of(done)) } }
            p { (refusal(t, problem)) }
            @if !seen.is_empty() {
                p { (t.of(about)) }
                ol.timeline { @for group in &seen { li { "○ " (group.draw(t, context.links())) } } }
                (older(t, recent.as_ref()))
            }
            @if let Some(keys) = keys.filter(Keys::has_any) {
                p { (t.of(about)) }
                (some_of(&context, &keys))
            }
        },
        Err(problem) => return Err(problem.clone()),
    };
    Ok(Answer::Page(Text::Claim, main))
}

/// Returns the requests of the proxy that had the key of a claim, as this gateway has answered them.
async fn requests(context: &Context, named: &Named) -> Option<Keys> {
    if !named.is_of_proxy() {
        return None;
    }
    let limit = REQUESTS_MAX.to_string();
    let filters = [("app", &*named.app), ("global_id", &named.id), ("limit", &limit)];
    context.get(&address("/admin/v1/proxy/recent", &filters)).await.ok()
}

/// Says that this gateway has seen more of a claim than its timeline has.
fn older(t: Texts, recent: Option<&Recent>) -> Markup {
    html! { @if recent.is_some_and(Recent::has_more) { p.muted { (t.of(Text::Notice(Notice::NewestEvents(EVENTS_MAX)))) } } }
}

/// Returns the newest requests with the key of a claim, and says that there are more.
fn some_of(context: &Context, keys: &Keys) -> Markup {
    html! {
        (keys::list(context, keys))
        @if keys.next.is_some() { p.muted { (context.texts().of(Text::Notice(Notice::NewestRequests(REQUESTS_MAX)))) } }
    }
}

/// Returns the words for an action that led here.
fn done(word: Option<&str>) -> Option<Text<'static>> {
    match word? {
        "success" => Some(Text::SettledAsDone),
        "failure" => Some(Text::SettledAsNotDone),
        "released" => Some(Text::ReleasedNow),
        "forgotten" => Some(Text::ForgottenNow),
        _ => None,
    }
}

fn note(context: &Context, named: &Named, claim: &Claim) {
    if context.operator.role < Role::Read {
        return;
    }
    let change = Change {
        app: claim.app.raw().parse().ok(),
        operation: claim.operation.as_ref().and_then(|operation| operation.raw().parse().ok()),
        global_id: claim.global_id.raw().parse().ok(),
        ..Change::without_reason("claim.view").of_realm(if named.is_of_proxy() { Realm::Proxy } else { Realm::Api })
    };
    context.console.admin.audit.note(&context.operator, &change);
}

/// Returns the name of the claim.
pub(super) fn heading(claim: &Claim) -> Markup {
    html! {
        div.heading {
            h1 { (claim.app) @if let Some(operation) = &claim.operation { " / " (operation) } }
            code { (claim.global_id) }
        }
    }
}

/// Returns the state of the claim in words, with a shape.
pub(super) fn state(t: Texts, named: &Named, claim: &Claim) -> Markup {
    let until = claim.expires_at.as_deref().map(times::instant);
    let until = until.as_deref();
    let (class, shape, sentence) = match claim.state.as_str() {
        "in_progress" if claim.on_lease_end == "unknown" => {
            ("warn", "◐", Text::InProgressThenUnknown(until.unwrap_or("–")))
        }
        "in_progress" => ("warn", "◐", Text::InProgress(until.unwrap_or("–"))),
        "succeeded" if named.is_of_proxy() => ("good", "●", Text::DoneByProxy(until)),
        "succeeded" => ("good", "●", until.map_or(Text::DoneForEver, Text::DoneUntil)),
        _ => ("bad", "▲", until.map_or(Text::UnknownForEver, Text::UnknownUntil)),
    };
    html! { p.state { span class=(class) { (shape) " " } (t.of(sentence)) } }
}

/// Returns the events that the store and this gateway know, in the order of time.
fn timeline(context: &Context, claim: &Claim, seen: &[Group<'_>]) -> Markup {
    let t = context.texts();
    let end = match claim.state.as_str() {
        "in_progress" if claim.on_lease_end == "unknown" => Text::BecomesUnknown,
        _ => Text::CanBeClaimed,
    };
    let claimed = html! {
        "● " (times::instant(&claim.claimed_at)) " · "
        @if claim.late { (t.of(Text::RecordedLate)) } @else { (t.of(Text::Claimed)) }
        " · " (t.of(Text::Attempt)) " " code { (claim.attempt_hash) } (logs(t, context.links(), Link::Attempt, claim.attempt_hash.raw()))
        @if let Some(caller) = &claim.caller { " · " (t.of(Text::Caller)) " " code { (caller) } }
    };
    let mut lines = vec![(claim.claimed_at.clone(), claimed)];
    lines.extend(ended_at(claim).map(|(at, what)| {
        let line = html! { "● " (times::instant(&at)) " · " (t.of(what)) };
        (at, line)
    }));
    lines.extend(seen.iter().map(|group| (group.from.to_owned(), html! { "○ " (group.draw(t, context.links())) })));
    lines.extend(claim.expires_at.iter().map(|at| (at.clone(), html! { "● " (times::instant(at)) " · " (t.of(end)) })));
    // Instants in UTC sort as text.
    lines.sort_by(|(one, _), (other, _)| one.cmp(other));
    html! { ol.timeline { @for (_, line) in &lines { li { (line) } } } }
}

/// Returns when a claim succeeded or became unknown: the end of its retention, less the retention. The store keeps no other instant.
fn ended_at(claim: &Claim) -> Option<(String, Text<'static>)> {
    let (retention, what) = match claim.state.as_str() {
        "succeeded" => (&claim.retention, Text::SucceededAt),
        "unknown" => (&claim.unknown_retention, Text::UnknownAt),
        _ => return None,
    };
    let Ok(Retention::For(retention)) = retention.raw().parse() else { return None };
    let end = claim.expires_at.as_ref().filter(|_| !claim.late)?;
    let micros = u64::try_from(end.parse::<jiff::Timestamp>().ok()?.as_microsecond()).ok()?;
    let at = micros.checked_sub(u64::try_from(retention.as_micros()).ok()?)?;
    Some((Timestamp::from_micros(at).to_string(), what))
}

/// Returns the state of a claim, its contents and its result, for the page of another matter. A look at contents is in the audit trail.
pub(super) fn brief(context: &Context, named: &Named, claim: &Claim) -> Markup {
    note(context, named, claim);
    html! { (state(context.texts(), named, claim)) (contents(context, named, claim)) }
}

fn contents(context: &Context, named: &Named, claim: &Claim) -> Markup {
    let t = context.texts();
    if context.operator.role < Role::Read {
        return html! { p.muted { (t.of(Text::RoleSeesNoContents)) } };
    }
    let masks = context.console.masks(claim.app.raw().parse::<AppKey>().ok().as_ref());
    let masks = masks::of_record(masks, named.is_of_proxy());
    html! {
        (layout::heading(&t.of(Text::Contents), &t.of(Text::ScopeStore)))
        @match (&claim.contents, &claim.contents_sha256) {
            (Some(contents), _) => pre { (masked(contents, &masks)) },
            (None, Some(digest)) => p { "SHA-256 " code { (digest) } " · " (claim.contents_bytes.unwrap_or_default()) " B" },
            (None, None) => p.muted { (t.of(Text::ContentsUnknown)) },
        }
        @if let Some(result) = &claim.result {
            (layout::heading(&t.of(Text::ResultTitle), &t.of(Text::ScopeStore)))
            pre { (masked(result, &masks)) }
        }
        @if !masks.is_empty() { p.muted { (t.of(Text::Masked(&masks.join(", ")))) } }
    }
}

fn terms(t: Texts, claim: &Claim) -> Markup {
    let text = |value: &Untrusted| html! { (value) };
    facts(
        t,
        &[
            (Text::Chain, html! { a href=(path(&["chains", claim.chain.raw()])) { (claim.chain) } }),
            (Text::Engine, text(&claim.engine)),
            (Text::Lease, text(&claim.lease)),
            (Text::Retention, text(&claim.retention)),
            (Text::UnknownRetention, text(&claim.unknown_retention)),
            (Text::OnLeaseEnd, html! { (Untrusted::from(claim.on_lease_end.clone())) }),
            (Text::Fence, html! { @if let Some(fence) = claim.fence { (fence) } @else { "–" } }),
        ],
    )
}

fn actions(context: &Context, named: &Named, claim: &Claim) -> Markup {
    let t = context.texts();
    if context.operator.role < Role::Act {
        return html! { p.muted { (t.of(Text::RoleChangesNothing)) } };
    }
    let link = |action: &str, text| html! { a.button href=(named.address(&[action], "")) { (t.of(text)) } };
    html! {
        @if claim.state != "succeeded" { p { (link("settle", Text::SettleIt)) " " (t.of(Text::SettleWhen)) } }
        @if claim.state == "succeeded" && named.is_of_proxy() { p { (link("forget", Text::ForgetIt)) " " (t.of(Text::ForgetWhen)) } }
        p { (link("release", Text::ReleaseIt)) " " (t.of(release::when(&claim.state))) }
    }
}
