//! Chains over engines in memory that can be cut off from one gateway, on a clock that stands unless somebody waits.

use std::sync::Mutex;
use std::sync::atomic::{AtomicU8, AtomicU64, Ordering};

use futures_util::FutureExt as _;
use tokio::time::sleep;

use super::*;
use crate::domain::attempt::SystemEntropy;
use crate::domain::claim::Outcome;
use crate::domain::clock::{SystemClock, Timestamp};
use crate::engine::Indeterminate;
use crate::engine::conformance::{DEADLINE, Subject, fresh_claim};
use crate::engine::memory::{BYTES_MAX_DEFAULT, Memory};
use crate::resilience::chain::Phase;

/// The time of the runtime, which goes on by itself while all tasks wait.
struct Paused(tokio::time::Instant);

impl Paused {
    #[expect(clippy::disallowed_methods, reason = "the clock of these tests is the runtime's, which they stop")]
    fn new() -> Arc<Self> {
        Arc::new(Self(tokio::time::Instant::now()))
    }
}

impl Clock for Paused {
    fn wall(&self) -> Timestamp {
        Timestamp::from_micros(1_700_000_000_000_000).plus(self.monotonic())
    }

    fn monotonic(&self) -> Duration {
        self.0.elapsed()
    }
}

const UP: u8 = 0;
const DOWN: u8 = 1;
const SILENT: u8 = 2;
/// Calls are done at once, and answered late.
const LATE: u8 = 3;

/// The way of one gateway to one store.
struct Way {
    store: Arc<dyn Engine>,
    is: AtomicU8,
    losses: AtomicU64,
}

impl Way {
    fn to(store: &Arc<dyn Engine>) -> Arc<Self> {
        Arc::new(Self { store: store.clone(), is: AtomicU8::new(UP), losses: AtomicU64::new(0) })
    }

    fn set(&self, is: u8) {
        self.is.store(is, Ordering::SeqCst);
    }

    async fn call<Answer>(
        &self,
        call: impl Future<Output = Result<Answer, EngineError>> + Send,
    ) -> Result<Answer, EngineError> {
        match self.is.load(Ordering::SeqCst) {
            DOWN => Err(EngineError::unavailable("cut off")),
            SILENT => std::future::pending().await,
            LATE => {
                let answer = call.await;
                sleep(Duration::from_secs(3)).await;
                answer
            }
            _ => call.await,
        }
    }
}

#[async_trait]
impl Engine for Way {
    async fn claim(&self, request: &ClaimRequest, deadline: Duration) -> Result<ClaimResponse, EngineError> {
        self.call(self.store.claim(request, deadline)).await
    }
    async fn settle(&self, request: &OutcomeRequest, deadline: Duration) -> Result<OutcomeResponse, EngineError> {
        self.call(self.store.settle(request, deadline)).await
    }
    async fn renew(&self, request: &RenewalRequest, deadline: Duration) -> Result<RenewalResponse, EngineError> {
        self.call(self.store.renew(request, deadline)).await
    }
    async fn read(&self, key: &Key) -> Result<Option<LiveClaim>, EngineError> {
        self.call(self.store.read(key)).await
    }
    async fn release(&self, request: &ReleaseRequest) -> Result<ReleaseResponse, EngineError> {
        self.call(self.store.release(request)).await
    }
    async fn list(&self, request: &ListRequest) -> Result<Vec<ListedClaim>, EngineError> {
        self.call(self.store.list(request)).await
    }
    // Notes are answered at once also where claims are late: the two go over different connections.
    async fn get_metadata(&self, name: &str) -> Result<Option<Metadata>, EngineError> {
        if self.is.load(Ordering::SeqCst) == LATE {
            return self.store.get_metadata(name).await;
        }
        self.call(self.store.get_metadata(name)).await
    }
    async fn compare_and_set_metadata(
        &self,
        name: &str,
        expected: Option<&Metadata>,
        new: &Metadata,
    ) -> Result<bool, EngineError> {
        if self.is.load(Ordering::SeqCst) == LATE {
            return self.store.compare_and_set_metadata(name, expected, new).await;
        }
        self.call(self.store.compare_and_set_metadata(name, expected, new)).await
    }
    async fn probe(&self) -> Result<(), EngineError> {
        self.call(self.store.probe()).await
    }
    fn capabilities(&self) -> Capabilities {
        self.store.capabilities()
    }
    fn data_lost(&self) -> u64 {
        self.losses.load(Ordering::SeqCst)
    }
}

