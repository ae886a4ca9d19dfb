//! A store that counts its calls. A test sets its time, failures and probes.

use oncegate_core::engine::{
    Backup, BatchClaim, Capabilities, Channel, ClaimSink, Claims, Records, Subscription, Topology, claim_each,
};
use oncegate_core::operator::{LockListRequest, LockPage, UnknownsPage, UnknownsRequest};

use super::*;

/// A store in memory, as a test sets it.
pub(super) struct Store {
    pub(super) inner: Arc<Memory>,
    time: Mutex<Duration>,
    /// A key whose claims get no answer.
    pub(super) silent_key: Mutex<Option<Key>>,
    failure: Mutex<Option<EngineError>>,
    pub(super) always_answers_probes: AtomicBool,
    pub(super) waits_for_replicas: AtomicBool,
    claims: AtomicU32,
    in_flight: AtomicU32,
    pub(super) in_flight_max: AtomicU32,
    pub(super) probes: AtomicU32,
}

pub(super) const FOREVER: Duration = Duration::from_hours(24);

impl Store {
    pub(super) fn new() -> Arc<Self> {
        Arc::new(Self {
            inner: memory().1,
            time: Mutex::new(MS),
            silent_key: Mutex::default(),
            failure: Mutex::default(),
            always_answers_probes: AtomicBool::new(false),
            waits_for_replicas: AtomicBool::new(false),
            claims: AtomicU32::new(0),
            in_flight: AtomicU32::new(0),
            in_flight_max: AtomicU32::new(0),
            probes: AtomicU32::new(0),
        })
    }

    pub(super) fn set_time(&self, time: Duration) {
        *self.time.lock().unwrap() = time;
    }

    pub(super) fn set_failure(&self, failure: impl Into<Option<EngineError>>) {
        *self.failure.lock().unwrap() = failure.into();
    }

    pub(super) fn set_out(&self) {
        self.set_failure(EngineError::unavailable("out"));
    }

    pub(super) fn set_silent(&self) {
        self.set_time(FOREVER);
    }

    pub(super) fn recover(&self) {
        self.set_failure(None);
        self.set_time(MS);
    }

    pub(super) fn claims(&self) -> u32 {
        self.claims.load(Ordering::SeqCst)
    }

    async fn serve(&self) -> Result<(), EngineError> {
        let (time, failure) = (*self.time.lock().unwrap(), self.failure.lock().unwrap().clone());
        sleep(time).await;
        failure.map_or(Ok(()), Err)
    }
}

/// Counts a call as in flight until it is answered or dropped.
struct InFlight<'a>(&'a AtomicU32);

impl Drop for InFlight<'_> {
    fn drop(&mut self) {
        self.0.fetch_sub(1, Ordering::SeqCst);
    }
}

#[async_trait]
impl Claims for Store {
    async fn claim(&self, request: &ClaimRequest, deadline: Duration) -> Result<ClaimResponse, EngineError> {
        self.claims.fetch_add(1, Ordering::SeqCst);
        let most = self.in_flight.fetch_add(1, Ordering::SeqCst) + 1;
        self.in_flight_max.fetch_max(most, Ordering::SeqCst);
        let _in_flight = InFlight(&self.in_flight);
        if self.silent_key.lock().unwrap().as_ref() == Some(&request.key) {
            sleep(FOREVER).await;
        }
        self.serve().await?;
        self.inner.claim(request, deadline).await
    }

    async fn claim_batch(&self, claims: &[BatchClaim<'_>], sink: ClaimSink<'_>) {
        claim_each(self, claims, sink).await;
    }

    async fn settle(&self, request: &OutcomeRequest, deadline: Duration) -> Result<OutcomeResponse, EngineError> {
        self.serve().await?;
        self.inner.settle(request, deadline).await
    }

    async fn renew(&self, request: &RenewalRequest, deadline: Duration) -> Result<RenewalResponse, EngineError> {
        self.serve().await?;
        self.inner.renew(request, deadline).await
    }

    async fn read(&self, key: &Key) -> Result<Option<LiveClaim>, EngineError> {
        self.serve().await?;
        self.inner.read(key).await
    }

    async fn release(&self, request: &ReleaseRequest) -> Result<ReleaseResponse, EngineError> {
        self.serve().await?;
        self.inner.release(request).await
    }

    async fn list(&self, request: &ListRequest) -> Result<Vec<ListedClaim>, EngineError> {
        self.serve().await?;
        self.inner.list(request).await
    }

    async fn unknowns(&self, request: &UnknownsRequest) -> Result<UnknownsPage, EngineError> {
        self.serve().await?;
        self.inner.unknowns(request).await
    }
}

#[async_trait]
impl Records for Store {
    async fn get_record(&self, name: &RecordName, deadline: Duration) -> Result<RecordView, EngineError> {
        self.serve().await?;
        self.inner.get_record(name, deadline).await
    }

    async fn change_record(&self, change: &RecordChange, deadline: Duration) -> Result<ChangeResponse, EngineError> {
        self.serve().await?;
        self.inner.change_record(change, deadline).await
    }

    async fn list_records(&self, request: &LockListRequest) -> Result<LockPage, EngineError> {
        self.serve().await?;
        self.inner.list_records(request).await
    }

    async fn subscribe(&self, channel: &Channel) -> Subscription {
        self.inner.subscribe(channel).await
    }
}

#[async_trait]
impl Topology for Store {
    fn capabilities(&self) -> Capabilities {
        self.inner.capabilities()
    }

    oncegate_core::forward!(shards => inner);

    async fn probe(&self) -> Result<(), EngineError> {
        self.probes.fetch_add(1, Ordering::SeqCst);
        if self.always_answers_probes.load(Ordering::SeqCst) { Ok(()) } else { self.serve().await }
    }

    async fn probe_shard(&self, _: u16) -> Result<(), EngineError> {
        self.probe().await
    }

    fn losses(&self, shard: u16) -> u64 {
        self.inner.losses(shard)
    }

    fn data_lost(&self) -> u64 {
        self.inner.data_lost()
    }

    fn waits_for_replicas(&self) -> bool {
        self.waits_for_replicas.load(Ordering::SeqCst)
    }

    async fn backup(&self) -> Result<Option<Backup>, EngineError> {
        self.inner.backup().await
    }

    async fn close(&self) {
        self.inner.close().await;
    }
}
