//! A clock, the metrics, and what wrappers of engines have in common.

use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, OnceLock};
use std::time::Duration;

use async_trait::async_trait;
use oncegate_core::attempt::{Entropy, SystemEntropy};
use oncegate_core::claim::{
    ClaimRequest, ClaimResponse, OutcomeRequest, OutcomeResponse, RenewalRequest, RenewalResponse,
};
use oncegate_core::clock::{Clock, Timestamp};
use oncegate_core::engine::conformance::fresh_claim;
use oncegate_core::engine::faulty::{Fault, Faulty};
use oncegate_core::engine::memory::{BYTES_MAX_DEFAULT, Memory};
use oncegate_core::engine::{
    Backup, BatchClaim, Capabilities, ChangeResponse, Channel, ClaimSink, Claims, Engine, EngineError, Node, NodeRole,
    RecordChange, RecordName, RecordView, Records, Servers, StoreIdentity, Subscription, Topology, claim_each,
};
use oncegate_core::operator::{
    ListRequest, ListedClaim, LockListRequest, LockPage, ReleaseRequest, ReleaseResponse, UnknownsPage, UnknownsRequest,
};
use oncegate_core::record::{Key, LiveClaim};
use oncegate_telemetry::metrics::Metrics;
use tokio::time::Instant;

use super::call_guard::CallGuard;
use super::chain::{Chain, Setup};

/// The clock of a test's runtime. It advances automatically while all tasks wait.
pub(crate) struct PausedClock(Instant);

impl PausedClock {
    #[expect(clippy::disallowed_methods, reason = "it is the test's own clock")]
    pub(crate) fn start() -> Arc<Self> {
        Arc::new(Self(Instant::now()))
    }
}

impl Clock for PausedClock {
    fn wall(&self) -> Timestamp {
        Timestamp::from_micros(1_700_000_000_000_000).plus(self.monotonic())
    }

    fn monotonic(&self) -> Duration {
        self.0.elapsed()
    }
}

/// Randomness that is always the same.
pub(crate) struct Steady(pub(crate) u64);

impl Entropy for Steady {
    fn bits(&self) -> u64 {
        self.0
    }
}

#[tokio::test(start_paused = true)]
async fn an_open_breaker_says_why_and_names_a_shard_only_where_there_are_several() {
    let (clock, deadline) = (PausedClock::start(), Duration::from_secs(1));
    let guard = CallGuard::new(Arc::new(Unlike::default()), "open", deadline, clock, Arc::new(SystemEntropy));
    let mut refused = String::new();
    for _ in 0..200 {
        refused = guard.claim(&fresh_claim(), deadline).await.unwrap_err().to_string();
    }
    let why = "the breaker is open, because shard 5 of the store did not answer: out; calls are sent again";
    assert!(refused.contains(why), "{refused}");
}

/// Returns a metric of this process, by its name and labels as they are exported. Call it once before the metric is registered.
pub(crate) fn metric(labelled: &str) -> Option<f64> {
    static METRICS: OnceLock<Metrics> = OnceLock::new();
    let text = METRICS.get_or_init(Metrics::install).render();
    text.lines().find_map(|line| line.strip_prefix(labelled)?.trim().parse().ok())
}

/// An engine with an unavailable store, and with capabilities that no other engine has.
#[derive(Default)]
pub(crate) struct Unlike {
    pub(crate) is_closed: AtomicBool,
}

fn out<Answer>() -> Result<Answer, EngineError> {
    Err(EngineError::unavailable("out"))
}

#[async_trait]
impl Claims for Unlike {
    async fn claim(&self, _: &ClaimRequest, _: Duration) -> Result<ClaimResponse, EngineError> {
        out()
    }

    async fn claim_batch(&self, claims: &[BatchClaim<'_>], sink: ClaimSink<'_>) {
        claim_each(self, claims, sink).await;
    }

    async fn settle(&self, _: &OutcomeRequest, _: Duration) -> Result<OutcomeResponse, EngineError> {
        out()
    }

    async fn renew(&self, _: &RenewalRequest, _: Duration) -> Result<RenewalResponse, EngineError> {
        out()
    }

    async fn read(&self, _: &Key) -> Result<Option<LiveClaim>, EngineError> {
        out()
    }

    async fn release(&self, _: &ReleaseRequest) -> Result<ReleaseResponse, EngineError> {
        out()
    }

    async fn list(&self, _: &ListRequest) -> Result<Vec<ListedClaim>, EngineError> {
        out()
    }

    async fn unknowns(&self, _: &UnknownsRequest) -> Result<UnknownsPage, EngineError> {
        out()
    }
}

#[async_trait]
impl Records for Unlike {
    async fn get_record(&self, _: &RecordName, _: Duration) -> Result<RecordView, EngineError> {
        out()
    }

    async fn change_record(&self, _: &RecordChange, _: Duration) -> Result<ChangeResponse, EngineError> {
        out()
    }

    async fn list_records(&self, _: &LockListRequest) -> Result<LockPage, EngineError> {
        out()
    }