/// Stores that several gateways share.
struct Stores {
    clock: Arc<dyn Clock>,
    stores: Vec<(String, Arc<dyn Engine>)>,
}

/// A gateway's chain, and its ways to the stores.
struct Gateway {
    chain: Arc<Chain>,
    ways: Vec<Arc<Way>>,
}

impl Stores {
    fn new(names: &[&str]) -> Self {
        let clock: Arc<dyn Clock> = Paused::new();
        let store = |name: &&str| -> (String, Arc<dyn Engine>) {
            ((*name).to_owned(), Arc::new(Memory::new(clock.clone(), BYTES_MAX_DEFAULT)))
        };
        Self { stores: names.iter().map(store).collect(), clock: clock.clone() }
    }

    fn gateway(&self) -> Gateway {
        self.gateway_with(OnDataLoss::Resume, |_| {})
    }

    /// Each store says so, as after a chain has held for it.
    async fn have_their_data(&self) {
        for (_, store) in &self.stores {
            has_its_data(&**store).await;
        }
    }

    /// A gateway whose ways are as `prepare` makes them before it starts.
    fn gateway_with(&self, on_data_loss: OnDataLoss, prepare: impl FnOnce(&[Arc<Way>])) -> Gateway {
        let ways: Vec<_> = self.stores.iter().map(|(_, store)| Way::to(store)).collect();
        prepare(&ways);
        let engine = |((name, _), way): (&(String, Arc<dyn Engine>), &Arc<Way>)| -> (String, Arc<dyn Engine>) {
            (name.clone(), way.clone())
        };
        let setup = Setup {
            name: "main".into(),
            engines: self.stores.iter().zip(&ways).map(engine).collect(),
            on_data_loss,
            lease_max: Duration::from_secs(30),
            clock: self.clock.clone(),
            entropy: Arc::new(SystemEntropy),
            times: Times::default(),
        };
        Gateway { chain: Arc::new(Chain::start(setup)), ways }
    }

    /// The stores that hold this claim, by their names.
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
        let note = self.stores[store].1.get_metadata("chain.main").await.unwrap();
        note.map_or(0, |note| state::ChainState::read(&note).unwrap().epoch)
    }
}

impl Gateway {
    async fn claim(&self, request: &ClaimRequest) -> Result<ClaimResponse, EngineError> {
        self.chain.claim(request, DEADLINE).await
    }

    /// The answers to claims of one batch, in their order.
    async fn claim_batch(&self, requests: &[ClaimRequest]) -> Vec<Result<ClaimResponse, EngineError>> {
        let answers = Mutex::new(Vec::new());
        let tell = |place, answer| answers.lock().unwrap().push((place, answer));
        let claims: Vec<_> = requests.iter().map(|request| BatchClaim { request, deadline: DEADLINE }).collect();
        self.chain.claim_batch(&claims, &tell).await;
        let mut answers: Vec<(usize, _)> = answers.into_inner().unwrap();
        answers.sort_by_key(|(place, _)| *place);
        assert!(answers.iter().map(|(place, _)| *place).eq(0..requests.len()), "each is answered once");
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

    /// Waits until this gateway is on that engine, in the runtime's time.
    async fn comes_to(&self, engine: &str) -> Duration {
        let mut waited = Duration::ZERO;
        while self.active() != engine || self.chain.status().phase == Phase::Closing {
            sleep(Duration::from_millis(10)).await;
            waited += Duration::from_millis(10);
            assert!(waited < Duration::from_mins(1), "it never comes to {engine}");
        }
        waited
    }
}

async fn has_its_data(store: &dyn Engine) {
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
        Subject::by_hand(|clock| {
            let memory: Arc<dyn Engine> = Arc::new(Memory::new(clock, BYTES_MAX_DEFAULT));
            over(vec![("a".into(), memory)])
        })
    }

    crate::conformance!(async { Some(open()) });
}

mod two_engines {
    use super::*;

