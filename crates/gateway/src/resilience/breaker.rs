//! The breaker of one engine: detects that its store does not answer, and refuses calls until it does. Without locks.
//!
//! Closed: calls pass, and are counted. Open: calls are refused. Half-open, after an answered probe: one call passes; once that
//! is answered, two at a time, and one more for each answered call. Without calls, the next answered probe closes it.

#[cfg(test)]
mod tests;
mod window;

use std::sync::atomic::{AtomicU32, AtomicU64, Ordering};
use std::time::Duration;

use oncegate_core::clock::micros;
use oncegate_core::engine::breaker::BreakerState;

use self::window::{Counts, Window};

/// Calls in the window before rates mean anything.
const VOLUME_MIN: u64 = 20;
/// The same during the ramp: the store has just been out, so fewer calls prove that it is again.
const VOLUME_MIN_RAMP: u64 = 5;
/// The breaker opens if more than this share of the calls failed.
const FAILED_PERCENT: u64 = 50;
/// The breaker opens if at least this share of the calls was slow or failed. High, since a slow store is better than none.
const SLOW_PERCENT: u64 = 80;
/// The breaker opens, with any rates, if this many calls failed and none was answered in between …
const SILENCE_CALLS: u32 = 5;
/// … for this long. A connection that breaks fails all calls on it at once, and is no reason to refuse the next one.
const SILENCE: Duration = Duration::from_millis(500);
/// Longest time from the first answered call to letting all calls pass.
const RAMP: Duration = Duration::from_secs(1);
/// Calls in flight that a ramp allows at first.
const RAMP_IN_FLIGHT: u32 = 2;
/// Calls in flight that end a ramp.
const RAMP_IN_FLIGHT_MAX: u32 = 256;
/// Time after which the trial call counts as failed. With the next probe and the next trial less than a second: the call may have been
/// sent just before the store came back.
const TRIAL: Duration = Duration::from_millis(600);
/// Time that a half-open breaker waits for a call before a probe alone closes it.
const IDLE: Duration = Duration::from_millis(75);

/// Evidence of a call about its store.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum CallResult {
    /// The store gave any answer.
    Answered,
    /// The store answered late, or the call ended because it was late.
    Slow,
    /// The store did not answer, or does not serve.
    Failed,
}

/// The breaker of one engine; closed at first.
#[derive(Debug, Default)]
pub struct Breaker {
    /// A [`Phase`] in the low bits, and above it the number of changes: a call that began before a change proves nothing after.
    phase: AtomicU64,
    /// Start of the phase, in microseconds of the monotonic clock.
    since: AtomicU64,
    window: Window,
    /// Failures since the last answered call.
    failures_in_a_row: AtomicU32,
    /// Earliest start of one of them, in microseconds.
    silent_since: AtomicU64,
    /// Calls of a ramp in flight, and how many may be.
    in_flight: AtomicU32,
    in_flight_max: AtomicU32,
}

/// A call that the breaker let pass. Dropped without a result, it proves nothing about the store.
#[derive(Debug)]
pub struct Pass<'a> {
    breaker: &'a Breaker,
    word: u64,
    started: Duration,
}

#[derive(Clone, Copy, PartialEq, Eq)]
#[repr(u8)]
enum Phase {
    Closed = 0,
    Open = 1,
    /// Waits for a call.
    HalfOpen = 2,
    /// One call is in flight.
    Trial = 3,
    /// More and more calls may be in flight.
    Ramp = 4,
}

const PHASE_BITS: u32 = 3;

impl Phase {
    fn of(word: u64) -> Self {
        match word & ((1 << PHASE_BITS) - 1) {
            0 => Self::Closed,
            1 => Self::Open,
            2 => Self::HalfOpen,
            3 => Self::Trial,
            _ => Self::Ramp,
        }
    }

    fn state(self) -> BreakerState {
        match self {
            Self::Closed => BreakerState::Closed,
            Self::Open => BreakerState::Open,
            Self::HalfOpen | Self::Trial | Self::Ramp => BreakerState::HalfOpen,
        }
    }
}

impl Breaker {
    /// Returns the state, as operators see it.
    pub fn state(&self) -> BreakerState {
        Phase::of(self.word()).state()
    }

