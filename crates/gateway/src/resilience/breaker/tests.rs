//! Scenarios of the breaker, with the clock as a number.

use super::*;

const MS: Duration = Duration::from_millis(1);

/// A breaker and its clock.
struct Scenario {
    breaker: Breaker,
    now: Duration,
}

impl Scenario {
    /// Begins a while after the start, with a closed breaker.
    fn new() -> Self {
        Self { breaker: Breaker::default(), now: Duration::from_secs(100) }
    }

    fn after(&mut self, wait: Duration) -> &mut Self {
        self.now += wait;
        self
    }

    fn enter(&self) -> Option<Pass<'_>> {
        self.breaker.enter(self.now)
    }

    /// Makes calls that take `each` time. Refused calls take no time.
    fn calls(&mut self, count: u32, result: CallResult, each: Duration) -> &mut Self {
        for _ in 0..count {
            let started = self.now;
            if let Some(pass) = self.breaker.enter(started) {
                pass.end(result, started + each);
                self.now += each;
            }
        }
        self
    }

    /// Returns a breaker that has just opened.
    fn opened() -> Self {
        let mut scenario = Self::new();
        scenario.calls(20, CallResult::Failed, MS);
        assert_eq!(scenario.breaker.state(), BreakerState::Open);
        scenario
    }

    /// Returns a breaker whose trial call was just answered.
    fn ramping() -> Self {
        let scenario = Self::opened();
        assert_eq!(scenario.breaker.advance(true, scenario.now), Some(BreakerState::HalfOpen));
        assert_eq!(scenario.enter().unwrap().end(CallResult::Answered, scenario.now), None);
        scenario
    }

    #[track_caller]
    fn assert_state(&self, state: BreakerState) {
        assert_eq!(self.breaker.state(), state);
    }
}

#[test]
fn calls_pass_while_the_store_answers() {
    let mut scenario = Scenario::new();
    scenario.calls(100_000, CallResult::Answered, MS).assert_state(BreakerState::Closed);
    assert!(scenario.enter().unwrap().was_closed());
}

#[test]
fn it_opens_when_over_half_of_the_calls_fail() {
    let mut scenario = Scenario::new();
    for _ in 0..100 {
        scenario.calls(1, CallResult::Answered, MS).calls(1, CallResult::Failed, MS);
    }
    scenario.assert_state(BreakerState::Closed);
    scenario.calls(2, CallResult::Failed, MS).assert_state(BreakerState::Open);
}

#[test]
fn a_few_failures_open_it_only_after_half_a_second_of_silence() {
    let mut scenario = Scenario::new();
    scenario.calls(19, CallResult::Failed, MS).assert_state(BreakerState::Closed);
    // Not one was answered for half a second.
    scenario.after(SILENCE).calls(1, CallResult::Failed, MS).assert_state(BreakerState::Open);

    let mut quiet = Scenario::new();
    let (minute, late) = (Duration::from_mins(1), Duration::from_millis(900));
    for _ in 0..4 {
        quiet.calls(1, CallResult::Failed, late).after(minute).assert_state(BreakerState::Closed);
    }
    quiet.calls(1, CallResult::Answered, MS);
    for _ in 0..4 {
        quiet.calls(1, CallResult::Failed, late).after(minute).assert_state(BreakerState::Closed);
    }
    quiet.calls(1, CallResult::Failed, late).assert_state(BreakerState::Open);
}

#[test]
fn it_opens_within_a_second_when_the_store_goes_silent_under_load() {
    let mut scenario = Scenario::new();
    scenario.calls(10_000, CallResult::Answered, MS);
    // All calls in flight fail late and at the same time.
    let started = scenario.now;
    let passes: Vec<_> = (0..5).map(|_| scenario.enter().unwrap()).collect();
    let states: Vec<_> = passes.into_iter().map(|pass| pass.end(CallResult::Failed, started + SILENCE)).collect();
    assert_eq!(states, [None, None, None, None, Some(BreakerState::Open)]);
}

#[test]
fn a_broken_connection_under_load_does_not_open_it() {
    let mut scenario = Scenario::new();
    scenario
        .calls(1000, CallResult::Answered, MS)
        .calls(500, CallResult::Failed, Duration::ZERO)
        .assert_state(BreakerState::Closed);
}

#[test]
fn it_opens_when_four_fifths_of_the_calls_are_slow() {
    let mut scenario = Scenario::new();
    let late = Duration::from_millis(10);
    for _ in 0..100 {
        scenario
            .calls(1, CallResult::Answered, late)
            .calls(3, CallResult::Slow, late)
            .assert_state(BreakerState::Closed);
    }
    scenario.calls(200, CallResult::Slow, late).assert_state(BreakerState::Open);
}

