//! A store that all gateways of a world share: one engine in memory on a clock that is stepped, behind a server that
//! crashes, hangs, fills up and loses its data. What takes effect is compared with the reference there and then.

use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, Mutex, PoisonError};
use std::time::Duration;

use oncegate::domain::attempt::{Attempt, Nonce};
use oncegate::domain::canonical::canonicalize;
use oncegate::domain::claim::{ClaimRequest, Outcome, OutcomeRequest};
use oncegate::domain::clock::Timestamp;
use oncegate::domain::record::Key;
use oncegate::domain::tenant::Operation;
use oncegate::domain::terms::{LeaseEnd, Retention, Terms};
use oncegate::engine::memory::{BYTES_MAX_DEFAULT, Memory};
use oncegate::engine::{Determinate, Engine, EngineError, Metadata};
use tokio::sync::{Notify, oneshot};

use crate::bugs::Bug;
use crate::clock::micros;
use crate::question::{Met, Question, Taken, Timed};
use crate::reference::hold;
use crate::trace::{Event, Name, Place};
use crate::world::{Known, World};

/// How the server is.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) enum Serves {
    /// It takes every call.
    All,
    /// Nobody listens.
    Nothing,
    /// It is stopped: calls wait in its socket, and are taken when it goes on.
    Later,
    /// It has no room for new claims.
    NoClaims,
}

/// By whom a record is swept that has ended.
const SWEPT: Name = Name { timestamp: 1_000_000_000_000_000, nonce: 0 };

/// The server.
pub(crate) struct Store {
    /// Its place among the stores of the world.
    pub(crate) number: u16,
    world: Arc<World>,
    bug: Option<Bug>,
    engine: Mutex<Arc<dyn Engine>>,
    serves: Mutex<Serves>,
    /// Wakes calls in the order in which they came, as a `watch` would not.
    goes_on: Notify,
    /// How often it has crashed. Connections of before are gone.
    crashes: AtomicU64,
    /// How often it has lost its data.
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
            serves: Mutex::new(Serves::All),
            goes_on: Notify::new(),
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

    /// From now on it serves so.
    pub(crate) fn serve(&self, serves: Serves) {
        *self.serves.lock().unwrap_or_else(PoisonError::into_inner) = serves;
        self.goes_on.notify_waiters();
    }

