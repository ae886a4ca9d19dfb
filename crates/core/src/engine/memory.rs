//! The memory engine: claims in this process, for tests and for callers who can lose them at a restart.
//!
//! Sharded by key; each shard keeps its claims in a hash table and the order in which they end in a tree, so that
//! nothing ever scans everything. Bounded in bytes: a cache that evicted would lose live claims.

use std::collections::{BTreeMap, BTreeSet};
use std::future::poll_fn;
use std::hash::BuildHasher;
use std::mem::replace;
use std::sync::atomic::{AtomicI64, AtomicU32, AtomicU64, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError, RwLock};
use std::task::Poll;
use std::time::Duration;

use async_trait::async_trait;
use hashbrown::{DefaultHashBuilder, HashMap};

use super::{Capabilities, Determinate, Engine, EngineError, Metadata, value};
use crate::domain::claim::{
    self, ClaimRequest, ClaimResponse, Effect, OutcomeRequest, OutcomeResponse, RenewalRequest, RenewalResponse,
};
use crate::domain::clock::{Clock, SteadyClock, Timestamp};
use crate::domain::global_id::GlobalId;
use crate::domain::operator::{self, ListRequest, ListedClaim, ReleaseRequest, ReleaseResponse};
use crate::domain::record::{Key, LiveClaim};
use crate::domain::tenant::AppKey;

/// How much memory the claims may take if the URL does not say: room for about eight million small ones.
pub const BYTES_MAX_DEFAULT: u64 = 2 << 30;

/// Enough that 64 callers seldom meet, few enough that the empty engine is small.
const SHARDS: usize = 64;

/// What a claim costs beyond its stored text, rounded up: a slot in a table that may have just doubled, a place in a
/// tree that may be half full, and what the allocator adds.
const CLAIM_OVERHEAD_BYTES: i64 = 190;

/// How many ended claims a call takes away on the way, at most. More than one, so that sweeping keeps up with claiming.
const SWEPT_PER_CALL: usize = 4;

/// Claims in memory.
pub struct Memory {
    clock: SteadyClock,
    fence: AtomicU64,
    apps: RwLock<HashMap<AppKey, AppNumber>>,
    apps_next: AtomicU32,
    hasher: DefaultHashBuilder,
    shards: Box<[Mutex<Shard>]>,
    bytes: AtomicI64,
    bytes_max: i64,
    notes: Mutex<HashMap<String, Metadata>>,
}

/// An app's number in this process: keys stay small, and no app's claims can be taken for another's.
type AppNumber = u32;
type SlotKey = (AppNumber, GlobalId);

/// When a claim ends that does not end by itself.
const NEVER: Timestamp = Timestamp::from_micros(u64::MAX);

#[derive(Default)]
struct Shard {
    slots: HashMap<SlotKey, Slot>,
    /// When each claim ends, soonest first. Exactly one entry for each claim that ends by itself.
    ends: BTreeSet<(Timestamp, SlotKey)>,
}

/// One claim. The fence stands before the text, in the same allocation.
struct Slot {
    /// [`NEVER`] if it does not end by itself: an `Option` would make every slot 8 bytes larger.
    ends_at: Timestamp,
    fence_and_text: Box<[u8]>,
}

impl Memory {
    /// What the engine promises.
    pub const CAPABILITIES: Capabilities =
        Capabilities { strict_fence: true, durable: false, shared: false, forever: false, lists: true };