    async fn subscribe(&self, _: &Channel) -> Subscription {
        Subscription::none()
    }
}

#[async_trait]
impl Topology for Unlike {
    fn capabilities(&self) -> Capabilities {
        Capabilities { strict_fence: false, durable: true, shared: false, forever: true, lists: false }
    }

    fn shards(&self) -> Vec<u16> {
        vec![3, 5]
    }

    fn shard_of(&self, _: &Key) -> u16 {
        5
    }

    fn shard_of_record(&self, _: &RecordName) -> u16 {
        3
    }

    fn metadata_name(&self, shard: u16, name: &str) -> String {
        format!("{name} of {shard}")
    }

    async fn probe(&self) -> Result<(), EngineError> {
        out()
    }

    async fn probe_shard(&self, _: u16) -> Result<(), EngineError> {
        out()
    }

    fn losses(&self, shard: u16) -> u64 {
        u64::from(shard) + 10
    }

    fn data_lost(&self) -> u64 {
        28
    }

    fn waits_for_replicas(&self) -> bool {
        true
    }

    fn nodes(&self) -> Vec<Node> {
        let (role, breaker) = (NodeRole::Primary, None);
        vec![Node { address: "a:1".into(), role, version: None, shard: 3, up: true, breaker, warnings: Vec::new() }]
    }

    fn identity(&self) -> Option<StoreIdentity> {
        let servers = Servers::Named("a".into());
        Some(StoreIdentity { kind: "unlike", marker: Vec::new(), servers })
    }

    async fn backup(&self) -> Result<Option<Backup>, EngineError> {
        out()
    }

    async fn close(&self) {
        self.is_closed.store(true, Ordering::Relaxed);
    }
}

/// Asserts that a wrapper reports the capabilities of its engine.
async fn assert_passed_on(wrapper: &dyn Engine, unlike: &Unlike) {
    let (key, name) = (fresh_claim().key, RecordName::Metadata("a".into()));
    assert_eq!((wrapper.shard_of(&key), wrapper.shard_of_record(&name), wrapper.shards()), (5, 3, vec![3, 5]));
    assert_eq!((wrapper.data_lost(), wrapper.waits_for_replicas()), (28, true));
    assert_eq!(wrapper.nodes().iter().map(|node| node.address.as_str()).collect::<Vec<_>>(), ["a:1"]);
    assert_eq!(wrapper.capabilities(), unlike.capabilities());
    assert_eq!(wrapper.identity().map(|identity| identity.kind), Some("unlike"));
    assert!(wrapper.probe().await.is_err() && wrapper.probe_shard(3).await.is_err());
}

#[tokio::test(start_paused = true)]
async fn a_call_guard_says_of_itself_what_its_engine_does() {
    let unlike = Arc::new(Unlike::default());
    let deadline = Duration::from_secs(1);
    let guard = CallGuard::new(unlike.clone(), "unlike", deadline, PausedClock::start(), Arc::new(SystemEntropy));
    assert_passed_on(&guard, &unlike).await;
    assert_eq!((guard.losses(3), guard.metadata_name(5, "a")), (13, "a of 5".to_owned()));
    guard.close().await;
    assert!(unlike.is_closed.load(Ordering::Relaxed));
}

#[tokio::test(start_paused = true)]
async fn a_chain_of_one_engine_says_of_itself_what_that_does() {
    let unlike = Arc::new(Unlike::default());
    let setup = Setup::of_one("unlike", unlike.clone(), PausedClock::start(), Arc::new(SystemEntropy));
    let chain = Chain::start(setup);
    assert_passed_on(&chain, &unlike).await;
    chain.close().await;
    assert!(!unlike.is_closed.load(Ordering::Relaxed), "other chains may use it");
}

#[tokio::test(start_paused = true)]
async fn wrappers_wait_for_replicas_only_if_their_engines_do() {
    let (clock, entropy) = (PausedClock::start(), Arc::new(SystemEntropy));
    let memory = Arc::new(Memory::new(clock.clone(), BYTES_MAX_DEFAULT));
    let guard = CallGuard::new(memory.clone(), "plain", Duration::from_secs(1), clock.clone(), entropy.clone());
    let chain = Chain::start(Setup::of_one("plain", memory, clock, entropy));
    assert!(!guard.waits_for_replicas() && !chain.waits_for_replicas());
}

/// The metric is of all shards: an engine is up while one of them answers.
#[tokio::test(start_paused = true)]
async fn an_engine_is_measured_as_up_or_down() {
    let up = || metric("oncegate_engine_up{engine=\"measured-down\"}");
    up();
    let (clock, deadline) = (PausedClock::start(), Duration::from_secs(1));
    let store = Arc::new(Memory::new(clock.clone(), BYTES_MAX_DEFAULT));
    let faulty = Arc::new(Faulty::always(store, Fault::None));
    let guard = CallGuard::new(faulty.clone(), "measured-down", deadline, clock, Arc::new(SystemEntropy));
    for (fault, expected) in [(Fault::None, 1.0), (Fault::Refused, 0.0), (Fault::None, 1.0)] {
        faulty.set(fault);
        assert_eq!(guard.claim(&fresh_claim(), deadline).await.is_ok(), expected > 0.0);
        assert_eq!(up(), Some(expected), "{fault:?}");
    }
}
