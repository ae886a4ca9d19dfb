//! Chains over engines in memory that fail for one gateway, on a paused clock; and the conformance suite.

mod failover;
mod failures;
mod freeze;
mod switching;

use std::sync::Mutex;

use futures_util::FutureExt as _;
use oncegate_core::attempt::SystemEntropy;
use oncegate_core::claim::Outcome;
use oncegate_core::clock::{Clock, SystemClock};
use oncegate_core::engine::Metadata;
use oncegate_core::engine::conformance::{DEADLINE, Subject, fresh_claim};
use oncegate_core::engine::faulty::{Fault, Faulty};
use oncegate_core::engine::memory::{BYTES_MAX_DEFAULT, Memory};
use oncegate_core::terms::OnDataLoss;
use tokio::time::sleep;

use super::state::ChainState;
use super::*;
use crate::resilience::tests::PausedClock;

/// Calls happen at once, and are answered late.
const DELAYED: Fault = Fault::Delayed(Duration::from_secs(3));

/// Stores that several gateways share.
struct Stores {
    clock: Arc<dyn Clock>,
    stores: Vec<(String, Arc<dyn Engine>)>,
}

/// A gateway: its chain, and the engines of that.
struct Gateway {
    chain: Arc<Chain>,
    engines: Vec<Arc<Faulty>>,
}

impl Stores {
    fn new(names: &[&str]) -> Self {
        let clock: Arc<dyn Clock> = PausedClock::start();
        let store = |name: &&str| -> (String, Arc<dyn Engine>) {
            ((*name).to_owned(), Arc::new(Memory::new(clock.clone(), BYTES_MAX_DEFAULT)))
        };
        Self { stores: names.iter().map(store).collect(), clock: clock.clone() }
    }

    fn gateway(&self) -> Gateway {
        self.gateway_with(OnDataLoss::Resume, |_| {})
    }

    /// Marks each store as one that has its data, as after a freeze.
    async fn mark_as_kept(&self) {
        for (_, store) in &self.stores {
            mark_as_kept(&**store).await;
        }
    }

    /// Creates a store that has its data, and starts a gateway that freezes grants after their loss.
    async fn kept() -> (Self, Gateway) {
        let stores = Self::new(&["a"]);
        stores.mark_as_kept().await;
        let gateway = stores.freezing_gateway();
        (stores, gateway)
    }

    /// Starts a gateway that freezes grants after data loss.
    fn freezing_gateway(&self) -> Gateway {
        self.gateway_with(OnDataLoss::Freeze, |_| {})
    }

    /// Starts a gateway with the faults that `prepare` sets.
    fn gateway_with(&self, on_data_loss: OnDataLoss, prepare: impl FnOnce(&[Arc<Faulty>])) -> Gateway {
        let (setup, engines) = self.setup(on_data_loss);
        prepare(&engines);
        Gateway { chain: Arc::new(Chain::start(setup)), engines }
    }

    /// Returns the parts of a gateway's chain, and its engines.
    fn setup(&self, on_data_loss: OnDataLoss) -> (Setup, Vec<Arc<Faulty>>) {
        let engines: Vec<_> =
            self.stores.iter().map(|(_, store)| Arc::new(Faulty::always(store.clone(), Fault::None))).collect();
        let engine = |((name, _), way): (&(String, Arc<dyn Engine>), &Arc<Faulty>)| -> (String, Arc<dyn Engine>) {
            (name.clone(), way.clone())
        };
        let named = self.stores.iter().zip(&engines).map(engine).collect();
        let plain = Setup::plain("main", named, self.clock.clone(), Arc::new(SystemEntropy));
        (Setup { on_data_loss, lease_max: Duration::from_secs(30), ..plain }, engines)
    }

    /// Returns the names of the stores that hold this claim, together.
    async fn holders(&self, key: &Key) -> String {
        let mut holders = String::new();
        for (name, store) in &self.stores {
            if store.read(key).await.unwrap().is_some() {
                holders.push_str(name);
            }
        }
        holders
    }

    async fn epoch_at(&self, store: usize) -> u64 {
        let record = self.stores[store].1.get_metadata("chain.main").await.unwrap();
        record.map_or(0, |record| ChainState::read(&record).unwrap().epoch)
    }
}