    fn open() -> Subject {
        Subject::by_hand(|clock| {
            let memory = || -> Arc<dyn Engine> { Arc::new(Memory::new(clock.clone(), BYTES_MAX_DEFAULT)) };
            over(vec![("a".into(), memory()), ("b".into(), memory())])
        })
    }

    crate::conformance!(async { Some(open()) });
}

fn over(engines: Vec<(String, Arc<dyn Engine>)>) -> Arc<dyn Engine> {
    for (_, engine) in &engines {
        has_its_data(&**engine).now_or_never().expect("memory answers at once");
    }
    Arc::new(Chain::start(Setup {
        name: "main".into(),
        engines,
        on_data_loss: OnDataLoss::Hold,
        lease_max: Duration::from_secs(30),
        clock: Arc::new(SystemClock::new()),
        entropy: Arc::new(SystemEntropy),
        times: Times::default(),
    }))
}

#[tokio::test(start_paused = true)]
async fn a_switch_reaches_every_gateway_and_those_that_start_later() {
    let stores = Stores::new(&["a", "b"]);
    let (here, there) = (stores.gateway(), stores.gateway());
    let before = here.granted().await;
    assert_eq!(stores.holders(&before.key).await, "a");
    let switched = here.chain.switch("b").await.unwrap();
    assert_eq!(switched, Switched { from: "a".into(), to: "b".into(), epoch: 1 });
    assert_eq!(here.active(), "b");
    assert!(there.comes_to("b").await <= Duration::from_millis(600), "it is followed at the next look");
    for gateway in [&here, &there, &stores.gateway()] {
        assert_eq!(stores.holders(&gateway.granted().await.key).await, "b");
    }
    let back = there.chain.switch("a").await.unwrap();
    assert_eq!((back.epoch, back.from.as_str()), (2, "b"));
    here.comes_to("a").await;
}

#[tokio::test(start_paused = true)]
async fn while_a_chain_is_switched_nobody_grants_and_outcomes_go_where_the_claim_is() {
    let stores = Stores::new(&["a", "b"]);
    let (here, there) = (stores.gateway(), stores.gateway());
    let held = there.granted().await;
    let begun = stores.clock.monotonic();
    let switching = tokio::spawn({
        let chain = here.chain.clone();
        async move { chain.switch("b").await }
    });
    sleep(Duration::from_millis(700)).await;
    for gateway in [&here, &there] {
        let status = gateway.chain.status();
        assert_eq!((status.phase, status.active.as_str()), (Phase::Closing, "a"));
        assert_eq!(status.switching_to.as_deref(), Some("b"));
        let refused = gateway.claim(&fresh_claim()).await;
        assert!(is_paused(&refused), "{refused:?}");
    }
    let renewal = RenewalRequest { key: held.key.clone(), attempt: held.attempt.clone(), lease: None };
    assert!(matches!(there.chain.renew(&renewal, DEADLINE).await, Ok(RenewalResponse::Renewed { .. })));
    assert!(matches!(
        there.chain.settle(&settle(&held), DEADLINE).await,
        Ok(OutcomeResponse::Done { late: Some(false), .. })
    ));
    switching.await.unwrap().unwrap();
    assert!(stores.clock.monotonic().saturating_sub(begun) >= Duration::from_secs(2), "all have had time to see it");
}

/// A gateway that has not seen yet that the new engine is in use would tell the old one what became of a claim that the new
/// one has granted.
#[tokio::test(start_paused = true)]
async fn what_the_new_engine_has_granted_is_not_settled_on_the_old_one() {
    let mut late = 0;
    for round in 0..10 {
        let stores = Stores::new(&["a", "b"]);
        let (here, there) = (stores.gateway(), stores.gateway());
        sleep(Duration::from_millis(50 * round)).await;
        let chain = here.chain.clone();
        let switching = tokio::spawn(async move { chain.switch("b").await });
        here.comes_to("b").await;
        let held = here.granted().await;
        late += u32::from(there.chain.status().phase == Phase::Closing);
        match there.chain.settle(&settle(&held), DEADLINE).await {
            Ok(OutcomeResponse::Done { late: Some(false), .. }) | Err(EngineError::Indeterminate(_)) => {}
            other => panic!("told as taken: {other:?}"),
        }
        assert!(there.chain.settle(&settle(&held), DEADLINE).await.is_ok(), "repeated, it goes where the claim is");
        switching.await.unwrap().unwrap();
    }
    assert!(late > 0, "it had seen it each time");
}

