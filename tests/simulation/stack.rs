//! The gateways of a world. Each is built as the server builds them, over its own network. It may die at any moment; a new one
//! replaces it, with the data of the machine's disk.

use std::path::Path;
use std::sync::{Arc, Mutex, PoisonError};
use std::time::Duration;

use futures_util::future::BoxFuture;
use oncegate_core::attempt::{Attempt, Entropy, Issuer};
use oncegate_core::call::Answered;
use oncegate_core::clock::Clock;
use oncegate_core::engine::Engine;
use oncegate_core::engine::sharded::Sharded;
use oncegate_core::limits::Limits;
use oncegate_core::terms::OnDataLoss;
use oncegate_gateway::claim::{ClaimAnswer, Granted};
use oncegate_gateway::resilience::call_guard::CallGuard;
use oncegate_gateway::resilience::chain::{
    Chain, FailoverMode, FailoverSetup, Setup, SwitchAction, SwitchRecorder, Times,
};
use oncegate_gateway::{Engines, Failure, Gateway, NamedChain, NamedEngine};
use oncegate_outage::journal::memory::{Disk, Flaw};
use oncegate_outage::journal::{Bounds, Journal, Recovered};
use oncegate_outage::{OutageJournal, OutagePolicies};
use tokio_util::sync::CancellationToken;

use crate::bugs::{Bug, Layer};
use crate::business::Target;
use crate::caller::ClaimPlan;
use crate::clock::MachineClock;
use crate::network::Network;
use crate::reference::ensure;
use crate::rng::Rng;
use crate::trace::NO_KEY;
use crate::world::{Kind, World};

/// Deadline of calls without their own.
const DEADLINE: Duration = Duration::from_secs(1);

/// The one chain of every world.
const CHAIN: &str = "default";

/// Its engines.
pub(crate) const ENGINES: [&str; 2] = ["primary", "spare"];

/// The witness of a failover.
const WITNESS: &str = "arbiter";

/// Longest lease of a request.
pub(crate) const LEASE_MAX: Duration = Duration::from_secs(10);

/// A journal that no world fills.
pub(crate) const ROOMY: Bounds = Bounds { bytes: 1 << 30, app_bytes: 1 << 30 };

/// A journal for a dozen grants or outcomes, which an outage of a second or two fills; the part of one app is smaller.
pub(crate) const TIGHT: Bounds = Bounds { bytes: 12_000, app_bytes: 5_000 };

/// An audit trail without storage.
struct NoTrail;

impl SwitchRecorder for NoTrail {
    fn record(&self, _: String, _: String, switch: SwitchAction) -> BoxFuture<'static, Result<(), String>> {
        Box::pin(async { switch.await.map(drop).map_err(|why| why.to_string()) })
    }
}

/// A machine that runs a gateway.
pub(crate) struct Host {
    world: Arc<World>,
    bug: Option<Bug>,
    /// Networks to each store.
    pub(crate) networks: Vec<Network>,
    clock: Arc<MachineClock>,
    pub(crate) disk: Disk,
    running: Mutex<Option<Running>>,
    /// Number of processes so far.
    runs: Mutex<u32>,
}

/// A gateway process, and the signal of its death.
#[derive(Clone)]
pub(crate) struct Running {
    pub(crate) gateway: Arc<Gateway>,
    pub(crate) chain: Arc<Chain>,
    pub(crate) journal: Arc<OutageJournal>,
    pub(crate) died: CancellationToken,
    /// Number of the process on its machine.
    pub(crate) run: u32,
    clock: Arc<dyn Clock>,
    bug: Option<Bug>,
}

impl Running {
    /// Returns the answer to a claim call, with this gateway's bug if it is one of the policies.
    pub(crate) fn plant(
        &self,
        answer: Result<Answered<ClaimAnswer>, Failure>,
        target: &Target,
        plan: &ClaimPlan,
        lease: Duration,
    ) -> Result<Answered<ClaimAnswer>, Failure> {
        let granted = || Granted {
            global_id: target.global_id,
            attempt: Attempt::new(self.clock.wall(), plan.nonce.clone()),
            fence: None,
            repeated: false,
            taken_over: false,
            lease_ms: u64::try_from(lease.as_millis()).unwrap_or(u64::MAX),
            lease_expires_at: self.clock.wall().plus(lease),
            would_be: None,
        };
        match self.bug {
            Some(bug) => bug.in_answer(answer, granted),
            None => answer,
        }
    }

