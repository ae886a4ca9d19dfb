//! The network between one gateway and the store: calls and replies take time, are lost, come after their caller has
//! given up, or find nobody. All of it from the world's random numbers.

use std::sync::{Arc, Mutex, PoisonError};
use std::time::Duration;

use async_trait::async_trait;
use oncegate::domain::claim::{
    ClaimRequest, ClaimResponse, OutcomeRequest, OutcomeResponse, RenewalRequest, RenewalResponse,
};
use oncegate::domain::operator::{ListRequest, ListedClaim, ReleaseRequest, ReleaseResponse};
use oncegate::domain::record::{Key, LiveClaim};
use oncegate::engine::{Capabilities, Engine, EngineError, Metadata};
use tokio::runtime::Handle;
use tokio::time::sleep;
use tokio_util::sync::CancellationToken;

use crate::question::{Question, Timed};
use crate::store::Store;
use crate::world::World;

/// How a link is.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) enum Weather {
    /// Nothing is lost, and all is quick.
    Fair,
    /// Nothing is lost, and all takes longer than callers like.
    Slow,
    /// So many calls of a hundred are lost, before or after they have taken effect.
    Lossy(u64),
    /// Nothing gets through, and nobody says so.
    Cut,
    /// Calls arrive, and no reply does.
    Mute,
    /// Whoever calls is refused.
    Refused,
}

/// A gateway's way to the store.
#[derive(Clone)]
pub(crate) struct Link {
    world: Arc<World>,
    store: Arc<Store>,
    gateway: u16,
    weather: Arc<Mutex<Weather>>,
    process: Process,
}

/// The process that calls.
#[derive(Clone, Default)]
struct Process {
    /// Nothing leaves a dead one.
    died: CancellationToken,
    /// How often the store had lost its data when this process first reached it, and when it last did; nothing before.
    losses: Arc<Mutex<Option<(u64, u64)>>>,
}

impl Link {
    pub(crate) fn new(world: Arc<World>, store: Arc<Store>, gateway: u16) -> Self {
        let (weather, process) = (Arc::new(Mutex::new(Weather::Fair)), Process::default());
        Self { world, store, gateway, weather, process }
    }

    /// The same way for a new process, as long as that lives.
    pub(crate) fn of_process(&self, died: CancellationToken) -> Self {
        Self { process: Process { died, ..Process::default() }, ..self.clone() }
    }

    /// From now on it is so.
    pub(crate) fn turn(&self, weather: Weather) {
        *self.weather.lock().unwrap_or_else(PoisonError::into_inner) = weather;
    }

    fn weather(&self) -> Weather {
        *self.weather.lock().unwrap_or_else(PoisonError::into_inner)
    }

    async fn call<Q: Question>(&self, request: &Q) -> Result<Q::Answer, EngineError> {
        self.alive(self.send(request)).await
    }

    /// What a process does that lives.
    async fn alive<Answer>(
        &self,
        call: impl Future<Output = Result<Answer, EngineError>>,
    ) -> Result<Answer, EngineError> {
        let dead = || Err(EngineError::indeterminate("the process has died"));
        self.process.died.run_until_cancelled(call).await.unwrap_or_else(dead)
    }

    /// The store is reached: whether it is the same as before is asked first, by any connection.
    fn reached(&self) {
        let losses = self.store.losses();
        let mut seen = self.process.losses.lock().unwrap_or_else(PoisonError::into_inner);
        *seen = Some((seen.map_or(losses, |(first, _)| first), losses));
    }

    async fn send<Q: Question>(&self, request: &Q) -> Result<Q::Answer, EngineError> {
        let trial = self.world.trial(self.gateway, request);
        let rng = &self.world.rng;
        let weather = self.weather();
        let crashes = self.store.crashes();
        let mut flight = Flight { link: self, request, landed: false };
        match weather {
            Weather::Refused => {
                flight.landed = true;
                let refused = EngineError::unavailable("the connection was refused");
                self.world.refused(&trial, &refused);
                return Err(refused);
            }
            Weather::Cut => std::future::pending().await,
            Weather::Lossy(percent) if rng.percent(percent) => {
                flight.landed = true;
                return silence(rng.percent(50), "the call was lost").await;
            }
            _ => pause(latency(&self.world, weather)).await,
        }
        flight.landed = true;
        drop(flight);
        let taken = if self.store.crashes() == crashes { self.store.take(request).await } else { reset() };
        let taken = match taken {
            Err(failure) => {
                self.world.refused(&trial, &failure);
                return Err(failure);
            }
            Ok(taken) => taken,
        };
        self.way_back(weather, crashes).await?;
        self.world.answered(&trial, request, &taken);
        Ok(taken.answer)
    }
}

impl Link {
    /// A call that is no claim's: what is lost of it is lost, and nothing comes late.
    async fn there_and_back<Answer, Call>(&self, call: impl FnOnce() -> Call) -> Result<Answer, EngineError>
    where
        Call: Future<Output = Result<Answer, EngineError>>,
    {
        let (rng, weather) = (&self.world.rng, self.weather());
        let crashes = self.store.crashes();
        match weather {
            Weather::Refused => return Err(EngineError::unavailable("the connection was refused")),
            Weather::Cut => std::future::pending().await,
            Weather::Lossy(percent) if rng.percent(percent) => {
                return silence(rng.percent(50), "the call was lost").await;
            }
            _ => pause(latency(&self.world, weather)).await,
        }
        let answer = if self.store.crashes() == crashes { call().await } else { reset() };
        self.way_back(weather, crashes).await?;
        answer
    }