/// The point of it all: once anybody was granted a claim on the new engine, nobody is told of one on the old.
#[tokio::test(start_paused = true)]
async fn nobody_is_granted_on_the_old_engine_once_somebody_was_on_the_new_one() {
    for round in 0..20 {
        let stores = Arc::new(Stores::new(&["a", "b"]));
        let told = Arc::new(Mutex::new(Vec::new()));
        let gateways: Vec<_> = (0..3).map(|_| Arc::new(stores.gateway())).collect();
        let callers: Vec<_> = (0..9)
            .map(|caller| {
                let (gateway, stores, told) = (gateways[caller % 3].clone(), stores.clone(), told.clone());
                tokio::spawn(async move {
                    for step in 0..600 {
                        let request = fresh_claim();
                        if let Ok(ClaimResponse::Granted(_)) = gateway.claim(&request).await {
                            let on = stores.holders(&request.key).await;
                            told.lock().unwrap().push((stores.clock.monotonic(), on));
                        }
                        sleep(Duration::from_millis(5 + (step * 7 + round) % 5)).await;
                    }
                })
            })
            .collect();
        sleep(Duration::from_millis(200 + round * 37)).await;
        // A way that hangs for a while, as ways do, and answers what was asked long ago.
        gateways[1].ways[0].set(if round % 2 == 0 { LATE } else { UP });
        gateways[0].chain.switch("b").await.unwrap();
        for caller in callers {
            caller.await.unwrap();
        }
        let told = told.lock().unwrap();
        let last_on_old = told.iter().filter(|(_, on)| on == "a").map(|(at, _)| *at).max().unwrap();
        let first_on_new = told.iter().filter(|(_, on)| on == "b").map(|(at, _)| *at).min().unwrap();
        assert!(last_on_old < first_on_new, "round {round}: {last_on_old:?} {first_on_new:?}");
        assert!(first_on_new < last_on_old + Duration::from_secs(3), "round {round}: nobody served for long");
    }
}

#[tokio::test(start_paused = true)]
async fn a_grant_that_comes_back_after_the_switch_is_not_told() {
    let stores = Stores::new(&["a", "b"]);
    let (here, there) = (stores.gateway(), stores.gateway());
    there.granted().await;
    there.ways[0].set(LATE);
    let request = fresh_claim();
    let report = settle(&request);
    let (late, outcome) = (there.claim(&request), there.chain.settle(&report, DEADLINE));
    let (late, outcome, switched) = tokio::join!(late, outcome, here.chain.switch("b"));
    switched.unwrap();
    assert!(matches!(late, Err(EngineError::Indeterminate(_))), "{late:?}");
    assert!(matches!(outcome, Err(EngineError::Indeterminate(_))), "{outcome:?}");
    // Repeated as it has to be, it is granted where everybody looks.
    let again = there.claim(&request).await;
    assert!(matches!(&again, Ok(ClaimResponse::Granted(grant)) if grant.attempt == request.attempt), "{again:?}");
    assert_eq!(stores.holders(&request.key).await, "ab");
}

#[tokio::test(start_paused = true)]
async fn a_gateway_that_has_not_looked_for_long_grants_nothing() {
    let stores = Stores::new(&["a", "b"]);
    let (here, there) = (stores.gateway(), stores.gateway());
    there.granted().await;
    // As if its process stood still: it looks no more.
    there.chain.close().await;
    here.chain.switch("b").await.unwrap();
    let refused = there.claim(&fresh_claim()).await;
    assert!(matches!(refused, Err(EngineError::Determinate(Determinate::Unavailable(_)))), "{refused:?}");
    for refused in there.claim_batch(&[fresh_claim(), fresh_claim()]).await {
        assert!(matches!(refused, Err(EngineError::Determinate(Determinate::Unavailable(_)))), "{refused:?}");
    }
    let refused = there.chain.settle(&settle(&fresh_claim()), DEADLINE).await;
    assert!(matches!(refused, Err(EngineError::Determinate(Determinate::Unavailable(_)))), "{refused:?}");
}