    /// An empty engine that takes new claims up to about `bytes_max` bytes.
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
            notes: Mutex::default(),
        }
    }

    /// Applies one transition to one key, atomically: the shard stays locked from reading to writing. The transition is
    /// given the fence that a new attempt would get, drawn under the lock so that fences rise in the order of grants.
    fn apply<Answer>(
        &self,
        key: &Key,
        transition: impl FnOnce(Option<&LiveClaim>, u64) -> (Effect, Answer),
        admit: impl FnOnce(&Effect) -> Result<(), EngineError>,
    ) -> Result<Answer, EngineError> {
        let key = (self.app_number(&key.app), key.global_id);
        let mut shard = self.shard(&key);
        let now = self.clock.now();
        self.forget(shard.sweep(now, SWEPT_PER_CALL));
        let held = shard.held(&key, now)?;
        let fence = self.fence.fetch_add(1, Ordering::Relaxed) + 1;
        let (effect, answer) = transition(held.as_ref(), fence);
        admit(&effect)?;
        let grown = match effect {
            Effect::Keep => 0,
            Effect::Put(record, lasts) => {
                // A new attempt gets the new fence; a change of state keeps the attempt's own.
                let own = held.as_ref().filter(|held| held.record.attempt == record.attempt);
                let fence = own.and_then(|held| held.fence).unwrap_or(fence);
                let text = value::encode(&record);
                let slot = Slot {
                    ends_at: lasts.map_or(NEVER, |lasts| now.plus(lasts)),
                    fence_and_text: [&fence.to_be_bytes(), text.as_bytes()].concat().into(),
                };
                shard.put(key, slot)
            }
            Effect::Extend(lasts) => shard.extend(key, now.plus(lasts)),
            Effect::Delete => shard.delete(&key),
        };
        self.bytes.fetch_add(grown, Ordering::Relaxed);
        Ok(answer)
    }

    fn shard(&self, key: &SlotKey) -> MutexGuard<'_, Shard> {
        let hash = self.hasher.hash_one(key);
        // The table inside the shard uses the low bits and its own seed.
        let shard = &self.shards[usize::try_from(hash >> 58).unwrap_or_default() % SHARDS];
        // Poisoned: some call panicked, in code that leaves a shard whole at every step.
        shard.lock().unwrap_or_else(PoisonError::into_inner)
    }

    fn app_number(&self, app: &AppKey) -> AppNumber {
        if let Some(number) = self.known_app(app) {
            return number;
        }
        let mut apps = self.apps.write().unwrap_or_else(PoisonError::into_inner);
        *apps.entry(app.clone()).or_insert_with(|| self.apps_next.fetch_add(1, Ordering::Relaxed))
    }

    fn known_app(&self, app: &AppKey) -> Option<AppNumber> {
        self.apps.read().unwrap_or_else(PoisonError::into_inner).get(app).copied()
    }

    fn forget(&self, bytes: i64) {
        if bytes != 0 {
            self.bytes.fetch_sub(bytes, Ordering::Relaxed);
        }
    }

    /// Refuses what would grow the engine beyond `bytes_max`, after taking away what has ended in any shard.
    fn admit(&self, bytes_max: i64) -> Result<(), EngineError> {
        if self.bytes.load(Ordering::Relaxed) <= bytes_max {
            return Ok(());
        }
        let why = "the memory engine has reached its bound; raise `max_bytes` in its URL, or use a durable engine";
        Err(Determinate::Full(why.into()).into())
    }

    /// Takes away all that has ended, in every shard. The caller holds no shard.
    fn sweep_when_full(&self) {
        if self.bytes.load(Ordering::Relaxed) > self.bytes_max {
            for shard in &self.shards {
                let swept = shard.lock().unwrap_or_else(PoisonError::into_inner).sweep(self.clock.now(), usize::MAX);
                self.forget(swept);
            }
        }
    }
}

#[async_trait]
impl Engine for Memory {
    async fn claim(&self, request: &ClaimRequest, _: Duration) -> Result<ClaimResponse, EngineError> {
        self.sweep_when_full();
        self.apply(
            &request.key,
            |held, fence| claim::claim(held, request, Some(fence)),
            |effect| if *effect == Effect::Keep { Ok(()) } else { self.admit(self.bytes_max) },
        )
    }

    async fn settle(&self, request: &OutcomeRequest, _: Duration) -> Result<OutcomeResponse, EngineError> {
        // Outcomes have a quarter more room than claims, so that a full engine can still be told what became of them.
        self.apply(
            &request.key,
            |held, _| claim::settle(held, request),
            |effect| match effect {
                Effect::Put(..) => self.admit(self.bytes_max.saturating_add(self.bytes_max / 4)),
                _ => Ok(()),
            },
        )
    }

