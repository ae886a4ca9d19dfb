//! `oncegate chain`: the chains of a running gateway, the active engine of each, switching to another one, and holding automatic
//! switches.

use clap::{Subcommand, ValueEnum};
use oncegate_admin::bodies::{FailoverAction, Reason, SetFailover, SwitchChain};
use oncegate_core::name::Name;
use oncegate_core::terms::Span;
use serde_json::Value;

use super::admin_client::{AdminClient, QueryArgs};
use super::failure::state;
use super::output::{self, Column, Out, cell, rows};

const EXAMPLES: &str = "\
Examples:
  oncegate chain list
  oncegate chain show default --output json
  oncegate chain switch default spare --reason \"INC-42: the disk of primary is failing\"
  oncegate chain switch default spare --accept-loss --reason \"INC-42: the disk of primary is failing\"
  oncegate chain failover default hold --for 30m --reason \"CHG-7: primary gets a new kernel\"";

#[derive(Subcommand, Debug)]
#[command(after_help = EXAMPLES)]
pub(super) enum Action {
    /// List the chains with their engines
    List(QueryArgs),
    /// Show a chain
    Show {
        /// Name of the chain, such as default
        chain: Name,
        #[command(flatten)]
        query: QueryArgs,
    },
    /// Make another engine of a chain the active one, at every gateway
    ///
    /// The new engine does not know the claims on the old one: their operations can be claimed and run again. Nor does
    /// it know the locks: others get them while their holders still run. Claims and requests for locks get 503 for
    /// about two seconds, until every gateway knows of the switch. Without --accept-loss nothing is changed, and the
    /// command shows the loss.
    Switch {
        /// Name of the chain, such as default
        chain: Name,
        /// Name of the engine to use from now on, one of the chain's
        engine: Name,
        /// Switch although the claims on the present engine are lost
        #[arg(long)]
        accept_loss: bool,
        /// Reason for the audit trail: one line, such as "INC-42: its disk is failing"
        #[arg(long)]
        reason: Reason,
        #[command(flatten)]
        query: QueryArgs,
    },
    /// Hold the automatic switches of a chain at every gateway, or allow them again
    ///
    /// Hold them before a planned restart of a store: the gateways would take it for an outage. Operators can switch the chain
    /// all the same. The chain needs a table `failover` with mode = "automatic".
    Failover {
        /// Name of the chain, such as default
        chain: Name,
        /// Who switches it from now on
        switching: Switching,
        /// Time of `hold`, from 1s to 7d, such as 30m
        #[arg(long = "for", value_name = "TIME", required_if_eq("switching", "hold"))]
        time: Option<Span>,
        /// Reason for the audit trail: one line, such as "CHG-7: primary gets a new kernel"
        #[arg(long)]
        reason: Reason,
        #[command(flatten)]
        query: QueryArgs,
    },
}

/// Who switches a chain from now on.
#[derive(ValueEnum, Clone, Copy, Debug)]
pub(super) enum Switching {
    /// Operators only for the time of --for, then the gateways as well
    Hold,
    /// Operators only, until `automatic`
    Manual,
    /// The gateways as well
    Automatic,
}

impl From<Switching> for FailoverAction {
    fn from(switching: Switching) -> Self {
        match switching {
            Switching::Hold => Self::Hold,
            Switching::Manual => Self::Manual,
            Switching::Automatic => Self::Automatic,
        }
    }
}

const COLUMNS: &[Column] = &[
    ("CHAIN", |chain| cell(&chain["name"])),
    ("ACTIVE", |chain| cell(&chain["active"])),
    ("ENGINES", engines),
    ("EPOCH", |chain| cell(&chain["epoch"])),
    ("STATUS", status),
];

pub(super) fn run(action: Action, out: &mut impl Out) -> anyhow::Result<()> {
    match action {
        Action::List(query) => {
            query.show("/admin/v1/chains", out, |answer, out| output::table(rows(answer, "chains"), COLUMNS, out))
        }
        Action::Show { chain, query } => {
            let answer = AdminClient::new(query.admin)?.get("/admin/v1/chains")?;
            let chains = rows(&answer, "chains");
            let Some(found) = chains.iter().find(|known| known["name"] == chain.as_ref()) else {
                let known: Vec<_> = chains.iter().map(|chain| cell(&chain["name"])).collect();
                return Err(state(format!("there is no chain `{chain}`. The gateway has: {}", known.join(", "))));
            };
            query.output.print(found, out, show)
        }
        Action::Switch { chain, engine, accept_loss, reason, query } => {
            let body = SwitchChain { to: engine, accept_loss, reason };
            query.post(&format!("/admin/v1/chains/{chain}/switch"), &body, out, |answer, out| {
                let [chain, from, active, epoch] = ["chain", "from", "active", "epoch"].map(|name| cell(&answer[name]));
                writeln!(out, "Chain `{chain}` was switched from {from} to {active} (epoch {epoch}).")?;
                writeln!(out, "Operations that were done on {from} are not known on {active}.")?;
                Ok(writeln!(out, "Locks that are held on {from} are free on {active}: stop their holders.")?)
            })
        }
        Action::Failover { chain, switching, time, reason, query } => {
            let body = SetFailover { action: switching.into(), time, reason };
            query.post(&format!("/admin/v1/chains/{chain}/failover"), &body, out, held)
        }
    }
}

