//! What gateways agree on about their stores, as the stores' own notes tell, and what must hold of it: once anybody was told a
//! grant of the new store, nobody is told one of the old; and after a loss of data nothing is granted for the longest lease.

use std::collections::BTreeMap;
use std::sync::Arc;
use std::time::Duration;

use oncegate::engine::Metadata;

use crate::reference::{Broken, hold};
use crate::stack::{ENGINES, LEASE_MAX};
use crate::trace::Place;
use crate::world::{Kind, World};

/// How the stores of a world have been used.
#[derive(Default)]
pub(crate) struct Switches {
    /// The switches that were opened, in order: how often the chain had been switched then, to which store, and when.
    opened: Vec<(u64, u16, Duration)>,
    /// The latest switch that each store was told of.
    told: BTreeMap<u16, u64>,
    /// The latest switch whose store has granted anything that was told.
    newest: u64,
    /// Whether the last look of a gateway at a store has found something.
    looks: BTreeMap<(u16, u16), bool>,
    /// When data was last lost.
    pub(crate) lost_at: Option<Duration>,
}

/// A gateway looks at the note of a store. It has failed unless it has succeeded.
pub(crate) struct Look {
    world: Arc<World>,
    whose: (u16, u16),
    found: bool,
}

impl Look {
    pub(crate) fn succeeds(mut self) {
        self.found = true;
    }
}

impl Drop for Look {
    fn drop(&mut self) {
        self.world.known().switches.looks.insert(self.whose, self.found);
    }
}

impl World {
    /// A gateway begins to look at the note of a store.
    pub(crate) fn look(self: &Arc<Self>, gateway: u16, store: u16) -> Look {
        Look { world: self.clone(), whose: (gateway, store), found: false }
    }

    /// A store was told a note.
    pub(crate) fn agreed(&self, store: u16, note: &Metadata) {
        let Ok(agreed) = serde_json::from_str::<serde_json::Value>(note.as_str()) else { return };
        let Some(epoch) = agreed["epoch"].as_u64() else { return };
        let is_open = agreed["phase"] == "open" && agreed["active"] == ENGINES[usize::from(store)];
        {
            let switches = &mut self.known().switches;
            let told = switches.told.entry(store).or_default();
            *told = epoch.max(*told);
            if !is_open || switches.opened.iter().any(|(known, ..)| *known == epoch) {
                return;
            }
            switches.opened.push((epoch, store, self.time.now()));
        }
        self.announce(Place::Store(store), "opened", epoch);
        self.lost();
    }

    /// That a grant may be told which a store gave then.
    pub(crate) fn check_store(
        &self,
        switches: &mut Switches,
        gateway: u16,
        (store, at): (u16, Duration),
    ) -> Result<(), Broken> {
        match self.kind {
            Kind::Plain | Kind::Policies => Ok(()),
            Kind::Holding => hold(switches.lost_at.is_none_or(|lost_at| at >= lost_at + LEASE_MAX), "hold", || {
                format!("granted at {at:?}, and data was lost at {:?}", switches.lost_at)
            }),
            Kind::Switched | Kind::PoliciesAndSwitches => switches.check_grant(gateway, store, at),
        }
    }
}

impl Switches {
    fn check_grant(&mut self, gateway: u16, store: u16, at: Duration) -> Result<(), Broken> {
        let own = self.opened.iter().filter(|(_, to, opened_at)| *to == store && *opened_at <= at);
        let own = own.map(|(epoch, ..)| *epoch).max().or((store == 0).then_some(0));
        let Some(own) = own else {
            return hold(false, "switch", || format!("granted on store {store}, which was never in use"));
        };
        // One that reaches no store which knows of the switch cannot know of it.
        let told = |(_, epoch): &(&u16, &u64)| **epoch > own;
        let may_know = |(store, _): (&u16, &u64)| self.looks.get(&(gateway, *store)) == Some(&true);
        let may_know = self.told.iter().filter(told).any(may_know);
        hold(own >= self.newest || !may_know, "switch", || {
            format!("granted at {at:?} on store {store} of switch {own}, and switch {} is in use", self.newest)
        })?;
        self.newest = self.newest.max(own);
        Ok(())
    }
}
