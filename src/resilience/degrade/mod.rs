//! What happens while a store is out: an engine above each chain that answers by the app's policy where the chain's own engine
//! does not, says so in the answer, and tells the store when it is back. While all is well it costs a look at a number.

mod book;
mod deliver;
mod keeper;
mod locks;
mod marks;
mod outage;
mod overlaps;
mod reconcile;
mod same_try;
#[cfg(test)]
mod tests;

use std::sync::Arc;
use std::time::Duration;

use async_trait::async_trait;
use futures_util::future::{join, join_all};
use tokio::sync::Notify;
use tokio::time::timeout;
use tokio_util::sync::CancellationToken;
use tokio_util::task::TaskTracker;

use self::book::Book;
pub use self::keeper::Keeper;
use self::locks::Locks;
use self::outage::is_silence;
use self::same_try::Granted;
use super::journal::entry::{Entry, Seq};
use crate::domain::attempt::Entropy;
use crate::domain::claim::{
    ClaimRequest, ClaimResponse, Outcome, OutcomeRequest, OutcomeResponse, RenewalRequest, RenewalResponse,
};
use crate::domain::clock::Clock;
use crate::domain::operator::{ListRequest, ListedClaim, ReleaseRequest, ReleaseResponse};
use crate::domain::record::{Key, LiveClaim};
use crate::domain::terms::{ClaimOnOutage, OutcomeOnOutage};
use crate::engine::{Capabilities, ClaimSink, Engine, EngineError, Metadata};

/// The entries that wait on a key, oldest first.
type Queue = [(Seq, Arc<Entry>)];

/// How long a lookup or an operator's word waits for what has to be told before it.
const BEFORE_READING: Duration = Duration::from_millis(300);

/// An engine whose silence is answered by policies.
pub struct Degrading(Arc<Core>);

/// What the calls of a chain and the work behind them share.
struct Core {
    chain: Arc<str>,
    engine: Arc<dyn Engine>,
    keeper: Arc<Keeper>,
    clock: Arc<dyn Clock>,
    entropy: Arc<dyn Entropy>,
    book: Book,
    locks: Locks,
    /// Told when something waits for the store.
    wake: Notify,
    stop: CancellationToken,
    tasks: TaskTracker,
}

impl Degrading {
    /// Wraps the engine of a chain. What the keeper's journal holds of the chain is in force again, and told to the store
    /// as soon as it answers.
    pub fn start(
        chain: &str,
        engine: Arc<dyn Engine>,
        keeper: Arc<Keeper>,
        clock: Arc<dyn Clock>,
        entropy: Arc<dyn Entropy>,
    ) -> Self {
        let core = Arc::new(Core {
            chain: chain.into(),
            engine,
            keeper,
            clock,
            entropy,
            book: Book::default(),
            locks: Locks::default(),
            wake: Notify::new(),
            stop: CancellationToken::new(),
            tasks: TaskTracker::new(),
        });
        core.recover();
        let working = core.clone();
        core.tasks.spawn(async move { working.reconcile().await });
        Self(core)
    }

    /// Tells the store all that waits for it, until nothing does or the store has not answered for this long.
    ///
    /// # Errors
    /// The last failure, where something still waits.
    pub async fn deliver_all(&self, patience: Duration) -> Result<(), EngineError> {
        self.0.deliver_all(patience).await
    }
}

/// How much of a caller's deadline the store has, so that a policy can answer within the rest: the journal's disk takes a
/// part of it too.
fn for_the_store(deadline: Duration) -> Duration {
    deadline * 4 / 5
}

/// Bounds what is asked of the store on behalf of a caller with this deadline. What takes longer may still happen.
async fn within<Answer>(
    deadline: Duration,
    call: impl Future<Output = Result<Answer, EngineError>>,
) -> Result<Answer, EngineError> {
    // A little more than the store is told that it has, so that its own failure, which says more, comes first.
    let late = |_| Err(EngineError::indeterminate("the store has not answered in time for a policy to do so"));
    timeout(deadline * 17 / 20, call).await.unwrap_or_else(late)
}

/// Of a call whose turn at its key came when its caller's time was over.
fn too_long() -> EngineError {
    EngineError::unavailable("others had the claim to themselves too long")
}

