//! The gateways of a world. Each is built as the server builds them, over links of its own; it may die at any moment, and a
//! new one takes its place, with what the machine's disk has kept.

use std::path::Path;
use std::sync::{Arc, Mutex, PoisonError};
use std::time::Duration;

use oncegate::domain::attempt::{Attempt, Entropy, Issuer};
use oncegate::domain::clock::Clock;
use oncegate::domain::limits::Limits;
use oncegate::domain::terms::OnDataLoss;
use oncegate::engine::Engine;
use oncegate::gateway::claim::{ClaimAnswer, Granted};
use oncegate::gateway::{Engines, Failure, Gateway, NamedChain, NamedEngine};
use oncegate::resilience::call_guard::CallGuard;
use oncegate::resilience::chain::{Chain, Setup, Times};
use oncegate::resilience::degrade::{OutageJournal, OutagePolicies};
use oncegate::resilience::journal::memory::{Disk, Flaw};
use oncegate::resilience::journal::{Bounds, Journal, Recovered};
use tokio_util::sync::CancellationToken;

use crate::bugs::{Bug, Layer};
use crate::business::Target;
use crate::caller::Asked;
use crate::clock::MachineClock;
use crate::link::Link;
use crate::reference::hold;
use crate::rng::Rng;
use crate::trace::NO_KEY;
use crate::world::{Kind, World};

/// The deadline of calls that bring none.
const DEADLINE: Duration = Duration::from_secs(1);

/// The one chain of every world.
const CHAIN: &str = "default";

/// Its engines.
pub(crate) const ENGINES: [&str; 2] = ["primary", "spare"];

/// The longest lease that anybody asks for.
pub(crate) const LEASE_MAX: Duration = Duration::from_secs(10);

/// More than any world fills.
pub(crate) const ROOMY: Bounds = Bounds { bytes: 1 << 30, app_bytes: 1 << 30 };

/// A dozen grants or outcomes, and fewer of one app than it leaves free: an outage of a second or two fills it.
pub(crate) const TIGHT: Bounds = Bounds { bytes: 12_000, app_bytes: 5_000 };

/// A machine that runs a gateway.
pub(crate) struct Host {
    world: Arc<World>,
    bug: Option<Bug>,
    /// To each store.
    pub(crate) links: Vec<Link>,
    clock: Arc<MachineClock>,
    pub(crate) disk: Disk,
    running: Mutex<Option<Running>>,
    /// How many processes there have been.
    runs: Mutex<u32>,
}

/// A gateway, and how its callers learn that it has died.
#[derive(Clone)]
pub(crate) struct Running {
    pub(crate) gateway: Arc<Gateway>,
    pub(crate) chain: Arc<Chain>,
    pub(crate) journal: Arc<OutageJournal>,
    pub(crate) died: CancellationToken,
    /// Which process of its machine it is.
    pub(crate) run: u32,
    clock: Arc<dyn Clock>,
    bug: Option<Bug>,
}

impl Running {
    /// The answer to a claim call, with this gateway's bug if it is one of the policies.
    pub(crate) fn plant(
        &self,
        answer: Result<ClaimAnswer, Failure>,
        target: &Target,
        asked: &Asked,
        lease: Duration,
    ) -> Result<ClaimAnswer, Failure> {
        let granted = |policy| Granted {
            global_id: target.global_id,
            attempt: Attempt::new(self.clock.wall(), asked.nonce.clone()),
            fence: None,
            repeated: false,
            taken_over: false,
            lease_ms: u64::try_from(lease.as_millis()).unwrap_or(u64::MAX),
            lease_expires_at: self.clock.wall().plus(lease),
            would_be: None,
            degraded: Some(policy),
        };
        match self.bug {
            Some(bug) => bug.in_answer(answer, granted),
            None => answer,
        }
    }

    /// The answer of a call, unless the process dies first: then nobody hears what it says.
    pub(crate) async fn answer<Answer>(&self, call: impl Future<Output = Answer>) -> Option<Answer> {
        self.died.run_until_cancelled(call).await.filter(|_| !self.died.is_cancelled())
    }
}

impl Host {
    pub(crate) fn new(world: Arc<World>, number: u16, links: Vec<Link>, bug: Option<Bug>) -> Self {
        // Grants that overlap are found by the wall clocks of gateways, which are alike where that is asked for. Never to the
        // microsecond: a try that two of them grant at once would be one attempt, with one mark for both.
        let wall_ahead = world.rng.millis(0, if world.kind.has_policies() { 5 } else { 600_000 });
        let wall_ahead = wall_ahead + Duration::from_micros(number.into());
        let clock = Arc::new(MachineClock::new(world.time, wall_ahead));
        let of_disk = world.clone();
        let pace = move || if of_disk.rng.percent(60) { of_disk.rng.millis(0, 1) } else { of_disk.rng.millis(1, 5) };
        let disk = Disk::new(pace, bug.map_or(Flaw::None, Bug::of_disk));
        let host = Self { world, bug, links, clock, disk, running: Mutex::default(), runs: Mutex::default() };
        host.start();
        host
    }

