//! The breaker of one engine: notices that its store does not answer, and then refuses calls at once until it does again.
//!
//! Closed lets calls through and counts them. Open refuses. Once a probe was answered it is half open: one call is let
//! through, and if that is answered, two at once, and one more for each that is answered. If nobody calls, the next probe that
//! is answered closes it. No lock, no waiting, no I/O.

mod window;

use std::sync::atomic::{AtomicU32, AtomicU64, Ordering};
use std::time::Duration;

use self::window::Window;
use crate::domain::clock::micros;
use crate::engine::breaker::BreakerState;

/// Calls in the window before rates mean anything.
const VOLUME_MIN: u32 = 20;
/// The same while it closes again: it has just been out, so it is believed sooner.
const VOLUME_MIN_RAMPING: u32 = 5;
/// It opens if more than this share of the calls failed.
const FAILED_PERCENT: u32 = 50;
/// It opens if at least this share of the calls was slow or failed. High, since a slow store is better than none.
const SLOW_PERCENT: u32 = 80;
/// It opens, whatever the rates, if this many calls failed and none was answered in between …
const SILENCE_CALLS: u32 = 5;
/// … for this long. A connection that broke fails all that was on it at once, and is no reason to refuse the next call.
const SILENCE: Duration = Duration::from_millis(500);
/// How long it takes at most from the first answered call to letting all through.
const RAMP: Duration = Duration::from_secs(1);
/// How many calls a ramp lets through at once at first, …
const RAMP_AT_ONCE: u32 = 2;
/// … and with how many it ends.
const RAMP_AT_ONCE_MAX: u32 = 256;
/// For how long the one call of a half-open breaker is waited for; after that it counts as failed. Together with the next
/// probe less than a second: the call may have been sent just before the store came back.
const TRIAL: Duration = Duration::from_millis(750);
/// For how long a half-open breaker waits for a call at least, before a probe alone closes it.
const UNTRIED: Duration = Duration::from_millis(75);

/// What a call says about its store.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Verdict {
    /// It answered, whatever it said.
    Answered,
    /// It answered late, or was given up as late.
    Slow,
    /// It did not answer, or does not serve.
    Failed,
}

/// Lets calls through, or not.
#[derive(Debug)]
pub struct Breaker {
    /// A [`Phase`] in the low bits, above it how often it has changed: what was begun before a change says nothing after.
    phase: AtomicU64,
    /// When the phase began, in microseconds of the monotonic clock, if it is one whose time ends.
    since: AtomicU64,
    /// When a probe was last answered that found it open, in microseconds.
    half_open_since: AtomicU64,
    window: Window,
    /// Failures since a call was last answered.
    failures_in_a_row: AtomicU32,
    /// When the first of them was begun, in microseconds.
    silent_since: AtomicU64,
    /// Calls of a ramp that are under way, and how many may be.
    under_way: AtomicU32,
    at_once: AtomicU32,
}

/// Whether a call is let through.
#[derive(Debug)]
pub enum Entry<'a> {
    /// It is. What becomes of it is to be told to the pass.
    Passes(Pass<'a>),
    /// It is not.
    Refused,
}

/// A call on its way. One that is dropped untold says nothing about the store.
#[derive(Debug)]
pub struct Pass<'a> {
    breaker: &'a Breaker,
    word: u64,
    begun: Duration,
}

#[derive(Clone, Copy, PartialEq, Eq)]
#[repr(u8)]
enum Phase {
    Closed = 0,
    Open = 1,
    /// Waits for a call to let through.
    HalfOpen = 2,
    /// The call has been let through, and is not answered yet.
    Trying = 3,
    /// Lets more and more through at once.
    Ramping = 4,
}

const PHASE_BITS: u32 = 3;

impl Phase {
    fn of(word: u64) -> Self {
        match word & ((1 << PHASE_BITS) - 1) {
            0 => Self::Closed,
            1 => Self::Open,
            2 => Self::HalfOpen,
            3 => Self::Trying,
            _ => Self::Ramping,
        }
    }

