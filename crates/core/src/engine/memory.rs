//! The memory engine: claims in this process, for tests and for callers that can lose them at a restart. Sharded by key, and
//! bounded in bytes: a cache that evicted would lose live claims.

mod records;
mod shard;
#[cfg(test)]
mod tests;

use std::collections::BTreeMap;
use std::future::poll_fn;
use std::hash::BuildHasher;
use std::mem::replace;
use std::sync::atomic::{AtomicI64, AtomicU32, AtomicU64, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError, RwLock};
use std::task::Poll;
use std::time::Duration;

use async_trait::async_trait;
use hashbrown::{DefaultHashBuilder, HashMap};

use self::records::RecordTable;
use self::shard::{NEVER, Shard, Slot, SlotKey, namespace_number};
use super::notification::Hub;
use super::{
    Backup, BatchClaim, Capabilities, ChangeResponse, Channel, ClaimSink, Claims, Determinate, EngineError, Node,
    OneShard, RecordChange, RecordName, RecordView, Records, StoreIdentity, Subscription, claim_each,
    without_index_of_unknowns,
};
use crate::claim::{
    self, ClaimRequest, ClaimResponse, Effect, NamesEnd, OutcomeRequest, OutcomeResponse, RenewalRequest,
    RenewalResponse,
};
use crate::clock::{Clock, SteadyClock, Timestamp};
use crate::operator::{
    self, ListRequest, ListedClaim, LockListRequest, LockPage, ReleaseRequest, ReleaseResponse, UnknownsPage,
    UnknownsRequest,
};
use crate::record::{ClaimState, Key, LiveClaim};
use crate::tenant::AppKey;

/// Default bound on the memory for claims: about eight million small ones.
pub const BYTES_MAX_DEFAULT: u64 = 2 << 30;

/// With so many, 64 callers seldom wait for each other, and the empty engine is still small.
const SHARDS: usize = 64;

/// Maximum number of ended claims that a call deletes. More than one, so that sweeping keeps up with claiming.
const SWEPT_PER_CALL: usize = 4;

/// Claims in memory.
pub struct Memory {
    clock: SteadyClock,
    fence: AtomicU64,
    apps: RwLock<HashMap<AppKey, u32>>,
    apps_next: AtomicU32,
    hasher: DefaultHashBuilder,
    shards: Box<[Mutex<Shard>]>,
    bytes: AtomicI64,
    bytes_max: i64,
    records: Mutex<RecordTable>,
    hub: Arc<Hub>,
}

impl Memory {
    /// Capabilities of the engine.
    pub const CAPABILITIES: Capabilities =
        Capabilities { strict_fence: true, durable: false, shared: false, forever: false, lists: true };

    /// Creates an empty engine that accepts new claims up to about `bytes_max` bytes.
    pub fn new(clock: Arc<dyn Clock>, bytes_max: u64) -> Self {
        let clock = SteadyClock::new(clock, Timestamp::default());
        Self {
            fence: AtomicU64::new(clock.now().as_micros()),
            clock,
            apps: RwLock::default(),
            apps_next: AtomicU32::new(0),
            hasher: DefaultHashBuilder::default(),
            shards: (0..SHARDS).map(|_| Mutex::default()).collect(),
            bytes: AtomicI64::new(0),
            bytes_max: i64::try_from(bytes_max).unwrap_or(i64::MAX),
            records: Mutex::default(),
            hub: Hub::local(),
        }
    }

