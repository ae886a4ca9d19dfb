//! `/console/operations` and `/console/operations/{app}/{operation}`: what operations have been answered, and how their rates have changed.

use std::sync::Arc;

use maud::{Markup, html};
use oncegate_telemetry::operations::ResultGroup;
use oncegate_web::problem::{Code, Problem};
use serde::Deserialize;

use super::apps::{self, KnownApps};
use super::context::{Answer, Context};
use super::parts::{address, facts, path, refusal, table};
use super::recent::{self, Recent};
use super::texts::{Text, Texts};
use super::traffic::{self, History};
use super::untrusted::Untrusted;
use super::{layout, times};
use crate::operations::Duplicates;

/// Series of one call of the history.
const SERIES_MAX: usize = 16;

/// `GET /admin/v1/operations`.
#[derive(Deserialize)]
struct OperationsPage {
    since: String,
    operations: Vec<CountedOperation>,
    more: bool,
}

/// An operation.
#[derive(Deserialize)]
struct CountedOperation {
    app: Untrusted,
    operation: Untrusted,
    mode: Option<String>,
    claims: u64,
    granted: u64,
    duplicates: Duplicates,
    mismatches: u64,
    refused: u64,
    observed: u64,
    ran_twice: u64,
    claims_per_second: Option<f32>,
    app_p99_seconds: Option<f32>,
}

/// Draws the list.
pub(super) async fn list(context: Arc<Context>) -> Result<Answer, Problem> {
    let t = context.texts();
    let app = context.query("app").unwrap_or_default();
    let call = address("/admin/v1/operations", &[("app", app), ("limit", "50")]);
    let OperationsPage { since, operations, more } = context.get(&call).await?;
    let apps = KnownApps::of(&context);
    let lines = lines(&context, &operations).await;
    let main = html! {
        div.heading { h1 { (t.of(Text::Operations)) } span.muted { (t.of(Text::ThisGateway)) " · " (t.of(Text::SinceTime(&times::instant(&since)))) } }
        @if apps.keys.len() > 1 { (apps::choose(t, "/console/operations", &apps, app, true, None)) }
        @if operations.is_empty() {
            p { (t.of(Text::NoCallsYet)) }
            pre { "oncegate once order.submit '{\"order_id\": \"A-1001\"}' -- /usr/local/bin/submit" }
        } @else {
            (rows(t, &operations, &lines))
            @if more { p { (t.of(Text::BusiestOnly)) } }
        }
        (layout::sources(t, &[&address("operations", &[("app", app)])], "oncegate operations"))
    };
    Ok(Answer::Page(Text::Operations, main))
}

/// Returns the line of the granted calls of each operation. Without a history there are none.
async fn lines(context: &Context, operations: &[CountedOperation]) -> Vec<Markup> {
    let mut lines = Vec::new();
    for some in operations.chunks(SERIES_MAX) {
        let granted = |of: &CountedOperation| ResultGroup::Granted.series(of.app.raw(), of.operation.raw());
        let names: Vec<_> = some.iter().map(granted).collect();
        let history = context.get::<History>(&address("/admin/v1/history", &[("series", &names.join(","))])).await;
        let title = context.texts().of(Text::GrantedCalls);
        lines.extend(
            names.iter().map(|name| history.as_ref().map_or_else(|_| html! {}, |found| found.line(&title, name))),
        );
    }
    lines
}