    /// Returns the answer of a call. `None` if the process dies first.
    pub(crate) async fn answer<Answer>(&self, call: impl Future<Output = Answer>) -> Option<Answer> {
        self.died.run_until_cancelled(call).await.filter(|_| !self.died.is_cancelled())
    }
}

impl Host {
    pub(crate) fn new(world: Arc<World>, number: u16, networks: Vec<Network>, bug: Option<Bug>) -> Self {
        // Overlapping grants are found by the wall clocks of gateways. The clocks are close where a test requires it.
        // Never to the microsecond: a try that two of them grant at once would be one attempt, and one degraded grant.
        let wall_ahead = world.rng.millis(0, if world.kind.has_policies() { 5 } else { 600_000 });
        let wall_ahead = wall_ahead + Duration::from_micros(number.into());
        let clock = Arc::new(MachineClock::new(world.time, wall_ahead));
        let of_disk = world.clone();
        let pace = move || if of_disk.rng.percent(60) { of_disk.rng.millis(0, 1) } else { of_disk.rng.millis(1, 5) };
        let disk = Disk::new(pace, bug.map_or(Flaw::None, Bug::of_disk));
        let host = Self { world, bug, networks, clock, disk, running: Mutex::default(), runs: Mutex::default() };
        host.start();
        host
    }

    /// Starts a process. It knows of earlier processes only what is on its disk.
    pub(crate) fn start(&self) {
        if self.gateway().is_some() {
            return;
        }
        let clock: Arc<dyn Clock> = self.clock.clone();
        let entropy: Arc<dyn Entropy> = Arc::new(Rng::new(self.world.rng.next_u64()));
        let died = CancellationToken::new();
        let (chain, engines, journal) = self.engines(&clock, &entropy, &died);
        let issuer = Issuer::new(clock.clone(), entropy);
        let gateway = Arc::new(Gateway::new(engines, issuer, clock.clone(), &Limits::default()));
        let run = {
            let mut runs = self.runs.lock().unwrap_or_else(PoisonError::into_inner);
            *runs += 1;
            *runs
        };
        *self.running() = Some(Running { gateway, chain, journal, died, run, clock, bug: self.bug });
    }

