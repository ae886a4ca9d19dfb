//! The frame of every page: head, navigation, bars about the gateway; and the frame of pages that are shown without a session.

use maud::{DOCTYPE, Markup, html};

use super::assets::{SCRIPT_PATH, STYLE_PATH};
use super::context::Context;
use super::texts::{Language, Text, Texts};
use super::times;
use super::untrusted::Untrusted;
use crate::health::Stage;
use crate::role::Role;

/// The pages of the navigation: path, title and least role.
const PAGES: &[(&str, Text<'static>, Role)] = &[
    ("/console/", Text::Overview, Role::View),
    ("/console/attention", Text::Attention, Role::View),
    ("/console/find", Text::Find, Role::View),
    ("/console/recent", Text::Recent, Role::View),
    ("/console/operations", Text::Operations, Role::View),
    ("/console/engines", Text::Engines, Role::View),
    ("/console/locks", Text::Locks, Role::View),
    ("/console/apps", Text::Apps, Role::View),
    ("/console/spool", Text::Spool, Role::View),
    ("/console/proxy", Text::ProxyRoutes, Role::View),
    ("/console/gateways", Text::Gateways, Role::View),
    ("/console/config", Text::Configuration, Role::Read),
    ("/console/audit", Text::Audit, Role::View),
];

/// Returns a page for a signed-in operator.
pub(super) fn page(context: &Context, title: Text<'_>, main: &Markup) -> Markup {
    let t = context.texts();
    let operator = &context.operator;
    let uptime = times::age(context.uptime());
    let settings = &context.console.admin.console;
    let host = Untrusted::from(settings.host.clone());
    let body = html! {
        a.skip href="#content" { (t.of(Text::SkipToContent)) }
        header {
            div.bar {
                p {
                    strong { "Oncegate" } " " (host) " " code { (settings.mark) } " "
                    span.muted { (env!("CARGO_PKG_VERSION")) " · " (t.of(Text::UpFor(&uptime))) }
                }
                form.find role="search" method="post" action="/console/find" {
                    (form_token(context))
                    input #find type="search" name="text" required aria-label=(t.of(Text::FindAnything)) placeholder=(t.of(Text::FindAnything))
                        spellcheck="false" autocomplete="off";
                    button type="submit" { (t.of(Text::Find)) }
                }
                form.operator method="post" action="/console/sign-out" {
                    (form_token(context))
                    span { (operator.name) " " span.muted { "(" (operator.role.name()) ")" } }
                    button type="submit" { (t.of(Text::SignOut)) }
                }
            }
            nav {
                @for (path, title, _) in PAGES.iter().filter(|(_, _, role)| operator.role >= *role) {
                    a href=(path) aria-current=[(context.path == *path).then_some("page")] { (t.of(*title)) }
                }
            }
        }
        main #content {
            p.muted #live hidden role="status" { (t.of(Text::NotLive)) }
            p.notice #over hidden role="status" { (t.of(Text::SessionIsOver)) " " a href=(context.address()) { (t.of(Text::SignIn)) } }
            @match context.console.admin.lifecycle.stage() {
                Stage::Ready => {}
                Stage::Starting => { p.notice { (t.of(Text::Starting)) } }
                Stage::Draining => { p.notice { (t.of(Text::Draining)) } }
            }
            @if context.console.admin.audit.failing_since().is_some() { p.notice { (t.of(Text::NoTrail)) } }
            (main)
        }
        footer { p.muted { (t.of(Text::TimesAreUtc)) } }
    };
    document(context.language, &format!("{} · {}", t.of(title), host.shown()), None, &body)
}

/// Returns a page without a session. It shows nothing of the gateway.
pub(super) fn bare(language: Language, title: Text<'_>, main: &Markup) -> Markup {
    let title = Texts(language).of(title);
    document(language, &title, None, &html! { main.bare #content { h1 { (title) } (main) } })
}

/// Returns a page that loads another one at once.
pub(super) fn reload(language: Language, to: &str) -> Markup {
    let t = Texts(language);
    let main = html! { main.bare #content { p { a href=(to) { (t.of(Text::GoOn)) } } } };
    document(language, &t.of(Text::OneMoment), Some(to), &main)
}

/// Returns the hidden field that each form carries.
pub(super) fn form_token(context: &Context) -> Markup {
    html! { input type="hidden" name="form_token" value=(context.session.form_token()); }
}

/// Returns the heading of a region, and whose data it shows.
pub(super) fn heading(title: &str, scope: &str) -> Markup {
    html! { div.heading { h2 { (title) } span.muted { (scope) } } }
}

/// Returns a line with the call of the admin API and the command that show the same as a page.
pub(super) fn same_as(t: Texts, call: &str, command: &str) -> Markup {
    html! { p.muted.same { (t.of(Text::SameAs)) " " code { (call) } " · " code { (command) } } }
}

/// Returns a line with the calls of the admin API, each with a link to its answer, and the command that show the same
/// as a page.
pub(super) fn sources(t: Texts, calls: &[&str], command: &str) -> Markup {
    html! {
        p.muted.same {
            (t.of(Text::SameAs))
            @for call in calls {
                @let name = call.split('?').next().unwrap_or_default();
                " " a href={ "/console/json/" (call) } { code { (if name.ends_with("/show") { "POST" } else { "GET" }) " /admin/v1/" (name) } }
            }
            " · " code { (command) }
        }
    }
}

fn document(language: Language, title: &str, refresh: Option<&str>, body: &Markup) -> Markup {
    html! {
        (DOCTYPE)
        html lang=(language.tag()) {
            head {
                meta charset="utf-8";
                meta name="viewport" content="width=device-width, initial-scale=1";
                meta name="color-scheme" content="light dark";
                @if let Some(to) = refresh { meta http-equiv="refresh" content={ "0; url=" (to) }; }
                title { (title) " · Oncegate" }
                link rel="stylesheet" href=(*STYLE_PATH);
                script src=(*SCRIPT_PATH) defer {}
            }
            body { (body) }
        }
    }
}