fn rows(t: Texts, operations: &[CountedOperation], lines: &[Markup]) -> Markup {
    let columns = [
        Text::Operation,
        Text::ClaimCalls,
        Text::GrantedCalls,
        Text::RepeatsByState,
        Text::Mismatches,
        Text::RefusedCalls,
        Text::WouldHaveStopped,
        Text::AppHighLatency,
        Text::LastHour,
    ];
    let rows = html! {
        @for (operation, line) in operations.iter().zip(lines) {
            @let Duplicates { in_progress, succeeded, unknown } = operation.duplicates;
            tr {
                th scope="row" { a href=(path(&["operations", operation.app.raw(), operation.operation.raw()])) { (operation.app) " / " (operation.operation) } }
                td.number { (operation.claims) br; span.muted { (traffic::value(t, "", operation.claims_per_second)) } }
                td.number { (operation.granted) }
                td.number { (in_progress) " / " (succeeded) " / " (unknown) }
                td.number { (operation.mismatches) }
                td.number { (operation.refused) }
                td.number { @if operation.mode.as_deref() == Some("observe") || operation.observed > 0 { (operation.observed) } @else { "–" } }
                td.number { (traffic::value(t, "p99", operation.app_p99_seconds)) }
                td { (line) }
            }
        }
    };
    table(t, Text::Operations, &columns, &rows)
}

/// Draws the page of one operation.
pub(super) async fn show(context: Arc<Context>) -> Result<Answer, Problem> {
    let t = context.texts();
    let part = |name: &str| context.parameters.get(name).cloned().unwrap_or_default();
    let (app, name) = (part("app"), part("operation"));
    let filters = [("app", &*app), ("operation", &*name)];
    let series = ResultGroup::ALL.map(|group| group.series(&app, &name)).join(",");
    let [totals, events, lines] = [
        address("/admin/v1/operations", &filters),
        address("/admin/v1/recent", &[&filters[..], &[("limit", "20")]].concat()),
        address("/admin/v1/history", &[("series", &series)]),
    ];
    let (found, events, history) = tokio::join!(
        context.get::<OperationsPage>(&totals),
        context.get::<Recent>(&events),
        context.get::<History>(&lines),
    );
    let OperationsPage { since, operations, .. } = found?;
    let operation = operations.first().ok_or_else(|| Problem::new(Code::NotFound, t.of(Text::NoSuchOperation)))?;
    let main = html! {
        div.heading {
            h1 { (operation.app) " / " (operation.operation) }
            span.muted { (t.of(Text::ThisGateway)) " · " (t.of(Text::SinceTime(&times::instant(&since)))) }
        }
        (numbers(t, operation))
        div data-live="history" {
            (layout::heading(&t.of(Text::Traffic), &t.of(Text::ThisGateway)))
            @match &history {
                Ok(history) => (traffic::draw(t, history)),
                Err(problem) => p.notice { (refusal(t, problem)) },
            }
        }
        (layout::heading(&t.of(Text::Recent), &t.of(Text::ThisGateway)))
        @match &events {
            Ok(events) => (recent::list(&context, events)),
            Err(problem) => p.notice { (refusal(t, problem)) },
        }
        (layout::sources(
            t,
            &[&address("operations", &filters), &address("recent", &filters), &address("history", &[("series", &series)])],
            &format!("oncegate operations --app {app} --operation {name}"),
        ))
    };
    Ok(Answer::Page(Text::Operations, main))
}

fn numbers(t: Texts, operation: &CountedOperation) -> Markup {
    let number = |number: u64| html! { (number) };
    let Duplicates { in_progress, succeeded, unknown } = operation.duplicates;
    html! {
        @if operation.mode.as_deref() == Some("observe") {
            p.notice { (t.of(Text::Observes { stopped: operation.observed, twice: operation.ran_twice })) }
        }
        (facts(t, &[
            (Text::ClaimCalls, html! { (operation.claims) " · " (traffic::value(t, "", operation.claims_per_second)) }),
            (Text::GrantedCalls, number(operation.granted)),
            (Text::RepeatsByState, html! { (in_progress) " / " (succeeded) " / " (unknown) }),
            (Text::Mismatches, number(operation.mismatches)),
            (Text::RefusedCalls, number(operation.refused)),
            (Text::AppHighLatency, html! { (traffic::value(t, "p99", operation.app_p99_seconds)) }),
        ]))
    }
}