    async fn renew(&self, request: &RenewalRequest, _: Duration) -> Result<RenewalResponse, EngineError> {
        self.apply(&request.key, |held, _| claim::renew(held, request), |_| Ok(()))
    }

    async fn read(&self, key: &Key) -> Result<Option<LiveClaim>, EngineError> {
        let key = (self.app_number(&key.app), key.global_id);
        self.shard(&key).held(&key, self.clock.now())
    }

    async fn release(&self, request: &ReleaseRequest) -> Result<ReleaseResponse, EngineError> {
        self.apply(&request.key, |held, _| operator::release(held, request), |_| Ok(()))
    }

    async fn list(&self, request: &ListRequest) -> Result<Vec<ListedClaim>, EngineError> {
        let Some(app) = self.known_app(&request.app) else { return Ok(Vec::new()) };
        // Claims lie in no order, so every page looks at all of them, and keeps the least that come after the last page.
        let mut found = BTreeMap::new();
        for shard in &self.shards {
            shard.lock().unwrap_or_else(PoisonError::into_inner).gather(app, request, self.clock.now(), &mut found)?;
            // A shard may hold a hundred thousand claims: others come first.
            yield_now().await;
        }
        let now = self.clock.now();
        let listed = |(global_id, (judged_at, held)): (_, (Timestamp, LiveClaim))| {
            let left = held.left.map(|left| left.saturating_sub(now.since(judged_at)));
            ListedClaim { global_id, claim: LiveClaim { left, ..held } }
        };
        Ok(found.into_iter().map(listed).collect())
    }

    async fn get_metadata(&self, name: &str) -> Result<Option<Metadata>, EngineError> {
        Ok(self.notes.lock().unwrap_or_else(PoisonError::into_inner).get(name).cloned())
    }

    async fn compare_and_set_metadata(
        &self,
        name: &str,
        expected: Option<&Metadata>,
        new: &Metadata,
    ) -> Result<bool, EngineError> {
        let mut notes = self.notes.lock().unwrap_or_else(PoisonError::into_inner);
        let stands = notes.get(name);
        if stands == Some(new) {
            return Ok(true);
        }
        let as_expected = stands == expected;
        if as_expected {
            notes.insert(name.to_owned(), new.clone());
        }
        Ok(as_expected)
    }

    async fn probe(&self) -> Result<(), EngineError> {
        Ok(())
    }

    fn capabilities(&self) -> Capabilities {
        Self::CAPABILITIES
    }
}

impl Shard {
    /// The claim that stands under a key, judged at this instant.
    fn held(&self, key: &SlotKey, now: Timestamp) -> Result<Option<LiveClaim>, EngineError> {
        let Some(slot) = self.slots.get(key) else { return Ok(None) };
        let (fence, text) = slot.fence_and_text.split_first_chunk().unwrap_or((&[0; 8], &[]));
        let left = slot.expires_at().map(|expires_at| expires_at.since(now));
        Ok(LiveClaim::judge(value::decode(text)?, left, Some(u64::from_be_bytes(*fence))))
    }

    /// Adds the claims that a list asks for to what was found in other shards, and keeps the least of all.
    fn gather(
        &self,
        app: AppNumber,
        request: &ListRequest,
        now: Timestamp,
        found: &mut BTreeMap<GlobalId, (Timestamp, LiveClaim)>,
    ) -> Result<(), EngineError> {
        let asked_for = |key: &&SlotKey| key.0 == app && request.after.is_none_or(|after| key.1 > after);
        for key in self.slots.keys().filter(asked_for) {
            // Read only what would be kept.
            if found.len() >= request.limit && found.last_key_value().is_none_or(|(last, _)| key.1 > *last) {
                continue;
            }
            let held = self.held(key, now)?;
            if let Some(held) = held.filter(|held| request.state.is_none_or(|state| held.record.state == state)) {
                found.insert(key.1, (now, held));
                if found.len() > request.limit {
                    found.pop_last();
                }
            }
        }
        Ok(())
    }

