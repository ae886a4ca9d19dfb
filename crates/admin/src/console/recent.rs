//! Recent answers of this gateway: `/console/recent`, and the repeats of one claim for its timeline.

use std::sync::Arc;

use maud::{Markup, html};
use oncegate_web::problem::Problem;
use serde::Deserialize;

use super::apps::{self, KnownApps};
use super::context::{Answer, Context};
use super::options::{ConsoleLinks, Link};
use super::parts::{address, claim_page, logs, pager, table};
use super::texts::{Text, Texts};
use super::untrusted::Untrusted;
use super::{layout, times};

/// Kinds that the page offers.
const KINDS: [(&str, Text<'static>); 9] = [
    ("", Text::AllKinds),
    ("duplicate", Text::Repeats),
    ("mismatch", Text::Mismatches),
    ("refused", Text::Refusals),
    ("late", Text::LateOutcomes),
    ("superseded", Text::SupersededCalls),
    ("degraded", Text::PolicyAnswers),
    ("observed", Text::ObservedCalls),
    ("ran_twice", Text::RanTwiceHere),
];

/// `GET /admin/v1/recent`.
#[derive(Deserialize)]
pub(super) struct Recent {
    pub(super) events: Vec<Event>,
    next: Option<u64>,
    lost: u64,
}

/// An event.
#[derive(Deserialize)]
pub(super) struct Event {
    at: String,
    kind: String,
    detail: Untrusted,
    pub(super) app: Untrusted,
    operation: Option<Untrusted>,
    pub(super) global_id: Option<Untrusted>,
    pub(super) attempt_hash: Option<Untrusted>,
    pub(super) request_id: Untrusted,
}

/// Events of one kind and detail that follow each other.
pub(super) struct Group<'a> {
    /// The time of the oldest.
    pub(super) from: &'a str,
    to: &'a str,
    count: usize,
    newest: &'a Event,
}

impl Recent {
    /// Reports whether there are older events.
    pub(super) fn has_more(&self) -> bool {
        self.next.is_some()
    }

    /// Returns the events of a claim at this gateway, the oldest first; equal ones are combined.
    pub(super) fn groups(&self) -> Vec<Group<'_>> {
        let mut groups: Vec<Group<'_>> = Vec::new();
        for event in self.events.iter().rev() {
            match groups.last_mut().filter(|last| last.newest.kind == event.kind && last.newest.detail == event.detail)
            {
                Some(last) => {
                    last.to = &event.at;
                    last.count += 1;
                    last.newest = event;
                }
                None => groups.push(Group { from: &event.at, to: &event.at, count: 1, newest: event }),
            }
        }
        groups
    }
}

impl Group<'_> {
    /// Returns the line of a timeline.
    pub(super) fn draw(&self, t: Texts, links: &ConsoleLinks) -> Markup {
        html! {
            (times::instant(self.from))
            @if self.count > 1 { " – " (times::instant(self.to).split(' ').next_back().unwrap_or_default()) }
            " · " @if self.count > 1 { (self.count) " × " }
            (t.of(words(self.newest)))
            " · " span.muted { (t.of(Text::Request)) " " code { (self.newest.request_id) } (logs(t, links, Link::Request, self.newest.request_id.raw())) }
        }
    }
}

/// Draws the page.
pub(super) async fn show(context: Arc<Context>) -> Result<Answer, Problem> {
    let t = context.texts();
    let filters = ["kind", "app", "operation"].map(|name| (name, context.query(name).unwrap_or_default()));
    let rest = [("after", context.query("after").unwrap_or_default()), ("limit", "50")];
    let call = address("/admin/v1/recent", &[&filters[..], &rest].concat());
    let (recent, apps) = (context.get::<Recent>(&call).await?, KnownApps::of(&context));
    let next = recent.next.map(|next| next.to_string());
    let main = html! {
        div.heading { h1 { (t.of(Text::Recent)) } span.muted { (t.of(Text::ThisGateway)) } }
        p { (t.of(Text::RecentAbout)) @if recent.lost > 0 { " " (t.of(Text::EventsLost(recent.lost))) } }
        p.filters {
            @for (kind, title) in KINDS {
                @let href = address("/console/recent", &[("kind", kind), filters[1], filters[2]]);
                a href=(href) aria-current=[(kind == filters[0].1).then_some("true")] { (t.of(title)) } " "
            }
        }
        @if apps.keys.len() > 1 { (apps::choose(t, "/console/recent", &apps, filters[1].1, true, Some(filters[0]))) }
        (list(&context, &recent))
        (pager(t, "/console/recent", &filters, next.as_deref()))
        (layout::sources(t, &[&address("recent", &filters)], "oncegate recent"))
    };
    Ok(Answer::Page(Text::Recent, main))
}

/// Returns the table of events, the newest first.
pub(super) fn list(context: &Context, recent: &Recent) -> Markup {
    let t = context.texts();
    if recent.events.is_empty() {
        return html! { p { (t.of(Text::NoEvents)) } };
    }
    let rows = html! {
        @for event in &recent.events {
            tr {
                td { (times::instant(&event.at)) }
                td { (event.app) @if let Some(operation) = &event.operation { " / " (operation) } }
                td { @if let Some(id) = &event.global_id { a href=(claim_page(&event.app, id, "api")) { code { (id) } } } @else { "–" } }
                td { (t.of(words(event))) }
                td { code { (event.request_id) } (logs(t, context.links(), Link::Request, event.request_id.raw())) }
            }
        }
    };
    table(t, Text::Recent, &[Text::When, Text::Operation, Text::Claim, Text::What, Text::Request], &rows)
}

fn words(event: &Event) -> Text<'_> {
    let detail = event.detail.raw();
    match event.kind.as_str() {
        "duplicate" => Text::RepeatGot(detail),
        "mismatch" => Text::MismatchGot(detail),
        "late" => Text::CameLate(detail),
        "superseded" => Text::SupersededGot(detail),
        "degraded" => Text::PolicyAnswered(detail),
        "observed" => Text::WouldGet(detail),
        "ran_twice" => Text::SecondRun(detail),
        _ => Text::RefusedWith(detail),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn event(second: u32, kind: &str, detail: &str) -> Event {
        Event {
            at: format!("2026-10-20T09:30:{second:02}.000000Z"),
            kind: kind.into(),
            detail: detail.into(),
            app: "shop".into(),
            operation: None,
            global_id: None,
            attempt_hash: None,
            request_id: format!("r-{second}").into(),
        }
    }

    #[test]
    fn events_that_are_the_same_are_one_line() {
        let events = [
            event(33, "duplicate", "succeeded"),
            event(32, "duplicate", "succeeded"),
            event(31, "superseded", "superseded"),
            event(30, "duplicate", "in_progress"),
        ];
        let recent = Recent { events: events.into(), next: None, lost: 0 };
        let groups = recent.groups();
        assert_eq!(groups.iter().map(|group| group.count).collect::<Vec<_>>(), [1, 1, 2], "the oldest first");
        let line =
            groups[2].draw(Texts(super::super::texts::Language::English), &ConsoleLinks::default()).into_string();
        assert!(line.starts_with("2026-10-20 09:30:32 – 09:30:33 · 2 × ") && line.contains("r-33"), "{line}");
    }
}