/// Prints the state of automatic switches after a change.
fn held(answer: &Value, out: &mut impl Out) -> anyhow::Result<()> {
    let (chain, failover) = (cell(&answer["chain"]), &answer["failover"]);
    if failover["hold"].is_object() {
        writeln!(out, "Chain `{chain}` is not switched automatically: {}.", cell(&failover["next_switch"]))?;
    } else {
        writeln!(
            out,
            "Chain `{chain}` is switched automatically. The next switch: {}.",
            cell(&failover["next_switch"])
        )?;
    }
    Ok(())
}

fn show(chain: &Value, out: &mut impl Out) -> anyhow::Result<()> {
    let fields = [
        ("Chain", cell(&chain["name"])),
        ("Active engine", cell(&chain["active"])),
        ("Engines", engines(chain)),
        ("Epoch", cell(&chain["epoch"])),
        ("Status", status(chain)),
    ];
    let failover = &chain["failover"];
    let more = [
        ("Witness", up(&failover["witness"])),
        ("Next switch", cell(&failover["next_switch"])),
        ("Last switch", last_switch(&failover["last_switch"])),
        ("Gateways", rows(failover, "views").iter().map(view).collect::<Vec<_>>().join(", ")),
    ];
    let more = if failover.is_object() { &more[..] } else { &[] };
    output::record(&[&fields, more].concat(), out)
}

/// Returns who made the last switch, when and why.
fn last_switch(switch: &Value) -> String {
    if !switch.is_object() {
        return "none".to_owned();
    }
    let [cause, from, to, at, gateway, reason] =
        ["cause", "from", "to", "at", "gateway", "reason"].map(|name| cell(&switch[name]));
    format!("{cause}, from {from} to {to}, at {at}, by gateway {gateway}: {reason}")
}

/// Returns a gateway with the engines that it sees out.
fn view(view: &Value) -> String {
    let out: Vec<_> = rows(view, "out").iter().map(cell).collect();
    let gateway = cell(&view["gateway"]);
    if out.is_empty() { gateway } else { format!("{gateway} (without {})", out.join(" and ")) }
}

/// Returns the engines in order, each with its health.
fn engines(chain: &Value) -> String {
    rows(chain, "health").iter().map(up).collect::<Vec<_>>().join(", ")
}

/// Returns an engine with its health.
fn up(engine: &Value) -> String {
    let up = if engine["up"] == true { "up" } else { "down" };
    format!("{} ({up})", cell(&engine["engine"]))
}

fn status(chain: &Value) -> String {
    if let Some(to) = chain["switching_to"].as_str() {
        return format!("switching to {}", output::escaped(to));
    }
    match chain["held_ms"].as_u64() {
        Some(held_ms) => {
            let is_automatic = chain["failover"]["last_switch"]["cause"] == "automatic";
            let why = if is_automatic { "it was switched automatically" } else { "its store lost its data" };
            format!("no grants for {} s: {why}", held_ms / 1000 + 1)
        }
        None => "in use".to_owned(),
    }
}

#[cfg(test)]
mod tests {
    use insta::assert_snapshot;
    use serde_json::json;

    use super::*;

    #[test]
    fn chains_are_shown_with_what_happens_to_them() {
        let health = json!([{ "engine": "primary", "up": false }, { "engine": "spare", "up": true }]);
        let chains = [
            json!({ "name": "default", "active": "primary", "epoch": 0, "health": health }),
            json!({ "name": "slow", "active": "primary", "epoch": 1, "health": health, "switching_to": "spare" }),
            json!({ "name": "new", "active": "spare", "epoch": 12, "health": health, "held_ms": 29_400 }),
        ];
        let mut out = Vec::new();
        output::table(&chains, COLUMNS, &mut out).unwrap();
        assert_snapshot!(String::from_utf8(out).unwrap(), @r"
        CHAIN    ACTIVE   ENGINES                     EPOCH  STATUS
        default  primary  primary (down), spare (up)  0      in use
        slow     primary  primary (down), spare (up)  1      switching to spare
        new      spare    primary (down), spare (up)  12     no grants for 30 s: its store lost its data
        ");
    }

    #[test]
    fn a_name_cannot_lead_to_another_path() {
        for name in ["default", "eu-1.primary_2"] {
            assert!(name.parse::<Name>().is_ok(), "{name}");
        }
        for name in ["", "a b", "../claims", "a/b", "ü", &"a".repeat(65)] {
            assert!(name.parse::<Name>().is_err(), "{name}");
        }
    }
}