impl Core {
    /// Goes on although the caller gives up: what is in the journal has to be in the local record too.
    async fn uncancelled<Answer: Send + 'static>(
        &self,
        work: impl Future<Output = Result<Answer, EngineError>> + Send + 'static,
    ) -> Result<Answer, EngineError> {
        let done = self.tasks.spawn(work).await;
        done.unwrap_or_else(|_| Err(EngineError::indeterminate("the work for this call was ended")))
    }

    /// Whether no policy has a say in a claim: the store alone decides, and nothing is to be told to it before.
    fn is_plain(&self, request: &ClaimRequest) -> bool {
        request.on_outage == ClaimOnOutage::FailClosed && !self.book.waits(&request.key)
    }

    async fn claim(self: &Arc<Self>, request: &ClaimRequest) -> Result<ClaimResponse, EngineError> {
        if self.is_plain(request) {
            return self.engine.claim(request).await;
        }
        // Kept out of what every claim takes memory for.
        Box::pin(self.claim_with_policy(request)).await
    }

    async fn claim_batch(self: &Arc<Self>, requests: &[&ClaimRequest], tell: ClaimSink<'_>) {
        let (plain, others): (Vec<_>, Vec<_>) = (0..requests.len()).partition(|place| self.is_plain(requests[*place]));
        let of_others =
            others.into_iter().map(async |place| tell(place, self.claim_with_policy(requests[place]).await));
        let requests: Vec<_> = plain.iter().map(|place| requests[*place]).collect();
        let tell_plain = |number: usize, answer| tell(plain[number], answer);
        join(self.engine.claim_batch(&requests, &tell_plain), join_all(of_others)).await;
    }

    async fn claim_with_policy(self: &Arc<Self>, request: &ClaimRequest) -> Result<ClaimResponse, EngineError> {
        let begun = self.clock.monotonic();
        let answer = self.try_claim(request).await;
        let failure = match answer {
            Some(Err(failure)) if is_silence(&failure) => Some(failure),
            Some(answer) => return answer,
            None => None,
        };
        let (core, request) = (self.clone(), request.clone());
        self.uncancelled(async move { core.claim_alone(&request, begun, failure).await }).await
    }

    /// Asks the store beside others, if nothing waits on the key.
    async fn try_claim(&self, request: &ClaimRequest) -> Option<Result<ClaimResponse, EngineError>> {
        let is_local = request.on_outage == ClaimOnOutage::Local;
        // A grant on its way from the store must be known before anybody decides in its place.
        let _turn = if is_local { Some(self.locks.shared(&request.key).await) } else { None };
        if self.book.waits(&request.key) {
            return None;
        }
        let hurried = ClaimRequest { deadline: for_the_store(request.deadline), ..request.clone() };
        let answer = within(request.deadline, self.engine.claim(&hurried)).await;
        if is_local && let Ok(answer) = &answer {
            self.book.learn_claim(request, answer, self.clock.monotonic());
        }
        Some(answer)
    }

    /// With the key to itself: tells the store what waits, asks it, and else decides in its place.
    async fn claim_alone(
        self: &Arc<Self>,
        request: &ClaimRequest,
        begun: Duration,
        failure: Option<EngineError>,
    ) -> Result<ClaimResponse, EngineError> {
        let _turn = self.locks.alone(&request.key).await;
        if self.clock.monotonic().saturating_sub(begun) >= request.deadline {
            // Its caller has been answered by now: a grant would only stand in others' way.
            return Err(failure.unwrap_or_else(too_long));
        }
        let failure = if let Some(failure) = failure {
            failure
        } else {
            let hurried = ClaimRequest { deadline: for_the_store(request.deadline), ..request.clone() };
            let told = async {
                self.deliver(&request.key).await?;
                self.engine.claim(&hurried).await
            };
            match within(request.deadline, told).await {
                Ok(answer) => {
                    if request.on_outage == ClaimOnOutage::Local {
                        self.book.learn_claim(request, &answer, self.clock.monotonic());
                    }
                    return Ok(answer);
                }
                Err(failure) => failure,
            }
        };
        self.claim_by_policy(request, failure).await
    }

    async fn settle(self: &Arc<Self>, request: &OutcomeRequest) -> Result<OutcomeResponse, EngineError> {
        let begun = self.clock.monotonic();
        let mut failure = None;
        if !self.book.waits(&request.key) {
            let answer = if request.on_outage == OutcomeOnOutage::FailClosed {
                self.settle_in_store(request, Granted::Elsewhere).await
            } else {
                let hurried = OutcomeRequest { deadline: for_the_store(request.deadline), ..request.clone() };
                within(request.deadline, self.settle_in_store(&hurried, Granted::Elsewhere)).await
            };
            match answer {
                Err(silence) if is_silence(&silence) && request.on_outage == OutcomeOnOutage::Spool => {
                    failure = Some(silence);
                }
                // Without a policy its silence is the answer. It is not asked once more behind what has come to wait
                // meanwhile: that this try may have been taken would be forgotten if the next one is refused.
                answer => return answer,
            }
        }
        let (core, request) = (self.clone(), request.clone());
        self.uncancelled(async move { core.settle_alone(&request, begun, failure).await }).await
    }

    async fn settle_alone(
        self: &Arc<Self>,
        request: &OutcomeRequest,
        begun: Duration,
        failure: Option<EngineError>,
    ) -> Result<OutcomeResponse, EngineError> {
        let _turn = self.locks.alone(&request.key).await;
        let left = match request.outcome {
            // What was done, or may have been, is recorded also where its caller has been answered by now.
            Outcome::Success { .. } | Outcome::Unknown => request.deadline,
            // Of a failure that nobody waits for any more only the claim would be gone: whoever reports it again would find
            // nothing, and be told that it came too late.
            Outcome::Failure => request.deadline.saturating_sub(self.clock.monotonic().saturating_sub(begun)),
        };
        if left.is_zero() {
            return Err(failure.unwrap_or_else(too_long));
        }
        let failure = if let Some(failure) = failure {
            failure
        } else {
            let hurried = OutcomeRequest { deadline: for_the_store(left), ..request.clone() };
            let told = async {
                self.deliver(&request.key).await?;
                self.settle_in_store(&hurried, Granted::Elsewhere).await
            };
            match within(left, told).await {
                Ok(answer) => return Ok(answer),
                Err(failure) => failure,
            }
        };
        self.settle_by_policy(request, failure).await
    }

    /// Remembers the store's response to an outcome of an app that decides locally.
    fn learn_settle(&self, request: &OutcomeRequest, response: &OutcomeResponse) {
        if self.book.is_local(&request.key.app) {
            self.book.learn_settle(request, response, self.clock.monotonic());
        }
    }

    /// Remembers the store's response to a renewal of an app that decides locally.
    fn learn_renew(&self, request: &RenewalRequest, response: &RenewalResponse) {
        if self.book.is_local(&request.key.app) {
            self.book.learn_renew(request, response, self.clock.monotonic());
        }
    }

    async fn renew(self: &Arc<Self>, request: &RenewalRequest) -> Result<RenewalResponse, EngineError> {
        if self.book.waits(&request.key) {
            let (core, request) = (self.clone(), request.clone());
            return self.uncancelled(async move { core.renew_alone(&request).await }).await;
        }
        self.renew_in_store(request, Granted::Elsewhere).await
    }

    async fn renew_alone(self: &Arc<Self>, request: &RenewalRequest) -> Result<RenewalResponse, EngineError> {
        let _turn = self.locks.alone(&request.key).await;
        let hurried = RenewalRequest { deadline: for_the_store(request.deadline), ..request.clone() };
        let told = async {
            self.deliver(&request.key).await?;
            self.renew_in_store(&hurried, Granted::Elsewhere).await
        };
        match within(request.deadline, told).await {
            Ok(answer) => Ok(answer),
            Err(failure) => self.renew_by_policy(request, failure).await,
        }
    }

    /// Tells the store what waits on a key before somebody looks at it; at least tries to.
    async fn before_reading(self: &Arc<Self>, key: &Key) -> Result<(), EngineError> {
        if !self.book.waits(key) {
            return Ok(());
        }
        let (core, key) = (self.clone(), key.clone());
        let told = self.uncancelled(async move {
            let _turn = core.locks.alone(&key).await;
            core.deliver(&key).await
        });
        let late =
            |_| Err(EngineError::unavailable("what waits for the store on this claim has not been delivered yet"));
        timeout(BEFORE_READING, told).await.unwrap_or_else(late)
    }
}

