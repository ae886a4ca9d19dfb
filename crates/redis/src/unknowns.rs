//! The index of unknown claims, since a server cannot be searched. It has 16 sorted sets for each app, by the first
//! digit of the global ID. The score is the time at which the claim becomes or became unknown, in milliseconds.
//!
//! A hint. A missing entry only makes its claim invisible in the list. An entry whose claim is not unknown is corrected
//! when it is read. No call fails because of the index. Claims that are released at the end of their lease have no
//! entry and cost nothing more.

use std::collections::BTreeMap;
use std::pin::pin;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::Duration;

use futures_util::future::join_all;
use futures_util::{FutureExt as _, StreamExt as _, stream};
use oncegate_core::claim::{ClaimRequest, ClaimResponse};
use oncegate_core::clock::{Clock as _, SystemClock, Timestamp};
use oncegate_core::engine::{BatchClaim, ClaimSink, EngineError};
use oncegate_core::global_id::GlobalId;
use oncegate_core::operator::{UnknownClaim, UnknownsPage, UnknownsRequest};
use oncegate_core::record::{ClaimState, Key, Realm};
use oncegate_core::tenant::AppKey;
use oncegate_core::terms::LeaseEnd;
use redis::{Cmd, Value};
use tokio::time::{sleep, timeout};

use super::Redis;
use super::connection::Purpose;
use super::keys::{KeyName, Keys};
use super::limit::{CallTime, DEADLINE};
use super::reply::{checked, unexpected};
use super::route::Sending;
use super::topology::Topology;

/// Maximum number of entries of a set: 10 000 for all sets of an app. The claims that become unknown last are left out.
const SET_MAX: usize = 625;

/// A set is trimmed at one addition in so many.
const TRIM_EVERY: u8 = 64;

/// Longest time that the answer to an unknown outcome waits for its entry.
const ENTRY_TIMEOUT: Duration = Duration::from_millis(100);

/// Time for collecting removals.
const GATHERED_FOR: Duration = Duration::from_millis(50);

/// Most removals that wait, and most of one command.
const REMOVALS_MAX: usize = 10_000;
const REMOVED_AT_ONCE: usize = 500;

/// Claims that are read at a time.
const READ_AT_ONCE: usize = 32;

/// Begins the entry of a record of the proxy.
const OF_PROXY: char = 'p';

/// Writer of the index.
pub(super) struct Unknowns {
    topology: Arc<Topology>,
    removals: Mutex<Removals>,
}

/// Removals that wait to be sent together.
#[derive(Default)]
struct Removals {
    /// The sets and their entries; no entry: those beyond the bound of the set.
    waiting: Vec<(KeyName, Option<String>)>,
    is_running: bool,
}

/// An entry of a set that is due.
struct Entry {
    set: KeyName,
    member: String,
    key: Key,
    due_at: Timestamp,
}

impl Unknowns {
    pub(super) fn new(topology: Arc<Topology>) -> Arc<Self> {
        Arc::new(Self { topology, removals: Mutex::default() })
    }

    /// Adds an entry, or moves one to an earlier time.
    async fn add(self: &Arc<Self>, keys: &Keys, key: &Key, due_at: Timestamp) {
        let set = keys.unknowns(key);
        let added = self.send(&set, &|| entry_command("LT", &set, key, due_at)).await;
        // A digest is as good as a random number.
        if added.is_ok() && key.global_id.as_bytes()[15].is_multiple_of(TRIM_EVERY) {
            self.later(set, None);
        }
    }

    /// Moves an entry to another time, if it is there.
    async fn postpone(&self, entry: &Entry, due_at: Timestamp) {
        let _moved = self.send(&entry.set, &|| entry_command("XX", &entry.set, &entry.key, due_at)).await;
    }

    /// Removes the entry of a claim, soon.
    pub(super) fn remove(self: &Arc<Self>, keys: &Keys, key: &Key) {
        self.later(keys.unknowns(key), Some(member(key)));
    }

    /// Removes an entry of a set, or those beyond its bound, together with others.
    fn later(self: &Arc<Self>, set: KeyName, member: Option<String>) {
        let mut removals = self.removals();
        if removals.waiting.len() >= REMOVALS_MAX {
            return;
        }
        removals.waiting.push((set, member));
        if !std::mem::replace(&mut removals.is_running, true) {
            tokio::spawn(self.clone().send_removals());
        }
    }