    fn state(self) -> BreakerState {
        match self {
            Self::Closed => BreakerState::Closed,
            Self::Open => BreakerState::Open,
            Self::HalfOpen | Self::Trying | Self::Ramping => BreakerState::HalfOpen,
        }
    }
}

impl Breaker {
    /// A closed breaker.
    pub fn closed() -> Self {
        Self {
            phase: AtomicU64::new(Phase::Closed as u64),
            since: AtomicU64::new(0),
            half_open_since: AtomicU64::new(0),
            window: Window::default(),
            failures_in_a_row: AtomicU32::new(0),
            silent_since: AtomicU64::new(0),
            under_way: AtomicU32::new(0),
            at_once: AtomicU32::new(0),
        }
    }

    /// How it stands.
    pub fn state(&self) -> BreakerState {
        Phase::of(self.phase.load(Ordering::Acquire)).state()
    }

    /// Asks to let a call through, `now` by the monotonic clock.
    pub fn enter(&self, now: Duration) -> Entry<'_> {
        let word = self.phase.load(Ordering::Acquire);
        let pass = |word| Entry::Passes(Pass { breaker: self, word, begun: now });
        match Phase::of(word) {
            Phase::Closed => pass(word),
            // Exactly one caller wins the exchange.
            Phase::HalfOpen => self.go(word, Phase::Trying, now).map_or(Entry::Refused, pass),
            Phase::Open | Phase::Trying => Entry::Refused,
            Phase::Ramping => {
                let one_more = |calls| (calls < self.at_once.load(Ordering::Relaxed)).then_some(calls + 1);
                let entered = self.under_way.fetch_update(Ordering::Relaxed, Ordering::Relaxed, one_more);
                entered.map_or(Entry::Refused, |_| pass(word))
            }
        }
    }

    /// A probe was answered: an open breaker is half open now, and one that nobody has called since is closed. The state that
    /// it came to by that, if it did.
    ///
    /// Those who come together after a quiet time are many more than one. They are not refused because nobody came before
    /// them; but what was counted stays, so that the first call that fails opens the breaker again.
    pub fn probed(&self, now: Duration) -> Option<BreakerState> {
        let word = self.phase.load(Ordering::Acquire);
        let to = match Phase::of(word) {
            Phase::Open => {
                self.half_open_since.store(micros(now), Ordering::Release);
                Phase::HalfOpen
            }
            Phase::HalfOpen if now.saturating_sub(at(&self.half_open_since)) >= UNTRIED => Phase::Closed,
            _ => return None,
        };
        self.go(word, to, now).map(|_| to.state())
    }

    /// Ends what has lasted too long, also when nobody calls: a ramp, or the wait for the one call of a half-open breaker. The
    /// state that it came to by that, if it did.
    pub fn settle(&self, now: Duration) -> Option<BreakerState> {
        let word = self.phase.load(Ordering::Acquire);
        let to = match Phase::of(word) {
            Phase::Ramping if self.age(now) >= RAMP => Phase::Closed,
            Phase::Trying if self.age(now) >= TRIAL => Phase::Open,
            _ => return None,
        };
        self.go(word, to, now).map(|_| to.state())
    }

    /// How long the one call of a half-open breaker is waited for yet, if it is under way.
    pub fn trial_left(&self, now: Duration) -> Option<Duration> {
        let is_tried = Phase::of(self.phase.load(Ordering::Acquire)) == Phase::Trying;
        is_tried.then(|| TRIAL.saturating_sub(self.age(now)))
    }

    /// Whether the store has answered no call since the breaker opened.
    pub fn is_in_doubt(&self) -> bool {
        matches!(Phase::of(self.phase.load(Ordering::Acquire)), Phase::Open | Phase::HalfOpen | Phase::Trying)
    }

    /// Changes the phase, if it is still the one that was seen; the new word if so.
    fn go(&self, from: u64, to: Phase, now: Duration) -> Option<u64> {
        let word = ((from >> PHASE_BITS) + 1) << PHASE_BITS | to as u64;
        // Before the exchange: who sees the new phase must not take it for an old one. Should another win the exchange,
        // it began its phase at this very instant, too.
        if matches!(to, Phase::Trying | Phase::Ramping) {
            self.since.store(micros(now), Ordering::Release);
            self.under_way.store(0, Ordering::Release);
            self.at_once.store(RAMP_AT_ONCE, Ordering::Release);
        }
        self.phase.compare_exchange(from, word, Ordering::AcqRel, Ordering::Acquire).ok()?;
        if to == Phase::Ramping {
            self.window.clear();
            self.failures_in_a_row.store(0, Ordering::Relaxed);
        }
        Some(word)
    }

    fn age(&self, now: Duration) -> Duration {
        now.saturating_sub(at(&self.since))
    }

    /// Counts a call; whether the store is to be taken for out.
    fn count(&self, verdict: Verdict, begun: Duration, now: Duration, volume_min: u32) -> bool {
        self.window.count(verdict, now);
        match verdict {
            Verdict::Answered => {
                // The common case writes nothing that other threads read.
                if self.failures_in_a_row.load(Ordering::Relaxed) != 0 {
                    self.failures_in_a_row.store(0, Ordering::Relaxed);
                }
                return false;
            }
            // It neither was answered nor does it mean silence.
            Verdict::Slow => {}
            Verdict::Failed => {
                if self.failures_in_a_row.fetch_add(1, Ordering::Relaxed) == 0 {
                    self.silent_since.store(micros(begun), Ordering::Relaxed);
                } else {
                    self.silent_since.fetch_min(micros(begun), Ordering::Relaxed);
                }
            }
        }
        let counted = self.window.sum(now);
        let enough = counted.all >= volume_min;
        let failing = u64::from(counted.failed) * 100 > u64::from(counted.all) * u64::from(FAILED_PERCENT);
        let late = u64::from(counted.failed) + u64::from(counted.slow);
        let slow = late * 100 >= u64::from(counted.all) * u64::from(SLOW_PERCENT);
        enough && (failing || slow) || verdict == Verdict::Failed && self.is_silent(now)
    }

    fn is_silent(&self, now: Duration) -> bool {
        let silent_for = now.saturating_sub(at(&self.silent_since));
        self.failures_in_a_row.load(Ordering::Relaxed) >= SILENCE_CALLS && silent_for >= SILENCE
    }
}