#[tokio::test(start_paused = true)]
async fn that_an_engine_is_out_which_nobody_uses_holds_nobody_up() {
    for is in [DOWN, SILENT] {
        let stores = Stores::new(&["a", "b"]);
        let gateway = stores.gateway_with(OnDataLoss::Resume, |ways| ways[1].set(is));
        for _ in 0..1000 {
            let begun = stores.clock.monotonic();
            gateway.granted().await;
            assert!(stores.clock.monotonic().saturating_sub(begun) < Duration::from_secs(1));
            sleep(Duration::from_millis(10)).await;
            gateway.ways[1].set(if stores.clock.monotonic().as_millis() % 3000 < 500 { UP } else { is });
        }
    }
}

#[tokio::test(start_paused = true)]
async fn a_chain_is_left_whose_engine_is_dead_and_the_dead_one_learns_of_it() {
    let stores = Stores::new(&["a", "b"]);
    let (here, there) = (stores.gateway(), stores.gateway());
    there.granted().await;
    for gateway in [&here, &there] {
        gateway.ways[0].set(DOWN);
    }
    here.chain.switch("b").await.unwrap();
    there.comes_to("b").await;
    assert_eq!((stores.epoch_at(0).await, stores.epoch_at(1).await), (0, 1));
    there.ways[0].set(UP);
    sleep(Duration::from_secs(1)).await;
    assert_eq!(stores.epoch_at(0).await, 1, "whoever reaches it tells it");
    // So a gateway that starts and reaches only that one does not go on with it as if nothing had happened.
    let late = stores.gateway_with(OnDataLoss::Resume, |ways| ways[1].set(DOWN));
    let refused = late.claim(&fresh_claim()).await;
    assert!(matches!(refused, Err(EngineError::Determinate(Determinate::Unavailable(_)))), "{refused:?}");
    assert_eq!(late.active(), "b");
}

#[tokio::test(start_paused = true)]
async fn a_chain_is_not_switched_to_what_does_not_answer() {
    for is in [DOWN, SILENT] {
        let stores = Stores::new(&["a", "b"]);
        let (here, there) = (stores.gateway(), stores.gateway());
        here.ways[1].set(is);
        let refused = here.chain.switch("b").await.unwrap_err();
        assert!(matches!(&refused, ChainSwitchError::Unavailable { to, .. } if to == "b"), "{refused:?}");
        sleep(Duration::from_secs(15)).await;
        for gateway in [&here, &there] {
            assert_eq!(gateway.active(), "a");
            gateway.granted().await;
        }
    }
}

#[tokio::test(start_paused = true)]
async fn a_switch_that_makes_no_sense_is_refused() {
    let stores = Stores::new(&["a", "b"]);
    let gateway = stores.gateway();
    gateway.granted().await;
    assert_eq!(gateway.chain.switch("a").await, Err(ChainSwitchError::AlreadyActive("a".into())));
    let refused = gateway.chain.switch("c").await.unwrap_err().to_string();
    assert_eq!(refused, "the chain has no engine `c`; it has: a, b");
    let alone = Stores::new(&["a"]).gateway();
    assert_eq!(alone.chain.switch("a").await, Err(ChainSwitchError::AlreadyActive("a".into())));
    gateway.granted().await;
}

#[tokio::test(start_paused = true)]
async fn of_two_operators_at_once_one_is_told_that_the_other_goes_before() {
    for round in 0..30 {
        let stores = Stores::new(&["a", "b", "c"]);
        let (here, there, third) = (stores.gateway(), stores.gateway(), stores.gateway());
        third.granted().await;
        let other = if round % 2 == 0 { "b" } else { "c" };
        let late = async {
            sleep(Duration::from_millis(round * 100)).await;
            there.chain.switch(other).await
        };
        let (one, two) = tokio::join!(here.chain.switch("b"), late);
        let won: Vec<_> = [&one, &two].into_iter().flatten().collect();
        // Begun after the first was done, it is another switch.
        let expected = if round < 20 || other == "b" { 1 } else { 2 };
        assert_eq!(won.len(), expected, "round {round}: {one:?} {two:?}");
        let active = won.iter().max_by_key(|switched| switched.epoch).unwrap().to.clone();
        for gateway in [&here, &there, &third] {
            gateway.comes_to(&active).await;
            assert_eq!(stores.holders(&gateway.granted().await.key).await, active, "round {round}");
        }
    }
}

