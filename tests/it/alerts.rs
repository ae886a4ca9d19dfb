//! The alert rules in `deploy/prometheus`: they fire when they must, use existing metrics, and name an existing
//! runbook.

use std::collections::BTreeSet;
use std::path::Path;
use std::process::Command;
use std::time::Duration;

use oncegate_testkit::gateway::Gateway;
use oncegate_testkit::missing;
use oncegate_testkit::wait::until;

use crate::support::prometheus::Prometheus;

mod causes;
mod firing;
mod of_stores;

const RULES: &str = include_str!("../../deploy/prometheus/oncegate.rules.yml");

/// Address of the pages of this repository.
const PAGES: &str = concat!(env!("CARGO_PKG_REPOSITORY"), "/blob/main/");

/// Upper bound for each alert. The rules wait a second in these tests, and an Alertmanager five.
const SOON: Duration = Duration::from_mins(1);

/// The shipped rules with short times, so that a test need not wait for minutes.
fn fast_rules() -> String {
    let mut rules = RULES.replace("keep_firing_for: 6m", "keep_firing_for: 20s").replace("[2m]", "[5s]");
    rules = rules
        .replace("increase(oncegate_degraded_answers_total[5m])", "increase(oncegate_degraded_answers_total[10s])");
    rules = rules.replace("oncegate_degraded_answers_total offset 5m", "oncegate_degraded_answers_total offset 10s");
    for time in ["1m", "2m", "5m", "10m", "15m", "1h"] {
        rules = rules.replace(&format!(" for: {time}\n"), " for: 1s\n");
    }
    // A gateway on a busy machine may miss a few scrapes.
    for gone in ["absent(oncegate_build_info)", "max_over_time(oncegate_build_info[1d])"] {
        rules = with(&rules, &format!("{gone}\n        for: 1s\n"), &format!("{gone}\n        for: 10s\n"));
    }
    with(&rules, "oncegate_spool_oldest_seconds > 600", "oncegate_spool_oldest_seconds > 2")
}

/// Replaces a part that the rules have.
fn with(rules: &str, shipped: &str, fast: &str) -> String {
    assert!(rules.contains(shipped), "the rules have changed: {shipped}");
    rules.replace(shipped, fast)
}

fn is_firing(prometheus: &Prometheus, alert: &str) -> bool {
    let query = format!("ALERTS{{alertname=\"{alert}\",alertstate=\"firing\"}}");
    prometheus.query(&query).is_ok_and(|series| !series.is_empty())
}

/// Starts a Prometheus that evaluates the shipped rules on these gateways. `None`, loudly, where none is installed.
async fn watched(gateways: &[&Gateway]) -> Option<Prometheus> {
    watched_by(&fast_rules(), gateways).await
}

/// The same with these rules.
async fn watched_by(rules: &str, gateways: &[&Gateway]) -> Option<Prometheus> {
    let targets: Vec<_> = gateways.iter().map(|gateway| gateway.admin()).collect();
    Prometheus::start_with_rules(&targets, rules, None).await
}

/// Waits until an alert fires that has not fired before. Repeats its cause during the wait.
async fn fires(prometheus: &Prometheus, alert: &str, mut cause: impl AsyncFnMut()) {
    assert!(!is_firing(prometheus, alert), "{alert} fires before its cause");
    until(alert, SOON, async || {
        cause().await;
        is_firing(prometheus, alert)
    })
    .await;
}

#[test]
fn each_alert_is_fired_by_its_cause_in_a_test() {
    let tests =
        [include_str!("alerts/firing.rs"), include_str!("alerts/causes.rs"), include_str!("alerts/of_stores.rs")];
    for alert in values("alert:") {
        assert!(tests.concat().contains(&format!("\"{alert}\"")), "no test has gateways fire {alert}");
    }
}

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