/// The instant that is kept there.
fn at(micros: &AtomicU64) -> Duration {
    Duration::from_micros(micros.load(Ordering::Acquire))
}

impl Pass<'_> {
    /// A call of a ramp is under way no longer.
    fn leave(&self) {
        let one_less = |calls: u32| calls.checked_sub(1);
        let _at_least_none = self.breaker.under_way.fetch_update(Ordering::Relaxed, Ordering::Relaxed, one_less);
    }

    /// Tells what became of the call. The state that the breaker came to by that, if it did.
    pub fn end(self, verdict: Verdict, now: Duration) -> Option<BreakerState> {
        let (breaker, word, begun) = (self.breaker, self.word, self.begun);
        if Phase::of(word) == Phase::Ramping {
            self.leave();
        }
        std::mem::forget(self);
        if breaker.phase.load(Ordering::Acquire) != word {
            // Begun before the last change.
            return None;
        }
        let to = match (Phase::of(word), verdict) {
            (Phase::Trying, Verdict::Answered) => Phase::Ramping,
            (Phase::Trying, Verdict::Slow | Verdict::Failed) => Phase::Open,
            (Phase::Ramping, Verdict::Answered)
                if breaker.age(now) >= RAMP || breaker.at_once.fetch_add(1, Ordering::Relaxed) >= RAMP_AT_ONCE_MAX =>
            {
                Phase::Closed
            }
            (Phase::Ramping, _) => breaker.count(verdict, begun, now, VOLUME_MIN_RAMPING).then_some(Phase::Open)?,
            _ => breaker.count(verdict, begun, now, VOLUME_MIN).then_some(Phase::Open)?,
        };
        let shown = Phase::of(word).state() != to.state();
        breaker.go(word, to, now).filter(|_| shown).map(|_| to.state())
    }

    /// Whether the breaker is closed as far as this call knows: there is no doubt about the store.
    pub fn is_plain(&self) -> bool {
        Phase::of(self.word) == Phase::Closed
    }
}

