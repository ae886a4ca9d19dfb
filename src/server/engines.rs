//! Opens the engines of a configuration and puts around each what every engine has around it.

use std::sync::Arc;

use anyhow::Context as _;

use crate::config::Config;
use crate::domain::attempt::Entropy;
use crate::domain::clock::Clock;
use crate::engine::url;
use crate::gateway::Engines;
use crate::gateway::requirement::Requirement;
use crate::resilience::chain::{Chain, Setup, Times};
use crate::resilience::measured::Measured;
use crate::resilience::patience::Patience;
use crate::resilience::retry::Retry;

/// Every engine by its name, measured and with its uncertain calls resolved, and which one each chain uses.
pub(super) async fn open(
    config: &Config,
    clock: &Arc<dyn Clock>,
    entropy: &Arc<dyn Entropy>,
) -> anyhow::Result<Engines> {
    // Two tries, and something left to answer with, within the deadline.
    let patience = config.terms_of(None, None).deadline * 2 / 5;
    let mut engines = Engines { urls: config.redacted_engines(), ..Engines::default() };
    for (name, address) in &config.engines {
        let (address, clock_of_engine) = (address.clone(), clock.clone());
        let opened = tokio::task::spawn_blocking(move || url::open(&address, clock_of_engine)).await?;
        let engine = opened.with_context(|| format!("engine `{name}` cannot be opened"))?;
        let bounded = Arc::new(Patience::new(engine, patience));
        let measured = Arc::new(Measured::new(bounded, name, clock.clone()));
        engines.by_name.insert(name.clone(), Arc::new(Retry::new(measured)));
    }
    for (chain, options) in &config.chains {
        let opened = |name: &String| {
            let engine =
                engines.by_name.get(name).with_context(|| format!("chain `{chain}` has no engine `{name}`"))?;
            anyhow::Ok((name.clone(), engine.clone()))
        };
        let switched = Arc::new(Chain::start(Setup {
            name: chain.clone(),
            engines: options.engines.iter().map(opened).collect::<Result<_, _>>()?,
            on_data_loss: options.on_data_loss,
            lease_max: config.lease_max_of(chain),
            clock: clock.clone(),
            entropy: entropy.clone(),
            times: Times::default(),
        }));
        engines.calls.insert(chain.clone(), switched.clone());
        engines.chains.insert(chain.clone(), switched);
        if !options.requires.is_empty() {
            let requirement = Requirement::new(chain, options.requires.iter().copied());
            engines.requirements.insert(chain.clone(), requirement);
        }
    }
    Ok(engines)
}