    fn serves(&self) -> Serves {
        *self.serves.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// How often it has crashed so far.
    pub(crate) fn crashes(&self) -> u64 {
        self.crashes.load(Ordering::Relaxed)
    }

    /// The process dies, and nobody listens until it is started again.
    pub(crate) fn crash(&self) {
        self.crashes.fetch_add(1, Ordering::Relaxed);
        self.serve(Serves::Nothing);
    }

    /// How often it has lost its data so far.
    pub(crate) fn losses(&self) -> u64 {
        self.losses.load(Ordering::Relaxed)
    }

    /// All claims are gone, and so is all that callers could rely on.
    pub(crate) fn lose_data(&self) {
        *self.engine.lock().unwrap_or_else(PoisonError::into_inner) = Self::empty(&self.world, self.bug);
        self.losses.fetch_add(1, Ordering::Relaxed);
        {
            let known = &mut *self.world.known();
            for of_key in &mut known.keys {
                of_key.references[usize::from(self.number)].forget();
            }
            known.marks.retain(|(store, ..)| *store != self.number);
        }
        self.world.lost();
    }

    /// The server's clock is set forward. Leases end the sooner; more than a lease is not promised for.
    pub(crate) fn step_forward(&self, by: Duration) {
        self.world.store_clock.step_forward(by);
    }

    /// The server's clock is set back. Leases last the longer. What has ended just now would stand again if it were still
    /// there, which is as the store's sweeper pleases: here it has just been.
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

    /// Takes away a record that has ended, by ways that any engine has: a claim replaces it, and is released.
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
            take_over: false,
        };
        let _swept = self.apply(&Timed { request, deadline: lease }).await;
        let request = OutcomeRequest { key, attempt, outcome: Outcome::Failure, late: None };
        let _gone = self.apply(&Timed { request, deadline: lease }).await;
    }

    /// A call arrives. A server that is stopped finds it in its socket when it goes on, and executes it then, whether or not
    /// its caller still waits: dropping what this returns takes no call back.
    pub(crate) fn take<Q: Question>(
        self: &Arc<Self>,
        request: &Q,
    ) -> impl Future<Output = Result<Taken<Q::Answer>, EngineError>> + Send + use<Q> {
        let (done, executed) = oneshot::channel();
        let (store, request) = (self.clone(), request.clone());
        let in_socket = self.serves() == Serves::Later;
        let executing = async move {
            store.when_it_goes_on().await;
            if !store.world.is_over() {
                let _nobody_waits = done.send(store.execute(&request).await);
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

    async fn execute<Q: Question>(&self, request: &Q) -> Result<Taken<Q::Answer>, EngineError> {
        match self.serves() {
            Serves::Nothing => Err(EngineError::unavailable("nobody listens")),
            Serves::NoClaims if self.is_new_claim(request) => Err(Determinate::Full("no room".into()).into()),
            Serves::All | Serves::NoClaims | Serves::Later => self.apply(request).await,
        }
    }

    /// Whether it would take a call.
    pub(crate) async fn ping(&self) -> Result<(), EngineError> {
        self.when_it_goes_on().await;
        if self.serves() == Serves::Nothing {
            return Err(EngineError::unavailable("nobody listens"));
        }
        Ok(())
    }

    /// What a note says.
    pub(crate) async fn get_metadata(&self, name: &str) -> Result<Option<Metadata>, EngineError> {
        self.ping().await?;
        self.engine().get_metadata(name).await
    }

    /// A note is put, if the expected one stands.
    pub(crate) async fn compare_and_set_metadata(
        &self,
        name: &str,
        expected: Option<&Metadata>,
        new: &Metadata,
    ) -> Result<bool, EngineError> {
        self.ping().await?;
        let put = self.engine().compare_and_set_metadata(name, expected, new).await?;
        if put {
            self.world.agreed(self.number, new);
        }
        Ok(put)
    }

    fn engine(&self) -> Arc<dyn Engine> {
        self.engine.lock().unwrap_or_else(PoisonError::into_inner).clone()
    }

    async fn when_it_goes_on(&self) {
        loop {
            let goes_on = self.goes_on.notified();
            if self.serves() != Serves::Later {
                return;
            }
            goes_on.await;
        }
    }

    fn is_new_claim<Q: Question>(&self, request: &Q) -> bool {
        let known = &mut *self.world.known();
        let number = known.number(request.key());
        Q::CLAIMS && known.of(number).references[usize::from(self.number)].at(self.world.store_clock.now()).is_none()
    }

    async fn apply<Q: Question>(&self, request: &Q) -> Result<Taken<Q::Answer>, EngineError> {
        let engine = self.engine();
        let store_now = self.world.store_clock.now();
        // An engine in memory answers without waiting, so nothing comes between its answer and its comparison.
        let answer = request.put(&*engine).await?;
        let at = self.world.time.now();
        let (number, held, met) = {
            let known = &mut *self.world.known();
            let number = known.number(request.key());
            let met = self.meets(known, number, request, &answer, store_now);
            let (said, other, figure) = Q::brief(&answer);
            let event = Event {
                place: Place::Store(self.number),
                key: number,
                what: Q::NAME,
                whose: request.whose(),
                answer: said,
                other,
                number: figure,
            };
            known.trace.add(at, event);
            if said == "released" {
                known.of(number).released = Some((request.whose(), at));
            }
            let of_policies = self.world.kind.has_policies();
            let whose = request.whose();
            // What one gateway has granted to a try may be told as what another one has granted to it.
            let is_reported =
                known.reported.contains(&whose) || (of_policies && known.reported.contains(&Name::nonce(whose.nonce)));
            let meant = !Q::ENDS || whose == SWEPT || is_reported;
            let meant = hold(meant, "S2", || format!("nobody has reported or released {:?}", request.whose()));
            let compared =
                request.compare(&mut known.of(number).references[usize::from(self.number)], store_now, &answer);
            if of_policies {
                let of_key = known.of(number);
                if Q::READS {
                    let found = of_key.references[usize::from(self.number)].at(store_now);
                    of_key.ledger.look_up(found.map(|(_, attempt)| Name::of(attempt).nonce));
                } else if met == Met::ItsMarkedTry {
                    // It is not recorded yet.
                    of_key.ledger.meet_own_try(request, at);
                } else {
                    of_key.ledger.told(request, &answer, at);
                }
            }
            (number, meant.and(compared), met)
        };
        self.world.check(number, held);
        Ok(Taken { answer, store_now, at, store: self.number, met })
    }

    /// What a call has met; and takes down the marks that policies' grants leave.
    fn meets<Q: Question>(
        &self,
        known: &mut Known,
        number: u32,
        request: &Q,
        answer: &Q::Answer,
        store_now: u64,
    ) -> Met {
        if let Some((of, nonce)) = request.marks(answer) {
            known.marks.insert((self.number, of, nonce));
        }
        if !Q::is_of_another(answer) {
            return Met::Itself;
        }
        let of_key = known.of(number);
        let nonce = request.whose().nonce;
        let standing = of_key.references[usize::from(self.number)].at(store_now);
        if standing.is_none_or(|(_, attempt)| Name::of(attempt).nonce != nonce) {
            return Met::Another;
        }
        let mark = (self.number, of_key.key.global_id.to_string(), nonce);
        if known.marks.contains(&mark) { Met::ItsMarkedTry } else { Met::ItsTry }
    }
}