#[tokio::test(start_paused = true)]
async fn a_switch_whose_gateway_died_is_finished_by_another() {
    let stores = Stores::new(&["a", "b"]);
    let there = stores.gateway();
    there.granted().await;
    {
        let here = stores.gateway();
        let died = tokio::time::timeout(Duration::from_secs(1), here.chain.switch("b")).await;
        assert!(died.is_err(), "it is not done in a second");
    }
    sleep(Duration::from_secs(1)).await;
    assert!(is_paused(&there.claim(&fresh_claim()).await));
    assert_eq!(there.chain.switch("a").await, Err(ChainSwitchError::InProgress("b".into())));
    let waited = there.comes_to("b").await;
    assert!(waited > Duration::from_secs(7) && waited < Duration::from_secs(10), "{waited:?}");
    assert_eq!(stores.holders(&there.granted().await.key).await, "b");
}

#[tokio::test(start_paused = true)]
async fn a_switch_whose_new_engine_died_can_be_taken_back() {
    let stores = Stores::new(&["a", "b"]);
    let (here, there) = (stores.gateway(), stores.gateway());
    there.granted().await;
    let die = async {
        sleep(Duration::from_secs(1)).await;
        for gateway in [&here, &there] {
            gateway.ways[1].set(DOWN);
        }
    };
    let (refused, ()) = tokio::join!(here.chain.switch("b"), die);
    assert!(matches!(refused, Err(ChainSwitchError::Incomplete { .. })), "{refused:?}");
    assert!(is_paused(&there.claim(&fresh_claim()).await));
    sleep(Duration::from_secs(10)).await;
    let back = there.chain.switch("a").await.unwrap();
    assert_eq!((back.from.as_str(), back.to.as_str(), back.epoch), ("a", "a", 2));
    here.comes_to("a").await;
    here.granted().await;
    // What the dead one was told last does not count when it is back.
    for gateway in [&here, &there] {
        gateway.ways[1].set(UP);
    }
    sleep(Duration::from_secs(15)).await;
    assert_eq!((here.active(), there.active(), stores.epoch_at(1).await), ("a".into(), "a".into(), 2));
}

#[tokio::test(start_paused = true)]
async fn an_engine_that_this_gateway_does_not_have_is_not_made_up_for() {
    let stores = Stores::new(&["a", "b", "c"]);
    let here = stores.gateway();
    here.granted().await;
    here.chain.switch("c").await.unwrap();
    let fewer = Stores { clock: stores.clock.clone(), stores: stores.stores[..2].to_vec() }.gateway();
    let refused = fewer.claim(&fresh_claim()).await.unwrap_err().to_string();
    assert!(refused.contains("switched to engine `c`, which this gateway does not have"), "{refused}");
}

#[tokio::test(start_paused = true)]
async fn a_note_that_cannot_be_read_is_left_alone_and_grants_nothing() {
    let stores = Stores::new(&["a", "b"]);
    for (_, store) in &stores.stores {
        assert_eq!(
            store.compare_and_set_metadata("chain.main", None, &Metadata::new("from a later release").unwrap()).await,
            Ok(true)
        );
    }
    let gateway = stores.gateway();
    let refused = gateway.claim(&fresh_claim()).await.unwrap_err();
    assert!(refused.to_string().contains("cannot be read by this release"), "{refused}");
    assert!(gateway.chain.switch("b").await.is_err());
    let note = stores.stores[1].1.get_metadata("chain.main").await.unwrap().unwrap();
    assert_eq!(note.as_str(), "from a later release");
}

