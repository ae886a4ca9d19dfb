//! A store that all gateways of a world share: an engine in memory with a simulated clock, behind a server that
//! crashes, hangs, fills up and loses its data. Each call is compared with the reference when it takes effect.

use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, Mutex, PoisonError};
use std::time::Duration;

use oncegate_core::attempt::{Attempt, Nonce};
use oncegate_core::canonical::canonicalize;
use oncegate_core::claim::{ClaimRequest, Outcome, OutcomeRequest};
use oncegate_core::clock::Timestamp;
use oncegate_core::engine::memory::{BYTES_MAX_DEFAULT, Memory};
use oncegate_core::engine::{
    ChangePurpose, ChangeResponse, Channel, Determinate, Engine, EngineError, Metadata, RecordChange, RecordName,
    RecordView, Subscription,
};
use oncegate_core::outage::grants::Grants;
use oncegate_core::record::Key;
use oncegate_core::tenant::Operation;
use oncegate_core::terms::{LeaseEnd, Retention, Terms};
use tokio::sync::{Notify, oneshot};

use crate::bugs::Bug;
use crate::clock::micros;
use crate::engine_call::{EngineCall, Executed, Holder, Timed};
use crate::reference::ensure;
use crate::trace::{Event, Name, Place};
use crate::world::{Known, World};

/// State of the server.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) enum ServerState {
    /// Executes every call.
    Up,
    /// Refuses connections.
    Down,
    /// Frozen: calls wait in its socket, and are executed when it resumes.
    Frozen,
    /// Has no room for new claims.
    Full,
    /// Lacks replicas, so no answer is acknowledged. If they come back, the executed calls are kept; if one is
    /// promoted, they are lost. No caller learns of them before, so in the second case the calls need not be executed.
    Short { kept: bool },
}

/// Attempt by which an ended record is swept.
const SWEPT: Name = Name { timestamp: 1_000_000_000_000_000, nonce: 0 };

/// The server.
pub(crate) struct Store {
    /// Its number in the world.
    pub(crate) number: u16,
    world: Arc<World>,
    bug: Option<Bug>,
    engine: Mutex<Arc<dyn Engine>>,
    state: Mutex<ServerState>,
    /// Wakes calls in the order of their arrival, which a `watch` does not.
    resumed: Notify,
    /// Number of crashes. Each closes all connections.
    crashes: AtomicU64,
    /// Number of losses of data.
    losses: AtomicU64,
}

impl Store {
    pub(crate) fn new(world: Arc<World>, number: u16, bug: Option<Bug>) -> Arc<Self> {
        let engine = Mutex::new(Self::empty(&world, bug));
        Arc::new(Self {
            number,
            world,
            bug,
            engine,
            state: Mutex::new(ServerState::Up),
            resumed: Notify::new(),
            crashes: AtomicU64::new(0),
            losses: AtomicU64::new(0),
        })
    }

    fn empty(world: &World, bug: Option<Bug>) -> Arc<dyn Engine> {
        world.store_clock.begin_anew();
        let memory = Arc::new(Memory::new(world.store_clock.clone(), BYTES_MAX_DEFAULT));
        match bug {
            Some(bug) => bug.in_store(memory, &world.store_clock),
            None => memory,
        }
    }

    /// Sets the state.
    pub(crate) fn set_state(&self, state: ServerState) {
        *self.state.lock().unwrap_or_else(PoisonError::into_inner) = state;
        self.resumed.notify_waiters();
    }

