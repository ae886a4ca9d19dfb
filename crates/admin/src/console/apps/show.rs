//! `/console/apps/{app}`: an app: its secrets, terms, quotas and their use, and what may be done.

use std::collections::BTreeMap;
use std::sync::Arc;

use maud::{Markup, html};
use oncegate_gateway::tenants::usage::USE_RECORDED_EVERY;
use oncegate_web::problem::Problem;
use serde::Deserialize;

use super::Secret;
use crate::console::context::{Answer, Context};
use crate::console::layout;
use crate::console::parts::{facts, path, table};
use crate::console::texts::{Notice, Text, Texts};
use crate::console::times;
use crate::console::untrusted::Untrusted;
use crate::role::Role;

/// `GET /admin/v1/apps/{app}`.
#[derive(Deserialize)]
pub(super) struct App {
    #[serde(rename = "app")]
    pub(super) key: Untrusted,
    chain: Untrusted,
    pub(super) disabled: bool,
    pub(super) secrets: Vec<Secret>,
    problem: Option<Untrusted>,
    pub(super) changeable: bool,
    in_force: Option<InForce>,
}

/// Settings that this gateway applies to its calls.
#[derive(Deserialize)]
struct InForce {
    terms: Terms,
    operations: Vec<Terms>,
    retention_max: Untrusted,
    quota: Quota,
    usage: Usage,
}

/// Terms of an operation, or of all operations without their own terms.
#[derive(Deserialize)]
struct Terms {
    operation: Option<Untrusted>,
    mode: Untrusted,
    lease: Untrusted,
    on_lease_end: Untrusted,
    retention: Untrusted,
    unknown_retention: Untrusted,
    claim_on_outage: Untrusted,
    outcome_on_outage: Untrusted,
}

/// Quotas.
#[derive(Deserialize)]
struct Quota {
    requests_per_second: Option<u64>,
    claim_bytes_per_second: Option<u64>,
    requests_in_flight: Option<u64>,
    response_bytes_total: Option<u64>,
}

/// Their use at this moment.
#[derive(Deserialize)]
struct Usage {
    requests_left: Option<u64>,
    claim_bytes_left: Option<u64>,
    requests_in_flight: u64,
    response_bytes: Option<u64>,
    refused: BTreeMap<String, u64>,
}

impl App {
    /// Returns the app that the address of a page names.
    pub(super) async fn of(context: &Context) -> Result<Self, Problem> {
        let name = context.parameters.get("app").map_or("", String::as_str);
        context.get(&path(&["apps", name]).replace("/console/", "/admin/v1/")).await
    }

    /// Returns the address of its page, or of an action on it.
    pub(super) fn address(&self, action: &[&str]) -> String {
        path(&[&["apps", self.key.raw()], action].concat())
    }

    /// Returns the IDs of its secrets, to bind an action to them.
    pub(super) fn secret_ids(&self) -> String {
        self.secrets.iter().map(|secret| secret.id.raw()).collect::<Vec<_>>().join(" ")
    }

    /// Returns the IDs of the secrets that may have been used last. Uses are recorded to the minute, so there may be several.
    pub(super) fn last_used(&self) -> Vec<&str> {
        let used = |secret: &Secret| secret.last_used_at.as_ref()?.parse::<jiff::Timestamp>().ok();
        let Some(newest) = self.secrets.iter().filter_map(used).max() else { return Vec::new() };
        let may_be_last = |secret: &&Secret| {
            used(secret).is_some_and(|at| newest.duration_since(at).unsigned_abs() <= USE_RECORDED_EVERY)
        };
        self.secrets.iter().filter(may_be_last).map(|secret| secret.id.raw()).collect()
    }
}

/// Draws the page.
pub(in crate::console) async fn show(context: Arc<Context>) -> Result<Answer, Problem> {
    let t = context.texts();
    let app = App::of(&context).await?;
    let done = match context.done() {
        Some("rotated") => Some(Text::RotatedBefore),
        Some("revoked") => Some(Text::RevokedNow),
        Some("disabled") => Some(Text::DisabledNow),
        Some("enabled") => Some(Text::EnabledNow),
        _ => None,
    };
    let main = html! {
        div.heading { h1 { (t.of(Text::App)) " " (app.key) } span.muted { (t.of(Text::ScopeApps)) } }
        @if let Some(done) = done { p.notice role="status" { (t.of(done)) } }
        (super::state(t, app.disabled, app.problem.as_ref()))
        (facts(t, &[
            (Text::Chain, html! { a href=(path(&["chains", app.chain.raw()])) { (app.chain) } }),
            (Text::LongestRetention, html! { @if let Some(found) = &app.in_force { (found.retention_max) } @else { "–" } }),
        ]))
        @if !app.secrets.is_empty() { (secrets(&context, &app)) }
        @match &app.in_force {
            Some(found) => {
                (layout::heading(&t.of(Text::Terms), &t.of(Text::ThisGateway)))
                (terms(t, found))
                (layout::heading(&t.of(Text::Quotas), &t.of(Text::ThisGateway)))
                (quotas(t, found))
            }
            None => p.notice { (t.of(Text::AppNotInForce)) },
        }
        @if context.operator.role >= Role::Act { (actions(t, &app)) }
        (layout::sources(t, &[&format!("apps/{}", app.key.raw())], &format!("oncegate app show {}", app.key.raw())))
    };
    Ok(Answer::Page(Text::App, main))
}

