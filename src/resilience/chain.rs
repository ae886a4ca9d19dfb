//! A chain: an engine over several, of which one is in use, the same one at every gateway. Calls go to it; a switch, wherever
//! it is made, is followed. What is promised, and to whom: `docs/adr/0020-switching-a-chain.md`.

mod agreed;
mod core;
mod follow;
mod hold;
mod status;
mod switch;
#[cfg(test)]
mod tests;

use std::sync::Arc;
use std::time::Duration;

use async_trait::async_trait;
use futures_util::future::join_all;
use tokio_util::sync::{CancellationToken, DropGuard};

use self::core::{Core, State};
pub use self::status::{ChainStatus, NotSwitched, Phase, Switched};
use crate::domain::attempt::Entropy;
use crate::domain::claim::{
    self, ClaimRequest, ClaimResponse, Effect, OutcomeRequest, OutcomeResponse, RenewalRequest, RenewalResponse,
};
use crate::domain::clock::Clock;
use crate::domain::operator::{ListRequest, ListedClaim, ReleaseRequest, ReleaseResponse};
use crate::domain::record::{Key, LiveClaim};
use crate::domain::terms::OnDataLoss;
use crate::engine::{BatchClaim, Capabilities, ClaimSink, Determinate, Engine, EngineError, Metadata};

/// What a chain is made of.
pub struct Setup {
    /// Its name in the configuration.
    pub name: String,
    /// Its engines by name, in order; the first is in use until the chain is switched. At least one.
    pub engines: Vec<(String, Arc<dyn Engine>)>,
    /// What becomes of claims after the store in use came back without its data.
    pub on_data_loss: OnDataLoss,
    /// The longest lease that its apps get without asking for one.
    pub lease_max: Duration,
    /// For measuring what was looked at when.
    pub clock: Arc<dyn Clock>,
    /// Names switches, and spreads looks.
    pub entropy: Arc<dyn Entropy>,
    /// How long things take.
    pub times: Times,
}

impl Setup {
    /// A chain of one engine, for tests.
    #[cfg(any(test, feature = "test-util"))]
    pub fn of_one(name: &str, engine: Arc<dyn Engine>, clock: Arc<dyn Clock>, entropy: Arc<dyn Entropy>) -> Self {
        let (engines, on_data_loss) = (vec![("only".into(), engine)], OnDataLoss::Resume);
        Self {
            name: name.into(),
            engines,
            on_data_loss,
            lease_max: Duration::ZERO,
            clock,
            entropy,
            times: Times::default(),
        }
    }
}

/// How long things take in a chain of several engines. `fresh` has to be longer than a look now and then takes, and shorter
/// than `closing` by more than clocks differ: a gateway that has not looked for `fresh` grants nothing, so when `closing` is
/// over nobody grants on the old engine.
#[derive(Clone, Copy, Debug)]
pub struct Times {
    /// Between two looks at an engine.
    pub poll: Duration,
    /// For how long what was found by a look is good for granting.
    pub fresh: Duration,
    /// How long a chain is closed at least when it is switched.
    pub closing: Duration,
    /// After which somebody else finishes a switch.
    pub abandoned: Duration,
}

impl Default for Times {
    fn default() -> Self {
        Self {
            poll: Duration::from_millis(500),
            fresh: Duration::from_millis(1500),
            closing: Duration::from_secs(2),
            abandoned: Duration::from_secs(10),
        }
    }
}

/// An engine over the engines of a chain. It does not close them: they may be of several chains.
pub struct Chain {
    core: Arc<Core>,
    stop: CancellationToken,
    _guard: DropGuard,
}

impl Chain {
    /// Starts to look at the engines, if there are several, or if it matters whether their data is lost.
    ///
    /// # Panics
    /// Outside a tokio runtime, where there is something to look at: that is done by tasks.
    pub fn start(setup: Setup) -> Self {
        let core = Arc::new(Core::new(setup));
        let stop = CancellationToken::new();
        if core.is_shared() {
            for at in 0..core.members.len() {
                tokio::spawn(follow::follow(core.clone(), at, stop.clone()));
            }
        }
        if core.hold.is_wanted() {
            tokio::spawn(hold::watch(core.clone(), stop.clone()));
        }
        Self { core, _guard: stop.clone().drop_guard(), stop }
    }

    /// Returns the state of the chain, as far as this gateway knows. Also notices a loss of data, so it has to be called now
    /// and then.
    pub fn status(&self) -> ChainStatus {
        self.core.status()
    }

    /// Makes another engine the active one, at every gateway that reaches the stores. Returns once it is in use. What was
    /// done on the engine before is not known on the new one.
    ///
    /// # Errors
    /// Why it was not done, and whether it may still happen.
    pub async fn switch(&self, to: &str) -> Result<Switched, NotSwitched> {
        self.core.switch(to).await
    }

    fn engine(&self, state: &State) -> Result<&dyn Engine, EngineError> {
        Ok(&*self.core.serving(state)?.engine)
    }

    /// The engine in use, for what asks no store. There is always one: the first, if nothing better is known.
    fn current(&self) -> &dyn Engine {
        let state = self.core.state();
        &*self.core.members[state.serving.unwrap_or(0)].engine
    }

    /// Whether a claim may be asked for, and of whom.
    async fn claiming(&self) -> Result<Arc<State>, EngineError> {
        let begun = self.core.turn().await?;
        self.core.serving(&begun)?;
        self.core.granting(&begun)?;
        self.core.keeps_data(&begun).await?;
        Ok(begun)
    }

