//! Resolves uncertain calls: repeats a call whose answer was lost once, with the same attempt, so that it recognises
//! itself.

use std::sync::Arc;

use async_trait::async_trait;

use crate::domain::claim::{Claim, Claimed, Outcome, Renew, Renewed, Settle, Settled};
use crate::domain::operator::{List, Listed, Release, Released};
use crate::domain::record::{Held, Key};
use crate::engine::{Capabilities, Engine, EngineError, Note};

/// An engine whose uncertain calls are repeated once.
pub struct Retry {
    inner: Arc<dyn Engine>,
}

impl Retry {
    /// Wraps an engine.
    pub fn new(inner: Arc<dyn Engine>) -> Self {
        Self { inner }
    }
}

/// A try, and another one if the first one's answer is not known. `second` sees the second one's answer.
async fn resolve<Answer, Call>(
    call: impl Fn() -> Call,
    second: impl FnOnce(Answer) -> Answer,
) -> Result<Answer, EngineError>
where
    Call: Future<Output = Result<Answer, EngineError>>,
{
    match call().await {
        Err(EngineError::Indeterminate(first)) => match call().await {
            Ok(answer) => Ok(second(answer)),
            // That the second try did not happen says nothing of the first.
            Err(EngineError::Determinate(_)) => Err(first.into()),
            Err(uncertain) => Err(uncertain),
        },
        certain => certain,
    }
}

/// What a failure's second try is told if the first one's answer was lost. Absent may mean "deleted by the first try",
/// and another attempt may have claimed since: either way the caller's claim is gone, and whether it was late cannot be
/// told.
fn after_lost_reply(ask: &Settle, answer: Settled) -> Settled {
    match (&ask.outcome, answer) {
        (Outcome::Failure, Settled::Done { state: None, .. } | Settled::Superseded { .. }) => {
            Settled::Done { state: None, left: None, late: None }
        }
        (_, answer) => answer,
    }
}

#[async_trait]
impl Engine for Retry {
    async fn claim(&self, ask: &Claim) -> Result<Claimed, EngineError> {
        resolve(|| self.inner.claim(ask), |answer| answer).await
    }

    async fn settle(&self, ask: &Settle) -> Result<Settled, EngineError> {
        resolve(|| self.inner.settle(ask), |answer| after_lost_reply(ask, answer)).await
    }

    async fn renew(&self, ask: &Renew) -> Result<Renewed, EngineError> {
        resolve(|| self.inner.renew(ask), |answer| answer).await
    }

    async fn read(&self, key: &Key) -> Result<Option<Held>, EngineError> {
        resolve(|| self.inner.read(key), |answer| answer).await
    }

    async fn release(&self, ask: &Release) -> Result<Released, EngineError> {
        // Absent may mean "released by the first try": either way it is gone, as was asked.
        let resolved = |answer| if answer == Released::Absent { Released::Done } else { answer };
        resolve(|| self.inner.release(ask), resolved).await
    }

    async fn list(&self, ask: &List) -> Result<Vec<Listed>, EngineError> {
        resolve(|| self.inner.list(ask), |answer| answer).await
    }

    async fn note(&self, name: &str) -> Result<Option<Note>, EngineError> {
        resolve(|| self.inner.note(name), |answer| answer).await
    }

    async fn swap_note(&self, name: &str, expected: Option<&Note>, new: &Note) -> Result<bool, EngineError> {
        let first = match self.inner.swap_note(name, expected, new).await {
            Err(EngineError::Indeterminate(first)) => first,
            certain => return certain,
        };
        match self.inner.swap_note(name, expected, new).await {
            Ok(true) => Ok(true),
            // The first may have put it, and somebody else another one since.
            Ok(false) | Err(EngineError::Determinate(_)) => Err(first.into()),
            Err(uncertain) => Err(uncertain),
        }
    }

    async fn probe(&self) -> Result<(), EngineError> {
        self.inner.probe().await
    }

    fn capabilities(&self) -> Capabilities {
        self.inner.capabilities()
    }

    fn data_lost(&self) -> u64 {
        self.inner.data_lost()
    }

    async fn close(&self) {
        self.inner.close().await;
    }
}

#[cfg(test)]
mod tests {
    use std::time::Duration;

    use tokio::time::timeout;

    use super::super::patience::Patience;
    use super::*;
    use crate::domain::clock::{ManualClock, Timestamp};
    use crate::domain::terms::OutcomeOnOutage;
    use crate::engine::conformance::{Subject, fresh_claim};
    use crate::engine::faulty::Faulty;
    use crate::engine::memory::{BYTES_MAX_DEFAULT, Memory};

    fn memory() -> (Arc<ManualClock>, Arc<Memory>) {
        let clock = Arc::new(ManualClock::at(Timestamp::from_micros(1_700_000_000_000_000)));
        (clock.clone(), Arc::new(Memory::new(clock, BYTES_MAX_DEFAULT)))
    }

    fn open() -> Subject {
        Subject::by_hand(|clock| {
            let memory = Arc::new(Memory::new(clock, BYTES_MAX_DEFAULT));
            Arc::new(Retry::new(Arc::new(Patience::new(memory, Duration::from_secs(5)))))
        })
    }

    crate::conformance!(async { Some(open()) });

