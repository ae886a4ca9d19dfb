//! `/console/apps`: the apps, their chains and secrets. `show` is one of them, and `change` changes it.

pub(super) mod change;
pub(super) mod show;

use std::sync::Arc;

use maud::{Markup, html};
use oncegate_web::problem::Problem;
use serde::Deserialize;

use super::context::{Answer, Context};
use super::parts::{address, path, table};
use super::texts::{Text, Texts};
use super::untrusted::Untrusted;
use super::{layout, times};

/// `GET /admin/v1/apps`.
#[derive(Deserialize)]
pub(super) struct AppsPage {
    pub(super) apps: Vec<App>,
}

/// An app.
#[derive(Deserialize)]
pub(super) struct App {
    #[serde(rename = "app")]
    pub(super) key: Untrusted,
    chain: Untrusted,
    disabled: bool,
    secrets: Vec<Secret>,
    problem: Option<Untrusted>,
}

/// A secret of an app, by its ID.
#[derive(Deserialize)]
struct Secret {
    #[serde(rename = "secret_id")]
    id: Untrusted,
    created_at: Option<String>,
    last_used_at: Option<String>,
}

/// Draws the page.
pub(super) async fn list(context: Arc<Context>) -> Result<Answer, Problem> {
    let t = context.texts();
    let AppsPage { apps } = context.get("/admin/v1/apps").await?;
    let main = html! {
        div.heading { h1 { (t.of(Text::Apps)) } span.muted { (t.of(Text::ScopeApps)) } }
        @if apps.is_empty() { p { (t.of(Text::OpenGateway)) } pre { "oncegate app new shop" } }
        @else { (table_of(t, &apps)) }
        (layout::sources(t, &["apps"], "oncegate app list"))
    };
    Ok(Answer::Page(Text::Apps, main))
}

fn table_of(t: Texts, apps: &[App]) -> Markup {
    let rows = html! {
        @for app in apps {
            tr {
                th scope="row" { a href=(path(&["apps", app.key.raw()])) { (app.key) } }
                td { a href=(path(&["chains", app.chain.raw()])) { (app.chain) } }
                td { (state(t, app.disabled, app.problem.as_ref())) }
                td {
                    @for secret in &app.secrets {
                        div {
                            code { (secret.id) } " "
                            span.muted {
                                @match &secret.last_used_at {
                                    Some(at) => (t.of(Text::LastUsed(&times::instant(at)))),
                                    None => (t.of(Text::NotUsedYet)),
                                }
                            }
                        }
                    }
                }
                td { a href=(address("/console/locks", &[("app", app.key.raw())])) { (t.of(Text::Locks)) } }
            }
        }
    };
    table(t, Text::Apps, &[Text::App, Text::Chain, Text::State, Text::Secrets, Text::Locks], &rows)
}

/// Returns whether the callers of an app are accepted, and why its settings cannot be used.
fn state(t: Texts, disabled: bool, problem: Option<&Untrusted>) -> Markup {
    html! {
        @if disabled { span.bad { "■ " (t.of(Text::Disabled)) } } @else { span.good { "● " (t.of(Text::Enabled)) } }
        @if let Some(problem) = problem { br; (problem) }
    }
}

/// Returns a form that chooses an app, or all of them if the page can show all, and keeps a further parameter of the page.
pub(super) fn choose(
    t: Texts,
    page: &str,
    apps: &[App],
    chosen: &str,
    may_be_all: bool,
    further: Option<(&str, &str)>,
) -> Markup {
    html! {
        form.inline method="get" action=(page) {
            @if let Some((name, value)) = further { input type="hidden" name=(name) value=(value); }
            label for="app" { (t.of(Text::App)) }
            select #app name="app" {
                @if may_be_all { option value="" selected[chosen.is_empty()] { (t.of(Text::AllKinds)) } }
                @for App { key, .. } in apps { option value=(key.raw()) selected[key.raw() == chosen] { (key.shown()) } }
            }
            button type="submit" { (t.of(Text::Open)) }
        }
    }
}
