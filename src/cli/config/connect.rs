//! `oncegate config check --connect`: checks that the engines of a configuration answer, and what their servers say.

use std::collections::BTreeMap;
use std::io::Write;
use std::sync::Arc;
use std::time::Duration;

use anyhow::Context as _;
use futures_util::future::join_all;
use oncegate_core::clock::{Clock as _, SystemClock};
use oncegate_core::engine::capability::Capability;
use oncegate_core::engine::{Capabilities, Determinate, EngineError, Servers as StoreServers, StoreIdentity};
use oncegate_driver::scheme::{Inspection, ServerName};
use tokio::time::{sleep, timeout};

use crate::config::{Config, KeyPath, Problem, Problems};
use crate::engines;

/// Longest wait for an engine that does not answer yet.
const ANSWER_TIMEOUT: Duration = Duration::from_secs(5);

/// Limit of one probe.
const PROBE_TIMEOUT: Duration = Duration::from_secs(2);

/// Pause before an engine without an answer is probed again.
const PAUSE: Duration = Duration::from_millis(100);

/// Longest wait for an engine that closes.
const CLOSE_TIMEOUT: Duration = Duration::from_secs(2);

/// The capabilities that are shown.
const CAPABILITIES: [Capability; 4] =
    [Capability::Durable, Capability::StrictFence, Capability::Forever, Capability::Shared];

/// Checks every engine of a configuration, all at once.
///
/// # Errors
/// An engine cannot be used, or not all of its servers.
pub(super) fn run(config: &Config, out: &mut impl Write) -> anyhow::Result<()> {
    let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build();
    let runtime = runtime.context("cannot start the runtime")?;
    let checks = config.engines.iter().map(|(name, url)| async move { (name, inspect(config, name, url).await) });
    let mut problems = Vec::new();
    let checked = runtime.block_on(join_all(checks));
    let servers: Servers<'_> =
        checked.iter().filter_map(|(name, found)| Some((name.as_str(), found.server.clone()?))).collect();
    for (name, mut found) in checked {
        same_servers(config, name, &servers, &mut found);
        let state = if found.problems.is_empty() { "can be used" } else { "cannot be used" };
        writeln!(out, "Engine {name} {state}.")?;
        for fact in &found.facts {
            writeln!(out, "  {fact}")?;
        }
        for warning in &found.warnings {
            writeln!(out, "Warning: engine {name}: {warning}.")?;
        }
        let key = KeyPath::of(["engines", name.as_str()]);
        let problem = |message| Problem { source: None, key: Some(key.clone()), message };
        problems.extend(found.problems.into_iter().map(problem));
    }
    if problems.is_empty() { Ok(()) } else { Err(Problems(problems).into()) }
}

/// The server of each engine that has named it.
type Servers<'a> = BTreeMap<&'a str, ServerName>;

/// Adds what an engine has in common with the engines before it, in the chains of both.
fn same_servers(config: &Config, name: &str, servers: &Servers<'_>, found: &mut Inspection) {
    let Some(server) = &found.server else { return };
    let (mut warnings, mut problems) = (Vec::new(), Vec::new());
    for (chain, options) in &config.chains {
        let witness = options.failover.as_ref().map(|failover| &failover.witness);
        let names: Vec<_> = options.engines.iter().chain(witness).collect();
        let Some(at) = names.iter().position(|other| *other == name) else { continue };
        for other in &names[..at] {
            let Some(same) = servers.get(other.as_str()).filter(|other| *other == server) else { continue };
            let both = format!(
                "it is the same server as engine {other} ({}): chain {chain} does not survive the loss of it",
                same.name
            );
            match (same.is_unique, witness) {
                (true, Some(_)) => problems.push(format!("{both}; name another server")),
                (true, None) => warnings.push(both),
                (false, _) => warnings.push(format!(
                    "its servers have the same name as those of engine {other} ({}). If they are one cluster, chain {chain} does not \
                     survive the loss of it",
                    same.name
                )),
            }
        }
    }
    found.warnings.extend(warnings);
    found.problems.extend(problems);
}

async fn inspect(config: &Config, name: &str, url: &str) -> Inspection {
    match engines::inspection_of(url) {
        Ok(Some(inspect)) => inspect(url.to_owned()).await,
        Ok(None) => match probe(url).await {
            Ok((capabilities, server)) => Inspection { server, ..answered(config, name, capabilities) },
            Err(problem) => Inspection::of_problem(problem),
        },
        Err(error) => Inspection::of_problem(error.to_string()),
    }
}

/// Opens an engine, and waits until it answers. Returns its capabilities and its server, or why it does not answer.
async fn probe(url: &str) -> Result<(Capabilities, Option<ServerName>), String> {
    let clock = Arc::new(SystemClock::new());
    let engine = engines::open(url, clock.clone(), Vec::new()).map_err(|error| error.to_string())?;
    let answer = loop {
        let silent = || EngineError::unavailable(format!("no answer within {PROBE_TIMEOUT:?}"));
        let probed = timeout(PROBE_TIMEOUT, engine.probe()).await.unwrap_or_else(|_elapsed| Err(silent()));
        match probed {
            Ok(()) => break Ok((engine.capabilities(), engine.identity().and_then(server_name))),
            // Connections are made in the background, so the first probe may be too early.
            Err(error) if clock.monotonic() < ANSWER_TIMEOUT => {
                tracing::debug!(%error, "The engine does not answer yet");
                sleep(PAUSE).await;
            }
            Err(error) => break Err(problem(error)),
        }
    };
    // What is not closed in time ends with the process.
    drop(timeout(CLOSE_TIMEOUT, engine.close()).await);
    answer
}

fn server_name(identity: StoreIdentity) -> Option<ServerName> {
    match identity.servers {
        StoreServers::Named(name) => Some(ServerName { name: format!("{} {name}", identity.kind), is_unique: true }),
        StoreServers::ByMarker { .. } => None,
    }
}

fn problem(error: EngineError) -> String {
    match error.without_effect() {
        why @ Determinate::Unavailable(_) => {
            format!("{}. Start the store, or correct the address, the user and TLS in the URL", why.reason())
        }
        why => why.to_string(),
    }
}

fn answered(config: &Config, name: &str, capabilities: Capabilities) -> Inspection {
    let has = CAPABILITIES.into_iter().filter(|capability| capability.is_in(capabilities));
    let has: Vec<_> = has.map(Capability::as_str).collect();
    let mut found =
        Inspection { facts: vec![format!("it answers; it is: {}", has.join(", "))], ..Inspection::default() };
    for (chain, options) in config.chains.iter().filter(|(_, chain)| chain.engines.iter().any(|engine| engine == name))
    {
        let missing = options.requires.iter().filter(|required| !required.is_in(capabilities));
        found.warnings.extend(missing.map(|required| {
            format!("chain {chain} requires `{}`, and its store is not set up for that", required.as_str())
        }));
    }
    found
}
