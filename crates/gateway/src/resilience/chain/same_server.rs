//! Engines of a chain, and its witness, that are one server under two names. Such a chain is out as a whole when that server is: it is
//! not switched, and such a witness counts as out.

use std::sync::Arc;

use oncegate_core::engine::Common;
use tokio::time::{sleep, timeout};
use tokio_util::sync::CancellationToken;

use super::core::Core;
use super::member::Member;
use crate::resilience::deadline_budget::CHAIN_METADATA_TIMEOUT;

/// Number of polls between two comparisons, once all places were compared: a server may be replaced by another one.
const POLLS: u32 = 20;

/// Compares the places of a chain now and then.
pub(super) async fn watch(core: Arc<Core>, stop: CancellationToken) {
    let forever = async {
        loop {
            let are_known = core.compare_servers().await;
            sleep(core.times.poll * if are_known { POLLS } else { 1 }).await;
        }
    };
    stop.run_until_cancelled(forever).await;
}

impl Core {
    /// Returns why the engines of a chain with a witness are one server, if they are. Other chains may use a server twice, with
    /// two prefixes.
    pub(super) fn one_server(&self) -> Option<String> {
        let mut members = self.members.iter().filter(|_| self.failover.is_some());
        members.find_map(|member| member.same_as.load_full()).map(|why| why.to_string())
    }

    /// Compares the servers of all places. Returns whether all could be compared.
    async fn compare_servers(&self) -> bool {
        let places: Vec<_> = self.places().collect();
        let mut are_known = true;
        for (at, place) in places.iter().enumerate().skip(1) {
            let (mut found, mut is_known) = (None, true);
            for earlier in &places[..at] {
                match common(earlier, place).await {
                    Some(Common::Nothing) => {}
                    // Two prefixes on one server may be meant so.
                    Some(Common::Servers) if self.failover.is_none() => {}
                    Some(common) => found = found.or_else(|| Some(reason(earlier, place, common))),
                    None => is_known = false,
                }
            }
            if found.is_some() || is_known {
                self.report_same(place, found);
            }
            are_known &= is_known;
        }
        are_known
    }

    /// Records what a place has in common with another one, and logs it if that is new.
    fn report_same(&self, place: &Member, found: Option<String>) {
        let before = place.same_as.swap(found.clone().map(Arc::new));
        let chain = &self.name;
        match found {
            Some(why) if before.as_deref() != Some(&why) => {
                tracing::error!(
                    chain.name = chain,
                    engine.name = place.name,
                    reason = why,
                    "Two names in a chain are one server: the chain does not survive the loss of it. Name another server"
                );
            }
            None if before.is_some() => {
                tracing::info!(
                    chain.name = chain,
                    engine.name = place.name,
                    "The servers of the chain are different ones now"
                );
            }
            _ => {}
        }
    }
}

/// Returns why two places are one server.
fn reason(earlier: &Member, place: &Member, common: Common) -> String {
    let (what, name) = (if place.is_witness { "witness" } else { "engine" }, &place.name);
    let other = &earlier.name;
    match common {
        Common::Data => format!("{what} `{name}` is the same store as engine `{other}`, under another name"),
        Common::Servers | Common::Nothing => {
            format!("{what} `{name}` is on the same server as engine `{other}`, and both are out together")
        }
    }
}

/// Returns what two places have in common; `None` if that is not known.
async fn common(one: &Member, other: &Member) -> Option<Common> {
    let (one, other) = (one.engine.identity()?, other.engine.identity()?);
    timeout(CHAIN_METADATA_TIMEOUT, one.common_with(&other)).await.ok()?.ok()
}
