//! A session: a connection to a fit member, the search for such a member, and the transactions that it runs.

use std::sync::Arc;

use bytes::Bytes;
use oncegate_coordination::backend::Backend as _;
use oncegate_coordination::step::{Guard, Stepped, Write};
use oncegate_coordination::time::{self, Time};
use oncegate_coordination::tls::with_tls_hint;
use oncegate_coordination::url::Address;
use oncegate_coordination::value::{Found, Mark};
use oncegate_core::attempt::{Entropy as _, SystemEntropy};
use oncegate_core::clock::Timestamp;
use oncegate_core::engine::Determinate;

use super::client::Client;
use super::failure::Failure;
use super::proto::{
    COMPACT, CompactionRequest, CompactionResponse, MEMBER_LIST, MemberListRequest, RANGE, RangeRequest, RangeResponse,
    RequestOp, ResponseOp, STATUS, StatusRequest, StatusResponse, TxnRequest, TxnResponse,
};
use super::step;
use super::store::Store;
use super::version;

/// A connection to a member that has passed its checks. Clones share it.
#[derive(Clone)]
pub(super) struct Session {
    store: Arc<Store>,
    client: Client,
}

/// The reply to a transaction, after the time in it.
pub(super) struct Replied {
    pub(super) time: Time,
    /// The revision of its writes, if it has any.
    pub(super) revision: i64,
    /// The replies to its operations.
    pub(super) responses: Vec<ResponseOp>,
}

impl Session {
    /// Opens a session at the first member that passes the checks, beginning with this one.
    pub(super) async fn open(store: &Arc<Store>, from: usize) -> Result<Self, Determinate> {
        let open = |member| Self::open_at(store.clone(), member);
        let check = |session: Self| async move {
            session.check().await.map_err(|failure| failure.answer.without_effect())?;
            Ok(session)
        };
        store.state.open_session(store.members(), from, open, check).await
    }

    async fn open_at(store: Arc<Store>, member: Address) -> Result<Self, Determinate> {
        let hint = |why| with_tls_hint(&store.url.common, "etcd", why);
        let client = Client::connect(&store.url.common, store.authentication.clone(), &member).await.map_err(hint)?;
        let refused = |failure: Failure| failure.answer.without_effect();
        let status = client.call(STATUS, || StatusRequest {}).await;
        let status: StatusResponse = status.map_err(refused).map_err(hint)?;
        let session = Self { store, client };
        version::check(&status.version)?;
        session.store.report_size(&status);
        if status.is_learner {
            return Err(Determinate::Unavailable(format!("{member} is a learner")));
        }
        let listed = session.client.call(MEMBER_LIST, || MemberListRequest {}).await.map_err(refused)?;
        session.store.learn(&member, &listed);
        session.begin().await.map_err(refused)?;
        session.store.state.opened();
        session.store.state.server.set_durable(true);
        Ok(session)
    }

    /// Checks the marker and the clock, and writes them if they are not there. Needs a quorum, and room only for what is not there.
    async fn begin(&self) -> Result<(), Failure> {
        let (keys, time) = (&self.store.keys, &self.store.state.time);
        // Another session may advance the clock until the reply is here.
        let (sent_at, floor, first) = (time.monotonic(), time.seen(), time::encode(time.first_value()));
        let [mut marker, mut clock] = self.standing().await?;
        if marker.is_none() || clock.is_none() {
            // How far a missing clock was is lost. The marker shows that to every gateway, so it changes if it is there.
            let guard = marker.map_or(Guard::Absent, |found| Guard::Unchanged(found.mark));
            self.create(guard, &first).await?;
            [marker, clock] = self.standing().await?;
        }
        let missing = || Failure::lost("etcd does not keep the marker and the clock");
        let (marker, clock) = (marker.ok_or_else(missing)?, clock.ok_or_else(missing)?);
        // Before anything else of this member counts: it may belong to another cluster.
        self.store.set_marker(Some(&marker.value), sent_at).map_err(Failure::refused)?;
        if self.clock_of(&clock.value)? < floor {
            self.store.lost_data();
            // The store was restored. Its clock continues above every value that was seen.
            let write = Write { guards: vec![Guard::Unchanged(clock.mark)], put: Some(first), is_remembered: false };
            let advance =
                || TxnRequest { success: vec![step::conditional(keys, &keys.clock, &write)], ..TxnRequest::default() };
            self.limited(self.client.txn(advance)).await?;
        }
        self.check().await
    }

    /// Returns the marker and the clock, as far as they are there.
    async fn standing(&self) -> Result<[Option<Found>; 2], Failure> {
        let keys = &self.store.keys;
        let reads =
            || TxnRequest { success: [&keys.marker, &keys.clock].map(step::read).to_vec(), ..TxnRequest::default() };
        let TxnResponse { responses, .. } = self.limited(self.client.txn(reads)).await?;
        let mut replies = responses.into_iter();
        let mut next = || match replies.next().map(|response| step::result_of(response, 0)).transpose()? {
            Some(Stepped::Found(found)) => Ok::<_, Failure>(found),
            Some(Stepped::Written(..)) | None => Ok(None),
        };
        Ok([next()?, next()?])
    }