    /// Applies one transition to one key, if `admit` allows its effect. The transition receives the fence of a new attempt,
    /// assigned under the lock, so that fences rise in the order of grants.
    fn apply<Answer: NamesEnd>(
        &self,
        key: &Key,
        transition: impl FnOnce(Option<&LiveClaim>, u64) -> (Effect, Answer),
        admit: impl FnOnce(&Effect) -> Result<(), EngineError>,
    ) -> Result<Answer, EngineError> {
        let claim = key;
        let key = self.slot_key(key);
        let mut shard = self.shard(&key);
        let now = self.clock.now();
        self.release_bytes(shard.sweep(now, SWEPT_PER_CALL));
        let live = shard.live_claim(&key, now)?;
        let fence = self.fence.fetch_add(1, Ordering::Relaxed) + 1;
        let (effect, answer) = transition(live.as_ref(), fence);
        admit(&effect)?;
        let ends = live.is_some() && effect.ends_claim();
        let ends_at = effect.lasts().map(|lasts| now.plus(lasts));
        let answer = answer.with_end(ends_at);
        let grown = match effect {
            Effect::Keep => 0,
            Effect::Put(record, _) => {
                // A grant gets the new fence, and so does a late record; an outcome keeps the fence of its attempt.
                let own = live.as_ref().filter(|_| record.state != ClaimState::InProgress);
                let fence = own.and_then(|live| live.fence).unwrap_or(fence);
                shard.put(key, Slot::new(ends_at.unwrap_or(NEVER), fence, &record))
            }
            Effect::Extend(_) => ends_at.map_or(0, |at| shard.extend(key, at)),
            Effect::Replace(record) => live.map_or(0, |live| {
                shard.put(key, Slot::new(live.ends_at.unwrap_or(NEVER), live.fence.unwrap_or(fence), &record))
            }),
            Effect::Delete => shard.delete(&key),
        };
        self.bytes.fetch_add(grown, Ordering::Relaxed);
        drop(shard);
        if ends {
            self.hub.notify_claim(claim);
        }
        Ok(answer)
    }

    fn shard(&self, key: &SlotKey) -> MutexGuard<'_, Shard> {
        let hash = self.hasher.hash_one(key);
        // The table inside the shard uses the low bits and its own seed.
        let shard = &self.shards[usize::try_from(hash >> 58).unwrap_or_default() % SHARDS];
        // A panic cannot leave a shard inconsistent.
        shard.lock().unwrap_or_else(PoisonError::into_inner)
    }

    fn slot_key(&self, key: &Key) -> SlotKey {
        (namespace_number(self.app_number(&key.app), key.realm), key.global_id)
    }

    fn app_number(&self, app: &AppKey) -> u32 {
        if let Some(number) = self.known_app(app) {
            return number;
        }
        let mut apps = self.apps.write().unwrap_or_else(PoisonError::into_inner);
        *apps.entry(app.clone()).or_insert_with(|| self.apps_next.fetch_add(1, Ordering::Relaxed))
    }

    fn known_app(&self, app: &AppKey) -> Option<u32> {
        self.apps.read().unwrap_or_else(PoisonError::into_inner).get(app).copied()
    }

    fn release_bytes(&self, bytes: i64) {
        if bytes != 0 {
            self.bytes.fetch_sub(bytes, Ordering::Relaxed);
        }
    }

    /// Rejects growth beyond `bytes_max`.
    fn admit(&self, bytes_max: i64) -> Result<(), EngineError> {
        if self.bytes.load(Ordering::Relaxed) <= bytes_max {
            return Ok(());
        }
        let why = "the memory engine has reached its bound; raise `max_bytes` in its URL, or use a durable engine";
        Err(Determinate::Full(why.into()).into())
    }

    /// Deletes all ended claims, in every shard. The caller holds no shard.
    fn sweep_when_full(&self) {
        if self.bytes.load(Ordering::Relaxed) > self.bytes_max {
            for shard in &self.shards {
                let swept = shard.lock().unwrap_or_else(PoisonError::into_inner).sweep(self.clock.now(), usize::MAX);
                self.release_bytes(swept);
            }
        }
    }
}

#[async_trait]
impl Claims for Memory {
    async fn claim(&self, request: &ClaimRequest, _: Duration) -> Result<ClaimResponse, EngineError> {
        self.sweep_when_full();
        self.apply(
            &request.key,
            |live, fence| claim::claim(live, request, Some(fence)),
            |effect| if *effect == Effect::Keep { Ok(()) } else { self.admit(self.bytes_max) },
        )
    }