    fn state(&self) -> ServerState {
        *self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Returns the number of crashes.
    pub(crate) fn crashes(&self) -> u64 {
        self.crashes.load(Ordering::Relaxed)
    }

    /// Kills the process. Connections are refused until it is restarted.
    pub(crate) fn crash(&self) {
        self.crashes.fetch_add(1, Ordering::Relaxed);
        self.set_state(ServerState::Down);
    }

    /// Returns the number of losses of data.
    pub(crate) fn losses(&self) -> u64 {
        self.losses.load(Ordering::Relaxed)
    }

    /// Removes all claims, and what callers could rely on.
    pub(crate) fn lose_data(&self) {
        *self.engine.lock().unwrap_or_else(PoisonError::into_inner) = Self::empty(&self.world, self.bug);
        self.losses.fetch_add(1, Ordering::Relaxed);
        {
            let known = &mut *self.world.known();
            for of_key in &mut known.keys {
                of_key.references[usize::from(self.number)].forget();
            }
            known.degraded.retain(|(store, ..)| *store != self.number);
        }
        self.world.lost(self.number);
    }

    /// Steps the server's clock forward. Leases end earlier; the promises allow for less than a lease.
    pub(crate) fn step_forward(&self, by: Duration) {
        self.world.store_clock.step_forward(by);
    }

    /// Steps the server's clock back. Leases last longer. A record that has just ended would be live again if the sweeper had
    /// not removed it: here it is removed first.
    pub(crate) async fn step_back(&self, by: Duration) {
        let by = self.world.store_clock.room_back(by);
        let now = self.world.store_clock.now();
        let place = usize::from(self.number);
        let ended: Vec<Key> = {
            let known = &mut *self.world.known();
            for of_key in &mut known.keys {
                of_key.beliefs.end_until(now);
                of_key.ledger.end_until(now);
            }
            let keys = known.keys.iter();
            let ended = keys.filter(|of_key| of_key.references[place].ended_between(now - micros(by), now));
            ended.map(|of_key| of_key.key.clone()).collect()
        };
        for key in ended {
            self.sweep(key).await;
        }
        self.world.store_clock.step_back(by);
    }

    /// Removes an ended record with calls that every engine has: a claim that replaces it, and its release.
    async fn sweep(&self, key: Key) {
        let contents = canonicalize(b"\"swept\"").expect("JSON");
        let attempt = Attempt::new(Timestamp::from_micros(SWEPT.timestamp), Nonce::from_bits(SWEPT.nonce));
        let lease = Duration::from_secs(1);
        let retention = Retention::For(lease);
        let terms = Terms { lease, retention, unknown_retention: retention, on_lease_end: LeaseEnd::Release };
        let request = ClaimRequest {
            key: key.clone(),
            attempt: attempt.clone(),
            operation: Operation::default(),
            contents,
            contents_stored_bytes: 0,
            fingerprint: None,
            terms,
            caller: None,
            take_over: false,
            waits: false,
        };
        let _swept = self.apply(&Timed { request, deadline: lease }).await;
        let request = OutcomeRequest { key, attempt, outcome: Outcome::Failure, late: None };
        let _gone = self.apply(&Timed { request, deadline: lease }).await;
    }

    /// Receives a call. A frozen server executes it when it resumes, whether or not its caller still waits: dropping the future
    /// does not cancel the call.
    pub(crate) fn receive<Q: EngineCall>(
        self: &Arc<Self>,
        request: &Q,
    ) -> impl Future<Output = Result<Executed<Q::Answer>, EngineError>> + Send + use<Q> {
        let (done, executed) = oneshot::channel();
        let (store, request) = (self.clone(), request.clone());
        let in_socket = self.state() == ServerState::Frozen;
        let executing = async move {
            store.until_resumed().await;
            if !store.world.is_over() {
                let _unread = done.send(store.execute(&request).await);
            }
        };
        let waiting = if in_socket {
            tokio::spawn(executing);
            None
        } else {
            Some(executing)
        };
        async move {
            if let Some(executing) = waiting {
                executing.await;
            }
            executed.await.unwrap_or_else(|_| Err(EngineError::indeterminate("the world is over")))
        }
    }

    async fn execute<Q: EngineCall>(&self, request: &Q) -> Result<Executed<Q::Answer>, EngineError> {
        match self.state() {
            ServerState::Down => Err(EngineError::unavailable("the connection was refused")),
            ServerState::Full if self.is_new_claim(request) => Err(Determinate::Full("no room".into()).into()),
            ServerState::Short { kept } => {
                if kept {
                    self.apply(request).await?;
                }
                Err(EngineError::shortfall("too few replicas have it"))
            }
            ServerState::Up | ServerState::Full | ServerState::Frozen => self.apply(request).await,
        }
    }

    /// Checks whether it would execute a call.
    pub(crate) async fn ping(&self) -> Result<(), EngineError> {
        self.until_resumed().await;
        if self.state() == ServerState::Down {
            return Err(EngineError::unavailable("the connection was refused"));
        }
        Ok(())
    }

    /// Reads a shared record.
    pub(crate) async fn get_record(&self, name: &RecordName, deadline: Duration) -> Result<RecordView, EngineError> {
        self.ping().await?;
        self.engine().get_record(name, deadline).await
    }

    /// Changes a shared record.
    pub(crate) async fn change_record(
        &self,
        change: &RecordChange,
        deadline: Duration,
    ) -> Result<ChangeResponse, EngineError> {
        self.ping().await?;
        let is_lock = matches!(change.name, RecordName::Lock(..));
        if is_lock && change.purpose == ChangePurpose::Grant && self.state() == ServerState::Full {
            return Err(Determinate::Full("no room".into()).into());
        }
        let answer = self.engine().change_record(change, deadline).await?;
        match (&answer, &change.name) {
            (ChangeResponse::Stored(_), RecordName::Metadata(_)) => {
                self.world.agreed(self.number, &Metadata::try_from(change.new.clone())?);
            }
            (ChangeResponse::Stored(_), RecordName::Grants(key)) => {
                let grants = Grants::of_record(Some(&change.new))?;
                let degraded = grants.iter().map(|grant| (self.number, key.clone(), Name::of(&grant.attempt).nonce));
                self.world.known().degraded.extend(degraded);
            }
            _ => {}
        }
        Ok(answer)
    }

    /// Subscribes to the notifications of a record.
    pub(crate) async fn subscribe(&self, channel: &Channel) -> Subscription {
        self.engine().subscribe(channel).await
    }

    fn engine(&self) -> Arc<dyn Engine> {
        self.engine.lock().unwrap_or_else(PoisonError::into_inner).clone()
    }

    async fn until_resumed(&self) {
        loop {
            let resumed = self.resumed.notified();
            if self.state() != ServerState::Frozen {
                return;
            }
            resumed.await;
        }
    }

    fn is_new_claim<Q: EngineCall>(&self, request: &Q) -> bool {
        let known = &mut *self.world.known();
        let number = known.number(request.key());
        Q::CLAIMS && known.of(number).references[usize::from(self.number)].at(self.world.store_clock.now()).is_none()
    }

    async fn apply<Q: EngineCall>(&self, request: &Q) -> Result<Executed<Q::Answer>, EngineError> {
        let engine = self.engine();
        let store_now = self.world.store_clock.now();
        // An engine in memory answers without waiting, so no other call runs between its answer and the comparison.
        let answer = request.execute(&*engine).await?;
        let at = self.world.time.now();
        let (number, checked, holder) = {
            let known = &mut *self.world.known();
            let number = known.number(request.key());
            let holder = self.holder_for(known, number, request, &answer, store_now);
            let (kind, other, figure) = Q::summary(&answer);
            let event = Event {
                place: Place::Store(self.number),
                key: number,
                what: Q::NAME,
                attempt_name: request.attempt_name(),
                answer: kind,
                other,
                number: figure,
            };
            known.trace.add(at, event);
            if kind == "released" {
                known.of(number).released = Some((request.attempt_name(), at));
            }
            let of_policies = self.world.kind.has_policies();
            let name = request.attempt_name();
            // The grant of one gateway may be delivered as the grant of another gateway to the same nonce.
            let is_reported =
                known.reported.contains(&name) || (of_policies && known.reported.contains(&Name::nonce(name.nonce)));
            let is_expected = !Q::ENDS || name == SWEPT || is_reported;
            let is_expected = ensure(is_expected, "S2", || {
                format!("no caller has reported or released {:?}", request.attempt_name())
            });
            let compared =
                request.compare(&mut known.of(number).references[usize::from(self.number)], store_now, &answer);
            if of_policies {
                let of_key = known.of(number);
                if Q::READS {
                    let found = of_key.references[usize::from(self.number)].at(store_now);
                    of_key.ledger.look_up(found.map(|(_, attempt)| Name::of(attempt).nonce));
                } else if holder == Holder::DegradedSameNonce {
                    // It is not recorded yet.
                    of_key.ledger.meet_same_nonce(request, at);
                } else {
                    of_key.ledger.executed(request, &answer, at);
                }
            }
            (number, is_expected.and(compared), holder)
        };
        self.world.check(number, checked);
        Ok(Executed { answer, store_now, at, store: self.number, holder })
    }

    /// Returns the holder of the claim for a call.
    fn holder_for<Q: EngineCall>(
        &self,
        known: &mut Known,
        number: u32,
        request: &Q,
        answer: &Q::Answer,
        store_now: u64,
    ) -> Holder {
        if !Q::is_of_another(answer) {
            return Holder::Itself;
        }
        let of_key = known.of(number);
        let nonce = request.attempt_name().nonce;
        let live = of_key.references[usize::from(self.number)].at(store_now);
        if live.is_none_or(|(_, attempt)| Name::of(attempt).nonce != nonce) {
            return Holder::Another;
        }
        let degraded = (self.number, of_key.key.clone(), nonce);
        if known.degraded.contains(&degraded) { Holder::DegradedSameNonce } else { Holder::SameNonce }
    }
}
