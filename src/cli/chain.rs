//! `oncegate chain`: the chains of a running gateway, and which engine of each is active.

use std::io::Write;

use clap::{Args, Subcommand};

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
}

pub(super) fn run(args: ChainArgs, out: &mut impl Write) -> anyhow::Result<()> {
    let Action::List { admin, json } = args.action;
    let answer = AdminClient::new(admin)?.get("/admin/v1/chains")?;
    if json {
        writeln!(out, "{answer}")?;
        return Ok(());
    }
    for chain in answer["chains"].as_array().into_iter().flatten() {
        let engines: Vec<_> = chain["engines"].as_array().into_iter().flatten().map(text).collect();
        writeln!(out, "{}  engines: {}; active: {}", text(&chain["name"]), engines.join(", "), text(&chain["active"]))?;
    }
    Ok(())
}
