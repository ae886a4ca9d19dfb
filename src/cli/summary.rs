//! `oncegate summary`: the state of a gateway, and what needs a person.

use clap::Args;
use serde_json::Value;

use super::admin_client::QueryArgs;
use super::output::{self, Column, Out, cell, rows};

const EXAMPLES: &str = "\
Examples:
  oncegate summary
  oncegate summary --admin https://gateway.example:9464 --ca ca.pem --output json

It shows what this gateway has seen and calls no store, so it also answers while one is unavailable. What to do for each
KIND: the operator's guide.";

#[derive(Args, Debug)]
#[command(after_help = EXAMPLES)]
pub(super) struct SummaryArgs {
    #[command(flatten)]
    query: QueryArgs,
}

const COLUMNS: &[Column] = &[
    ("SEVERITY", |entry| cell(&entry["severity"])),
    ("KIND", |entry| cell(&entry["kind"])),
    ("SINCE", |entry| cell(&entry["since"])),
    ("APP", |entry| cell(&entry["app"])),
    ("SUBJECT", |entry| cell(&entry["subject"])),
    ("COUNT", |entry| cell(&entry["count"])),
    ("TEXT", |entry| cell(&entry["text"])),
];

pub(super) fn run(args: SummaryArgs, out: &mut impl Out) -> anyhow::Result<()> {
    args.query.show("/admin/v1/summary", out, show)
}

fn show(summary: &Value, out: &mut impl Out) -> anyhow::Result<()> {
    let [entries, bytes, bytes_max] = ["entries", "bytes", "bytes_max"].map(|name| cell(&summary["spool"][name]));
    let mut fields = vec![
        ("Stage", cell(&summary["stage"])),
        ("Version", cell(&summary["version"])),
        ("Started at", cell(&summary["started_at"])),
        ("Engines", listed(summary, "engines", engine)),
        ("Chains", listed(summary, "chains", chain)),
        ("Spool", format!("{entries} entries, {bytes} of {bytes_max} bytes")),
        ("Claim calls", claim_calls(summary)),
        ("Repeats today", repeats(&summary["today"])),
    ];
    if summary["today"]["observed_answers"].as_u64().is_some_and(|passed| passed > 0) {
        fields.push(("Ran twice today", second_runs(&summary["today"])));
    }
    if summary["open"] == true {
        fields.push(("Callers", "any, without a credential: no app is configured".to_owned()));
    }
    output::record(&fields, out)?;
    writeln!(out)?;
    let attention = rows(summary, "attention");
    if attention.is_empty() {
        return Ok(writeln!(out, "Nothing needs a person.")?);
    }
    output::table(attention, COLUMNS, out)
}

/// Returns the claim calls per second by their answer, and their times.
fn claim_calls(summary: &Value) -> String {
    let rates = ["granted", "duplicate", "mismatch", "observed", "refused", "degraded"];
    let rates =
        rates.iter().filter_map(|name| Some((name, summary["rates"][name].as_f64().filter(|rate| *rate > 0.0)?)));
    let mut parts: Vec<_> = rates.map(|(name, rate)| format!("{name} {rate:.1}/s")).collect();
    let times =
        [("p50", "p50_ms"), ("p99", "p99_ms")].map(|(name, member)| (name, summary["latencies"][member].as_f64()));
    parts.extend(times.iter().filter_map(|(name, time)| time.map(|time| format!("{name} at most {time:.1} ms"))));
    if parts.is_empty() { "none in the last minute".to_owned() } else { parts.join(", ") }
}

/// Returns how many operations have met a repeat today.
fn repeats(today: &Value) -> String {
    let [operations, answers, since] =
        ["repeated_operations", "repeat_answers", "since"].map(|name| cell(&today[name]));
    let at_least = if today["at_least"] == true { "at least " } else { "" };
    let noun = if operations == "1" { "operation after it was" } else { "operations after they were" };
    format!("{at_least}{operations} {noun} done or unknown, {answers} answers, since {since}")
}

