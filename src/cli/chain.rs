//! `oncegate chain`: the chains of a running gateway, which engine of each is active, and switching one to another.

use std::io::Write;

use clap::{Args, Subcommand};
use serde_json::{Value, json};

use super::admin_client::{AdminArgs, AdminClient};
use super::shown::text;

/// What to do with chains.
#[derive(Args, Debug)]
pub(super) struct ChainArgs {
    #[command(subcommand)]
    action: Action,
}

#[derive(Subcommand, Debug)]
enum Action {
    /// List the chains: their engines in order, and the active one
    List {
        #[command(flatten)]
        admin: AdminArgs,
        /// Print the gateway's answer as it is, in JSON
        #[arg(long)]
        json: bool,
    },
    /// Make another engine of a chain the active one, at every gateway; returns once it is
    ///
    /// What was done on the engine before is not known on the new one: it can be claimed and run again. While gateways get to
    /// know of the switch, for about two seconds, claims are answered 503.
    Switch {
        /// The chain, such as default
        chain: String,
        /// The engine to use from now on, one of the chain's
        engine: String,
        /// What stands on the engine before may be lost; without it nothing is changed, and what would be lost is told
        #[arg(long)]
        accept_loss: bool,
        /// Why, for the audit trail: one line, such as "INC-42: its disk is failing"
        #[arg(long)]
        reason: String,
        #[command(flatten)]
        admin: AdminArgs,
        /// Print the gateway's answer as it is, in JSON
        #[arg(long)]
        json: bool,
    },
}

pub(super) fn run(args: ChainArgs, out: &mut impl Write) -> anyhow::Result<()> {
    match args.action {
        Action::List { admin, json } => list(admin, json, out),
        Action::Switch { chain, engine, accept_loss, reason, admin, json } => {
            let body = json!({ "to": engine, "accept_loss": accept_loss, "reason": reason });
            let answer = AdminClient::new(admin)?.post(&format!("/admin/v1/chains/{chain}/switch"), &body)?;
            if json {
                writeln!(out, "{answer}")?;
                return Ok(());
            }
            let (from, active) = (text(&answer["from"]), text(&answer["active"]));
            writeln!(out, "{}  switched from {from} to {active}; epoch: {}", text(&answer["chain"]), answer["epoch"])?;
            writeln!(out, "    what was done on {from} is not known on {active}")?;
            Ok(())
        }
    }
}

fn list(admin: AdminArgs, json: bool, out: &mut impl Write) -> anyhow::Result<()> {
    let answer = AdminClient::new(admin)?.get("/admin/v1/chains")?;
    if json {
        writeln!(out, "{answer}")?;
        return Ok(());
    }
    for chain in answer["chains"].as_array().into_iter().flatten() {
        let engine = |engine: &Value| {
            let up = if engine["up"] == true { "up" } else { "down" };
            format!("{} ({up})", text(&engine["engine"]))
        };
        let engines: Vec<_> = chain["health"].as_array().into_iter().flatten().map(engine).collect();
        write!(out, "{}  engines: {}; active: {}", text(&chain["name"]), engines.join(", "), text(&chain["active"]))?;
        write!(out, "; epoch: {}", chain["epoch"])?;
        if let Some(to) = chain["switching_to"].as_str() {
            write!(out, "; being switched to {to}")?;
        }
        if let Some(held_ms) = chain["held_ms"].as_u64() {
            write!(out, "; grants nothing for {} s more, its store has lost its data", held_ms / 1000 + 1)?;
        }
        writeln!(out)?;
    }
    Ok(())
}