#[tokio::test(start_paused = true)]
async fn a_chain_that_holds_grants_nothing_until_the_longest_lease_is_over() {
    let stores = Stores::new(&["a"]);
    stores.have_their_data().await;
    let gateway = stores.gateway_with(OnDataLoss::Hold, |_| {});
    let mut long = fresh_claim();
    long.terms.lease = Duration::from_secs(45);
    gateway.claim(&long).await.unwrap();
    assert_eq!(gateway.chain.status().frozen_for, None);
    gateway.ways[0].losses.store(1, Ordering::SeqCst);
    assert_eq!(gateway.chain.status().frozen_for, Some(Duration::from_secs(45)), "the longest that was asked for");
    sleep(Duration::from_secs(44)).await;
    let refused = gateway.claim(&fresh_claim()).await;
    assert!(is_paused(&refused), "{refused:?}");
    // What was granted is settled, and recorded though the store no longer knows of it.
    assert!(gateway.chain.settle(&settle(&long), DEADLINE).await.is_ok());
    sleep(Duration::from_secs(1)).await;
    gateway.granted().await;
    assert_eq!(gateway.chain.status().frozen_for, None);
    // Unless it is told to, a chain goes on.
    let resuming = stores.gateway();
    resuming.ways[0].losses.store(1, Ordering::SeqCst);
    resuming.granted().await;
}

#[tokio::test(start_paused = true)]
async fn a_chain_that_holds_does_so_for_the_longest_renewal() {
    let stores = Stores::new(&["a"]);
    stores.have_their_data().await;
    let gateway = stores.gateway_with(OnDataLoss::Hold, |_| {});
    let request = gateway.granted().await;
    let (minute, hour) = (Duration::from_mins(1), Duration::from_hours(1));
    let renewal = RenewalRequest { key: request.key, attempt: request.attempt, lease: Some(hour) };
    gateway.chain.renew(&renewal, DEADLINE).await.unwrap();
    gateway.ways[0].losses.store(1, Ordering::SeqCst);
    assert_eq!(gateway.chain.status().frozen_for, Some(hour));
    sleep(minute * 59).await;
    assert!(is_paused(&gateway.claim(&fresh_claim()).await));
    sleep(minute).await;
    gateway.granted().await;
}

#[tokio::test(start_paused = true)]
async fn a_chain_that_holds_does_so_for_the_longest_lease_of_a_batch() {
    let stores = Stores::new(&["a"]);
    stores.have_their_data().await;
    let gateway = stores.gateway_with(OnDataLoss::Hold, |_| {});
    let (minute, hour) = (Duration::from_mins(1), Duration::from_hours(1));
    let requests = [minute, hour, minute].map(|lease| {
        let mut request = fresh_claim();
        request.terms.lease = lease;
        request
    });
    assert!(gateway.claim_batch(&requests).await.iter().all(Result::is_ok));
    gateway.ways[0].losses.store(1, Ordering::SeqCst);
    assert_eq!(gateway.chain.status().frozen_for, Some(hour));
}

/// In a batch as alone.
#[tokio::test(start_paused = true)]
async fn no_grant_of_a_batch_is_told_that_comes_back_after_a_switch_or_a_loss() {
    let stores = Stores::new(&["a", "b"]);
    let (here, there) = (stores.gateway(), stores.gateway());
    there.granted().await;
    there.ways[0].set(LATE);
    let requests = [fresh_claim(), fresh_claim()];
    let (late, switched) = tokio::join!(there.claim_batch(&requests), here.chain.switch("b"));
    switched.unwrap();
    assert!(late.iter().all(|answer| matches!(answer, Err(EngineError::Indeterminate(_)))), "{late:?}");

    let stores = Stores::new(&["a"]);
    stores.have_their_data().await;
    let gateway = stores.gateway_with(OnDataLoss::Hold, |_| {});
    gateway.ways[0].set(LATE);
    let lose = async {
        sleep(Duration::from_secs(1)).await;
        gateway.ways[0].losses.store(1, Ordering::SeqCst);
    };
    let (late, ()) = tokio::join!(gateway.claim_batch(&requests), lose);
    assert!(late.iter().all(|answer| matches!(answer, Err(EngineError::Indeterminate(_)))), "{late:?}");
}