    /// Lets a call pass, or refuses it. `now` is of the monotonic clock, here and below.
    pub fn enter(&self, now: Duration) -> Option<Pass<'_>> {
        let mut word = self.word();
        match Phase::of(word) {
            Phase::Closed => {}
            // Exactly one caller wins the exchange.
            Phase::HalfOpen => word = self.change(word, Phase::Trial, now)?,
            Phase::Open | Phase::Trial => return None,
            Phase::Ramp => {
                let one_more = |calls| (calls < self.in_flight_max.load(Ordering::Relaxed)).then_some(calls + 1);
                self.in_flight.fetch_update(Ordering::Relaxed, Ordering::Relaxed, one_more).ok()?;
            }
        }
        Some(Pass { breaker: self, word, started: now })
    }

    /// Ends a phase whose time is over, even without calls: a ramp, the wait for the trial call, and, if a probe was just
    /// answered, an open breaker and a half-open one without calls. Returns the new state if the phase has changed.
    ///
    /// Calls that arrive together after a quiet time are many more than one, and must not be refused because no call
    /// was made before. The earlier counts stay, so that their first failure opens the breaker again.
    pub fn advance(&self, probe_answered: bool, now: Duration) -> Option<BreakerState> {
        let word = self.word();
        let age = self.age(now);
        let to = match Phase::of(word) {
            Phase::Open if probe_answered => Phase::HalfOpen,
            Phase::HalfOpen if probe_answered && age >= IDLE => Phase::Closed,
            Phase::Trial if age >= TRIAL => Phase::Open,
            Phase::Ramp if age >= RAMP => Phase::Closed,
            _ => return None,
        };
        self.change(word, to, now).map(|_| to.state())
    }

    /// Returns the time that is left for the trial call, if it is in flight.
    pub fn trial_left(&self, now: Duration) -> Option<Duration> {
        (Phase::of(self.word()) == Phase::Trial).then(|| TRIAL.saturating_sub(self.age(now)))
    }

    /// Returns whether the store has answered no call since the breaker opened.
    pub fn is_in_doubt(&self) -> bool {
        matches!(Phase::of(self.word()), Phase::Open | Phase::HalfOpen | Phase::Trial)
    }

    fn word(&self) -> u64 {
        self.phase.load(Ordering::Acquire)
    }

    fn age(&self, now: Duration) -> Duration {
        now.saturating_sub(time_of(&self.since))
    }

    /// Changes the phase if it is still the expected one. Returns the new word.
    fn change(&self, from: u64, to: Phase, now: Duration) -> Option<u64> {
        let word = (((from >> PHASE_BITS) + 1) << PHASE_BITS) + to as u64;
        // Stored before the exchange: a thread that sees the new phase must not treat it as an old one. A thread that
        // loses the exchange sets no earlier time.
        self.since.fetch_max(micros(now), Ordering::Release);
        if to == Phase::Ramp {
            self.in_flight.store(0, Ordering::Release);
            self.in_flight_max.store(RAMP_IN_FLIGHT, Ordering::Release);
        }
        self.phase.compare_exchange(from, word, Ordering::AcqRel, Ordering::Acquire).ok()?;
        if to == Phase::Ramp {
            self.window.clear();
            self.failures_in_a_row.store(0, Ordering::Relaxed);
        }
        Some(word)
    }

    /// Counts a call. Returns whether the store is out.
    fn count(&self, result: CallResult, started: Duration, now: Duration, volume_min: u64) -> bool {
        self.window.count(result, now);
        match result {
            CallResult::Answered => {
                // In the common case nothing is written to memory that other threads read.
                if self.failures_in_a_row.load(Ordering::Relaxed) != 0 {
                    self.failures_in_a_row.store(0, Ordering::Relaxed);
                }
                return false;
            }
            // It neither was answered nor does it mean silence.
            CallResult::Slow => {}
            CallResult::Failed if self.failures_in_a_row.fetch_add(1, Ordering::Relaxed) == 0 => {
                self.silent_since.store(micros(started), Ordering::Relaxed);
            }
            CallResult::Failed => drop(self.silent_since.fetch_min(micros(started), Ordering::Relaxed)),
        }
        let Counts { all, slow, failed } = self.window.sum(now);
        let is_failing = failed * 100 > all * FAILED_PERCENT || (failed + slow) * 100 >= all * SLOW_PERCENT;
        let is_silent = result == CallResult::Failed
            && self.failures_in_a_row.load(Ordering::Relaxed) >= SILENCE_CALLS
            && now.saturating_sub(time_of(&self.silent_since)) >= SILENCE;
        all >= volume_min && is_failing || is_silent
    }
}

fn time_of(micros: &AtomicU64) -> Duration {
    Duration::from_micros(micros.load(Ordering::Acquire))
}

impl Pass<'_> {
    /// Records the result of the call. Returns the breaker's state if that has changed it.
    pub fn end(self, result: CallResult, now: Duration) -> Option<BreakerState> {
        let Self { breaker, word, started } = self;
        if breaker.word() != word {
            // The call began before the last change.
            return None;
        }
        let from = Phase::of(word);
        let to = match (from, result) {
            (Phase::Trial, CallResult::Answered) => Phase::Ramp,
            (Phase::Trial, CallResult::Slow | CallResult::Failed) => Phase::Open,
            (Phase::Ramp, CallResult::Answered)
                if breaker.age(now) >= RAMP
                    || breaker.in_flight_max.fetch_add(1, Ordering::Relaxed) >= RAMP_IN_FLIGHT_MAX =>
            {
                Phase::Closed
            }
            _ => {
                let volume_min = if from == Phase::Ramp { VOLUME_MIN_RAMP } else { VOLUME_MIN };
                breaker.count(result, started, now, volume_min).then_some(Phase::Open)?
            }
        };
        breaker.change(word, to, now).filter(|_| from.state() != to.state()).map(|_| to.state())
    }

    /// Sets an earlier start: the store has answered nothing since then, not even an earlier try of the same call.
    #[must_use]
    pub fn unanswered_since(mut self, started: Duration) -> Self {
        self.started = started;
        self
    }

    /// Returns whether the breaker was closed when the call began.
    pub fn was_closed(&self) -> bool {
        Phase::of(self.word) == Phase::Closed
    }
}

impl Drop for Pass<'_> {
    /// Frees the share of the call, unless its result has changed the phase.
    fn drop(&mut self) {
        match Phase::of(self.word) {
            // The caller of the trial call has disconnected; another call becomes the trial call.
            Phase::Trial => drop(self.breaker.change(self.word, Phase::HalfOpen, self.started)),
            Phase::Ramp if self.breaker.word() == self.word => {
                let one_less = |calls: u32| calls.checked_sub(1);
                let _at_least_none =
                    self.breaker.in_flight.fetch_update(Ordering::Relaxed, Ordering::Relaxed, one_less);
            }
            _ => {}
        }
    }
}
