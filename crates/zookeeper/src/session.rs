//! A session: a connection to a fit member, the search for such a member, and the exchanges that it runs.

use std::sync::Arc;
use std::time::Duration;

use bytes::Bytes;
use oncegate_coordination::Floor;
use oncegate_coordination::backend::Backend as _;
use oncegate_coordination::time::{self, Time};
use oncegate_coordination::url::Address;
use oncegate_coordination::value::{Found, Mark};
use oncegate_core::attempt::{Entropy as _, SystemEntropy};
use oncegate_core::clock::Timestamp;
use oncegate_core::engine::Determinate;
use tokio::time::timeout;

use super::client::{Client, Events};
use super::ensemble;
use super::failure::Failure;
use super::keys;
use super::members;
use super::proto::{self, Body, Change, Reply, Request, Stat, code};
use super::store::{ClockSeen, FIVE_US, Store, five_of};
use super::words;

/// A mark is not used after this time. Nothing is deleted so soon after it has ended, so its node is still the same.
const MARK_AGE_MAX: Duration = Duration::from_secs(20);

/// One part of a server's heap is data, and another three of the same size its objects.
pub(super) const DATA_IN_HEAP: u64 = 4;

/// A connection to a member that has passed its checks. Clones share it.
#[derive(Clone)]
pub(super) struct Session {
    store: Arc<Store>,
    client: Client,
    member: Address,
    opened_at: Duration,
}

/// The replies to an exchange, after the time in it.
pub(super) struct Replied {
    pub(super) time: Time,
    /// Time at which it was sent, by this gateway's monotonic clock.
    pub(super) sent_at: Duration,
    /// Of each group of changes.
    pub(super) changed: Vec<Result<Body, i32>>,
    /// Of each node that was read; `None`: it is not there.
    pub(super) found: Vec<Result<Option<Found>, i32>>,
}

impl Session {
    /// Opens a session at the first member that passes the checks, beginning with this one.
    pub(super) async fn open(store: &Arc<Store>, from: usize) -> Result<(Self, Events), Determinate> {
        let open = |member| Self::open_at(store.clone(), member);
        let check = |(session, events): (Self, Events)| async move {
            session.check().await.map_err(|failure| failure.answer.without_effect())?;
            Ok((session, events))
        };
        store.state.open_session(store.members(), from, open, check).await
    }

    async fn open_at(store: Arc<Store>, member: Address) -> Result<(Self, Events), Determinate> {
        let opened_at = store.state.time.monotonic();
        let connecting = Client::connect(&store.url.common, &member, store.url.session);
        let ((client, events), srvr) = tokio::try_join!(connecting, async {
            // A member that does not answer `srvr` may still serve.
            let asking = words::ask(&store.url.common, &member, "srvr");
            Ok(timeout(store.state.options.connect_timeout / 2, asking).await.ok().flatten())
        })?;
        let session = Self { store, client, member, opened_at };
        session.begin().await.map_err(|failure| failure.answer.without_effect())?;
        session.store.state.opened();
        session.report_durability(srvr.as_deref());
        Ok((session, events))
    }

    /// Records whether acknowledged writes are durable, as this member and what was last seen of the others show it.
    fn report_durability(&self, srvr: Option<&str>) {
        let version = srvr.and_then(words::version);
        let is_durable = version.is_some_and(words::is_durable);
        if !is_durable {
            let (member, version) = (self.member.to_string(), version.unwrap_or("unknown"));
            tracing::warn!(
                member,
                version,
                "This ZooKeeper may lose writes that it has acknowledged, or does not allow srvr, which shows its version. Use 3.9.4 or later"
            );
        }
        let of_others = ensemble::is_durable(&self.store.state.members.nodes());
        self.store.state.server.set_durable(is_durable && of_others.unwrap_or(true));
    }