#[tokio::test(start_paused = true)]
async fn what_the_store_knows_stops_its_duplicates_while_the_chain_grants_nothing() {
    let stores = Stores::new(&["a"]);
    stores.have_their_data().await;
    let gateway = stores.gateway_with(OnDataLoss::Hold, |_| {});
    let (running, done) = (gateway.granted().await, gateway.granted().await);
    gateway.chain.settle(&settle(&done), DEADLINE).await.unwrap();
    gateway.ways[0].losses.store(1, Ordering::SeqCst);
    let again = |request: &ClaimRequest| ClaimRequest { attempt: fresh_claim().attempt, ..request.clone() };
    let other = ClaimRequest { fingerprint: Some([7; 32]), ..again(&done) };
    let requests = [again(&running), again(&done), other, fresh_claim(), running.clone()];
    for (place, in_batch) in gateway.claim_batch(&requests).await.into_iter().enumerate() {
        let alone = gateway.claim(&requests[place]).await;
        for answer in [in_batch, alone] {
            let is_known = match place {
                0 | 1 => matches!(answer, Ok(ClaimResponse::Duplicate(_))),
                2 => matches!(answer, Ok(ClaimResponse::Mismatch(_))),
                // Nothing is granted, and no grant is repeated: another one may be under way that the store has lost.
                _ => is_paused(&answer),
            };
            assert!(is_known, "{place}: {answer:?}");
        }
    }
}

/// Nobody can tell a new store from one that was emptied while all gateways were down, or before one was started.
#[tokio::test(start_paused = true)]
async fn a_chain_that_holds_does_so_for_a_store_that_does_not_know_it_until_somebody_has_waited() {
    let stores = Stores::new(&["a"]);
    let first = stores.gateway_with(OnDataLoss::Hold, |_| {});
    sleep(Duration::from_secs(1)).await;
    assert_eq!(first.chain.status().frozen_for, Some(Duration::from_secs(29)), "without a claim, too");
    let second = stores.gateway_with(OnDataLoss::Hold, |_| {});
    assert!(is_paused(&second.claim(&fresh_claim()).await), "started later, and as careful");
    assert!(second.chain.settle(&settle(&fresh_claim()), DEADLINE).await.is_ok());
    sleep(Duration::from_secs(29)).await;
    first.granted().await;
    stores.gateway_with(OnDataLoss::Hold, |_| {}).granted().await;
    sleep(Duration::from_secs(1)).await;
    second.granted().await;
}

#[tokio::test(start_paused = true)]
async fn a_chain_that_holds_asks_policies_to_answer_where_the_store_cannot_say_whether_it_has_its_data() {
    let stores = Stores::new(&["a"]);
    let gateway = stores.gateway_with(OnDataLoss::Hold, |ways| ways[0].set(DOWN));
    let silent = gateway.claim(&fresh_claim()).await;
    assert!(matches!(silent, Err(EngineError::Determinate(Determinate::Unavailable(_)))), "{silent:?}");
    gateway.ways[0].set(UP);
    assert!(is_paused(&gateway.claim(&fresh_claim()).await));
}

#[tokio::test(start_paused = true)]
async fn a_chain_that_holds_does_not_hold_for_the_engine_that_it_was_switched_to() {
    let stores = Stores::new(&["a", "b"]);
    has_its_data(&*stores.stores[0].1).await;
    let (here, there) = (stores.gateway_with(OnDataLoss::Hold, |_| {}), stores.gateway_with(OnDataLoss::Hold, |_| {}));
    here.granted().await;
    here.chain.switch("b").await.unwrap();
    here.granted().await;
    there.comes_to("b").await;
    there.granted().await;
    stores.gateway_with(OnDataLoss::Hold, |_| {}).granted().await;
}

/// The store is reached again in the middle of a call: the loss is noticed after the claim was let through.
#[tokio::test(start_paused = true)]
async fn a_grant_in_which_the_loss_came_to_light_is_not_told() {
    let stores = Stores::new(&["a"]);
    stores.have_their_data().await;
    let gateway = stores.gateway_with(OnDataLoss::Hold, |_| {});
    gateway.ways[0].set(LATE);
    let lose = async {
        sleep(Duration::from_secs(1)).await;
        gateway.ways[0].losses.store(1, Ordering::SeqCst);
    };
    let request = fresh_claim();
    let (answer, ()) = tokio::join!(gateway.claim(&request), lose);
    assert!(matches!(answer, Err(EngineError::Indeterminate(Indeterminate(_)))), "{answer:?}");
}
