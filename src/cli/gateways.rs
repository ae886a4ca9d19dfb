//! `oncegate gateways`: the gateways that share a chain with this one.

use clap::Args;
use serde_json::Value;

use super::admin_client::QueryArgs;
use super::output::{self, Column, Out, cell, rows};

const EXAMPLES: &str = "\
Examples:
  oncegate gateways
  oncegate gateways --admin https://gateway.example:9464 --ca ca.pem --output json

Each gateway writes a line about itself into the store of each chain, every ten seconds. A line ends a minute after its last change.
SETTINGS is a digest of what the gateways of a fleet have in common: one that differs has another configuration.";

#[derive(Args, Debug)]
#[command(after_help = EXAMPLES)]
pub(super) struct GatewaysArgs {
    #[command(flatten)]
    query: QueryArgs,
}

const COLUMNS: &[Column] = &[
    ("GATEWAY", |row| cell(&row["id"])),
    ("HOST", |row| if row["here"] == true { format!("{} (asked)", cell(&row["host"])) } else { cell(&row["host"]) }),
    ("VERSION", |row| cell(&row["version"])),
    ("STAGE", |row| cell(&row["stage"])),
    ("STARTED AT", |row| cell(&row["started_at"])),
    ("EPOCH", |row| cell(&row["epoch"])),
    ("SETTINGS", |row| cell(&row["settings"])),
    ("ATTENTION", |row| cell(&row["attention"])),
    ("AGE_MS", |row| cell(&row["age_ms"])),
    ("CONSOLE", |row| cell(&row["origin"])),
];

pub(super) fn run(args: GatewaysArgs, out: &mut impl Out) -> anyhow::Result<()> {
    args.query.show("/admin/v1/gateways", out, show)
}

fn show(answer: &Value, out: &mut impl Out) -> anyhow::Result<()> {
    for (index, chain) in rows(answer, "chains").iter().enumerate() {
        if index > 0 {
            writeln!(out)?;
        }
        let read = chain["read_at"].as_str().map_or_else(|| "not read yet".to_owned(), |at| format!("as of {at}"));
        writeln!(out, "Chain {}, {read}", cell(&chain["chain"]))?;
        output::table(rows(chain, "gateways"), COLUMNS, out)?;
        if let Some(detail) = chain["detail"].as_str() {
            writeln!(out, "{}", output::escaped(detail))?;
        }
        if chain["more"] == true {
            writeln!(out, "There are more: the record of the chain has no room for them.")?;
        }
    }
    Ok(())
}

#[cfg(test)]
mod tests {
    use insta::assert_snapshot;
    use serde_json::json;

    use super::*;

    #[test]
    fn each_chain_has_its_gateways() {
        let gateway = json!({
            "id": "4be1a09c", "here": true, "host": "og-a", "version": "1.4.0", "started_at": "2026-10-01T08:00:00.000000Z",
            "stage": "ready", "epoch": 2, "settings": "9f86d081", "attention": 3, "origin": null, "age_ms": 0,
        });
        let chain = json!({
            "chain": "default", "read_at": "2026-10-13T12:39:58.000000Z", "detail": null, "more": true, "gateways": [gateway],
        });
        assert_snapshot!(output::text(|out| show(&json!({ "chains": [chain] }), out)), @r"
        Chain default, as of 2026-10-13T12:39:58.000000Z
        GATEWAY   HOST          VERSION  STAGE  STARTED AT                   EPOCH  SETTINGS  ATTENTION  AGE_MS  CONSOLE
        4be1a09c  og-a (asked)  1.4.0    ready  2026-10-01T08:00:00.000000Z  2      9f86d081  3          0       -
        There are more: the record of the chain has no room for them.
        ");
    }
}
