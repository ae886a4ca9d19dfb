//! The alert rules in `deploy/prometheus`: they fire when they have to, ask for metrics that there are, and name a runbook
//! that is written.

use std::collections::BTreeSet;
use std::path::Path;
use std::process::Command;

use oncegate_testkit::missing;

mod firing;

const RULES: &str = include_str!("../../deploy/prometheus/oncegate.rules.yml");

/// Address of the pages of this repository.
const PAGES: &str = concat!(env!("CARGO_PKG_REPOSITORY"), "/blob/main/");

fn root() -> &'static Path {
    Path::new(env!("CARGO_MANIFEST_DIR"))
}

#[test]
fn each_alert_fires_when_it_has_to_and_none_at_a_healthy_gateway() {
    let mut promtool = Command::new("promtool");
    promtool.args(["test", "rules", "oncegate.rules.test.yml"]).current_dir(root().join("deploy/prometheus"));
    let Ok(output) = promtool.output() else { return missing::skip("promtool") };
    let said = [output.stdout, output.stderr].concat();
    assert!(output.status.success(), "{}", String::from_utf8_lossy(&said));
    let scenarios = include_str!("../../deploy/prometheus/oncegate.rules.test.yml");
    for alert in values("alert:") {
        assert!(scenarios.contains(&format!("        alertname: {alert}\n")), "no scenario has {alert} fire");
    }
}

#[test]
fn alerts_ask_for_metrics_that_there_are() {
    let mut known = String::new();
    read_all(&root().join("crates/telemetry/src"), &mut known);
    let names = RULES.split(|char: char| !(char.is_ascii_lowercase() || char == '_'));
    let names: BTreeSet<&str> = names.filter(|name| name.starts_with("oncegate_")).collect();
    assert!(names.len() > 10, "the rules name metrics: {names:?}");
    for name in names {
        let name = name.strip_suffix("_count").unwrap_or(name);
        assert!(known.contains(&format!("\"{name}\"")), "no gateway has the metric {name}");
    }
}

#[test]
fn operators_watch_metrics_that_there_are() {
    let mut known = String::new();
    read_all(&root().join("crates/telemetry/src"), &mut known);
    let page = include_str!("../../docs/operations.md");
    let table = page.split("## What to watch\n").nth(1).and_then(|rest| rest.split("\n## ").next()).expect("a table");
    let signals: Vec<&str> = table.lines().filter_map(|row| row.strip_prefix("| `")?.split(" | ").next()).collect();
    assert!(signals.len() > 20, "signals: {signals:?}");
    for metric in signals.iter().flat_map(|signal| signal.split('`').step_by(2)) {
        let end = metric.find(|char: char| !(char.is_ascii_lowercase() || char == '_')).unwrap_or(metric.len());
        let name = metric[..end].trim_end_matches("_count");
        assert!(known.contains(&format!("\"oncegate_{name}\"")), "no gateway has the metric of {metric}");
    }
}

#[test]
fn alerts_name_a_runbook_that_is_written() {
    for runbook in values("runbook_url:") {
        let runbook = runbook.strip_prefix(PAGES).expect("an absolute address");
        let (page, heading) = runbook.split_once('#').expect("a heading of a page");
        let page = std::fs::read_to_string(root().join(page)).expect("a page");
        let headings = page.lines().filter_map(|line| line.strip_prefix("## ").or(line.strip_prefix("### ")));
        let anchor = |text: &str| {
            let plain = text.to_lowercase().replace(' ', "-");
            plain.chars().filter(|char| char.is_alphanumeric() || *char == '-').collect::<String>()
        };
        assert!(headings.map(anchor).any(|anchor| anchor == heading), "{runbook} leads nowhere");
    }
}

/// Returns the values of a key in all rules.
fn values(key: &str) -> Vec<&str> {
    let found: Vec<&str> =
        RULES.lines().filter_map(|line| line.split_once(key).map(|(_, value)| value.trim())).collect();
    assert!(!found.is_empty(), "the rules have no {key}");
    found
}

fn read_all(folder: &Path, text: &mut String) {
    for entry in std::fs::read_dir(folder).expect("a folder").flatten() {
        let path = entry.path();
        if path.is_dir() {
            read_all(&path, text);
        } else {
            text.push_str(&std::fs::read_to_string(&path).expect("text"));
        }
    }
}