    /// Creates missing nodes: the root, folders, marker and clock. Needs a quorum.
    async fn begin(&self) -> Result<(), Failure> {
        let Store { keys, url, state, .. } = &*self.store;
        let create = |path: &str, value: Bytes| Request::Change(vec![Change::Create(path.to_owned(), value)]);
        let above = url.above();
        let clock = state.time.first_value();
        // Another session may advance the clock until the replies are here.
        let floor = state.time.seen();
        let folders = above.iter().chain([&keys.claims, &keys.grants, &keys.locks, &keys.metadata]);
        let mut requests: Vec<_> = folders.map(|folder| create(folder, Bytes::new())).collect();
        requests.push(create(&keys.marker, new_marker()));
        requests.push(Request::Change(vec![
            Change::Create(keys.clock.clone(), time::encode(clock)),
            Change::Create(keys.clock5.clone(), time::encode(five_of(clock))),
        ]));
        // If it alone was deleted.
        requests.push(create(&keys.clock5, time::encode(five_of(clock))));
        let replies = self.limited(self.client.send(requests)).await?;
        let mut denied = None;
        for (reply, path) in replies.iter().zip(above.iter().chain([&keys.claims])) {
            match reply.body {
                // The node above may belong to others. The next request shows whether this one is there.
                Err(code::NO_AUTH) if *path != keys.claims => denied = denied.or(Some(path)),
                Ok(Body::Refused(_, code::NO_NODE)) => return Err(self.not_there(path, denied.map(String::as_str))),
                Err(code) => return Err(Failure::of_code(code, path)),
                Ok(_) => {}
            }
        }
        self.restore_clock(clock, floor).await?;
        self.check().await
    }

    /// Returns why a folder cannot be created: the node above it is not there.
    fn not_there(&self, path: &str, denied: Option<&str>) -> Failure {
        if let Some(denied) = denied {
            return Failure::of_code(code::NO_AUTH, keys::parent(denied));
        }
        let (above, chroot) = (keys::parent(path), &self.store.url.common.path);
        Failure::unfit_store(format!(
            "{above} is not there; create the chroot {chroot} in ZooKeeper, or leave it out of the URL"
        ))
    }

    /// If the clock is behind the highest value that was seen before the session began, because the store was restored, lets it
    /// continue above that value.
    async fn restore_clock(&self, first: Timestamp, floor: Timestamp) -> Result<(), Failure> {
        let keys = &self.store.keys;
        let (reads, sent_at) = ([&keys.marker, &keys.clock], self.store.state.time.monotonic());
        let reads = reads.map(|path| Request::Get(path.clone())).to_vec();
        let mut replies = self.limited(self.client.send(reads)).await?.into_iter().map(data_of);
        let marker = replies.next().and_then(Result::ok).flatten();
        if let Some((marker, _)) = &marker {
            // Before anything else of this server counts: it may belong to another ensemble.
            self.store.set_marker(Some(marker), sent_at).map_err(Failure::refused)?;
        }
        let (value, stat) = match (replies.next(), marker) {
            (Some(Ok(Some(clock))), _) => clock,
            (Some(Ok(None)), Some((_, marker))) => return self.replace_clock(&marker, first).await,
            _ => return Err(Failure::unfit()),
        };
        if time::read(&value, &keys.clock).map_err(Failure::refused)? >= floor {
            return Ok(());
        }
        self.store.lost_data();
        let changes = vec![
            Change::Set(keys.clock.clone(), time::encode(first), stat.version),
            Change::Set(keys.clock5.clone(), time::encode(five_of(first)), -1),
        ];
        self.limited(self.client.send(vec![Request::Change(changes)])).await.map(drop)
    }

    /// Creates a clock that alone was deleted, with a new marker: how far it was is lost, and the marker shows that to every gateway.
    async fn replace_clock(&self, marker: &Stat, first: Timestamp) -> Result<(), Failure> {
        let keys = &self.store.keys;
        let changes = vec![
            Change::Set(keys.marker.clone(), new_marker(), marker.version),
            Change::Create(keys.clock.clone(), time::encode(first)),
            Change::Set(keys.clock5.clone(), time::encode(five_of(first)), -1),
        ];
        self.limited(self.client.send(vec![Request::Change(changes)])).await?;
        // The next session finds both.
        Err(Failure::lost("the clock was missing in ZooKeeper"))
    }

