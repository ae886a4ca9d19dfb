//! Parts that pages have in common: tables, pagers, addresses, the state of an engine, lines of facts.

use maud::{Markup, html};
use oncegate_web::problem::Problem;
use percent_encoding::{AsciiSet, NON_ALPHANUMERIC, utf8_percent_encode};

use super::options::{ConsoleLinks, Link};
use super::prose::Prose;
use super::texts::{Language, Text, Texts};
use super::untrusted::Untrusted;

/// Characters that are escaped in a part of an address.
const ESCAPED: &AsciiSet = &NON_ALPHANUMERIC.remove(b'-').remove(b'.').remove(b'_').remove(b'~');

/// Returns a table that scrolls sideways if it is too wide.
pub(super) fn table(t: Texts, title: Text<'_>, columns: &[Text<'_>], rows: &Markup) -> Markup {
    html! {
        div.scroll tabindex="0" role="region" aria-label=(t.of(title)) {
            table {
                thead { tr { @for column in columns { th scope="col" { (t.of(*column)) } } } }
                tbody { (rows) }
            }
        }
    }
}

/// Returns pairs of a name and a value.
pub(super) fn facts(t: Texts, facts: &[(Text<'_>, Markup)]) -> Markup {
    html! {
        dl.facts { @for (name, value) in facts { div { dt { (t.of(*name)) } dd { (value) } } } }
    }
}

/// Returns the link to the next page of a list, if there is one.
pub(super) fn pager(t: Texts, page: &str, filters: &[(&str, &str)], next: Option<&str>) -> Markup {
    html! {
        @if let Some(next) = next {
            p { a href=(address(page, &[filters, &[("after", next)]].concat())) { (t.of(Text::NextPage)) } }
        }
    }
}

/// Returns why a call of the admin API was refused. Its words are English: on a page in another language, the title of their code
/// comes first.
pub(super) fn refusal(t: Texts, problem: &Problem) -> Markup {
    let is_translated = t.0 != Language::English;
    // The console's own problems are in the language of the page.
    let language = (is_translated && problem.detail.is_ascii()).then_some("en");
    html! {
        @if is_translated { (t.of(Text::Refused(problem.code))) " " }
        bdi lang=[language] { (Prose::of(&*problem.detail)) }
    }
}

/// Returns the state of an engine as a word and a shape.
pub(super) fn health(t: Texts, is_up: Option<bool>) -> Markup {
    match is_up {
        Some(true) => html! { span.good { "● " (t.of(Text::Answers)) } },
        Some(false) => html! { span.bad { "■ " (t.of(Text::DoesNotAnswer)) } },
        None => html! { span.muted { "○ " (t.of(Text::NotCheckedYet)) } },
    }
}

/// Returns the path of a page below `/console`, with these parts.
pub(super) fn path(parts: &[&str]) -> String {
    parts.iter().fold("/console".to_owned(), |path, part| format!("{path}/{}", escaped(part)))
}

/// Returns a path with these parameters. Empty ones are left out.
pub(super) fn address(path: &str, parameters: &[(&str, &str)]) -> String {
    let filled = parameters.iter().filter(|(_, value)| !value.is_empty());
    let query: Vec<_> = filled.map(|(name, value)| format!("{name}={}", escaped(value))).collect();
    if query.is_empty() { path.to_owned() } else { format!("{path}?{}", query.join("&")) }
}

/// Returns the link to the logs of a request or an attempt, if the configuration has one.
pub(super) fn logs(t: Texts, links: &ConsoleLinks, link: Link, value: &str) -> Markup {
    let address = links.address(link, &escaped(value));
    html! { @if let Some(address) = address { " " a href=(address) rel="noreferrer" { (t.of(Text::SearchLogs)) } } }
}

/// Returns the address of the page of a claim. The realm is the admin API's.
pub(super) fn claim_page(app: &Untrusted, global_id: &Untrusted, realm: &str) -> String {
    let realm = if realm == "proxy" { "proxy" } else { "" };
    address(&path(&["claims", app.raw(), global_id.raw()]), &[("realm", realm)])
}

fn escaped(value: &str) -> String {
    utf8_percent_encode(value, ESCAPED).to_string()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn values_cannot_leave_their_part_of_an_address() {
        assert_eq!(path(&["locks", "shop", "a/b?c#d"]), "/console/locks/shop/a%2Fb%3Fc%23d");
        assert_eq!(address("/x", &[("app", "a&b=c"), ("none", "")]), "/x?app=a%26b%3Dc");
        assert_eq!(address("/x", &[("none", "")]), "/x");
    }
}
