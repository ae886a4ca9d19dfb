//! `/console/config`: the settings in effect, where each was set, and the last reload.

use std::sync::Arc;

use maud::{Markup, html};
use oncegate_web::problem::Problem;
use serde::Deserialize;
use serde_json::Value;

use super::context::{Answer, Context};
use super::parts::table;
use super::texts::{Text, Texts};
use super::untrusted::Untrusted;
use super::{layout, times};
use crate::attention::Kind;

/// `GET /admin/v1/config`.
#[derive(Deserialize)]
struct Settings {
    settings: Vec<Setting>,
    last_reload: Option<Reload>,
}

/// A setting.
#[derive(Deserialize)]
struct Setting {
    key: Untrusted,
    value: Value,
    origin: Untrusted,
    needs_restart: bool,
}

/// A reload of the configuration.
#[derive(Deserialize)]
struct Reload {
    at: String,
    error: Option<Untrusted>,
    restart_needed: Vec<Untrusted>,
}

/// Draws the page.
pub(super) async fn show(context: Arc<Context>) -> Result<Answer, Problem> {
    let t = context.texts();
    let Settings { settings, last_reload } = context.get("/admin/v1/config").await?;
    let shows_all = context.query("show") == Some("all");
    let main = html! {
        div.heading { h1 { (t.of(Text::Configuration)) } span.muted { (t.of(Text::ThisGateway)) } }
        (reload(t, last_reload.as_ref()))
        p.filters {
            a href="/console/config" aria-current=[(!shows_all).then_some("true")] { (t.of(Text::SettingsSet)) } " "
            a href="/console/config?show=all" aria-current=[shows_all.then_some("true")] { (t.of(Text::AllKinds)) }
        }
        (rows(t, settings.iter().filter(|setting| shows_all || setting.origin.raw() != "default")))
        (layout::sources(t, &["config"], "oncegate config show"))
    };
    Ok(Answer::Page(Text::Configuration, main))
}

fn reload(t: Texts, last: Option<&Reload>) -> Markup {
    let Some(Reload { at, error, restart_needed }) = last else {
        return html! { p { (t.of(Text::NotReloaded)) } };
    };
    let at = times::instant(at);
    html! {
        @if let Some(error) = error {
            div.notice { strong { "▲ " (t.of(Text::ReloadFailed(&at))) } " " (t.of(Text::Advice(Kind::ReloadFailed))) pre { (error) } }
        } @else {
            p { (t.of(Text::ReloadedAt(&at))) }
        }
        @if !restart_needed.is_empty() {
            p.notice {
                (t.of(Text::RestartNeeded))
                @for table in restart_needed { " " code { (table) } }
            }
        }
    }
}

fn rows<'a>(t: Texts, settings: impl Iterator<Item = &'a Setting>) -> Markup {
    let rows = html! {
        @for setting in settings {
            tr {
                th scope="row" { code { (setting.key) } }
                td { code { (text(&setting.value)) } }
                td { (setting.origin) }
                td { @if setting.needs_restart { (t.of(Text::AtRestart)) } @else { (t.of(Text::AtReload)) } }
            }
        }
    };
    table(t, Text::Configuration, &[Text::Setting, Text::Value, Text::Origin, Text::ChangesAt], &rows)
}

fn text(value: &Value) -> Untrusted {
    match value {
        Value::String(text) => Untrusted::from(text.clone()),
        other => Untrusted::from(other.to_string()),
    }
}