    /// Sends removals for as long as there are some.
    async fn send_removals(self: Arc<Self>) {
        loop {
            sleep(GATHERED_FOR).await;
            let waiting = {
                let mut removals = self.removals();
                if removals.waiting.is_empty() {
                    removals.is_running = false;
                    return;
                }
                std::mem::take(&mut removals.waiting)
            };
            let mut sets: BTreeMap<String, (KeyName, Vec<Option<String>>)> = BTreeMap::new();
            for (set, member) in waiting {
                sets.entry(set.text.clone()).or_insert_with(|| (set, Vec::new())).1.push(member);
            }
            let removed = sets.into_values().map(async |(set, members)| {
                let is_trimmed = members.contains(&None);
                let members: Vec<_> = members.into_iter().flatten().collect();
                self.remove_all(&set, &members).await;
                if is_trimmed {
                    let trim = || redis::cmd("ZREMRANGEBYRANK").arg(&set.text).arg(SET_MAX).arg(-1).to_owned();
                    let _trimmed = self.send(&set, &trim).await;
                }
            });
            join_all(removed).await;
        }
    }

    async fn remove_all(&self, set: &KeyName, members: &[String]) {
        for members in members.chunks(REMOVED_AT_ONCE) {
            let _removed = self.send(set, &|| redis::cmd("ZREM").arg(&set.text).arg(members).to_owned()).await;
        }
    }

    /// Sends a command for a set. Its answer waits for no replica.
    async fn send(&self, set: &KeyName, command: &(dyn Fn() -> Cmd + Sync)) -> Result<Value, EngineError> {
        let time = CallTime { deadline: DEADLINE, wait: None };
        let command = || command().into();
        let sending = Sending { key: set, purpose: Purpose::Other, time, command: &command };
        let reply = self.topology.send(sending).await?;
        Ok(checked(reply)?)
    }

    fn removals(&self) -> MutexGuard<'_, Removals> {
        self.removals.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

impl Redis {
    /// Makes a claim call, with an entry in the index, for a claim that becomes unknown at the end of its lease. The
    /// entry is sent first; it uses the same connection if one server answers for both.
    pub(super) async fn claim_indexed(
        &self,
        request: &ClaimRequest,
        call: impl Future<Output = Result<ClaimResponse, EngineError>>,
    ) -> Result<ClaimResponse, EngineError> {
        let answer = beside(self.enter(request), call).await;
        self.correct(request, answer.as_ref().ok());
        answer
    }