/// Returns how many operations ran a second time today, because observe mode let them pass.
fn second_runs(today: &Value) -> String {
    let [operations, passed] = ["ran_twice_operations", "observed_answers"].map(|name| cell(&today[name]));
    let at_least = if today["at_least"] == true { "at least " } else { "" };
    let noun = if operations == "1" { "operation" } else { "operations" };
    let calls = if passed == "1" { "call" } else { "calls" };
    format!("{at_least}{operations} {noun}; observe mode let {passed} {calls} pass")
}

fn listed(summary: &Value, name: &str, text: fn(&Value) -> String) -> String {
    rows(summary, name).iter().map(text).collect::<Vec<_>>().join(", ")
}

fn engine(engine: &Value) -> String {
    let state = match engine["up"].as_bool() {
        Some(true) => "up",
        Some(false) => "down",
        None => "not checked yet",
    };
    format!("{} ({state})", cell(&engine["name"]))
}

fn chain(chain: &Value) -> String {
    format!("{} (on {}, epoch {})", cell(&chain["name"]), cell(&chain["active"]), cell(&chain["epoch"]))
}

#[cfg(test)]
mod tests {
    use insta::assert_snapshot;
    use serde_json::json;

    use super::*;

    fn shown(attention: &Value) -> String {
        let summary = json!({
            "stage": "ready", "version": "1.4.0", "started_at": "2026-10-01T08:00:00.000000Z",
            "engines": [
                { "name": "primary", "up": false },
                { "name": "spare", "up": true },
                { "name": "local", "up": null },
            ],
            "chains": [{ "name": "default", "active": "primary", "epoch": 2 }],
            "spool": { "entries": 14, "bytes": 6000, "bytes_max": 67_108_864 },
            "attention": attention,
            "rates": { "granted": 1102.4, "duplicate": 61.2, "mismatch": 0.0, "observed": null, "refused": 38.5, "degraded": null },
            "latencies": { "p50_ms": 0.6, "p99_ms": 2.1 },
            "today": { "since": "2026-10-13T00:00:00.000000Z", "repeated_operations": 3, "repeat_answers": 5, "at_least": true, "observed_answers": 9, "ran_twice_operations": 2 },
        });
        let mut out = Vec::new();
        show(&summary, &mut out).unwrap();
        String::from_utf8(out).unwrap()
    }

    #[test]
    fn a_gateway_is_shown_with_what_needs_a_person() {
        assert_snapshot!(shown(&json!([{
            "severity": "critical", "kind": "store_down", "since": "2026-10-13T12:41:00.000000Z", "app": null,
            "subject": "primary", "count": 1, "text": "Engine `primary` does not answer\u{9b}: refused.",
        }])), @r"
        Stage            ready
        Version          1.4.0
        Started at       2026-10-01T08:00:00.000000Z
        Engines          primary (down), spare (up), local (not checked yet)
        Chains           default (on primary, epoch 2)
        Spool            14 entries, 6000 of 67108864 bytes
        Claim calls      granted 1102.4/s, duplicate 61.2/s, refused 38.5/s, p50 at most 0.6 ms, p99 at most 2.1 ms
        Repeats today    at least 3 operations after they were done or unknown, 5 answers, since 2026-10-13T00:00:00.000000Z
        Ran twice today  at least 2 operations; observe mode let 9 calls pass

        SEVERITY  KIND        SINCE                        APP  SUBJECT  COUNT  TEXT
        critical  store_down  2026-10-13T12:41:00.000000Z  -    primary  1      Engine `primary` does not answer\u{9b}: refused.
        ");
        assert!(shown(&json!([])).ends_with("\n\nNothing needs a person.\n"));
        assert_eq!(claim_calls(&json!({ "rates": { "granted": null }, "latencies": {} })), "none in the last minute");
        let one = json!({ "repeated_operations": 1, "repeat_answers": 2, "ran_twice_operations": 1, "observed_answers": 1, "since": "now" });
        assert_eq!(repeats(&one), "1 operation after it was done or unknown, 2 answers, since now");
        assert_eq!(second_runs(&one), "1 operation; observe mode let 1 call pass");
    }
}
