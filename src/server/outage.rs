//! The journal of a configuration: opened at the start where a policy may need it, or where an earlier run has left something
//! in it.

use std::sync::Arc;

use crate::config::Config;
use crate::domain::clock::Clock;
use crate::resilience::degrade::Keeper;
use crate::resilience::journal::{Bounds, OpenError};

/// What keeps the journal. A gateway that answers for no store touches no disk for it.
pub(super) async fn keeper(config: &Config, clock: &Arc<dyn Clock>) -> anyhow::Result<Arc<Keeper>> {
    let keeper = Arc::new(Keeper::new(&config.server.data_dir, bounds(config), clock.clone()));
    let is_needed = config.answers_for_stores();
    if is_needed || keeper.is_there() {
        match keeper.open().await {
            Err(error @ OpenError::Held(_)) if !is_needed => {
                tracing::warn!(error = %error, "the journal is left alone, since no policy of this gateway needs it");
            }
            opened => opened?,
        }
    }
    Ok(keeper)
}

/// What the journal takes.
fn bounds(config: &Config) -> Bounds {
    let Config { limits, .. } = config;
    Bounds { bytes: limits.journal_bytes as u64, app_bytes: limits.journal_app_bytes as u64 }
}

/// Says what waits for a chain that there is no more.
pub(super) fn tell_of_chains_left(keeper: &Keeper) {
    for chain in keeper.chains_left() {
        tracing::error!(
            chain.name = chain,
            "the journal holds answers for a chain that is not configured; configure it, or use `oncegate spool deliver`"
        );
    }
}