    /// Checks that the store answers, and has its data. Learns of its members: one session may last while all others are replaced.
    pub(super) async fn check(&self) -> Result<(), Failure> {
        let (marker, sent_at) = (self.store.keys.marker.clone(), self.store.state.time.monotonic());
        let Replied { found, .. } = self.run(Vec::new(), vec![marker.clone(), members::CONFIGURATION.into()]).await?;
        let mut found = found.into_iter();
        let first = found.next();
        if let Some(Ok(Some(configuration))) = found.next() {
            self.store.learn(&configuration.value);
        }
        match first {
            Some(Ok(found)) => {
                let marker = found.as_ref().map(|found| &found.value[..]);
                self.store.set_marker(marker, sent_at).map_err(Failure::refused)
            }
            Some(Err(code)) => Err(Failure::of_code(code, &marker)),
            None => Err(Failure::unfit()),
        }
    }

    /// Reads a node, of this store or of another one, and the time.
    pub(super) async fn read(&self, path: &str) -> Result<(Time, Option<Found>), Failure> {
        let Replied { time, found, .. } = self.run(Vec::new(), vec![path.to_owned()]).await?;
        match found.into_iter().next() {
            Some(Ok(found)) => Ok((time, found)),
            Some(Err(code)) => Err(Failure::of_code(code, path)),
            None => Err(Failure::unfit()),
        }
    }

    /// Writes a cursor, if it still has this mark. Returns false if another gateway was faster.
    pub(super) async fn move_cursor(&self, path: &str, read: Option<Mark>, cursor: Bytes) -> Result<bool, Failure> {
        let change = match read {
            Some(mark) => Change::Set(path.to_owned(), cursor, version(mark)?),
            None => Change::Create(path.to_owned(), cursor),
        };
        let Replied { changed, .. } = self.run(vec![vec![change]], Vec::new()).await?;
        Ok(matches!(changed.first(), Some(Ok(_))))
    }

    /// Asks the member for its size, if the URL has a limit for it.
    pub(super) async fn measure(&self) {
        let Some(heap) = self.store.url.heap else { return };
        let asking = words::ask(&self.store.url.common, &self.member, "mntr");
        let answer = timeout(self.store.state.options.response_timeout, asking).await.ok().flatten();
        if let Some(used) = answer.as_deref().and_then(words::data_bytes) {
            self.store.state.gate.report_size(used, heap / DATA_IN_HEAP);
        }
    }

    /// Sends groups of changes, each made as a whole or not at all, and reads of nodes behind them.
    ///
    /// A quorum also decides a refused change, so data that is read behind a change is at least as new as the exchange.
    /// Without a change in the exchange, one is sent that changes nothing.
    pub(super) async fn run(&self, changes: Vec<Vec<Change>>, gets: Vec<String>) -> Result<Replied, Failure> {
        let keys = &self.store.keys;
        let groups = changes.len().max(1);
        let mut requests: Vec<_> = changes.into_iter().map(Request::Change).collect();
        if requests.is_empty() {
            requests.push(Request::Change(vec![Change::Check(keys.clock.clone(), -1)]));
        }
        requests.extend([&keys.clock, &keys.clock5].map(|path| Request::Get(path.clone())));
        requests.extend(gets.into_iter().map(Request::Get));
        let (sent_at, floor) = (self.store.state.time.monotonic(), self.store.state.floor());
        let mut replies = self.limited(self.client.send(requests)).await?.into_iter();
        let decided: Vec<_> = replies.by_ref().take(groups).collect();
        self.require_decision(&decided)?;
        let (clock, five) = (replies.next().map(data_of), replies.next().map(data_of));
        let (Some(Ok(Some(clock))), Some(Ok(Some(five)))) = (clock, five) else {
            // The next session creates it, and finds the marker of an empty store.
            return Err(Failure::lost("the clock is missing in ZooKeeper"));
        };
        let zxid = decided.iter().map(|reply| reply.zxid).max().unwrap_or_default();
        let time = self.observe(sent_at, &clock, &five, zxid, floor)?;
        let bodies = decided.into_iter().map(|reply| reply.body).collect();
        let seen = |(value, stat): (Bytes, Stat)| {
            let mark = Mark { number: stat.version.into(), seen_at: sent_at };
            Found { value, revision: stat.mzxid, mark }
        };
        let found = replies.map(|reply| data_of(reply).map(|found| found.map(seen))).collect();
        Ok(Replied { time, sent_at, changed: bodies, found })
    }

