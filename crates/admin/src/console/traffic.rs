//! Answers to callers of this gateway in the last hour, for the overview.

use std::time::Duration;

use maud::{Markup, html};
use serde::Deserialize;

use super::chart::sparkline;
use super::parts::table;
use super::texts::{Text, Texts};

/// `GET /admin/v1/history`.
#[derive(Deserialize)]
pub(super) struct History {
    step_ms: u64,
    series: Vec<Series>,
}

/// A series.
#[derive(Deserialize)]
struct Series {
    name: String,
    values: Vec<Option<f32>>,
}

impl History {
    /// Returns how many calls a series has counted in its time, or nothing if it has no values.
    pub(super) fn count(&self, name: &str) -> Option<f64> {
        let series = self.series.iter().find(|series| series.name == name)?;
        let rates = series.values.iter().flatten().map(|rate| f64::from(*rate));
        let sum = rates.reduce(|sum, rate| sum + rate)?;
        Some(sum * Duration::from_millis(self.step_ms).as_secs_f64())
    }

    /// Returns the line of a series, or nothing if it has no values.
    pub(super) fn line(&self, title: &str, name: &str) -> Markup {
        let series = self.series.iter().find(|series| series.name == name && series.values.iter().any(Option::is_some));
        html! { @if let Some(series) = series { (sparkline(title, &series.values)) } }
    }
}

/// Groups of answers to claim calls. Together they are all calls.
const CALLS: [&str; 5] = ["granted", "duplicate", "mismatch", "observed", "refused"];

/// Returns the newest rate of claim calls and their latencies, for the heading.
pub(super) fn newest(t: Texts, history: &History) -> Markup {
    let last = |name: &str| {
        let series = history.series.iter().find(|series| series.name == name)?;
        series.values.iter().rev().flatten().next().copied()
    };
    let calls = CALLS.iter().filter_map(|name| last(name)).reduce(|sum, rate| sum + rate);
    html! {
        @if calls.is_some() {
            p.facts {
                strong { (value(t, "", calls)) " " (t.of(Text::ClaimCalls)) }
                @for name in ["p50", "p99"] { span { (name) " " (value(t, name, last(name))) } }
            }
        }
    }
}

/// Returns the lines of an hour with their last and highest values.
pub(super) fn draw(t: Texts, history: &History) -> Markup {
    let known = |series: &&Series| series.values.iter().any(Option::is_some);
    if !history.series.iter().any(|series| known(&series)) {
        return html! { p { (t.of(Text::NoCallsYet)) } };
    }
    let columns = [Text::AnswerOf, Text::Now, Text::Highest, Text::LastHour];
    let rows = html! {
        @for series in history.series.iter().filter(known) {
            @let title = t.of(title(&series.name));
            tr {
                th scope="row" { (title) }
                td.number { (value(t, &series.name, series.values.iter().rev().flatten().next().copied())) }
                td.number { (value(t, &series.name, series.values.iter().flatten().copied().reduce(f32::max))) }
                td { (sparkline(&title, &series.values)) }
            }
        }
    };
    table(t, Text::Traffic, &columns, &rows)
}

/// Returns the words for what a series measures; its app and operation come before that.
fn title(name: &str) -> Text<'static> {
    match own_name(name) {
        "granted" => Text::GrantedCalls,
        "duplicate" => Text::Repeats,
        "mismatch" => Text::Mismatches,
        "observed" => Text::WouldHaveStopped,
        "refused" => Text::RefusedCalls,
        "degraded" => Text::PolicyAnswers,
        "p50" => Text::MedianLatency,
        _ => Text::HighLatency,
    }
}

fn own_name(name: &str) -> &str {
    name.rsplit('/').next().unwrap_or(name)
}

/// Returns a value of a series with its unit.
pub(super) fn value(t: Texts, name: &str, value: Option<f32>) -> String {
    match (value, own_name(name)) {
        (None, _) => "–".to_owned(),
        (Some(value), "p50" | "p99") => format!("≤ {:.1} ms", value * 1000.0),
        (Some(value), _) if value >= 10.0 => format!("{value:.0} {}", t.of(Text::PerSecond)),
        (Some(value), _) => format!("{value:.2} {}", t.of(Text::PerSecond)),
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::console::texts::Language;

    #[test]
    fn the_heading_has_all_claim_calls_of_the_newest_points() {
        let t = Texts(Language::English);
        let series = |name: &str, values: &[Option<f32>]| Series { name: name.to_owned(), values: values.to_vec() };
        let history = History {
            step_ms: 10_000,
            series: vec![
                series("granted", &[Some(500.0), Some(40.0)]),
                series("duplicate", &[Some(20.0), None]),
                series("mismatch", &[]),
                series("observed", &[Some(1.0), Some(3.0)]),
                series("refused", &[Some(7.0)]),
                // Not added: an answer of a policy is counted as a grant or a refusal too.
                series("degraded", &[Some(900.0)]),
                series("p99", &[Some(0.0021)]),
            ],
        };
        let shown = newest(t, &history).into_string();
        assert!(
            shown.contains("70 /s Claim calls") && shown.contains("p50 –") && shown.contains("p99 ≤ 2.1 ms"),
            "{shown}"
        );
        let rows = draw(t, &history).into_string();
        for title in ["Granted", "Repeats", "Would have stopped", "Refused, 503", "Outage policies", "Latency p99"] {
            assert!(rows.contains(&format!("<th scope=\"row\">{title}</th>")), "{title}: {rows}");
        }
        assert_eq!(
            (rows.matches("<svg").count(), rows.matches("<th scope=\"row\">Mismatches").count()),
            (6, 0),
            "{rows}"
        );
        assert_eq!(newest(t, &History { step_ms: 10_000, series: Vec::new() }).into_string(), "");
    }
}
