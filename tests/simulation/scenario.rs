//! What is run: worlds with few faults and with all of them, each from several seeds, and worlds with a bug in them.
//!
//! `SIM_SEED` and `SIM_OPERATIONS` repeat a run: those that a failure told.

use std::sync::Arc;
use std::time::Duration;

use tokio::time::sleep;

use crate::bugs::Bug;
use crate::business::Business;
use crate::caller::{Caller, Memories};
use crate::chaos::{Chaos, Fault};
use crate::link::Link;
use crate::stack::Host;
use crate::store::Store;
use crate::world::{Outcome, World};

/// How a world is laid out.
#[derive(Clone, Copy)]
struct Scenario {
    name: &'static str,
    gateways: u16,
    callers: u16,
    faults: &'static [Fault],
    bug: Option<Bug>,
}

/// Longer than every lease that anybody asks for, and every call that is still on its way.
const EVERYTHING_ENDS: Duration = Duration::from_secs(40);

impl Scenario {
    fn of(name: &'static str, faults: &'static [Fault]) -> Self {
        Self { name, gateways: 3, callers: 48, faults, bug: None }
    }

    /// Runs a world from a seed, for so many operations.
    fn run(self, seed: u64, operations: u64) -> Outcome {
        let runtime = tokio::runtime::Builder::new_current_thread().enable_time().start_paused(true).build().unwrap();
        runtime.block_on(async {
            let world = World::new(seed, operations);
            self.live(&world).await;
            world.outcome()
        })
    }

    async fn live(self, world: &Arc<World>) {
        let store = Store::new(world.clone(), self.bug);
        let host = |number| Host::new(world.clone(), Link::new(world.clone(), store.clone(), number), self.bug);
        let hosts: Arc<Vec<Host>> = Arc::new((0..self.gateways).map(host).collect());
        let business = Business::new(world.clone());
        let memories = Memories::default();
        let mut running = Vec::new();
        for number in 0..self.callers {
            let (world, business, hosts) = (world.clone(), business.clone(), hosts.clone());
            let caller = Caller { world, number, business, hosts, memories: memories.clone() };
            running.push(tokio::spawn(caller.live()));
        }
        for fault in self.faults {
            let chaos = Chaos { world: world.clone(), store: store.clone(), hosts: hosts.clone() };
            running.push(tokio::spawn(async move { chaos.reign(*fault).await }));
        }
        for task in running {
            task.await.unwrap();
        }
        if !world.is_over() {
            sleep(EVERYTHING_ENDS).await;
        }
        world.end();
    }

    /// Runs it from several seeds, or from the one that the environment names, and fails with what was broken.
    fn hold(self, seeds: std::ops::Range<u64>, operations: u64) {
        let (seeds, operations) = match (number("SIM_SEED"), number("SIM_OPERATIONS")) {
            (Some(seed), operations_named) => (seed..seed + 1, operations_named.unwrap_or(operations)),
            (None, operations_named) => (seeds, operations_named.unwrap_or(operations)),
        };
        for seed in seeds {
            println!("{}: SIM_SEED={seed} SIM_OPERATIONS={operations}", self.name);
            let outcome = self.run(seed, operations);
            println!(
                "{} operations in {:?}: {:x} {:#?}",
                outcome.operations, outcome.lasted, outcome.hash, outcome.tally
            );
            if let Some((_, report)) = outcome.broken {
                panic!("{}: SIM_SEED={seed} SIM_OPERATIONS={operations}\n{report}", self.name);
            }
        }
    }
}

#[expect(clippy::disallowed_methods, reason = "whoever repeats a run says which")]
fn number(name: &str) -> Option<u64> {
    std::env::var(name).ok().map(|text| text.parse().unwrap())
}

#[test]
fn nothing_is_wrong() {
    Scenario::of("nothing is wrong", &[]).hold(0..1, 20_000);
}

#[test]
fn everything_is_wrong() {
    use Fault::{Clock, DataLoss, Gateways, Network, Server};
    Scenario::of("everything is wrong", &[Network, Network, Server, Clock, DataLoss, Gateways]).hold(0..1, 20_000);
}