#[test]
fn calls_of_more_than_ten_seconds_ago_do_not_count() {
    let mut scenario = Scenario::new();
    scenario.calls(18, CallResult::Failed, MS).calls(1, CallResult::Answered, MS).after(Duration::from_secs(10));
    scenario.calls(1, CallResult::Failed, MS).assert_state(BreakerState::Closed);
}

#[test]
fn cancelled_calls_do_not_count() {
    let scenario = Scenario::new();
    for _ in 0..1000 {
        drop(scenario.enter().unwrap());
    }
    scenario.assert_state(BreakerState::Closed);
    assert_eq!(scenario.breaker.window.sum(scenario.now), Counts::default());
}

#[test]
fn an_open_breaker_refuses_all_calls_until_a_probe_is_answered() {
    let mut scenario = Scenario::opened();
    for _ in 0..1000 {
        assert!(scenario.after(Duration::from_secs(1)).enter().is_none());
    }
    assert_eq!(scenario.breaker.advance(true, scenario.now), Some(BreakerState::HalfOpen));
    assert_eq!(scenario.breaker.advance(true, scenario.now), None, "once");
}

#[test]
fn a_half_open_breaker_lets_exactly_one_call_pass() {
    let scenario = Scenario::opened();
    scenario.breaker.advance(true, scenario.now);
    let passes: Vec<_> = std::thread::scope(|scope| {
        let all: Vec<_> = (0..8).map(|_| scope.spawn(|| scenario.enter())).collect();
        all.into_iter().filter_map(|thread| thread.join().unwrap()).collect()
    });
    assert_eq!(passes.len(), 1);
    assert!(scenario.enter().is_none());
    // A cancelled call makes room for another.
    drop(passes);
    let second = scenario.enter().unwrap();
    assert!(scenario.enter().is_none());
    second.end(CallResult::Answered, scenario.now);
    assert!(scenario.enter().is_some());
}

#[test]
fn a_half_open_breaker_opens_again_if_its_trial_call_fails_is_slow_or_does_not_return() {
    for result in [CallResult::Failed, CallResult::Slow] {
        let mut scenario = Scenario::opened();
        // The window is empty by then.
        scenario.after(Duration::from_secs(10));
        scenario.breaker.advance(true, scenario.now);
        assert_eq!(scenario.enter().unwrap().end(result, scenario.now), Some(BreakerState::Open));
        assert!(scenario.enter().is_none());
    }
    let scenario = Scenario::opened();
    scenario.breaker.advance(true, scenario.now);
    let _trial = scenario.enter().unwrap();
    let late = scenario.now + TRIAL;
    assert_eq!(scenario.breaker.advance(false, late.checked_sub(MS).unwrap()), None);
    assert_eq!(scenario.breaker.trial_left(late.checked_sub(MS).unwrap()), Some(MS));
    assert_eq!(scenario.breaker.advance(false, late), Some(BreakerState::Open));
    assert_eq!(scenario.breaker.trial_left(late), None);
}

#[test]
fn a_half_open_breaker_without_calls_is_closed_by_the_next_probe_and_opens_with_the_first_failure() {
    let mut scenario = Scenario::opened();
    scenario.after(SILENCE);
    scenario.breaker.advance(true, scenario.now);
    assert_eq!(scenario.breaker.advance(true, scenario.now), None, "not at once");
    assert_eq!(scenario.breaker.advance(true, scenario.now + IDLE), Some(BreakerState::Closed));
    // All calls that arrive together pass.
    let mut passes: Vec<_> = (0..64).map(|_| scenario.enter().unwrap()).collect();
    assert_eq!(passes.pop().unwrap().end(CallResult::Failed, scenario.now + IDLE), Some(BreakerState::Open));
    drop(passes);
    // Once the store has answered, it counts like any other.
    for _ in 0..2 {
        scenario.after(IDLE);
        scenario.breaker.advance(true, scenario.now);
    }
    scenario.after(Duration::from_secs(10)).calls(1, CallResult::Answered, MS);
    scenario.calls(1, CallResult::Failed, MS).assert_state(BreakerState::Closed);
}

#[test]
fn calls_begun_before_it_opened_do_not_count_after() {
    let scenario = Scenario::new();
    let old: Vec<_> = (0..40).map(|_| scenario.enter().unwrap()).collect();
    let mut old = old.into_iter();
    for _ in 0..20 {
        old.next().unwrap().end(CallResult::Failed, scenario.now);
    }
    scenario.assert_state(BreakerState::Open);
    assert_eq!(old.next().unwrap().end(CallResult::Answered, scenario.now), None);
    scenario.assert_state(BreakerState::Open);
    scenario.breaker.advance(true, scenario.now);
    scenario.enter().unwrap().end(CallResult::Answered, scenario.now);
    // They fail only now, after the store is back.
    for pass in old {
        assert_eq!(pass.end(CallResult::Failed, scenario.now), None);
    }
    assert_eq!(scenario.enter().unwrap().end(CallResult::Failed, scenario.now), None);
    scenario.assert_state(BreakerState::HalfOpen);
}