    /// Claims several keys. Some of them turn unknown at the end of their leases.
    pub(super) async fn claim_many_indexed(&self, claims: &[BatchClaim<'_>], sink: ClaimSink<'_>) {
        let turns = |request: &ClaimRequest| request.terms.on_lease_end == LeaseEnd::Unknown;
        let entered = claims.iter().filter(|claim| turns(claim.request)).map(|claim| self.enter(claim.request));
        let sink = |position: usize, answer: Result<ClaimResponse, EngineError>| {
            self.correct(claims[position].request, answer.as_ref().ok());
            sink(position, answer);
        };
        beside(join_all(entered).map(drop), self.claim_many(claims, &sink)).await;
    }

    /// Adds the entry of a claim that may be granted now.
    async fn enter(&self, request: &ClaimRequest) {
        let due_at = SystemClock::new().wall().plus(request.terms.lease);
        self.unknowns.add(&self.keys, &request.key, due_at).await;
    }

    /// Removes the entry of a claim call that has found a success.
    fn correct(&self, request: &ClaimRequest, answer: Option<&ClaimResponse>) {
        if let Some(ClaimResponse::Duplicate(live)) = answer
            && live.record.state == ClaimState::Succeeded
        {
            self.unknowns.remove(&self.keys, &request.key);
        }
    }

    /// Adds the entry of a claim that is unknown from now on. Waits a short time, so that the answer to the outcome
    /// comes after it.
    pub(super) async fn became_unknown(&self, key: &Key) {
        let _late = timeout(ENTRY_TIMEOUT, self.unknowns.add(&self.keys, key, SystemClock::new().wall())).await;
    }

    /// Returns unknown claims of an app, the oldest first, and corrects the entries of others.
    pub(super) async fn unknowns_of(&self, request: &UnknownsRequest) -> Result<UnknownsPage, EngineError> {
        let now = SystemClock::new().wall();
        // One more of each set, to know whether there are more.
        let count = (request.limit + 1).min(SET_MAX);
        let sets = join_all((0..16).map(|digit| self.due(&request.app, digit, now, count))).await;
        let (mut entries, mut is_complete) = (Vec::new(), true);
        for set in sets {
            let set = set?;
            is_complete &= set.len() < count;
            entries.extend(set);
        }
        entries.sort_by_key(|entry| (entry.due_at, entry.key.global_id));
        let read = |entry: Entry| async move {
            let live = self.snapshot(&self.keys.claim(&entry.key), self.time(DEADLINE)).await;
            (entry, live.map(|snapshot| snapshot.map(|snapshot| snapshot.held)))
        };
        let mut read = pin!(stream::iter(entries).map(read).buffered(READ_AT_ONCE));
        let mut page = UnknownsPage { found: Vec::new(), more: false };
        while let Some((entry, live)) = read.next().await {
            match live? {
                Some(claim) if claim.record.state == ClaimState::Unknown => {
                    if page.found.len() == request.limit {
                        page.more = true;
                        return Ok(page);
                    }
                    let Key { realm, global_id, .. } = entry.key;
                    page.found.push(UnknownClaim { realm, global_id, claim, since: entry.due_at });
                }
                Some(claim) if claim.record.state == ClaimState::InProgress => {
                    let left = claim.left.unwrap_or_default();
                    let turns = claim.record.terms.on_lease_end == LeaseEnd::Unknown;
                    if turns {
                        self.unknowns.postpone(&entry, SystemClock::new().wall().plus(left)).await;
                    } else {
                        self.unknowns.remove_all(&entry.set, &[entry.member]).await;
                    }
                }
                _ => self.unknowns.remove_all(&entry.set, &[entry.member]).await,
            }
        }
        page.more = !is_complete;
        Ok(page)
    }

    /// Returns the first entries of a set that are due.
    async fn due(&self, app: &AppKey, digit: u8, now: Timestamp, count: usize) -> Result<Vec<Entry>, EngineError> {
        let set = self.keys.unknowns_set(app, digit);
        let command = || {
            let mut range = redis::cmd("ZRANGE");
            range.arg(&set.text).arg("-inf").arg(millis_of(now)).arg("BYSCORE");
            range.arg("LIMIT").arg(0).arg(count).arg("WITHSCORES");
            range
        };
        let Value::Array(items) = self.unknowns.send(&set, &command).await.map_err(EngineError::of_read)? else {
            return Err(unexpected());
        };
        let texts = items.iter().map(|item| match item {
            Value::BulkString(text) => Ok(std::str::from_utf8(text).map_err(|_| unexpected())?),
            _ => Err(unexpected()),
        });
        let texts = texts.collect::<Result<Vec<_>, EngineError>>()?;
        // An entry in another form comes from another release, and stays.
        let entry = |pair: &[&str; 2]| {
            let [member, score] = pair;
            let (realm, id) = member.strip_prefix(OF_PROXY).map_or((Realm::Api, *member), |id| (Realm::Proxy, id));
            let key = Key { app: app.clone(), realm, global_id: id.parse::<GlobalId>().ok()? };
            let due_at = Timestamp::from_micros(score.parse::<u64>().ok()?.saturating_mul(1000));
            let set = KeyName { text: set.text.clone(), spread: set.spread };
            Some(Entry { set, member: (*member).to_owned(), key, due_at })
        };
        Ok(texts.as_chunks().0.iter().filter_map(entry).collect())
    }
}

/// Makes a call and sends a hint before it. Returns the answer of the call, even if the hint was not answered yet.
async fn beside<Answer>(hint: impl Future<Output = ()>, call: impl Future<Output = Answer>) -> Answer {
    let mut hint = pin!(hint.fuse());
    let mut call = pin!(call);
    let mut is_done = false;
    loop {
        tokio::select! {
            biased;
            () = &mut hint, if !is_done => is_done = true,
            answer = &mut call => return answer,
        }
    }
}

/// Returns the entry of a claim.
fn member(key: &Key) -> String {
    match key.realm {
        Realm::Api => key.global_id.to_string(),
        Realm::Proxy => format!("{OF_PROXY}{}", key.global_id),
    }
}

fn entry_command(condition: &str, set: &KeyName, key: &Key, due_at: Timestamp) -> Cmd {
    let mut command = redis::cmd("ZADD");
    command.arg(&set.text).arg(condition).arg(millis_of(due_at)).arg(member(key));
    command
}

fn millis_of(at: Timestamp) -> u64 {
    at.as_micros() / 1000
}