    /// A new process, which knows nothing of those before but what is on its disk.
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

    /// What stands between a gateway and its stores. The same as `server::engines` puts there; when that changes, this does.
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
        for (name, link) in ENGINES.iter().zip(&self.links) {
            let link: Arc<dyn Engine> = Arc::new(link.of_process(died.clone()));
            let guarded = CallGuard::new(link, name, DEADLINE, clock.clone(), entropy.clone());
            let guarded: Arc<dyn Engine> = Arc::new(guarded);
            engines.by_name.insert((*name).into(), NamedEngine { engine: guarded.clone(), url: String::new() });
            members.push(((*name).into(), plant(Layer::Engine, guarded)));
        }
        let times = Times::default();
        let on_data_loss = if kind == Kind::Holding { OnDataLoss::Hold } else { OnDataLoss::Resume };
        // A chain of one engine that holds nothing back only passes calls on.
        let only = members.first().map(|(_, engine)| engine.clone());
        let only = only.filter(|_| members.len() == 1 && on_data_loss == OnDataLoss::Resume);
        let chain = Arc::new(Chain::start(Setup {
            name: CHAIN.into(),
            engines: members,
            on_data_loss,
            lease_max: if self.bug == Some(Bug::HoldTooShort) { LEASE_MAX / 10 } else { LEASE_MAX },
            clock: clock.clone(),
            entropy: entropy.clone(),
            times: self.bug.map_or(times, |bug| bug.of_times(times)),
        }));
        let journal = Arc::new(if kind.has_policies() {
            let (journal, recovered) = self.journal();
            OutageJournal::over(journal, recovered, clock.clone())
        } else {
            // Opened only where a policy needs it, and no app of these worlds has one.
            OutageJournal::new(Path::new("no-such-folder"), Bounds { bytes: 0, app_bytes: 0 }, clock.clone())
        });
        let told = plant(Layer::Chain, only.unwrap_or(chain.clone()));
        let policies = OutagePolicies::start(CHAIN, told, journal.clone(), clock.clone(), entropy.clone());
        engines.chains.insert(CHAIN.into(), NamedChain { chain: chain.clone(), policies, requirement: None });
        (chain, engines, journal)
    }

    /// The journal, with what is found in it: whatever has happened to the one before, all of it can be read.
    fn journal(&self) -> (Journal, Recovered) {
        let bounds = self.world.journal_bounds;
        Journal::open_in_memory(&self.disk, bounds).unwrap_or_else(|why| {
            self.world.check(NO_KEY, hold(false, "spool", || format!("the journal cannot be read: {why}")));
            let empty = Disk::new(|| Duration::ZERO, Flaw::None);
            Journal::open_in_memory(&empty, bounds).expect("nothing is in it")
        })
    }

    /// The process dies where it stands, and sometimes the machine with it.
    pub(crate) fn kill(&self) {
        if let Some(running) = self.running().take() {
            running.died.cancel();
            let rng = &self.world.rng;
            if self.world.kind.has_policies() {
                let power_fails = rng.percent(50);
                self.disk.crash(|loose| if power_fails { rng.index(loose + 1) } else { loose });
            }
            // A dead process does nothing more; what this one has begun has to be told so.
            tokio::spawn(async move { running.gateway.close().await });
        }
    }

    /// Somebody orders this gateway to switch the chain to another engine.
    pub(crate) async fn switch(&self, to: &str) -> Option<bool> {
        let running = self.gateway()?;
        let switched = running.died.run_until_cancelled(running.chain.switch(to)).await?;
        Some(switched.is_ok())
    }

    /// The gateway, unless it is down.
    pub(crate) fn gateway(&self) -> Option<Running> {
        self.running().clone()
    }

    /// The machine's wall clock is set.
    pub(crate) fn step_wall(&self, ahead: Duration) {
        // By it a journal tells what was left of a lease: that is tried where clocks are.
        if !self.world.kind.has_policies() {
            self.clock.step_wall(ahead);
        }
    }

    fn running(&self) -> std::sync::MutexGuard<'_, Option<Running>> {
        self.running.lock().unwrap_or_else(PoisonError::into_inner)
    }
}