    /// Stores a claim; returns by how many bytes the shard grew.
    fn put(&mut self, key: SlotKey, slot: Slot) -> i64 {
        if let Some(expires_at) = slot.expires_at() {
            self.ends.insert((expires_at, key));
        }
        let (expires_at, bytes) = (slot.expires_at(), slot.bytes());
        let old = self.slots.insert(key, slot);
        self.forget_end(key, old.as_ref(), expires_at);
        bytes - old.map_or(0, |old| old.bytes())
    }

    fn extend(&mut self, key: SlotKey, expires_at: Timestamp) -> i64 {
        if let Some(slot) = self.slots.get_mut(&key) {
            if let Some(old) = slot.expires_at() {
                self.ends.remove(&(old, key));
            }
            slot.ends_at = expires_at;
            self.ends.insert((expires_at, key));
        }
        0
    }

    fn delete(&mut self, key: &SlotKey) -> i64 {
        let old = self.slots.remove(key);
        self.forget_end(*key, old.as_ref(), None);
        -old.map_or(0, |old| old.bytes())
    }

    fn forget_end(&mut self, key: SlotKey, old: Option<&Slot>, new: Option<Timestamp>) {
        if let Some(old) = old.and_then(Slot::expires_at).filter(|old| Some(*old) != new) {
            self.ends.remove(&(old, key));
        }
    }

    /// Takes away at most `most` claims that have ended; returns how many bytes they took.
    fn sweep(&mut self, now: Timestamp, most: usize) -> i64 {
        let mut bytes = 0;
        for _ in 0..most {
            let Some(&(expires_at, key)) = self.ends.first() else { break };
            if expires_at > now {
                break;
            }
            // Judged here, in the deleting step: a claim that outlives its lease leaves the order, not the table.
            let stands = !matches!(self.held(&key, now), Ok(None));
            self.ends.pop_first();
            if stands {
                continue;
            }
            bytes += self.slots.remove(&key).map_or(0, |slot| slot.bytes());
        }
        bytes
    }
}

impl Slot {
    fn expires_at(&self) -> Option<Timestamp> {
        Some(self.ends_at).filter(|ends_at| *ends_at != NEVER)
    }

    fn bytes(&self) -> i64 {
        CLAIM_OVERHEAD_BYTES.saturating_add_unsigned(self.fence_and_text.len() as u64)
    }
}

/// Lets other tasks run. By itself, since `core` knows no runtime.
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

#[cfg(test)]
mod tests {
    #[cfg(target_os = "linux")]
    use std::process::Command;
    use std::time::Duration;

    use super::super::conformance::{DEADLINE, Subject, fresh_claim};
    use super::*;
    use crate::domain::claim::{Outcome, OutcomeResponse};
    use crate::domain::clock::ManualClock;

    fn noon() -> Arc<ManualClock> {
        Arc::new(ManualClock::at(Timestamp::from_micros(1_700_000_000_000_000)))
    }

    crate::conformance!(async {
        Some(Subject::on_manual_clock(|clock| Arc::new(Memory::new(clock, BYTES_MAX_DEFAULT))))
    });

    fn settle(request: &ClaimRequest, outcome: Outcome) -> OutcomeRequest {
        OutcomeRequest { key: request.key.clone(), attempt: request.attempt.clone(), outcome, late: None }
    }

    async fn fill(memory: &Memory) -> Vec<ClaimRequest> {
        let mut held = Vec::new();
        loop {
            let request = fresh_claim();
            match memory.claim(&request, DEADLINE).await {
                Ok(ClaimResponse::Granted(_)) => held.push(request),
                Err(EngineError::Determinate(Determinate::Full(_))) => return held,
                other => panic!("unexpected {other:?}"),
            }
        }
    }