    /// The answer to a claim that may not be granted because of a loss of data: what the store knows stops it as ever.
    async fn claim_while_held(
        &self,
        request: &ClaimRequest,
        failure: EngineError,
    ) -> Result<ClaimResponse, EngineError> {
        let is_paused = matches!(failure, EngineError::Determinate(Determinate::Paused(_)));
        if !is_paused || self.core.held_for().is_none() {
            return Err(failure);
        }
        match self.read(&request.key).await.map(|held| claim::claim(held.as_ref(), request, None)) {
            Ok((Effect::Keep, known @ (ClaimResponse::Duplicate(_) | ClaimResponse::Mismatch(_)))) => Ok(known),
            _ => Err(failure),
        }
    }

    /// What was changed on an engine that is no longer in use was changed where nobody will look for it: the caller is to
    /// repeat it. While the chain is being switched, the new engine is asked whether it is in use by now: others may have
    /// granted there what is settled here.
    async fn changed<Answer>(&self, begun: &State, answer: Result<Answer, EngineError>) -> Result<Answer, EngineError> {
        if answer.is_ok() && begun.agreed.phase == Phase::Closing {
            self.core.look_at_next(begun).await?;
        }
        if self.core.state().serving == begun.serving { answer } else { answer.and(Err(switched())) }
    }

    /// A grant that came back after the chain began to close, or its store lost its data, is not told: somebody may have
    /// been granted the same elsewhere.
    fn told(&self, begun: &State, answer: Result<ClaimResponse, EngineError>) -> Result<ClaimResponse, EngineError> {
        match answer {
            Ok(ClaimResponse::Granted(_)) if !self.core.stands(begun) => Err(switched()),
            answer => answer,
        }
    }
}

fn switched() -> EngineError {
    EngineError::indeterminate("the chain was switched, or its store lost its data, while the call was on its way")
}

#[async_trait]
impl Engine for Chain {
    async fn claim(&self, request: &ClaimRequest, deadline: Duration) -> Result<ClaimResponse, EngineError> {
        let begun = match self.claiming().await {
            Ok(begun) => begun,
            // Kept out of what every claim takes memory for.
            Err(failure) => return Box::pin(self.claim_while_held(request, failure)).await,
        };
        self.core.hold.saw_lease(request.terms.lease);
        let answer = self.engine(&begun)?.claim(request, deadline).await;
        self.told(&begun, answer)
    }

    async fn claim_batch(&self, claims: &[BatchClaim<'_>], tell: ClaimSink<'_>) {
        let longest = claims.iter().map(|claim| claim.request.terms.lease).max().unwrap_or_default();
        let asked = async {
            let begun = self.claiming().await?;
            self.core.hold.saw_lease(longest);
            self.engine(&begun)?.claim_batch(claims, &|place, answer| tell(place, self.told(&begun, answer))).await;
            Ok::<_, EngineError>(())
        };
        if let Err(failure) = asked.await {
            let told = async |(place, claim): (usize, &BatchClaim<'_>)| {
                tell(place, self.claim_while_held(claim.request, failure.clone()).await);
            };
            join_all(claims.iter().enumerate().map(told)).await;
        }
    }

    async fn settle(&self, request: &OutcomeRequest, deadline: Duration) -> Result<OutcomeResponse, EngineError> {
        let begun = self.core.turn().await?;
        let answer = self.engine(&begun)?.settle(request, deadline).await;
        self.changed(&begun, answer).await
    }

    async fn renew(&self, request: &RenewalRequest, deadline: Duration) -> Result<RenewalResponse, EngineError> {
        self.core.hold.saw_lease(request.lease.unwrap_or_default());
        let begun = self.core.turn().await?;
        let answer = self.engine(&begun)?.renew(request, deadline).await;
        self.changed(&begun, answer).await
    }

    async fn read(&self, key: &Key) -> Result<Option<LiveClaim>, EngineError> {
        let state = self.core.turn().await?;
        self.engine(&state)?.read(key).await
    }

    async fn release(&self, request: &ReleaseRequest) -> Result<ReleaseResponse, EngineError> {
        let begun = self.core.turn().await?;
        let answer = self.engine(&begun)?.release(request).await;
        self.changed(&begun, answer).await
    }

    async fn list(&self, request: &ListRequest) -> Result<Vec<ListedClaim>, EngineError> {
        let state = self.core.turn().await?;
        self.engine(&state)?.list(request).await
    }

    async fn get_metadata(&self, name: &str) -> Result<Option<Metadata>, EngineError> {
        let state = self.core.turn().await?;
        self.engine(&state)?.get_metadata(name).await
    }

    async fn compare_and_set_metadata(
        &self,
        name: &str,
        expected: Option<&Metadata>,
        new: &Metadata,
    ) -> Result<bool, EngineError> {
        let begun = self.core.turn().await?;
        let answer = self.engine(&begun)?.compare_and_set_metadata(name, expected, new).await;
        self.changed(&begun, answer).await
    }

    async fn probe(&self) -> Result<(), EngineError> {
        let state = self.core.turn().await?;
        self.engine(&state)?.probe().await
    }

    fn capabilities(&self) -> Capabilities {
        self.current().capabilities()
    }

    fn data_lost(&self) -> u64 {
        self.core.members.iter().map(|member| member.engine.data_lost()).sum()
    }

    async fn close(&self) {
        self.stop.cancel();
    }
}
