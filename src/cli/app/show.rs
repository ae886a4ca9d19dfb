//! Output of `oncegate app` for people.

use serde_json::Value;

use crate::cli::output::{self, Column, Out, cell, rows};

const APPS: &[Column] = &[
    ("APP", |app| cell(&app["app"])),
    ("CHAIN", |app| cell(&app["chain"])),
    ("STATUS", status),
    ("SECRETS", secrets),
    ("LAST USED", last_used),
    ("PROBLEM", |app| cell(&app["problem"])),
];

const SECRETS: &[Column] = &[
    ("SECRET", |secret| cell(&secret["secret_id"])),
    ("CREATED", |secret| cell(&secret["created_at"])),
    ("LAST USED", |secret| cell(&secret["last_used_at"])),
];

const TERMS: &[Column] = &[
    ("OPERATION", |terms| if terms["operation"].is_null() { "(others)".to_owned() } else { cell(&terms["operation"]) }),
    ("MODE", |terms| cell(&terms["mode"])),
    ("LEASE", |terms| cell(&terms["lease"])),
    ("AT ITS END", |terms| cell(&terms["on_lease_end"])),
    ("RETENTION", |terms| cell(&terms["retention"])),
    ("IF UNKNOWN", |terms| cell(&terms["unknown_retention"])),
    ("CLAIM IN OUTAGE", |terms| cell(&terms["claim_on_outage"])),
    ("OUTCOME IN OUTAGE", |terms| cell(&terms["outcome_on_outage"])),
];

/// Prints all apps.
pub(super) fn list(answer: &Value, out: &mut impl Out) -> anyhow::Result<()> {
    match rows(answer, "apps") {
        [] => Ok(writeln!(out, "There are no apps.")?),
        apps => output::table(apps, APPS, out),
    }
}

/// Prints an app and its secrets.
pub(super) fn record(app: &Value, out: &mut impl Out) -> anyhow::Result<()> {
    let mut fields = vec![("App", cell(&app["app"])), ("Chain", cell(&app["chain"])), ("Status", status(app))];
    if !app["problem"].is_null() {
        fields.push(("Problem", cell(&app["problem"])));
    }
    output::record(&fields, out)?;
    writeln!(out)?;
    output::table(rows(app, "secrets"), SECRETS, out)?;
    if app["in_force"].is_object() { in_force(&app["in_force"], out) } else { Ok(()) }
}

/// Prints the terms, quotas and use of an app, as a gateway applies them.
fn in_force(in_force: &Value, out: &mut impl Out) -> anyhow::Result<()> {
    let mut terms = vec![in_force["terms"].clone()];
    terms.extend_from_slice(rows(in_force, "operations"));
    writeln!(out)?;
    output::table(&terms, TERMS, out)?;
    writeln!(out)?;
    let (quota, usage) = (&in_force["quota"], &in_force["usage"]);
    let of = |used: &Value, word: &str, limit: &Value| match (used, limit) {
        (used, Value::Null) if used.is_null() => "unlimited".to_owned(),
        (used, Value::Null) => format!("{} {word}, unlimited", cell(used)),
        (used, limit) => format!("{} {word}, of {}", cell(used), cell(limit)),
    };
    let fields = [
        ("Longest retention", cell(&in_force["retention_max"])),
        ("Requests per second", of(&usage["requests_left"], "left", &quota["requests_per_second"])),
        ("Claim bytes per second", of(&usage["claim_bytes_left"], "left", &quota["claim_bytes_per_second"])),
        ("Requests in flight", of(&usage["requests_in_flight"], "now", &quota["requests_in_flight"])),
        ("Bytes of responses", of(&usage["response_bytes"], "stored", &quota["response_bytes_total"])),
    ];
    output::record(&fields, out)
}

fn status(app: &Value) -> String {
    if app["disabled"] == true { "disabled".to_owned() } else { "enabled".to_owned() }
}

/// Returns the IDs of the secrets.
fn secrets(app: &Value) -> String {
    let ids: Vec<_> = rows(app, "secrets").iter().map(|secret| cell(&secret["secret_id"])).collect();
    if ids.is_empty() { "-".to_owned() } else { ids.join(", ") }
}

/// Returns the last use of any of the secrets. Timestamps in UTC sort as text.
fn last_used(app: &Value) -> String {
    let used = rows(app, "secrets").iter().filter_map(|secret| secret["last_used_at"].as_str());
    used.max().map_or_else(|| "-".to_owned(), output::escaped)
}

#[cfg(test)]
mod tests {
    use insta::assert_snapshot;
    use serde_json::json;

    use super::*;

    #[test]
    fn apps_are_rows_and_their_secrets_too() {
        let secret = |id: &str, used: Value| json!({ "secret_id": id, "created_at": "2026-09-01T08:00:00Z", "last_used_at": used });
        let shop = json!({ "app": "shop", "chain": "default", "disabled": false, "secrets": [
            secret("9f86d081", "2026-10-01T08:00:00Z".into()), secret("60303ae2", "2026-10-01T09:00:00Z".into()) ] });
        let bank = json!({ "app": "bank", "chain": "slow", "disabled": true, "secrets": [secret("2c26b46b", Value::Null)],
            "problem": "this gateway has no chain `slow`" });
        let mut out = Vec::new();
        list(&json!({ "apps": [shop, bank] }), &mut out).unwrap();
        assert_snapshot!(String::from_utf8(out).unwrap(), @r"
        APP   CHAIN    STATUS    SECRETS             LAST USED             PROBLEM
        shop  default  enabled   9f86d081, 60303ae2  2026-10-01T09:00:00Z  -
        bank  slow     disabled  2c26b46b            -                     this gateway has no chain `slow`
        ");
        let mut out = Vec::new();
        record(&shop, &mut out).unwrap();
        assert_snapshot!(String::from_utf8(out).unwrap(), @r"
        App     shop
        Chain   default
        Status  enabled

        SECRET    CREATED               LAST USED
        9f86d081  2026-09-01T08:00:00Z  2026-10-01T08:00:00Z
        60303ae2  2026-09-01T08:00:00Z  2026-10-01T09:00:00Z
        ");
    }

    #[test]
    fn terms_and_quotas_are_shown_with_their_use() {
        let terms = |lease: &str| {
            json!({ "mode": "enforce", "lease": lease, "on_lease_end": "release", "retention": "1d",
            "unknown_retention": "7d", "claim_on_outage": "fail_closed", "outcome_on_outage": "spool" })
        };
        let mut own = terms("5m");
        own["operation"] = "order.submit".into();
        let mut out = Vec::new();
        let shown = json!({
            "terms": terms("30s"), "operations": [own], "retention_max": "30d",
            "quota": { "requests_per_second": 100, "claim_bytes_per_second": null, "requests_in_flight": null, "response_bytes_total": 9 },
            "usage": { "requests_left": 93, "claim_bytes_left": null, "requests_in_flight": 1, "response_bytes": 4 },
        });
        in_force(&shown, &mut out).unwrap();
        assert_snapshot!(String::from_utf8(out).unwrap(), @r"

        OPERATION     MODE     LEASE  AT ITS END  RETENTION  IF UNKNOWN  CLAIM IN OUTAGE  OUTCOME IN OUTAGE
        (others)      enforce  30s    release     1d         7d          fail_closed      spool
        order.submit  enforce  5m     release     1d         7d          fail_closed      spool

        Longest retention       30d
        Requests per second     93 left, of 100
        Claim bytes per second  unlimited
        Requests in flight      1 now, unlimited
        Bytes of responses      4 stored, of 9
        ");
    }
}
