//! The gateways of a world. Each is built as the server builds them, over a link of its own; it may die at any moment, and
//! a new one takes its place.

use std::path::Path;
use std::sync::{Arc, Mutex, PoisonError};
use std::time::Duration;

use oncegate::domain::attempt::{Entropy, Issuer};
use oncegate::domain::clock::Clock;
use oncegate::domain::terms::OnDataLoss;
use oncegate::engine::Engine;
use oncegate::gateway::{Engines, Gateway};
use oncegate::resilience::chain::{Chain, Setup, Times};
use oncegate::resilience::degrade::{Degrading, Keeper};
use oncegate::resilience::guarded::Guarded;
use oncegate::resilience::journal::Bounds;
use tokio_util::sync::CancellationToken;

use crate::bugs::Bug;
use crate::clock::MachineClock;
use crate::dice::Dice;
use crate::link::Link;
use crate::world::World;

/// The deadline of calls that bring none.
const DEADLINE: Duration = Duration::from_secs(1);

/// The one chain of every world.
const CHAIN: &str = "default";

/// What stands between a gateway and its store. The same as `server::engines` puts there; when that changes, this does.
fn engines(
    link: Arc<dyn Engine>,
    clock: &Arc<dyn Clock>,
    entropy: &Arc<dyn Entropy>,
    keeper: &Arc<Keeper>,
    plant: impl FnOnce(Arc<dyn Engine>) -> Arc<dyn Engine>,
) -> Engines {
    let guarded: Arc<dyn Engine> = Arc::new(Guarded::new(link, "primary", DEADLINE, clock.clone(), entropy.clone()));
    let chain = Arc::new(Chain::start(Setup {
        name: CHAIN.into(),
        engines: vec![("primary".into(), plant(guarded.clone()))],
        on_data_loss: OnDataLoss::Resume,
        lease_max: Duration::from_secs(10),
        clock: clock.clone(),
        entropy: entropy.clone(),
        times: Times::default(),
    }));
    let calls = Degrading::start(CHAIN, chain.clone(), keeper.clone(), clock.clone(), entropy.clone());
    let mut engines = Engines::default();
    engines.by_name.insert("primary".into(), guarded);
    engines.calls.insert(CHAIN.into(), Arc::new(calls));
    engines.chains.insert(CHAIN.into(), chain);
    engines
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
        // Opened only where a policy needs it, and no app of a world has one.
        let bounds = Bounds { bytes: 0, app_bytes: 0 };
        let keeper = Arc::new(Keeper::new(Path::new("no-such-folder"), bounds, clock.clone()));
        let plant = |engine| match self.bug {
            Some(bug) => bug.in_gateway(engine, &self.world),
            None => engine,
        };
        let engines = engines(Arc::new(self.link.clone()), &clock, &entropy, &keeper, plant);
        let issuer = Issuer::new(clock.clone(), entropy);
        let gateway = Arc::new(Gateway::new(engines, issuer, clock));
        *self.running() = Some(Running { gateway, died: CancellationToken::new() });
    }

    /// The process dies where it stands.
    pub(crate) fn kill(&self) {
        if let Some(running) = self.running().take() {
            running.died.cancel();
            // A dead process does nothing more; what this one has begun has to be told so.
            tokio::spawn(async move { running.gateway.close().await });
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