    /// Writes the marker if its guard holds, and the clock if it is not there.
    async fn create(&self, marker_guard: Guard, clock: &Bytes) -> Result<(), Failure> {
        let keys = &self.store.keys;
        let marker = Bytes::copy_from_slice(&SystemEntropy.bits().to_be_bytes());
        let write = |key: &Bytes, guard: Guard, value: &Bytes| {
            let write = Write { guards: vec![guard], put: Some(value.clone()), is_remembered: false };
            step::conditional(keys, key, &write)
        };
        let build = || TxnRequest {
            success: vec![write(&keys.marker, marker_guard, &marker), write(&keys.clock, Guard::Absent, clock)],
            ..TxnRequest::default()
        };
        self.limited(self.client.txn(build)).await.map(|TxnResponse { .. }| ())
    }

    /// Checks that the store answers, and has its data.
    pub(super) async fn check(&self) -> Result<(), Failure> {
        let sent_at = self.store.state.time.monotonic();
        let (_, marker) = self.read(&self.store.keys.marker).await?;
        self.store.set_marker(marker.as_ref().map(|marker| &marker.value[..]), sent_at).map_err(Failure::refused)
    }

    /// Reads a key, of this store or of another one, and the time.
    pub(super) async fn read(&self, key: &Bytes) -> Result<(Time, Option<Found>), Failure> {
        let Replied { time, responses, .. } = self.run(|| vec![step::read(key)]).await?;
        match responses.into_iter().next().map(|response| step::result_of(response, 0)).transpose()? {
            Some(Stepped::Found(found)) => Ok((time, found)),
            Some(Stepped::Written(..)) | None => Err(Failure::unfit_reply()),
        }
    }

    /// Writes a cursor, if it still has this mark. Returns false if another gateway was faster.
    pub(super) async fn move_cursor(&self, key: &Bytes, read: Option<Mark>, cursor: Bytes) -> Result<bool, Failure> {
        let guards = vec![read.map_or(Guard::Absent, Guard::Unchanged)];
        let write = Write { guards, put: Some(cursor), is_remembered: false };
        let Replied { revision, responses, .. } =
            self.run(|| vec![step::conditional(&self.store.keys, key, &write)]).await?;
        let written = responses.into_iter().next().map(|response| step::result_of(response, revision));
        Ok(matches!(written, Some(Ok(Stepped::Written(..)))))
    }

    /// Asks the member for its size.
    pub(super) async fn measure(&self) -> Result<(), Failure> {
        let status = self.limited(self.client.call(STATUS, || StatusRequest {})).await?;
        self.store.report_size(&status);
        Ok(())
    }

    /// Runs a transaction of these operations that also reads the clock.
    pub(super) async fn run(&self, operations: impl Fn() -> Vec<RequestOp>) -> Result<Replied, Failure> {
        let (keys, state) = (&self.store.keys, &self.store.state);
        let build = || {
            let mut success = vec![step::read(&keys.clock)];
            success.extend(operations());
            TxnRequest { success, ..TxnRequest::default() }
        };
        let (sent_at, floor, is_full) = (state.time.monotonic(), state.floor(), state.gate.has_alarm());
        let replied = self.limited(self.client.txn(build)).await;
        let TxnResponse { header, responses, .. } =
            replied.map_err(|failure| if is_full { failure } else { failure.of_full_store() })?;
        let revision = header.map_or(0, |header| header.revision);
        let mut responses = responses.into_iter();
        let clock = responses.next().map(|response| step::result_of(response, revision));
        let Some(Ok(Stepped::Found(Some(clock)))) = clock else {
            // The next session creates it, and finds the marker of an empty store.
            return Err(Failure::lost("the clock is missing in etcd"));
        };
        if let Some(time) = state.observe(self.clock_of(&clock.value)?, revision, sent_at, floor) {
            return Ok(Replied { time, revision, responses: responses.collect() });
        }
        self.store.lost_data();
        Err(Failure::lost("etcd came back without its data: its clock or its revision is lower than before"))
    }

    /// Reads a range of keys, for lists. A serializable read may be a little old.
    pub(super) async fn range(&self, request: RangeRequest) -> Result<RangeResponse, Failure> {
        self.limited(self.client.call(RANGE, || request.clone())).await
    }

    /// Removes the history before a revision.
    pub(super) async fn compact(&self, revision: i64) -> Result<(), Failure> {
        let compact = self.client.call(COMPACT, || CompactionRequest { revision });
        self.limited(compact).await.map(|CompactionResponse {}| ())
    }

    /// Returns the client, for watches.
    pub(super) fn client(&self) -> &Client {
        &self.client
    }

    pub(super) fn store(&self) -> &Arc<Store> {
        &self.store
    }

    fn clock_of(&self, stored: &[u8]) -> Result<Timestamp, Failure> {
        time::read(stored, &String::from_utf8_lossy(&self.store.keys.clock)).map_err(Failure::refused)
    }

    async fn limited<T>(&self, call: impl Future<Output = Result<T, Failure>>) -> Result<T, Failure> {
        self.store.state.options.limited("etcd", call, Failure::lost).await
    }
}
