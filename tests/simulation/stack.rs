//! The gateways of a world. Each is built as the server builds them, over a link of its own; it may die at any moment, and
//! a new one takes its place.

use std::sync::{Arc, Mutex, PoisonError};
use std::time::Duration;

use oncegate::domain::attempt::{Entropy, Issuer};
use oncegate::domain::clock::Clock;
use oncegate::engine::Engine;
use oncegate::gateway::{Engines, Gateway};
use oncegate::resilience::guarded::Guarded;
use tokio_util::sync::CancellationToken;

use crate::bugs::Bug;
use crate::clock::MachineClock;
use crate::dice::Dice;
use crate::link::Link;
use crate::world::World;

/// The deadline of calls that bring none.
const DEADLINE: Duration = Duration::from_secs(1);

/// What stands around every engine. The same as `server::engines` puts there; when that changes, this does.
fn around(link: Arc<dyn Engine>, clock: &Arc<dyn Clock>, entropy: &Arc<dyn Entropy>) -> Arc<dyn Engine> {
    Arc::new(Guarded::new(link, "primary", DEADLINE, clock.clone(), entropy.clone()))
}

/// A machine that runs a gateway.
pub(crate) struct Host {
    world: Arc<World>,
    bug: Option<Bug>,
    pub(crate) link: Link,
    clock: Arc<MachineClock>,
    running: Mutex<Option<Running>>,
}

/// A gateway, and how its callers learn that it has died.
#[derive(Clone)]
pub(crate) struct Running {
    pub(crate) gateway: Arc<Gateway>,
    pub(crate) died: CancellationToken,
}

impl Host {
    pub(crate) fn new(world: Arc<World>, link: Link, bug: Option<Bug>) -> Self {
        let clock = Arc::new(MachineClock::new(world.time, world.dice.millis(0, 600_000)));
        let host = Self { world, bug, link, clock, running: Mutex::default() };
        host.start();
        host
    }

    /// A new process, which knows nothing of those before.
    pub(crate) fn start(&self) {
        let clock: Arc<dyn Clock> = self.clock.clone();
        let entropy: Arc<dyn Entropy> = Arc::new(Dice::new(self.world.dice.roll()));
        let mut engine = around(Arc::new(self.link.clone()), &clock, &entropy);
        if let Some(bug) = self.bug {
            engine = bug.in_gateway(engine, &self.world);
        }
        let mut engines = Engines::default();
        engines.by_name.insert("primary".into(), engine.clone());
        engines.calls.insert("default".into(), engine);
        let issuer = Issuer::new(clock.clone(), entropy);
        let gateway = Arc::new(Gateway::new(engines, issuer, clock));
        *self.running() = Some(Running { gateway, died: CancellationToken::new() });
    }

    /// The process dies where it stands.
    pub(crate) fn kill(&self) {
        if let Some(running) = self.running().take() {
            running.died.cancel();
        }
    }

    /// The gateway, unless it is down.
    pub(crate) fn gateway(&self) -> Option<Running> {
        self.running().clone()
    }

    /// The machine's wall clock is set.
    pub(crate) fn step_wall(&self, ahead: Duration) {
        self.clock.step_wall(ahead);
    }

    fn running(&self) -> std::sync::MutexGuard<'_, Option<Running>> {
        self.running.lock().unwrap_or_else(PoisonError::into_inner)
    }
}