    /// Checks that a quorum has decided at least one change: a discarded request proves nothing for the reads behind
    /// it.
    fn require_decision(&self, decided: &[Reply]) -> Result<(), Failure> {
        if decided.iter().any(|reply| reply.body.is_ok()) {
            return Ok(());
        }
        let codes = decided.iter().filter_map(|reply| reply.body.as_ref().err());
        let mut failures = codes.map(|code| Failure::of_code(*code, &self.store.url.root));
        let first = failures.next().unwrap_or_else(Failure::unfit);
        Err(failures.find(|failure| failure.answer.is_uncertain()).unwrap_or(first))
    }

    /// Records the clock, and that no reply may be older than this one.
    fn observe(
        &self,
        sent_at: Duration,
        (clock, clock_stat): &(Bytes, Stat),
        (five, five_stat): &(Bytes, Stat),
        zxid: i64,
        floor: Floor,
    ) -> Result<Time, Failure> {
        let keys = &self.store.keys;
        let clock = time::read(clock, &keys.clock).map_err(Failure::refused)?;
        let five = time::read(five, &keys.clock5).map_err(Failure::refused)?;
        let Some(time) = self.store.state.observe(clock, zxid, sent_at, floor) else {
            self.store.lost_data();
            return Err(Failure::lost(
                "ZooKeeper came back without its data: its clock or its zxid is lower than before",
            ));
        };
        let mut known = self.store.known();
        if known.clock.is_none_or(|seen| seen.seen_at <= sent_at) {
            known.clock = Some(ClockSeen {
                clock,
                version: clock_stat.version,
                five_version: five_stat.version,
                five_end: Timestamp::from_micros(five.as_micros().saturating_add(FIVE_US)),
                seen_at: sent_at,
            });
        }
        Ok(time)
    }

    /// Sends requests that do not concern the clock and need no quorum: they may read slightly old data.
    pub(super) async fn send(&self, requests: Vec<Request>) -> Result<Vec<Reply>, Failure> {
        self.limited(self.client.send(requests)).await
    }

    /// Returns the clock's nodes as they were read, if that may still be used.
    pub(super) fn clock_seen(&self) -> Option<ClockSeen> {
        let seen = self.store.known().clock?;
        self.is_fresh(seen.seen_at).then_some(seen)
    }

    /// Returns the version of a mark, if it may still be used.
    pub(super) fn version_of(&self, mark: Mark) -> Option<i32> {
        i32::try_from(mark.number).ok().filter(|_| self.is_fresh(mark.seen_at))
    }

    /// Returns whether a state seen at this time may still be used: it is recent, and was seen in this session. The
    /// session of a gateway that was suspended has ended.
    fn is_fresh(&self, seen_at: Duration) -> bool {
        let now = self.store.state.time.monotonic();
        seen_at >= self.opened_at && now.saturating_sub(seen_at) <= MARK_AGE_MAX
    }

    pub(super) fn store(&self) -> &Arc<Store> {
        &self.store
    }

    async fn limited<T>(&self, call: impl Future<Output = Result<T, Failure>>) -> Result<T, Failure> {
        self.store.state.options.limited("ZooKeeper", call, Failure::lost).await
    }
}

/// Returns the version of a node that was just read.
pub(super) fn version(mark: Mark) -> Result<i32, Failure> {
    i32::try_from(mark.number).map_err(|_| Failure::unfit())
}

fn new_marker() -> Bytes {
    Bytes::copy_from_slice(&SystemEntropy.bits().to_be_bytes())
}

/// Returns the value of a node, as a reply has it.
fn data_of(reply: Reply) -> Result<Option<(Bytes, Stat)>, i32> {
    match reply.body {
        Ok(Body::Data(value, stat)) => Ok(Some((value, stat))),
        Err(code::NO_NODE) => Ok(None),
        Err(code) => Err(code),
        Ok(_) => Err(proto::UNFIT),
    }
}