#[test]
fn calls_begun_before_an_outage_do_not_count_after_it() {
    let (breaker, now) = (Breaker::default(), Duration::from_secs(100));
    let old: Vec<_> = (0..100).map(|_| breaker.enter(now).unwrap()).collect();
    for pass in (0..20).map(|_| breaker.enter(now).unwrap()) {
        pass.end(CallResult::Failed, now);
    }
    breaker.advance(true, now);
    breaker.enter(now).unwrap().end(CallResult::Answered, now);
    assert_eq!(breaker.advance(false, now + RAMP), Some(BreakerState::Closed));
    assert!(old.into_iter().all(|pass| pass.end(CallResult::Failed, now + RAMP).is_none()));
    assert_eq!(breaker.state(), BreakerState::Closed);
}

#[test]
fn a_ramp_allows_one_more_call_in_flight_for_each_answered_call() {
    let scenario = Scenario::ramping();
    for at_once in [2, 4, 8, 16, 32, 64, 128] {
        let passes: Vec<_> = std::iter::from_fn(|| scenario.enter()).take(1000).collect();
        assert_eq!(passes.len(), at_once);
        assert!(passes.into_iter().all(|pass| pass.end(CallResult::Answered, scenario.now).is_none()));
    }
    let pass = scenario.enter().unwrap();
    assert_eq!(
        pass.end(CallResult::Answered, scenario.now),
        Some(BreakerState::Closed),
        "that many are as good as all"
    );
}

#[test]
fn a_ramp_never_refuses_calls_made_one_after_the_other() {
    let mut scenario = Scenario::ramping();
    for _ in 0..2000 {
        scenario.after(MS);
        scenario.enter().expect("it passes").end(CallResult::Answered, scenario.now);
    }
    scenario.assert_state(BreakerState::Closed);
}

#[test]
fn cancelled_calls_make_room_in_a_ramp() {
    let scenario = Scenario::ramping();
    for _ in 0..100 {
        let _both = (scenario.enter().unwrap(), scenario.enter().unwrap());
        assert!(scenario.enter().is_none());
    }
    scenario.assert_state(BreakerState::HalfOpen);
}

#[test]
fn a_ramp_ends_open_after_five_failures() {
    let mut scenario = Scenario::ramping();
    scenario.calls(4, CallResult::Failed, MS).assert_state(BreakerState::HalfOpen);
    scenario.calls(1, CallResult::Failed, MS).assert_state(BreakerState::Open);
}

#[test]
fn a_ramp_ends_after_a_second_without_calls() {
    let mut scenario = Scenario::ramping();
    scenario.after(RAMP);
    assert_eq!(scenario.breaker.advance(false, scenario.now), Some(BreakerState::Closed));
    assert_eq!(scenario.breaker.advance(false, scenario.now), None);
}

#[test]
fn an_answered_call_ends_a_silence() {
    let mut scenario = Scenario::new();
    for _ in 0..100 {
        scenario.calls(3, CallResult::Answered, MS).calls(1, CallResult::Failed, MS * 100);
        scenario.assert_state(BreakerState::Closed);
    }
}

#[test]
fn a_trial_call_was_not_made_through_a_closed_breaker() {
    let scenario = Scenario::opened();
    scenario.breaker.advance(true, scenario.now);
    assert!(!scenario.enter().unwrap().was_closed());
}

#[test]
fn a_call_of_an_earlier_ramp_makes_no_room_in_the_next() {
    let scenario = Scenario::ramping();
    let early = scenario.enter().unwrap();
    // It opens, and ramps again.
    for pass in (0..5).map(|_| scenario.enter().unwrap()) {
        pass.end(CallResult::Failed, scenario.now);
    }
    scenario.assert_state(BreakerState::Open);
    scenario.breaker.advance(true, scenario.now);
    scenario.enter().unwrap().end(CallResult::Answered, scenario.now);
    let _both = (scenario.enter().unwrap(), scenario.enter().unwrap());
    drop(early);
    assert!(scenario.enter().is_none());
}

#[test]
fn a_silence_begins_with_its_first_failure() {
    let mut scenario = Scenario::new();
    for _ in 0..5 {
        scenario.calls(1, CallResult::Failed, MS).after(MS * 110).assert_state(BreakerState::Closed);
    }
    scenario.calls(1, CallResult::Failed, MS).assert_state(BreakerState::Open);
}
