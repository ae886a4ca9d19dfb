//! The engine under test, and how its time passes.

use std::sync::{Arc, Mutex};
use std::time::Duration;

use futures_util::future::BoxFuture;

use super::super::{BatchClaim, Engine};
use super::requests::DEADLINE;
use crate::attempt::Attempt;
use crate::claim::{
    self, ClaimRequest, ClaimResponse, OutcomeRequest, OutcomeResponse, RenewalRequest, RenewalResponse,
};
use crate::clock::{Clock as _, ManualClock, SystemClock, Timestamp};
use crate::operator::{ListRequest, ListedClaim, ReleaseRequest, ReleaseResponse};
use crate::record::{Key, LiveClaim};

/// An engine under test.
pub struct Subject {
    /// The engine.
    pub engine: Arc<dyn Engine>,
    /// Lets at least this much of the store's time pass: advances a manual clock, or waits.
    pub pass: Box<dyn Fn(Duration) -> BoxFuture<'static, ()> + Send + Sync>,
    /// A time span that is much longer than a call and much shorter than a test.
    pub tick: Duration,
    /// Time passes only by [`Subject::pass`], so that durations can be compared exactly.
    pub exact_time: bool,
    /// The engine's server, stopped on drop.
    pub keep: Box<dyn std::any::Any + Send + Sync>,
}

impl Subject {
    /// Claims a batch. Returns each request with its answer.
    pub(super) async fn claim_batch(&self, requests: Vec<ClaimRequest>) -> Vec<(ClaimRequest, ClaimResponse)> {
        let answers: Vec<_> = requests.iter().map(|_| Mutex::new(None)).collect();
        let sink = |index: usize, answer| {
            let before = answers[index].lock().expect("no panic").replace(answer);
            assert!(before.is_none(), "{index} is answered twice: {before:?}");
        };
        let claims: Vec<_> = requests.iter().map(|request| BatchClaim { request, deadline: DEADLINE }).collect();
        self.engine.claim_batch(&claims, &sink).await;
        let answers = answers.into_iter().map(|answer| answer.into_inner().expect("no panic"));
        let answers = answers.map(|answer| answer.expect("each is answered").expect("the engine answers"));
        requests.into_iter().zip(answers).collect()
    }

    /// Creates an engine of this process, on a clock that only the rules move.
    pub fn on_manual_clock(open: impl FnOnce(Arc<ManualClock>) -> Arc<dyn Engine>) -> Self {
        let clock = Arc::new(ManualClock::at(Timestamp::from_micros(1_700_000_000_000_000)));
        let engine = open(clock.clone());
        let pass = move |duration| -> BoxFuture<'static, ()> {
            clock.advance(duration);
            Box::pin(std::future::ready(()))
        };
        let tick = Duration::from_secs(1);
        Self { engine, pass: Box::new(pass), tick, exact_time: true, keep: Box::new(()) }
    }

    pub(super) fn ticks(&self, count: u32) -> Duration {
        self.tick * count
    }

    pub(super) async fn claim(&self, request: &ClaimRequest) -> ClaimResponse {
        self.engine.claim(request, DEADLINE).await.expect("the engine answers")
    }

    pub(super) async fn granted(&self, request: &ClaimRequest) -> claim::Grant {
        match self.claim(request).await {
            ClaimResponse::Granted(grant) => grant,
            other => panic!("expected a grant, got {other:?}"),
        }
    }

    pub(super) async fn duplicate(&self, request: &ClaimRequest) -> LiveClaim {
        duplicate(self.claim(request).await)
    }

    /// Runs a rule with a claim that must last until a later call finds it. If that call came too late, the run proves
    /// nothing, and the rule runs again with longer ticks.
    pub(super) async fn in_time<T>(&self, rule: impl AsyncFn(&Pace) -> Result<T, TooLate>) -> T {
        for longer in [1, 2, 4, 8, 16] {
            let pace = Pace { tick: self.tick * longer, clock: SystemClock::new() };
            if let Ok(done) = rule(&pace).await {
                return done;
            }
        }
        panic!("this machine is too slow for rules about time");
    }

    /// Settles a claim. Returns the answer without its end: only the rule of ends looks at ends.
    pub(super) async fn settle(&self, request: &OutcomeRequest) -> OutcomeResponse {
        match self.engine.settle(request, DEADLINE).await.expect("the engine answers") {
            OutcomeResponse::Done { state, left, late, .. } => {
                OutcomeResponse::Done { state, left, ends_at: None, late }
            }
            other => other,
        }
    }

    /// Renews a lease. Returns the answer without its end.
    pub(super) async fn renew(&self, request: &RenewalRequest) -> RenewalResponse {
        match self.engine.renew(request, DEADLINE).await.expect("the engine answers") {
            RenewalResponse::Renewed { left, .. } => RenewalResponse::Renewed { left, ends_at: None },
            other => other,
        }
    }

    pub(super) async fn read(&self, key: &Key) -> Option<LiveClaim> {
        self.engine.read(key).await.expect("the engine answers")
    }

    pub(super) async fn release(&self, key: &Key, attempt: &Attempt) -> ReleaseResponse {
        let request = ReleaseRequest { key: key.clone(), attempt: attempt.clone(), result: None };
        self.released(&request).await
    }

    pub(super) async fn released(&self, request: &ReleaseRequest) -> ReleaseResponse {
        self.engine.release(request).await.expect("the engine answers")
    }

    pub(super) async fn list(&self, request: &ListRequest) -> Vec<ListedClaim> {
        self.engine.list(request).await.expect("the engine lists")
    }

    /// Checks that the remaining time is at most the expected one, and hardly less.
    pub(super) fn assert_left(&self, left: Option<Duration>, expected: Duration) {
        let left = left.expect("it has an end");
        assert!(left <= expected, "{left:?} is more than {expected:?}");
        let slack = if self.exact_time { Duration::ZERO } else { self.tick.max(Duration::from_secs(10)) };
        assert!(left + slack >= expected, "{left:?} is much less than {expected:?}");
    }
}

/// The ticks of a run, and a clock to check that calls are in time.
pub(super) struct Pace {
    pub(super) tick: Duration,
    pub(super) clock: SystemClock,
}

/// A call came so late that the claim may have ended.
pub(super) struct TooLate;

impl Pace {
    pub(super) fn ticks(&self, count: u32) -> Duration {
        self.tick * count
    }

    pub(super) fn now(&self) -> Duration {
        self.clock.monotonic()
    }

    /// Fails if a claim that began at `started` and lasts this long may have ended.
    pub(super) fn within(&self, started: Duration, lasts: Duration) -> Result<(), TooLate> {
        if self.now() < started + lasts { Ok(()) } else { Err(TooLate) }
    }
}

pub(super) fn duplicate(answer: ClaimResponse) -> LiveClaim {
    match answer {
        ClaimResponse::Duplicate(live) => live,
        other => panic!("expected a duplicate, got {other:?}"),
    }
}
