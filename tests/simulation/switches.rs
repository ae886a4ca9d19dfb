//! Switches of the chain, as the stores' metadata records them, and their rules. After an answer with a grant of the
//! new store, no answer has a grant of the old store. After a loss of data, nothing is granted for the longest lease.

use std::collections::BTreeMap;
use std::sync::Arc;
use std::time::Duration;

use oncegate_core::engine::Metadata;

use crate::reference::{Broken, ensure};
use crate::stack::{ENGINES, LEASE_MAX};
use crate::trace::Place;
use crate::world::{Kind, World};

/// Time for which a gateway may rely on a read: the old store's grants must have ended when the new one begins.
const READ_COUNTS: Duration = Duration::from_secs(2);

/// Switches between the stores of a world.
#[derive(Default)]
pub(crate) struct Switches {
    /// Opened switches in order: number of the switch, store and time.
    opened: Vec<(u64, u16, Duration)>,
    /// Numbers of the automatic ones, after which grants are frozen.
    automatic: Vec<u64>,
    /// Latest switch in the metadata of each store, and since when it is there.
    seen: BTreeMap<u16, (u64, Duration)>,
    /// Latest switch whose store has granted a claim to a caller.
    newest: u64,
    /// Begin of the last read of a store's metadata by a gateway, if it succeeded.
    reads: BTreeMap<(u16, u16), Option<Duration>>,
    /// Time of the last loss of data.
    pub(crate) lost_at: Option<Duration>,
}

/// A read of a store's metadata by a gateway. It counts as failed until it succeeds.
pub(crate) struct MetadataRead {
    world: Arc<World>,
    place: (u16, u16),
    began: Duration,
    found: bool,
}

impl MetadataRead {
    pub(crate) fn succeeds(mut self) {
        self.found = true;
    }
}

impl Drop for MetadataRead {
    fn drop(&mut self) {
        self.world.known().switches.reads.insert(self.place, self.found.then_some(self.began));
    }
}

impl World {
    /// Starts a read of a store's metadata by a gateway.
    pub(crate) fn metadata_read(self: &Arc<Self>, gateway: u16, store: u16) -> MetadataRead {
        MetadataRead { world: self.clone(), place: (gateway, store), began: self.time.now(), found: false }
    }

    /// Records a write of a store's metadata.
    pub(crate) fn agreed(&self, store: u16, metadata: &Metadata) {
        let Ok(agreed) = serde_json::from_str::<serde_json::Value>(metadata.as_str()) else { return };
        let Some(epoch) = agreed["epoch"].as_u64() else { return };
        let is_open =
            agreed["phase"] == "open" && ENGINES.get(usize::from(store)).is_some_and(|own| agreed["active"] == *own);
        let mut is_automatic = false;
        {
            let switches = &mut self.known().switches;
            let seen = switches.seen.entry(store).or_default();
            if epoch > seen.0 {
                *seen = (epoch, self.time.now());
            }
            if !is_open || switches.opened.iter().any(|(known, ..)| *known == epoch) {
                return;
            }
            switches.opened.push((epoch, store, self.time.now()));
            if agreed["freeze_ms"].is_u64() {
                switches.automatic.push(epoch);
                is_automatic = true;
            }
        }
        if is_automatic {
            *self.known().tally.entry(("chain", "switched automatically")).or_default() += 1;
        }
        self.announce(Place::Store(store), "opened", epoch);
        self.lost(store);
    }

    /// Checks that a caller may be answered with a grant that a store gave at this time.
    pub(crate) fn check_store(
        &self,
        switches: &mut Switches,
        gateway: u16,
        (store, at): (u16, Duration),
    ) -> Result<(), Broken> {
        match self.kind {
            Kind::Plain | Kind::Policies | Kind::Sharded | Kind::Locks => Ok(()),
            Kind::GrantFreeze => {
                ensure(switches.lost_at.is_none_or(|lost_at| at >= lost_at + LEASE_MAX), "freeze", || {
                    format!("granted at {at:?}, and data was lost at {:?}", switches.lost_at)
                })
            }
            Kind::Switched | Kind::PoliciesAndSwitches => switches.check_grant(gateway, store, at),
            Kind::Failover => switches.check_grant_with_witness(store, at),
        }
    }
}

impl Switches {
    /// Returns whether the chain uses a store, since its last switch.
    pub(crate) fn is_in_use(&self, store: u16) -> bool {
        self.opened.last().is_none_or(|(_, to, _)| *to == store)
    }

    /// Returns the switch after which a store was in use at this time; 0: it is the first store.
    fn switch_of(&self, store: u16, at: Duration) -> Option<u64> {
        let own = self.opened.iter().filter(|(_, to, opened_at)| *to == store && *opened_at <= at);
        own.map(|(epoch, ..)| *epoch).max().or((store == 0).then_some(0))
    }

    /// With a witness each gateway knows of the switch, or grants nothing; and after an automatic one it waits.
    fn check_grant_with_witness(&mut self, store: u16, at: Duration) -> Result<(), Broken> {
        let Some(own) = self.switch_of(store, at) else {
            return ensure(false, "switch", || format!("granted on store {store}, which was never in use"));
        };
        ensure(own >= self.newest, "switch", || {
            format!("granted at {at:?} on store {store} of switch {own}, and switch {} is in use", self.newest)
        })?;
        let opened = self.opened.iter().find(|(epoch, ..)| *epoch == own && self.automatic.contains(epoch));
        ensure(opened.is_none_or(|(.., opened_at)| at >= *opened_at + LEASE_MAX), "freeze", || {
            format!("granted at {at:?} on store {store}, which became active automatically: {opened:?}")
        })?;
        self.newest = self.newest.max(own);
        Ok(())
    }

    /// Returns whether a gateway may know at this time of a switch after this one. A gateway that reaches no store with the switch
    /// cannot know of it, nor one that has read the store before it was copied there. But it may not rely on such a read for long, and
    /// on none of the store that had it first: the new store is opened after all such reads.
    fn may_know_a_later_one(&self, gateway: u16, own: u64, at: Duration) -> bool {
        self.seen.iter().any(|(from, (epoch, since))| {
            let read = self.reads.get(&(gateway, *from)).copied().flatten();
            let is_first =
                *epoch == self.newest && self.seen.values().all(|(other, copied)| other != epoch || copied >= since);
            *epoch > own && read.is_some_and(|began| began >= *since || at > began + READ_COUNTS || is_first)
        })
    }

    /// Returns whether a store is the one that the chain uses, or the gateway that used it at this time may know that it is not.
    pub(crate) fn should_be_in_use(&self, gateway: u16, store: u16, at: Duration) -> bool {
        let own = self.switch_of(store, at).unwrap_or_default();
        self.is_in_use(store) || self.may_know_a_later_one(gateway, own, at)
    }

    fn check_grant(&mut self, gateway: u16, store: u16, at: Duration) -> Result<(), Broken> {
        let Some(own) = self.switch_of(store, at) else {
            return ensure(false, "switch", || format!("granted on store {store}, which was never in use"));
        };
        ensure(own >= self.newest || !self.may_know_a_later_one(gateway, own, at), "switch", || {
            format!("granted at {at:?} on store {store} of switch {own}, and switch {} is in use", self.newest)
        })?;
        self.newest = self.newest.max(own);
        Ok(())
    }
}
