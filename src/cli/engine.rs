//! `oncegate engine`: the engines of a running gateway, and how they are.

use std::io::Write;

use clap::{Args, Subcommand};
use serde_json::Value;

use super::admin_client::{AdminArgs, AdminClient};
use super::shown::text;

/// What to do with engines.
#[derive(Args, Debug)]
pub(super) struct EngineArgs {
    #[command(subcommand)]
    action: Action,
}

#[derive(Subcommand, Debug)]
enum Action {
    /// List the engines: whether each is up, its chains, and what it can promise
    List {
        #[command(flatten)]
        admin: AdminArgs,
        /// Print the gateway's answer as it is, in JSON
        #[arg(long)]
        json: bool,
    },
}

pub(super) fn run(args: EngineArgs, out: &mut impl Write) -> anyhow::Result<()> {
    let Action::List { admin, json } = args.action;
    let answer = AdminClient::new(admin)?.get("/admin/v1/engines")?;
    if json {
        writeln!(out, "{answer}")?;
        return Ok(());
    }
    for engine in answer["engines"].as_array().into_iter().flatten() {
        let up = if engine["up"] == true { "up" } else { "down" };
        let chains: Vec<_> = engine["chains"].as_array().into_iter().flatten().map(text).collect();
        let able =
            engine["capabilities"].as_object().into_iter().flatten().filter(|(_, able)| **able == Value::Bool(true));
        let able: Vec<_> = able.map(|(name, _)| name.as_str()).collect();
        writeln!(out, "{}  {up} ({})  {}", text(&engine["name"]), text(&engine["detail"]), text(&engine["url"]))?;
        writeln!(out, "    chains: {}; promises: {}", chains.join(", "), able.join(", "))?;
        let breaker = &engine["breaker"];
        writeln!(out, "    breaker: {} since {}", text(&breaker["state"]), text(&breaker["since"]))?;
    }
    let spool = &answer["spool"];
    let [entries, bytes, bytes_max] = ["entries", "bytes", "bytes_max"].map(|name| text(&spool[name]));
    writeln!(out, "spool: {entries} entries, {bytes} of {bytes_max} bytes")?;
    Ok(())
}
