//! A world from its start to its end, checked against the promises: from several seeds, or from the one that a failure has
//! printed.

use std::ops::Range;
use std::sync::Arc;
use std::time::Duration;

use oncegate_core::engine::Topology as _;
use oncegate_outage::journal::Bounds;
use tokio::time::sleep;

use crate::bugs::Bug;
use crate::business::Business;
use crate::caller::{Caller, Memories};
use crate::chaos::{Chaos, Fault};
use crate::locks::LockCallers;
use crate::network::Network;
use crate::stack::{Host, ROOMY, TIGHT};
use crate::store::Store;
use crate::world::{Habits, Kind, Outcome, World};

/// Layout of a world.
#[derive(Clone, Copy)]
pub(crate) struct Scenario {
    pub(crate) name: &'static str,
    pub(crate) gateways: u16,
    pub(crate) callers: u16,
    pub(crate) faults: &'static [Fault],
    pub(crate) bug: Option<Bug>,
    pub(crate) kind: Kind,
    pub(crate) habits: Habits,
    pub(crate) journal_bounds: Bounds,
}

/// Longer than every lease, every open call and every step of a clock.
const EVERYTHING_ENDS: Duration = Duration::from_mins(10);

/// Number of keys that are claimed again at the end.
const AUDITED: usize = 200;

impl Scenario {
    pub(crate) const fn of(name: &'static str, faults: &'static [Fault]) -> Self {
        let (kind, habits) = (Kind::Plain, Habits::Usual);
        Self { name, gateways: 3, callers: 48, faults, bug: None, kind, habits, journal_bounds: ROOMY }
    }

    /// The same in a world of another kind.
    pub(crate) const fn in_a(self, kind: Kind) -> Self {
        Self { kind, ..self }
    }

    /// The same with callers that claim few keys at few gateways.
    pub(crate) const fn crowded(self) -> Self {
        Self { gateways: 2, habits: Habits::Crowding, ..self }
    }

    /// The same with small journals.
    pub(crate) const fn short_of_room(self) -> Self {
        Self { journal_bounds: TIGHT, ..self }
    }

    /// Runs a world from a seed, for this many operations.
    pub(crate) fn run(self, seed: u64, operations: u64) -> Outcome {
        let runtime = tokio::runtime::Builder::new_current_thread().enable_time().start_paused(true).build().unwrap();
        runtime.block_on(async {
            let world = World::new(self.kind, self.habits, self.journal_bounds, seed, operations);
            self.live(&world).await;
            world.outcome()
        })
    }

    async fn live(self, world: &Arc<World>) {
        let stores: Vec<_> =
            (0..self.kind.stores()).map(|number| Store::new(world.clone(), number, self.bug)).collect();
        let network = |store: &Arc<Store>, number| Network::new(world.clone(), store.clone(), number);
        let networks = |number| stores.iter().map(|store| network(store, number)).collect();
        let host = |number| Host::new(world.clone(), number, networks(number), self.bug);
        let hosts: Arc<Vec<Host>> = Arc::new((0..self.gateways).map(host).collect());
        let business = Business::new(world.clone());
        let memories = Memories::default();
        let caller = |number| {
            let (world, business, hosts) = (world.clone(), business.clone(), hosts.clone());
            Caller { world, number, business, hosts, memories: memories.clone() }
        };
        let locks =
            (self.kind == Kind::Locks).then(|| Arc::new(LockCallers::new(world, &hosts, self.callers, self.bug)));
        let mut running: Vec<_> = match &locks {
            Some(locks) => {
                let locks = locks.clone();
                vec![tokio::spawn(async move { locks.live().await })]
            }
            None => (0..self.callers).map(|number| tokio::spawn(caller(number).live())).collect(),
        };
        let chaos = || Chaos { world: world.clone(), stores: stores.clone(), hosts: hosts.clone() };
        for place in 0..hosts.len() {
            let chaos = chaos();
            running.push(tokio::spawn(async move { chaos.keep_up(place).await }));
        }
        for fault in self.faults {
            let chaos = chaos();
            running.push(tokio::spawn(async move { chaos.reign(*fault).await }));
        }
        for task in running {
            task.await.unwrap();
        }
        if !world.is_over() {
            sleep(EVERYTHING_ENDS).await;
            // A real gateway notices a loss of data by its heartbeats, without any call.
            for running in hosts.iter().filter_map(Host::gateway) {
                let _ = running.chain.probe().await;
            }
            sleep(EVERYTHING_ENDS).await;
            let targets = business.newest(AUDITED);
            world.extend(targets.len() as u64);
            world.settles_down();
            if let Some(locks) = &locks {
                locks.audit().await;
            }
            caller(self.callers).audit(targets).await;
            world.audit(&hosts);
        }
        world.end();
    }

    /// Runs it from several seeds, or from the one in the environment. Panics with the first broken rule.
    #[expect(clippy::print_stdout, reason = "the seed of a failure must be visible")]
    pub(crate) fn assert_promises(self, seeds: Range<u64>, operations: u64) {
        let operations = number("SIM_OPERATIONS").unwrap_or(operations);
        let seeds = number("SIM_SEED").map_or(seeds, |seed| seed..seed + 1);
        for seed in seeds {
            let replay = format!("SIM_SEED={seed} SIM_OPERATIONS={operations}");
            println!("{}: {replay}", self.name);
            let outcome = self.run(seed, operations);
            let Outcome { hash, operations, lasted, broken, .. } = outcome;
            println!("{operations} operations in {lasted:?} of its time, trace {hash:016x}");
            if let Some((_, report)) = broken {
                let test = std::thread::current().name().unwrap_or("…").to_owned();
                panic!("{} is broken; repeat it with: {replay} make simulation SIMULATION={test}\n{report}", self.name);
            }
        }
    }
}

/// Returns a number that was set to repeat a run.
#[expect(clippy::disallowed_methods, reason = "the environment selects the run to repeat")]
fn number(name: &str) -> Option<u64> {
    std::env::var(name).ok().map(|text| text.parse().unwrap_or_else(|_| panic!("{name}={text} is not a number")))
}