#[async_trait]
impl Engine for Degrading {
    async fn claim(&self, request: &ClaimRequest) -> Result<ClaimResponse, EngineError> {
        self.0.claim(request).await
    }

    async fn claim_batch(&self, requests: &[&ClaimRequest], tell: ClaimSink<'_>) {
        self.0.claim_batch(requests, tell).await;
    }

    async fn settle(&self, request: &OutcomeRequest) -> Result<OutcomeResponse, EngineError> {
        self.0.settle(request).await
    }

    async fn renew(&self, request: &RenewalRequest) -> Result<RenewalResponse, EngineError> {
        self.0.renew(request).await
    }

    async fn read(&self, key: &Key) -> Result<Option<LiveClaim>, EngineError> {
        // What the store holds is told in any case.
        drop(self.0.before_reading(key).await);
        self.0.engine.read(key).await
    }

    async fn release(&self, request: &ReleaseRequest) -> Result<ReleaseResponse, EngineError> {
        self.0.before_reading(&request.key).await?;
        self.0.engine.release(request).await
    }

    async fn list(&self, request: &ListRequest) -> Result<Vec<ListedClaim>, EngineError> {
        self.0.engine.list(request).await
    }

    async fn get_metadata(&self, name: &str) -> Result<Option<Metadata>, EngineError> {
        self.0.engine.get_metadata(name).await
    }

    async fn compare_and_set_metadata(
        &self,
        name: &str,
        expected: Option<&Metadata>,
        new: &Metadata,
    ) -> Result<bool, EngineError> {
        self.0.engine.compare_and_set_metadata(name, expected, new).await
    }

    async fn probe(&self) -> Result<(), EngineError> {
        self.0.engine.probe().await
    }

    fn capabilities(&self) -> Capabilities {
        self.0.engine.capabilities()
    }

    fn data_lost(&self) -> u64 {
        self.0.engine.data_lost()
    }

    /// Ends the work behind the calls, and the chain's own.
    async fn close(&self) {
        self.0.stop.cancel();
        self.0.tasks.close();
        self.0.tasks.wait().await;
        self.0.engine.close().await;
    }
}
