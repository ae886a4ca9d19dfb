//! Opens the engines of a configuration and wraps each in its guard and chain.

use std::sync::Arc;

use anyhow::Context as _;
use oncegate_admin::{Audit, AutomaticSwitches};
use oncegate_core::attempt::Entropy;
use oncegate_core::clock::Clock;
use oncegate_core::engine::Engine;
use oncegate_core::engine::capability::Capability;
use oncegate_core::terms::OnDataLoss;
use oncegate_gateway::resilience::call_guard::CallGuard;
use oncegate_gateway::resilience::chain::{Chain, FailoverMode, FailoverSetup, Setup, Times};
use oncegate_gateway::resilience::requirement::Requirement;
use oncegate_gateway::{Engines, NamedChain, NamedEngine};
use oncegate_outage::{OutageJournal, OutagePolicies};
use tokio::runtime::Handle;

use crate::config::{Config, FailoverModeOption, FailoverOptions};
use crate::engines;

/// Opens every engine with its guard, and creates every chain with its outage policies.
pub(super) async fn open(
    config: &Config,
    clock: &Arc<dyn Clock>,
    entropy: &Arc<dyn Entropy>,
    journal: &Arc<OutageJournal>,
    audit: &Arc<Audit>,
    cores: &[Handle],
) -> anyhow::Result<Engines> {
    // Deadline of lookups and of operators' calls; claims and outcomes have their own.
    let deadline = config.terms_of(None, None).deadline;
    let (mut engines, mut urls) = (Engines::default(), config.redacted_engines());
    for (name, address) in &config.engines {
        let (address, clock_of_engine, cores) = (address.clone(), clock.clone(), cores.to_vec());
        let opened = tokio::task::spawn_blocking(move || engines::open(&address, clock_of_engine, cores)).await?;
        let engine = opened.with_context(|| format!("engine `{name}` cannot be opened"))?;
        let guarded = CallGuard::new(engine, name, deadline, clock.clone(), entropy.clone());
        let url = urls.remove(name).unwrap_or_default();
        engines.by_name.insert(name.clone(), NamedEngine { engine: Arc::new(guarded), url });
    }
    for name in config.unused_engines() {
        tracing::warn!(
            engine.name = name,
            "The engine is in no chain, so nothing is stored there: name it in `engines` of [chains.default]"
        );
    }
    for (chain, options) in &config.chains {
        let opened = |name: &String| {
            let named = engines.by_name.get(name).with_context(|| format!("chain `{chain}` has no engine `{name}`"))?;
            let engine: Arc<dyn Engine> = named.engine.clone();
            anyhow::Ok((name.clone(), engine))
        };
        let failover = |failover: &FailoverOptions| {
            let recorder = Arc::new(AutomaticSwitches(audit.clone()));
            let mode = match failover.mode {
                FailoverModeOption::Automatic => FailoverMode::Automatic,
                FailoverModeOption::Manual => FailoverMode::Manual,
            };
            anyhow::Ok(FailoverSetup {
                witness: opened(&failover.witness)?,
                witness_requires: Some(Capability::Durable),
                mode,
                after: failover.after.0,
                recorder,
            })
        };
        let switched = Arc::new(Chain::start(Setup {
            name: chain.clone(),
            engines: options.engines.iter().map(opened).collect::<Result<_, _>>()?,
            on_data_loss: options.on_data_loss,
            lease_max: config.lease_max_of(chain),
            clock: clock.clone(),
            entropy: entropy.clone(),
            times: Times::default(),
            requirement: (!options.requires.is_empty())
                .then(|| Requirement::new(chain, options.requires.iter().copied())),
            failover: options.failover.as_ref().map(failover).transpose()?,
        }));
        // A chain of a single engine that refuses no grants adds nothing.
        let is_plain =
            options.engines.len() == 1 && options.on_data_loss == OnDataLoss::Resume && options.requires.is_empty();
        let only = options.engines.first().and_then(|name| engines.by_name.get(name)).filter(|_| is_plain);
        let below = only.map_or(switched.clone() as Arc<dyn Engine>, |named| named.engine.clone());
        let policies = OutagePolicies::start(chain, below, journal.clone(), clock.clone(), entropy.clone());
        engines.chains.insert(chain.clone(), NamedChain { chain: switched, policies });
    }
    Ok(engines)
}
