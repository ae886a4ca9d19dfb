//! `oncegate config show`: the settings that a running gateway uses, and the place where each was set.

use clap::Args;
use serde_json::Value;

use crate::cli::admin_client::QueryArgs;
use crate::cli::output::{self, Column, Out, cell, rows};

#[derive(Args)]
pub(in crate::cli) struct ShowArgs {
    /// Show only settings that are not defaults
    #[arg(long)]
    changed: bool,
    #[command(flatten)]
    query: QueryArgs,
}

const COLUMNS: &[Column] = &[
    ("KEY", |setting| cell(&setting["key"])),
    ("VALUE", |setting| cell(&setting["value"])),
    ("ORIGIN", |setting| cell(&setting["origin"])),
    ("CHANGES AT", |setting| if setting["needs_restart"] == true { "restart".to_owned() } else { "reload".to_owned() }),
];

pub(super) fn run(args: ShowArgs, out: &mut impl Out) -> anyhow::Result<()> {
    let ShowArgs { changed, query } = args;
    query.show("/admin/v1/config", out, |answer, out| show(answer, changed, out))
}

fn show(answer: &Value, changed: bool, out: &mut impl Out) -> anyhow::Result<()> {
    let settings = rows(answer, "settings").iter().filter(|setting| !changed || setting["origin"] != "default");
    output::table(&settings.cloned().collect::<Vec<_>>(), COLUMNS, out)?;
    let reload = &answer["last_reload"];
    if reload.is_null() {
        return Ok(writeln!(out, "\nThe configuration was not reloaded since the start.")?);
    }
    let at = cell(&reload["at"]);
    if !reload["error"].is_null() {
        return Ok(writeln!(out, "\nThe reload at {at} failed: {}", cell(&reload["error"]))?);
    }
    writeln!(out, "\nThe configuration was reloaded at {at}.")?;
    let tables: Vec<_> = rows(reload, "restart_needed").iter().map(cell).collect();
    if !tables.is_empty() {
        writeln!(out, "Changes of these tables need a restart: {}.", tables.join(", "))?;
    }
    Ok(())
}

#[cfg(test)]
mod tests {
    use insta::assert_snapshot;
    use serde_json::json;

    use super::*;

    #[test]
    fn settings_are_shown_with_their_origins_and_the_last_reload() {
        let shown = |changed: bool, reload: &Value| {
            let lease = json!({ "key": "defaults.lease", "value": "10s", "origin": "oncegate.toml, line 3", "needs_restart": false });
            let listen = json!({ "key": "server.listen", "value": "127.0.0.1:8080", "origin": "default", "needs_restart": true });
            let mut out = Vec::new();
            show(&json!({ "settings": [lease, listen], "last_reload": reload }), changed, &mut out).unwrap();
            String::from_utf8(out).unwrap()
        };
        assert_snapshot!(shown(false, &json!(null)), @r"
        KEY             VALUE           ORIGIN                 CHANGES AT
        defaults.lease  10s             oncegate.toml, line 3  reload
        server.listen   127.0.0.1:8080  default                restart

        The configuration was not reloaded since the start.
        ");
        let applied = json!({ "at": "2026-10-20T09:30:15.124000Z", "error": null, "restart_needed": ["limits"] });
        assert_snapshot!(shown(true, &applied), @r"
        KEY             VALUE  ORIGIN                 CHANGES AT
        defaults.lease  10s    oncegate.toml, line 3  reload

        The configuration was reloaded at 2026-10-20T09:30:15.124000Z.
        Changes of these tables need a restart: limits.
        ");
        let failed = json!({ "at": "2026-10-20T09:30:15.124000Z", "error": "unknown key", "restart_needed": [] });
        assert!(shown(true, &failed).ends_with("\nThe reload at 2026-10-20T09:30:15.124000Z failed: unknown key\n"));
    }
}
