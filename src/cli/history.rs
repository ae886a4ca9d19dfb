//! `oncegate history`: rates and latencies of a gateway over the last hour, day or two weeks.

use clap::Args;
use serde_json::{Value, json};

use super::admin_client::QueryArgs;
use super::arguments::instant;
use super::output::{self, Column, Out, cell, rows};

const EXAMPLES: &str = "\
Examples:
  oncegate history
  oncegate history --series shop/order.submit/granted,shop/p99 --from 2026-10-20T09:00:00Z
  oncegate history --output json

The points are of 10 seconds for an hour, of a minute for a day, and of 15 minutes for two weeks; --output json has them all. A
rate is in calls per second, a latency in seconds. Each gateway keeps its own.";

#[derive(Args, Debug)]
#[command(after_help = EXAMPLES)]
pub(super) struct HistoryArgs {
    /// Names of series, separated by commas [default: the totals]
    #[arg(long, value_name = "NAMES")]
    series: Option<String>,
    /// Begin at this instant, such as 2026-10-20T09:00:00Z [default: an hour before the end]
    #[arg(long, value_name = "INSTANT", value_parser = instant)]
    from: Option<jiff::Timestamp>,
    /// End at this instant [default: now]
    #[arg(long, value_name = "INSTANT", value_parser = instant)]
    to: Option<jiff::Timestamp>,
    /// List the names of all series
    #[arg(long)]
    names: bool,
    #[command(flatten)]
    query: QueryArgs,
}

const COLUMNS: &[Column] = &[
    ("SERIES", |series| cell(&series["name"])),
    ("UNIT", |series| cell(&series["unit"])),
    ("POINTS", |series| cell(&series["points"])),
    ("LOWEST", |series| cell(&series["lowest"])),
    ("MEAN", |series| cell(&series["mean"])),
    ("HIGHEST", |series| cell(&series["highest"])),
    ("LAST", |series| cell(&series["last"])),
];

pub(super) fn run(args: HistoryArgs, out: &mut impl Out) -> anyhow::Result<()> {
    let HistoryArgs { series, from, to, names, query } = args;
    let text = |at: Option<jiff::Timestamp>| at.map(|at| at.to_string());
    let parameters = [("series", series), ("from", text(from)), ("to", text(to))];
    let parameters: Vec<_> =
        parameters.into_iter().filter_map(|(name, value)| value.map(|value| format!("{name}={value}"))).collect();
    let separator = if parameters.is_empty() { "" } else { "?" };
    let path = format!("/admin/v1/history{separator}{}", parameters.join("&"));
    query.show(&path, out, |answer, out| if names { show_names(answer, out) } else { show(answer, out) })
}

fn show_names(answer: &Value, out: &mut impl Out) -> anyhow::Result<()> {
    for name in rows(answer, "names") {
        writeln!(out, "{}", cell(name))?;
    }
    Ok(())
}

fn show(answer: &Value, out: &mut impl Out) -> anyhow::Result<()> {
    let series: Vec<_> = rows(answer, "series").iter().map(summary).collect();
    output::table(&series, COLUMNS, out)?;
    let seconds = answer["step_ms"].as_u64().unwrap_or_default() / 1000;
    Ok(writeln!(out, "\nFrom {}, a point for each {seconds} s.", cell(&answer["from"]))?)
}

fn summary(series: &Value) -> Value {
    let values: Vec<f64> = rows(series, "values").iter().filter_map(Value::as_f64).collect();
    let rounded = |value: Option<f64>| value.map_or(Value::Null, |value| json!(format!("{value:.4}")));
    let count = f64::from(u32::try_from(values.len()).unwrap_or(u32::MAX));
    json!({
        "name": series["name"],
        "unit": series["unit"],
        "points": values.len(),
        "lowest": rounded(values.iter().copied().reduce(f64::min)),
        "mean": rounded((!values.is_empty()).then(|| values.iter().sum::<f64>() / count)),
        "highest": rounded(values.iter().copied().reduce(f64::max)),
        "last": rounded(values.last().copied()),
    })
}

#[cfg(test)]
mod tests {
    use insta::assert_snapshot;

    use super::*;

    #[test]
    fn series_are_rows_with_their_range() {
        let series = json!([
            { "name": "granted", "unit": "per_second", "values": [null, 1.5, 2.5, 2.0] },
            { "name": "p99", "unit": "seconds", "values": [] },
        ]);
        let mut out = Vec::new();
        show(&json!({ "step_ms": 10000, "from": "2026-10-20T09:30:10.000000Z", "series": series }), &mut out).unwrap();
        assert_snapshot!(String::from_utf8(out).unwrap(), @r"
        SERIES   UNIT        POINTS  LOWEST  MEAN    HIGHEST  LAST
        granted  per_second  3       1.5000  2.0000  2.5000   2.0000
        p99      seconds     0       -       -       -        -

        From 2026-10-20T09:30:10.000000Z, a point for each 10 s.
        ");
    }
}