    #[tokio::test]
    async fn a_full_engine_refuses_claims_and_takes_outcomes() {
        let clock = noon();
        let memory = Memory::new(clock.clone(), 100_000);
        let held = fill(&memory).await;
        assert!((300..600).contains(&held.len()), "{} claims in 100 kB", held.len());
        let repeat = memory.claim(&held[0], DEADLINE).await;
        assert!(matches!(repeat, Ok(ClaimResponse::Granted(grant)) if grant.attempt == held[0].attempt));
        let success = Outcome::Success { result: Some("1".into()), retention: None };
        assert!(matches!(memory.settle(&settle(&held[0], success), DEADLINE).await, Ok(OutcomeResponse::Done { .. })));
        for request in &held[1..] {
            assert!(matches!(
                memory.settle(&settle(request, Outcome::Failure), DEADLINE).await,
                Ok(OutcomeResponse::Done { .. })
            ));
        }
        memory.claim(&fresh_claim(), DEADLINE).await.unwrap();
    }

    #[tokio::test]
    async fn what_has_ended_makes_room() {
        let clock = noon();
        let memory = Memory::new(clock.clone(), 100_000);
        let first = fill(&memory).await.len();
        clock.advance(Duration::from_hours(2));
        let second = fill(&memory).await.len();
        assert!(second + 10 > first, "{second} claims after {first}");
    }

    #[test]
    #[cfg(target_os = "linux")]
    fn a_claim_costs_at_most_250_bytes_beyond_its_contents() {
        let alone = ["--exact", "engine::memory::tests::what_a_claim_costs", "--ignored", "--nocapture"];
        let measured = Command::new(std::env::current_exe().unwrap()).args(alone).output().unwrap();
        let said = String::from_utf8_lossy(&measured.stdout);
        assert!(measured.status.success() && said.contains("1 passed"), "{said}");
    }

    /// Just after the tables have doubled, when they are emptiest.
    #[tokio::test]
    #[cfg(target_os = "linux")]
    #[ignore = "counts what its process takes: the test above gives it one of its own"]
    async fn what_a_claim_costs() {
        const CLAIMS: usize = SHARDS * 3_700;
        let memory = Memory::new(noon(), BYTES_MAX_DEFAULT);
        memory.claim(&fresh_claim(), DEADLINE).await.unwrap();
        let before = resident_bytes();
        let mut contents = 0;
        for _ in 0..CLAIMS {
            let request = fresh_claim();
            contents += request.contents.as_str().len();
            memory.claim(&request, DEADLINE).await.unwrap();
        }
        let cost = (resident_bytes() - before - contents) / CLAIMS;
        println!("{cost} bytes a claim");
        assert!(cost <= 250, "{cost} bytes a claim");
    }

    /// As the kernel counts, in pages of 4 KiB.
    #[cfg(target_os = "linux")]
    fn resident_bytes() -> usize {
        let pages = std::fs::read_to_string("/proc/self/statm").unwrap();
        pages.split(' ').nth(1).unwrap().parse::<usize>().unwrap() * 4096
    }

    #[tokio::test]
    async fn a_sweep_takes_ended_claims_only_and_counts_what_it_frees() {
        let clock = noon();
        let memory = Memory::new(clock.clone(), BYTES_MAX_DEFAULT);
        let mut kept = Vec::new();
        for number in 0..1000 {
            let request = fresh_claim();
            memory.claim(&request, DEADLINE).await.unwrap();
            if number % 10 == 0 {
                kept.push(request);
            }
        }
        clock.advance(Duration::from_mins(59));
        for request in &kept {
            memory
                .renew(
                    &RenewalRequest { key: request.key.clone(), attempt: request.attempt.clone(), lease: None },
                    DEADLINE,
                )
                .await
                .unwrap();
        }
        clock.advance(Duration::from_mins(2));
        for shard in &memory.shards {
            let swept = shard.lock().unwrap().sweep(memory.clock.now(), usize::MAX);
            memory.forget(swept);
        }
        let slots: usize = memory.shards.iter().map(|shard| shard.lock().unwrap().slots.len()).sum();
        assert_eq!(slots, kept.len());
        for request in &kept {
            memory.settle(&settle(request, Outcome::Failure), DEADLINE).await.unwrap();
        }
        assert_eq!(memory.bytes.load(Ordering::Relaxed), 0);
        assert!(memory.shards.iter().all(|shard| shard.lock().unwrap().ends.is_empty()));
    }
}
