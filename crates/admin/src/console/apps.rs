//! `/console/apps`: the apps, their chains and secrets. `show` is one of them, and `change` changes it.

pub(super) mod change;
pub(super) mod show;

use std::sync::Arc;

use maud::{Markup, html};
use oncegate_web::problem::Problem;
use serde::Deserialize;

use super::context::{Answer, Context};
use super::parts::{address, path, refusal, table};
use super::texts::{Notice, Text, Texts};
use super::untrusted::Untrusted;
use super::{layout, times};

/// `GET /admin/v1/apps`.
#[derive(Deserialize)]
struct AppsPage {
    apps: Vec<App>,
}

/// An app.
#[derive(Deserialize)]
struct App {
    #[serde(rename = "app")]
    key: Untrusted,
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

/// The apps whose calls this gateway serves, by name. They need no call to the registry: where it does not answer, its last copy counts.
pub(super) struct KnownApps {
    pub(super) keys: Vec<Untrusted>,
    may_be_old: bool,
}

impl KnownApps {
    /// Returns the apps of this gateway.
    pub(super) fn of(context: &Context) -> Self {
        let registry = &context.console.admin.registry;
        let mut keys: Vec<_> = registry.apps().iter().map(|app| app.key.to_string()).collect();
        keys.sort_unstable();
        Self { keys: keys.into_iter().map(Untrusted::from).collect(), may_be_old: registry.may_be_old() }
    }

    /// Says that there may be other apps by now.
    pub(super) fn notice(&self, t: Texts) -> Markup {
        html! { @if self.may_be_old { p.notice { (t.of(Text::Notice(Notice::AppsMayBeOld))) } } }
    }
}

/// Draws the page. If the registry does not answer, it lists the apps that this gateway knows.
pub(super) async fn list(context: Arc<Context>) -> Result<Answer, Problem> {
    let t = context.texts();
    let found = context.get::<AppsPage>("/admin/v1/apps").await;
    let main = html! {
        div.heading { h1 { (t.of(Text::Apps)) } span.muted { (t.of(Text::ScopeApps)) } }
        @match &found {
            Ok(AppsPage { apps }) if apps.is_empty() => { p { (t.of(Text::NoApps)) } pre { "oncegate app new shop" } },
            Ok(AppsPage { apps }) => {
                @if context.console.admin.registry.is_open() {
                    p.notice { (t.of(Text::Notice(Notice::Open))) " " (t.of(Text::FirstApp)) }
                    pre { "oncegate app new shop" }
                }
                (table_of(t, apps))
            },
            Err(problem) => {
                @let known = KnownApps::of(&context);
                p.notice role="alert" { (refusal(t, problem)) }
                (known.notice(t))
                ul { @for key in &known.keys { li { (key) } } }
            },
        }
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
    apps: &KnownApps,
    chosen: &str,
    may_be_all: bool,
    further: Option<(&str, &str)>,
) -> Markup {
    html! {
        (apps.notice(t))
        form.inline method="get" action=(page) {
            @if let Some((name, value)) = further { input type="hidden" name=(name) value=(value); }
            label for="app" { (t.of(Text::App)) }
            select #app name="app" {
                @if may_be_all { option value="" selected[chosen.is_empty()] { (t.of(Text::AllKinds)) } }
                @for key in &apps.keys { option value=(key.raw()) selected[key.raw() == chosen] { (key.shown()) } }
            }
            button type="submit" { (t.of(Text::Open)) }
        }
    }
}