    /// Whatever is lost on the way: a grant is never told twice, a duplicate is only told of a claim that stands, and
    /// what is told to be settled is settled.
    #[tokio::test]
    async fn lost_requests_and_replies_never_lie() {
        for seed in 0..300 {
            let (_clock, memory) = memory();
            let engine = Retry::new(Arc::new(Faulty::new(memory.clone(), seed, 0.4)));
            let first = fresh_claim();
            let mut granted = 0;
            for try_again in [false, true, true] {
                let ask =
                    if try_again { Claim { attempt: fresh_claim().attempt, ..first.clone() } } else { first.clone() };
                let held_before = memory.read(&first.key).await.unwrap();
                match engine.claim(&ask).await {
                    Ok(Claimed::Granted(grant)) => {
                        granted += 1;
                        assert_eq!(grant.attempt, ask.attempt, "seed {seed}");
                        assert!(!grant.repeated, "seed {seed}: its own earlier try is not a repeat");
                        assert_eq!(memory.read(&first.key).await.unwrap().unwrap().record.attempt, ask.attempt);
                    }
                    Ok(Claimed::Duplicate(held)) => {
                        assert_ne!(held.record.attempt, ask.attempt, "seed {seed}: a holder is no duplicate of itself");
                        assert!(held_before.is_some(), "seed {seed}: a duplicate of nothing");
                    }
                    Ok(other) => panic!("seed {seed}: {other:?}"),
                    Err(EngineError::Determinate(_)) => {
                        assert_eq!(
                            memory.read(&first.key).await.unwrap(),
                            held_before,
                            "seed {seed}: it did not happen"
                        );
                    }
                    Err(EngineError::Indeterminate(_)) => {}
                }
            }
            assert!(granted <= 1, "seed {seed}");
        }
    }

    #[tokio::test]
    async fn a_failure_whose_reply_was_lost_is_released_and_not_called_late() {
        let (mut seen_lost, mut seen_plain) = (false, false);
        for seed in 0..200 {
            let (_clock, memory) = memory();
            let ask = fresh_claim();
            memory.claim(&ask).await.unwrap();
            let engine = Retry::new(Arc::new(Faulty::new(memory.clone(), seed, 0.5)));
            let failure = Settle {
                key: ask.key.clone(),
                attempt: ask.attempt.clone(),
                outcome: Outcome::Failure,
                late: None,
                deadline: Duration::from_secs(30),
                on_outage: OutcomeOnOutage::FailClosed,
            };
            match engine.settle(&failure).await {
                Ok(Settled::Done { state: None, late, .. }) => {
                    assert_eq!(memory.read(&ask.key).await.unwrap(), None);
                    assert_ne!(late, Some(true), "seed {seed}: it was not late");
                    seen_lost |= late.is_none();
                    seen_plain |= late == Some(false);
                }
                Ok(other) => panic!("seed {seed}: {other:?}"),
                Err(_) => {}
            }
        }
        assert!(seen_lost && seen_plain, "both ways are met");
    }

    #[tokio::test]
    async fn a_release_whose_reply_was_lost_is_done() {
        let mut seen_done = 0;
        for seed in 0..200 {
            let (_clock, memory) = memory();
            let ask = fresh_claim();
            memory.claim(&ask).await.unwrap();
            let engine = Retry::new(Arc::new(Faulty::new(memory.clone(), seed, 0.5)));
            let release = Release { key: ask.key.clone(), attempt: ask.attempt.clone() };
            match engine.release(&release).await {
                Ok(Released::Done) => {
                    assert_eq!(memory.read(&ask.key).await.unwrap(), None);
                    seen_done += 1;
                }
                Ok(other) => panic!("seed {seed}: {other:?}"),
                Err(EngineError::Determinate(_)) => {
                    assert!(memory.read(&ask.key).await.unwrap().is_some(), "seed {seed}");
                }
                Err(EngineError::Indeterminate(_)) => {}
            }
        }
        assert!(seen_done > 100, "{seen_done}");
    }

    #[tokio::test(start_paused = true)]
    async fn a_store_that_does_not_answer_is_not_waited_for() {
        struct Silent;
        #[async_trait]
        impl Engine for Silent {
            async fn claim(&self, _: &Claim) -> Result<Claimed, EngineError> {
                std::future::pending().await
            }
            async fn settle(&self, _: &Settle) -> Result<Settled, EngineError> {
                std::future::pending().await
            }
            async fn renew(&self, _: &Renew) -> Result<Renewed, EngineError> {
                std::future::pending().await
            }
            async fn read(&self, _: &Key) -> Result<Option<Held>, EngineError> {
                std::future::pending().await
            }
            async fn release(&self, _: &Release) -> Result<Released, EngineError> {
                std::future::pending().await
            }
            async fn list(&self, _: &List) -> Result<Vec<Listed>, EngineError> {
                std::future::pending().await
            }
            async fn note(&self, _: &str) -> Result<Option<Note>, EngineError> {
                std::future::pending().await
            }
            async fn swap_note(&self, _: &str, _: Option<&Note>, _: &Note) -> Result<bool, EngineError> {
                std::future::pending().await
            }
            async fn probe(&self) -> Result<(), EngineError> {
                std::future::pending().await
            }
            fn capabilities(&self) -> Capabilities {
                Capabilities { strict_fence: false, durable: false, shared: false, forever: false, lists: false }
            }
        }
        let engine = Retry::new(Arc::new(Patience::new(Arc::new(Silent), Duration::from_millis(400))));
        let answer = timeout(Duration::from_millis(801), engine.claim(&fresh_claim())).await;
        assert!(matches!(answer, Ok(Err(EngineError::Indeterminate(_)))));
        let mut short = fresh_claim();
        short.terms.lease = Duration::from_millis(100);
        let answer = timeout(Duration::from_millis(41), engine.claim(&short)).await;
        assert!(matches!(answer, Ok(Err(EngineError::Indeterminate(_)))));
    }
}