    /// A reply on its way, from a store that had crashed so often when it was asked.
    async fn way_back(&self, weather: Weather, crashes: u64) -> Result<(), EngineError> {
        let rng = &self.world.rng;
        match weather {
            Weather::Mute => std::future::pending().await,
            Weather::Lossy(percent) if rng.percent(percent) => {
                return silence(rng.percent(50), "the reply was lost").await;
            }
            _ => pause(latency(&self.world, weather)).await,
        }
        if self.store.crashes() != crashes {
            return reset();
        }
        self.reached();
        Ok(())
    }
}

/// A call under way. If its caller gives up before it has arrived, it may arrive all the same.
struct Flight<'a, Q: Question> {
    link: &'a Link,
    request: &'a Q,
    landed: bool,
}

impl<Q: Question> Drop for Flight<'_, Q> {
    fn drop(&mut self) {
        let Self { link, request, landed } = self;
        let world = link.world.clone();
        if *landed || world.is_over() || !world.rng.percent(70) {
            return;
        }
        // While the runtime itself is dropped there is none.
        if let Ok(runtime) = Handle::try_current() {
            let (store, request) = (link.store.clone(), (*request).clone());
            let delay = world.rng.millis(1, if world.rng.percent(80) { 200 } else { 8_000 });
            runtime.spawn(async move {
                sleep(delay).await;
                if !world.is_over() {
                    let _nobody_listens = store.take(&request).await;
                }
            });
        }
    }
}

fn latency(world: &World, weather: Weather) -> Duration {
    let rng = &world.rng;
    match weather {
        Weather::Slow => rng.millis(10, 400),
        _ if rng.percent(30) => Duration::ZERO,
        _ => rng.millis(1, 4),
    }
}

async fn pause(duration: Duration) {
    if !duration.is_zero() {
        sleep(duration).await;
    }
}

/// A loss is noticed at once where the connection was reset, and not at all elsewhere.
async fn silence<Answer>(noticed: bool, why: &str) -> Result<Answer, EngineError> {
    if !noticed {
        std::future::pending::<()>().await;
    }
    Err(EngineError::indeterminate(why))
}

fn reset<Answer>() -> Result<Answer, EngineError> {
    Err(EngineError::indeterminate("the connection was reset"))
}

#[async_trait]
impl Engine for Link {
    async fn claim(&self, request: &ClaimRequest, deadline: Duration) -> Result<ClaimResponse, EngineError> {
        self.call(&Timed { request: request.clone(), deadline }).await
    }

    async fn settle(&self, request: &OutcomeRequest, deadline: Duration) -> Result<OutcomeResponse, EngineError> {
        self.call(&Timed { request: request.clone(), deadline }).await
    }

    async fn renew(&self, request: &RenewalRequest, deadline: Duration) -> Result<RenewalResponse, EngineError> {
        self.call(&Timed { request: request.clone(), deadline }).await
    }

    async fn read(&self, key: &Key) -> Result<Option<LiveClaim>, EngineError> {
        self.call(key).await
    }

    async fn release(&self, request: &ReleaseRequest) -> Result<ReleaseResponse, EngineError> {
        self.call(request).await
    }

    async fn list(&self, _: &ListRequest) -> Result<Vec<ListedClaim>, EngineError> {
        Err(EngineError::unavailable("no caller of a world lists"))
    }

    async fn get_metadata(&self, name: &str) -> Result<Option<Metadata>, EngineError> {
        let look = self.world.look(self.gateway, self.store.number);
        let found = self.alive(self.there_and_back(|| self.store.get_metadata(name))).await;
        if found.is_ok() {
            look.succeeds();
        }
        found
    }

    async fn compare_and_set_metadata(
        &self,
        name: &str,
        expected: Option<&Metadata>,
        new: &Metadata,
    ) -> Result<bool, EngineError> {
        self.alive(self.there_and_back(|| self.store.compare_and_set_metadata(name, expected, new))).await
    }

    async fn probe(&self) -> Result<(), EngineError> {
        match self.weather() {
            Weather::Refused => Err(EngineError::unavailable("the connection was refused")),
            Weather::Cut | Weather::Mute => std::future::pending().await,
            weather => {
                pause(latency(&self.world, weather)).await;
                self.store.ping().await?;
                self.reached();
                pause(latency(&self.world, weather)).await;
                Ok(())
            }
        }
    }

    fn capabilities(&self) -> Capabilities {
        Capabilities { strict_fence: true, durable: false, shared: true, forever: true, lists: false }
    }

    fn data_lost(&self) -> u64 {
        let seen = self.process.losses.lock().unwrap_or_else(PoisonError::into_inner);
        seen.map_or(0, |(first, latest)| latest - first)
    }
}