impl Drop for Pass<'_> {
    fn drop(&mut self) {
        match Phase::of(self.word) {
            // Whoever waited for the one call of a half-open breaker has gone; another one is let through instead.
            Phase::Trying => drop(self.breaker.go(self.word, Phase::HalfOpen, self.begun)),
            Phase::Ramping if self.breaker.phase.load(Ordering::Acquire) == self.word => self.leave(),
            _ => {}
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const MS: Duration = Duration::from_millis(1);

    /// A breaker, and a clock beside it.
    struct Story {
        breaker: Breaker,
        now: Duration,
    }

    impl Story {
        /// It is a while since the start.
        fn begins() -> Self {
            Self { breaker: Breaker::closed(), now: Duration::from_secs(100) }
        }

        fn after(&mut self, wait: Duration) -> &mut Self {
            self.now += wait;
            self
        }

        fn pass(&self) -> Option<Pass<'_>> {
            match self.breaker.enter(self.now) {
                Entry::Passes(pass) => Some(pass),
                Entry::Refused => None,
            }
        }

        /// Calls, each of which takes this long. Those that are refused take no time.
        fn calls(&mut self, count: u32, verdict: Verdict, each: Duration) -> &mut Self {
            for _ in 0..count {
                let begun = self.now;
                if let Entry::Passes(pass) = self.breaker.enter(begun) {
                    pass.end(verdict, begun + each);
                    self.now += each;
                }
            }
            self
        }

        /// A breaker that has just opened.
        fn opened() -> Self {
            let mut story = Self::begins();
            story.calls(20, Verdict::Failed, MS);
            assert_eq!(story.breaker.state(), BreakerState::Open);
            story
        }

        /// A breaker that has just begun to close.
        fn ramping() -> Self {
            let story = Self::opened();
            assert_eq!(story.breaker.probed(story.now), Some(BreakerState::HalfOpen));
            assert_eq!(story.pass().unwrap().end(Verdict::Answered, story.now), None);
            story
        }

        #[track_caller]
        fn stands(&self, state: BreakerState) {
            assert_eq!(self.breaker.state(), state);
        }
    }

    #[test]
    fn a_store_that_answers_is_always_asked() {
        let mut story = Story::begins();
        story.calls(100_000, Verdict::Answered, MS).stands(BreakerState::Closed);
        assert!(story.pass().unwrap().is_plain());
    }

    #[test]
    fn half_of_the_calls_may_fail_and_no_more() {
        let mut story = Story::begins();
        for _ in 0..100 {
            story.calls(1, Verdict::Answered, MS).calls(1, Verdict::Failed, MS);
        }
        story.stands(BreakerState::Closed);
        story.calls(2, Verdict::Failed, MS).stands(BreakerState::Open);
    }

    #[test]
    fn a_few_calls_say_nothing_unless_there_is_silence() {
        let mut story = Story::begins();
        story.calls(19, Verdict::Failed, MS).stands(BreakerState::Closed);
        // Not one was answered for half a second.
        story.after(SILENCE).calls(1, Verdict::Failed, MS).stands(BreakerState::Open);

        let mut quiet = Story::begins();
        let (minute, late) = (Duration::from_mins(1), Duration::from_millis(900));
        for _ in 0..4 {
            quiet.calls(1, Verdict::Failed, late).after(minute).stands(BreakerState::Closed);
        }
        quiet.calls(1, Verdict::Answered, MS);
        for _ in 0..4 {
            quiet.calls(1, Verdict::Failed, late).after(minute).stands(BreakerState::Closed);
        }
        quiet.calls(1, Verdict::Failed, late).stands(BreakerState::Open);
    }

    #[test]
    fn a_store_that_goes_silent_under_load_is_noticed_within_the_second() {
        let mut story = Story::begins();
        story.calls(10_000, Verdict::Answered, MS);
        // All that was under way fails late and at once.
        let begun = story.now;
        let passes: Vec<_> = (0..5).map(|_| story.pass().unwrap()).collect();
        let states: Vec<_> = passes.into_iter().map(|pass| pass.end(Verdict::Failed, begun + SILENCE)).collect();
        assert_eq!(states, [None, None, None, None, Some(BreakerState::Open)]);
    }

    #[test]
    fn a_connection_that_breaks_under_load_fails_its_calls_and_opens_nothing() {
        let mut story = Story::begins();
        story
            .calls(1000, Verdict::Answered, MS)
            .calls(500, Verdict::Failed, Duration::ZERO)
            .stands(BreakerState::Closed);
    }

    #[test]
    fn a_store_that_is_slow_for_nearly_all_is_given_rest() {
        let mut story = Story::begins();
        let late = Duration::from_millis(10);
        for _ in 0..100 {
            story.calls(1, Verdict::Answered, late).calls(3, Verdict::Slow, late).stands(BreakerState::Closed);
        }
        story.calls(200, Verdict::Slow, late).stands(BreakerState::Open);
    }

    #[test]
    fn what_was_long_ago_is_forgotten() {
        let mut story = Story::begins();
        story.calls(18, Verdict::Failed, MS).calls(1, Verdict::Answered, MS).after(Duration::from_secs(10));
        story.calls(1, Verdict::Failed, MS).stands(BreakerState::Closed);
    }

    #[test]
    fn cancelled_calls_say_nothing() {
        let story = Story::begins();
        for _ in 0..1000 {
            drop(story.pass().unwrap());
        }
        story.stands(BreakerState::Closed);
        assert_eq!(story.breaker.window.sum(story.now), window::Counted::default());
    }

    #[test]
    fn an_open_breaker_lets_nobody_through_until_a_probe_was_answered() {
        let mut story = Story::opened();
        for _ in 0..1000 {
            assert!(story.after(Duration::from_secs(1)).pass().is_none());
        }
        assert_eq!(story.breaker.probed(story.now), Some(BreakerState::HalfOpen));
        assert_eq!(story.breaker.probed(story.now), None, "once");
    }

    #[test]
    fn a_half_open_breaker_lets_exactly_one_through() {
        let story = Story::opened();
        story.breaker.probed(story.now);
        let passes: Vec<_> = std::thread::scope(|scope| {
            let all: Vec<_> = (0..8).map(|_| scope.spawn(|| story.pass())).collect();
            all.into_iter().filter_map(|thread| thread.join().unwrap()).collect()
        });
        assert_eq!(passes.len(), 1);
        assert!(story.pass().is_none());
        // A caller who goes gives its place to another.
        drop(passes);
        let second = story.pass().unwrap();
        assert!(story.pass().is_none());
        second.end(Verdict::Answered, story.now);
        assert!(story.pass().is_some());
    }

    #[test]
    fn a_half_open_breaker_opens_again_if_its_call_fails_is_slow_or_stays_away() {
        for verdict in [Verdict::Failed, Verdict::Slow] {
            let story = Story::opened();
            story.breaker.probed(story.now);
            assert_eq!(story.pass().unwrap().end(verdict, story.now), Some(BreakerState::Open));
            assert!(story.pass().is_none());
        }
        let story = Story::opened();
        story.breaker.probed(story.now);
        let _stays_away = story.pass().unwrap();
        let late = story.now + TRIAL;
        assert_eq!(story.breaker.settle(late.checked_sub(MS).unwrap()), None);
        assert_eq!(story.breaker.trial_left(late.checked_sub(MS).unwrap()), Some(MS));
        assert_eq!(story.breaker.settle(late), Some(BreakerState::Open));
        assert_eq!(story.breaker.trial_left(late), None);
    }

    #[test]
    fn a_half_open_breaker_that_nobody_calls_is_closed_by_the_next_probe_and_opens_with_the_first_failure() {
        let mut story = Story::opened();
        story.after(SILENCE);
        story.breaker.probed(story.now);
        assert_eq!(story.breaker.probed(story.now), None, "not at once");
        assert_eq!(story.breaker.probed(story.now + UNTRIED), Some(BreakerState::Closed));
        // All who come together are let through.
        let mut passes: Vec<_> = (0..64).map(|_| story.pass().unwrap()).collect();
        assert_eq!(passes.pop().unwrap().end(Verdict::Failed, story.now + UNTRIED), Some(BreakerState::Open));
        drop(passes);
        // If the store has answered, it is as good as any other.
        for _ in 0..2 {
            story.after(UNTRIED);
            story.breaker.probed(story.now);
        }
        story.after(Duration::from_secs(10)).calls(1, Verdict::Answered, MS);
        story.calls(1, Verdict::Failed, MS).stands(BreakerState::Closed);
    }

    #[test]
    fn what_was_begun_before_it_opened_says_nothing_after() {
        let story = Story::begins();
        let old: Vec<_> = (0..40).map(|_| story.pass().unwrap()).collect();
        let mut old = old.into_iter();
        for _ in 0..20 {
            old.next().unwrap().end(Verdict::Failed, story.now);
        }
        story.stands(BreakerState::Open);
        assert_eq!(old.next().unwrap().end(Verdict::Answered, story.now), None);
        story.stands(BreakerState::Open);
        story.breaker.probed(story.now);
        story.pass().unwrap().end(Verdict::Answered, story.now);
        // They fail only now. The store is well.
        for pass in old {
            assert_eq!(pass.end(Verdict::Failed, story.now), None);
        }
        assert_eq!(story.pass().unwrap().end(Verdict::Failed, story.now), None);
        story.stands(BreakerState::HalfOpen);
    }

    #[test]
    fn a_closing_breaker_lets_more_and_more_through_at_once() {
        let story = Story::ramping();
        for at_once in [2, 4, 8, 16, 32, 64, 128] {
            let passes: Vec<_> = std::iter::from_fn(|| story.pass()).take(1000).collect();
            assert_eq!(passes.len(), at_once);
            assert!(passes.into_iter().all(|pass| pass.end(Verdict::Answered, story.now).is_none()));
        }
        let pass = story.pass().unwrap();
        assert_eq!(pass.end(Verdict::Answered, story.now), Some(BreakerState::Closed), "that many are as good as all");
    }

    #[test]
    fn callers_one_after_the_other_never_notice_a_closing_breaker() {
        let mut story = Story::ramping();
        for _ in 0..2000 {
            story.after(MS);
            story.pass().expect("it is let through").end(Verdict::Answered, story.now);
        }
        story.stands(BreakerState::Closed);
    }

    #[test]
    fn callers_who_go_make_room_in_a_closing_breaker() {
        let story = Story::ramping();
        for _ in 0..100 {
            let _both = (story.pass().unwrap(), story.pass().unwrap());
            assert!(story.pass().is_none());
        }
        story.stands(BreakerState::HalfOpen);
    }

    #[test]
    fn a_closing_breaker_opens_again_after_a_few_failures() {
        let mut story = Story::ramping();
        story.calls(4, Verdict::Failed, MS).stands(BreakerState::HalfOpen);
        story.calls(1, Verdict::Failed, MS).stands(BreakerState::Open);
    }

    #[test]
    fn a_closing_breaker_closes_also_when_nobody_calls() {
        let mut story = Story::ramping();
        story.after(RAMP);
        assert_eq!(story.breaker.settle(story.now), Some(BreakerState::Closed));
        assert_eq!(story.breaker.settle(story.now), None);
    }
}