impl Gateway {
    async fn claim(&self, request: &ClaimRequest) -> Result<ClaimResponse, EngineError> {
        self.chain.claim(request, DEADLINE).await
    }

    /// Makes a batch of claims. Returns the answers in their order.
    async fn claim_batch(&self, requests: &[ClaimRequest]) -> Vec<Result<ClaimResponse, EngineError>> {
        let answers = Mutex::new(Vec::new());
        let sink = |position, answer| answers.lock().unwrap().push((position, answer));
        let claims: Vec<_> = requests.iter().map(|request| BatchClaim { request, deadline: DEADLINE }).collect();
        self.chain.claim_batch(&claims, &sink).await;
        let mut answers: Vec<(usize, _)> = answers.into_inner().unwrap();
        answers.sort_by_key(|(position, _)| *position);
        assert!(answers.iter().map(|(position, _)| *position).eq(0..requests.len()), "each is answered once");
        answers.into_iter().map(|(_, answer)| answer).collect()
    }

    async fn granted(&self) -> ClaimRequest {
        let request = fresh_claim();
        assert!(matches!(self.claim(&request).await, Ok(ClaimResponse::Granted(_))));
        request
    }

    fn active(&self) -> String {
        self.chain.status().active
    }

    /// Waits until this gateway uses that engine. Returns how long that took.
    async fn wait_until_active(&self, engine: &str) -> Duration {
        let mut waited = Duration::ZERO;
        while self.active() != engine || self.chain.status().phase == Phase::Closing {
            sleep(Duration::from_millis(10)).await;
            waited += Duration::from_millis(10);
            assert!(waited < Duration::from_mins(1), "it never uses {engine}");
        }
        waited
    }
}

async fn mark_as_kept(store: &dyn Engine) {
    assert_eq!(store.compare_and_set_metadata("kept.main", None, &Metadata::new("kept").unwrap()).await, Ok(true));
}

fn settle(request: &ClaimRequest) -> OutcomeRequest {
    OutcomeRequest {
        key: request.key.clone(),
        attempt: request.attempt.clone(),
        outcome: Outcome::Success { result: None, retention: None },
        late: None,
    }
}

fn is_paused<Answer>(answer: &Result<Answer, EngineError>) -> bool {
    matches!(answer, Err(EngineError::Determinate(Determinate::Paused(_))))
}

mod one_engine {
    use super::*;

    fn open() -> Subject {
        Subject::on_manual_clock(|clock| {
            let memory: Arc<dyn Engine> = Arc::new(Memory::new(clock, BYTES_MAX_DEFAULT));
            over(vec![("a".into(), memory)])
        })
    }

    oncegate_core::conformance!(async { Some(open()) });
}

mod two_engines_and_a_witness {
    use super::*;

    fn open() -> Subject {
        Subject::on_manual_clock(|clock| {
            let memory = || -> Arc<dyn Engine> { Arc::new(Memory::new(clock.clone(), BYTES_MAX_DEFAULT)) };
            over_with(vec![("a".into(), memory()), ("b".into(), memory())], Some(memory()))
        })
    }

    oncegate_core::conformance!(async { Some(open()) });
}

mod two_engines {
    use super::*;

    fn open() -> Subject {
        Subject::on_manual_clock(|clock| {
            let memory = || -> Arc<dyn Engine> { Arc::new(Memory::new(clock.clone(), BYTES_MAX_DEFAULT)) };
            over(vec![("a".into(), memory()), ("b".into(), memory())])
        })
    }

    oncegate_core::conformance!(async { Some(open()) });
}

fn over(engines: Vec<(String, Arc<dyn Engine>)>) -> Arc<dyn Engine> {
    over_with(engines, None)
}

fn over_with(engines: Vec<(String, Arc<dyn Engine>)>, witness: Option<Arc<dyn Engine>>) -> Arc<dyn Engine> {
    for (_, engine) in &engines {
        mark_as_kept(&**engine).now_or_never().expect("memory answers at once");
    }
    Arc::new(Chain::start(Setup {
        on_data_loss: OnDataLoss::Freeze,
        lease_max: Duration::from_secs(30),
        failover: witness.map(failover::with_witness),
        ..Setup::plain("main", engines, Arc::new(SystemClock::new()), Arc::new(SystemEntropy))
    }))
}