fn secrets(context: &Context, app: &App) -> Markup {
    let t = context.texts();
    let may_revoke = context.operator.role >= Role::Act && app.changeable && app.secrets.len() > 1;
    let rows = html! {
        @for secret in &app.secrets {
            tr {
                th scope="row" { code { (secret.id) } }
                td { @if let Some(at) = &secret.created_at { (times::instant(at)) } @else { "–" } }
                td { @if let Some(at) = &secret.last_used_at { (times::instant(at)) } @else { (t.of(Text::NotUsedYet)) } }
                td { @if may_revoke { a href=(app.address(&["revoke", secret.id.raw()])) { (t.of(Text::RevokeIt)) } } }
            }
        }
    };
    html! {
        (layout::heading(&t.of(Text::Secrets), &t.of(Text::ScopeApps)))
        (table(t, Text::Secrets, &[Text::SecretId, Text::Created, Text::LastUse, Text::Action], &rows))
    }
}

fn terms(t: Texts, found: &InForce) -> Markup {
    let rows = html! {
        @for terms in std::iter::once(&found.terms).chain(&found.operations) {
            tr {
                th scope="row" { @if let Some(operation) = &terms.operation { (operation) } @else { (t.of(Text::OtherOperations)) } }
                td { (terms.mode) }
                td { (terms.lease) ", " (terms.on_lease_end) }
                td { (terms.retention) }
                td { (terms.unknown_retention) }
                td { (terms.claim_on_outage) ", " (terms.outcome_on_outage) }
            }
        }
    };
    let columns =
        [Text::Operation, Text::Mode, Text::Lease, Text::Retention, Text::UnknownRetention, Text::OutagePolicies];
    table(t, Text::Terms, &columns, &rows)
}

fn quotas(t: Texts, found: &InForce) -> Markup {
    let InForce { quota, usage, .. } = found;
    let rows = [
        (
            Text::RequestsPerSecond,
            "requests_per_second",
            quota.requests_per_second,
            usage.requests_left.map(Text::LeftNow),
        ),
        (
            Text::ClaimBytesPerSecond,
            "claim_bytes_per_second",
            quota.claim_bytes_per_second,
            usage.claim_bytes_left.map(Text::LeftNow),
        ),
        (
            Text::RequestsInFlight,
            "requests_in_flight",
            quota.requests_in_flight,
            Some(Text::UsedNow(usage.requests_in_flight)),
        ),
        (Text::ResponseBytes, "", quota.response_bytes_total, usage.response_bytes.map(Text::UsedNow)),
    ];
    let rows = html! {
        @for (name, key, limit, used) in rows {
            tr {
                th scope="row" { (t.of(name)) }
                td { @if let Some(limit) = limit { (limit) } @else { (t.of(Text::Unlimited)) } }
                td {
                    @if let Some(used) = used { (t.of(used)) } @else { "–" }
                    @if let Some(count) = usage.refused.get(key) { " · " (t.of(Text::Notice(Notice::RefusedByQuota(*count)))) }
                }
            }
        }
    };
    table(t, Text::Quotas, &[Text::Quotas, Text::LimitOf, Text::Use], &rows)
}

fn actions(t: Texts, app: &App) -> Markup {
    if !app.changeable {
        return html! { p.muted { (t.of(Text::AppInFile)) } pre { "oncegate app rotate " (app.key.raw()) } };
    }
    let link = |action, text| html! { a.button href=(app.address(&[action])) { (t.of(text)) } };
    html! {
        h2.apart { (t.of(Text::WhatMayBeDone)) }
        p { (link("rotate", Text::RotateIt)) " " (t.of(Text::RotateWhen)) }
        @if app.disabled { p { (link("enable", Text::EnableIt)) " " (t.of(Text::EnableWhen)) } }
        @else { p { (link("disable", Text::DisableIt)) " " (t.of(Text::DisableWhen)) } }
    }
}