    async fn claim_batch(&self, claims: &[BatchClaim<'_>], sink: ClaimSink<'_>) {
        claim_each(self, claims, sink).await;
    }

    async fn settle(&self, request: &OutcomeRequest, _: Duration) -> Result<OutcomeResponse, EngineError> {
        // Outcomes have a quarter more room than claims, so that a full engine still accepts them.
        self.apply(
            &request.key,
            |live, _| claim::settle(live, request),
            |effect| match effect {
                Effect::Put(..) => self.admit(self.bytes_max.saturating_add(self.bytes_max / 4)),
                _ => Ok(()),
            },
        )
    }

    async fn renew(&self, request: &RenewalRequest, _: Duration) -> Result<RenewalResponse, EngineError> {
        self.apply(&request.key, |live, _| claim::renew(live, request), |_| Ok(()))
    }

    async fn read(&self, key: &Key) -> Result<Option<LiveClaim>, EngineError> {
        let key = self.slot_key(key);
        self.shard(&key).live_claim(&key, self.clock.now())
    }

    async fn release(&self, request: &ReleaseRequest) -> Result<ReleaseResponse, EngineError> {
        self.apply(&request.key, |live, _| operator::release(live, request), |_| Ok(()))
    }

    async fn list(&self, request: &ListRequest) -> Result<Vec<ListedClaim>, EngineError> {
        let Some(app) = self.known_app(&request.app) else { return Ok(Vec::new()) };
        let namespace = namespace_number(app, request.realm);
        // The tables have no order, so every page reads all claims, and keeps the first ones after the previous page.
        let mut found = BTreeMap::new();
        for shard in &self.shards {
            shard.lock().unwrap_or_else(PoisonError::into_inner).collect(
                namespace,
                request,
                self.clock.now(),
                &mut found,
            )?;
            // A shard may hold a hundred thousand claims: let other tasks run.
            yield_now().await;
        }
        let now = self.clock.now();
        let listed = |(global_id, (read_at, live)): (_, (Timestamp, LiveClaim))| {
            let left = live.left.map(|left| left.saturating_sub(now.since(read_at)));
            ListedClaim { global_id, claim: LiveClaim { left, ..live } }
        };
        Ok(found.into_iter().map(listed).collect())
    }

    async fn unknowns(&self, _: &UnknownsRequest) -> Result<UnknownsPage, EngineError> {
        Err(without_index_of_unknowns())
    }
}

#[async_trait]
impl Records for Memory {
    async fn get_record(&self, name: &RecordName, _: Duration) -> Result<RecordView, EngineError> {
        let records = self.records.lock().unwrap_or_else(PoisonError::into_inner);
        // Read under the lock, so that it never decreases between two calls.
        Ok(records.view(name, self.clock.now()))
    }

    async fn change_record(&self, change: &RecordChange, _: Duration) -> Result<ChangeResponse, EngineError> {
        let answer = {
            let mut records = self.records.lock().unwrap_or_else(PoisonError::into_inner);
            records.change(change, self.clock.now())?
        };
        if change.notifies && matches!(answer, ChangeResponse::Stored(_)) {
            self.hub.notify_record(&change.name);
        }
        Ok(answer)
    }

    async fn list_records(&self, request: &LockListRequest) -> Result<LockPage, EngineError> {
        let records = self.records.lock().unwrap_or_else(PoisonError::into_inner);
        Ok(records.list(request, self.clock.now()))
    }

    async fn subscribe(&self, channel: &Channel) -> Subscription {
        self.hub.subscribe(channel)
    }
}

#[async_trait]
impl OneShard for Memory {
    fn capabilities(&self) -> Capabilities {
        Self::CAPABILITIES
    }

    async fn probe(&self) -> Result<(), EngineError> {
        Ok(())
    }

    fn data_lost(&self) -> u64 {
        0
    }

    fn nodes(&self) -> Vec<Node> {
        Vec::new()
    }

    fn identity(&self) -> Option<StoreIdentity> {
        None
    }

    async fn backup(&self) -> Result<Option<Backup>, EngineError> {
        Ok(None)
    }

    async fn close(&self) {}
}

/// Lets other tasks run. Written by hand, since `core` knows no runtime.
async fn yield_now() {
    let mut yielded = false;
    poll_fn(|context| {
        if replace(&mut yielded, true) {
            return Poll::Ready(());
        }
        context.waker().wake_by_ref();
        Poll::Pending
    })
    .await;
}