    /// Builds the layers between a gateway and its stores, as `server::engines` does; change both together.
    fn engines(
        &self,
        clock: &Arc<dyn Clock>,
        entropy: &Arc<dyn Entropy>,
        died: &CancellationToken,
    ) -> (Arc<Chain>, Engines, Arc<OutageJournal>) {
        let (world, kind) = (&self.world, self.world.kind);
        let plant = |layer, engine| match self.bug {
            Some(bug) => bug.in_gateway(layer, engine, world),
            None => engine,
        };
        let mut engines = Engines::default();
        let mut members = Vec::new();
        let of_process = |network: &Network| -> Arc<dyn Engine> { Arc::new(network.of_process(died.clone())) };
        let mut stores: Vec<_> = self.networks.iter().map(of_process).collect();
        if kind == Kind::Sharded {
            if self.bug == Some(Bug::ShardsRenumbered) {
                let runs = *self.runs.lock().unwrap_or_else(PoisonError::into_inner);
                let shards = stores.len();
                stores.rotate_left(runs as usize % shards);
            }
            stores = vec![Arc::new(Sharded::new(stores))];
        }
        let witness = (kind == Kind::Failover).then(|| stores.pop()).flatten();
        let witness = witness.map(|store| {
            let guarded = CallGuard::new(store, WITNESS, DEADLINE, clock.clone(), entropy.clone());
            FailoverSetup {
                witness: (WITNESS.into(), plant(Layer::Engine, Arc::new(guarded))),
                // Stores of the simulation lose no acknowledged write, but do not have the capability `durable`.
                witness_requires: None,
                mode: FailoverMode::Automatic,
                after: Duration::from_secs(1),
                recorder: Arc::new(NoTrail),
            }
        });
        for (name, store) in ENGINES.iter().zip(stores) {
            let guarded = Arc::new(CallGuard::new(store, name, DEADLINE, clock.clone(), entropy.clone()));
            engines.by_name.insert((*name).into(), NamedEngine { engine: guarded.clone(), url: String::new() });
            members.push(((*name).into(), plant(Layer::Engine, guarded)));
        }
        let times = Times::default();
        let on_data_loss = if kind == Kind::GrantFreeze { OnDataLoss::Freeze } else { OnDataLoss::Resume };
        // A chain of one engine without a grant freeze only forwards calls.
        let only = members.first().map(|(_, engine)| engine.clone());
        let only = only.filter(|_| members.len() == 1 && on_data_loss == OnDataLoss::Resume);
        let chain = Arc::new(Chain::start(Setup {
            name: CHAIN.into(),
            engines: members,
            on_data_loss,
            lease_max: if self.bug == Some(Bug::GrantFreezeTooShort) { LEASE_MAX / 10 } else { LEASE_MAX },
            clock: clock.clone(),
            entropy: entropy.clone(),
            times: self.bug.map_or(times, |bug| bug.of_times(times)),
            requirement: None,
            failover: witness,
        }));
        let journal = Arc::new(if kind.has_policies() {
            let (journal, recovered) = self.journal();
            OutageJournal::over(journal, recovered, clock.clone())
        } else {
            // Opened only if a policy needs it, and no app of these worlds has one.
            OutageJournal::new(Path::new("no-such-folder"), Bounds { bytes: 0, app_bytes: 0 }, clock.clone())
        });
        let chain_engine = plant(Layer::Chain, only.unwrap_or(chain.clone()));
        let policies = OutagePolicies::start(CHAIN, chain_engine, journal.clone(), clock.clone(), entropy.clone());
        engines.chains.insert(CHAIN.into(), NamedChain { chain: chain.clone(), policies });
        (chain, engines, journal)
    }

    /// Opens the journal with its entries. All of it must be readable, after any end of the process before.
    fn journal(&self) -> (Journal, Recovered) {
        let bounds = self.world.journal_bounds;
        Journal::open_in_memory(&self.disk, bounds).unwrap_or_else(|why| {
            self.world.check(NO_KEY, ensure(false, "spool", || format!("the journal cannot be read: {why}")));
            let empty = Disk::new(|| Duration::ZERO, Flaw::None);
            Journal::open_in_memory(&empty, bounds).expect("nothing is in it")
        })
    }

    /// Kills the process, and sometimes the machine.
    pub(crate) fn kill(&self) {
        if let Some(running) = self.running().take() {
            running.died.cancel();
            let rng = &self.world.rng;
            if self.world.kind.has_policies() {
                let power_fails = rng.percent(50);
                self.disk.crash(|loose| if power_fails { rng.index(loose + 1) } else { loose });
            }
            // A dead process does nothing more, so its tasks are cancelled.
            tokio::spawn(async move { running.gateway.close().await });
        }
    }

    /// Switches the chain to another engine, by an operator's call to this gateway.
    pub(crate) async fn switch(&self, to: &str) -> Option<bool> {
        let running = self.gateway()?;
        let switched = running.died.run_until_cancelled(running.chain.switch(to)).await?;
        Some(switched.is_ok())
    }

    /// Returns the gateway, unless it is down.
    pub(crate) fn gateway(&self) -> Option<Running> {
        self.running().clone()
    }

    /// Steps the machine's wall clock.
    pub(crate) fn step_wall(&self, ahead: Duration) {
        // The journal computes the rest of a lease by this clock; worlds with clock faults test that.
        if !self.world.kind.has_policies() {
            self.clock.step_wall(ahead);
        }
    }

    fn running(&self) -> std::sync::MutexGuard<'_, Option<Running>> {
        self.running.lock().unwrap_or_else(PoisonError::into_inner)
    }
}
