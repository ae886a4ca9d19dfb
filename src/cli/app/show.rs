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
    output::table(rows(app, "secrets"), SECRETS, out)
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
}
