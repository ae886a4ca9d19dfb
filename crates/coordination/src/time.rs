//! The store's time. Coordination services have no clock that may decide. So the clock is a key, and gateways advance
//! it by their own elapsed time: see `docs/adr/0151-a-clock-that-gateways-push.md`.

use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::Duration;

use bytes::Bytes;
use oncegate_core::clock::{Clock, Timestamp, micros};
use oncegate_core::engine::Determinate;

/// Most that one write adds to the clock.
pub const STEP_MAX: Duration = Duration::from_millis(250);

/// Most that the clock gains on real time, over any span: a write in flight, and the one after it.
pub const GAIN_MAX: Duration = Duration::from_millis(500);

/// End of the instants that a clock can show, in microseconds: the year 2255. A value of another program is rarely below it.
const CLOCK_END: u64 = 1 << 53;

/// The store's time as one reply has shown it.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Time {
    /// The clock, once read. A claim that has ended by it has certainly ended.
    pub clock: Timestamp,
    /// No clock is ahead of this now. New ends are counted from here.
    pub latest: Timestamp,
}

/// The newest value of the clock that this gateway has read.
pub struct StoreTime {
    own: Arc<dyn Clock>,
    view: Mutex<View>,
}

#[derive(Clone, Copy, Default)]
struct View {
    clock: Timestamp,
    /// Time at which the request was sent whose reply showed it.
    sent_at: Duration,
    /// The latest returned instant: the rest of a claim never grows.
    latest: Timestamp,
}

impl StoreTime {
    /// Creates the time of a store that was not read yet.
    pub fn new(own: Arc<dyn Clock>) -> Self {
        Self { own, view: Mutex::default() }
    }

    /// Returns this gateway's monotonic time.
    pub fn monotonic(&self) -> Duration {
        self.own.monotonic()
    }

    /// Returns the first value of a missing clock: above every value that was seen, and above the wall clock.
    pub fn first_value(&self) -> Timestamp {
        self.own.wall().max(self.view().clock.plus(GAIN_MAX))
    }

    /// Returns the newest value of the clock.
    pub fn seen(&self) -> Timestamp {
        self.view().clock
    }

    /// Returns the time from earlier reads.
    pub fn now(&self) -> Time {
        self.time_of(&mut self.view())
    }

    /// Records the result of a linearizable read that was sent at this monotonic time.
    pub fn observe(&self, clock: Timestamp, sent_at: Duration) -> Time {
        let mut view = self.view();
        if clock >= view.clock {
            *view = View { clock, sent_at, ..*view };
        }
        self.time_of(&mut view)
    }

    fn time_of(&self, view: &mut View) -> Time {
        let passed = self.own.monotonic().saturating_sub(view.sent_at);
        view.latest = view.latest.max(view.clock.plus(passed + GAIN_MAX));
        Time { clock: view.clock, latest: view.latest }
    }

    fn view(&self) -> MutexGuard<'_, View> {
        self.view.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

impl Time {
    /// Returns the end of what lasts this long from now on, at least.
    pub fn end_of(self, lasts: Duration) -> Timestamp {
        self.latest.plus(lasts)
    }

    /// Returns the shortest possible time until `end`. It is at most `lasts_us`, the full length.
    pub fn left(self, end: Timestamp, lasts_us: u64) -> Duration {
        end.since(self.latest).min(Duration::from_micros(lasts_us)).max(Duration::from_micros(1))
    }
}

/// Returns the stored form of an instant: its bytes compare as it does.
pub fn encode(instant: Timestamp) -> Bytes {
    Bytes::copy_from_slice(&instant.as_micros().to_be_bytes())
}

/// Reads an instant; `None` if it is none.
pub fn decode(stored: &[u8]) -> Option<Timestamp> {
    stored.try_into().ok().map(u64::from_be_bytes).filter(|micros| *micros < CLOCK_END).map(Timestamp::from_micros)
}

/// Reads the store's clock, which has this key.
///
/// # Errors
/// The value is none of the engine's. It must not be replaced.
pub fn read(stored: &[u8], key: &str) -> Result<Timestamp, Determinate> {
    decode(stored).ok_or_else(|| not_ours(key))
}

/// Returns the error of a key that holds a value which no release has written.
pub(crate) fn not_ours(key: &str) -> Determinate {
    Determinate::Incompatible(format!(
        "{key} has a value that is not one of Oncegate: another program uses these keys; choose another prefix"
    ))
}

/// Knowledge of this gateway about the clock's last write.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct LastTick {
    /// The value that it wrote.
    pub clock: Timestamp,
    /// The mark that it left.
    pub mark: i64,
    /// The clock is advanced by the time since then: the sending of an own write that was answered, the receipt of another's.
    pub since: Duration,
    /// This gateway wrote it.
    pub is_own: bool,
}

impl LastTick {
    /// Returns the next value, at this monotonic time.
    pub fn next(self, now: Duration) -> Timestamp {
        let passed = now.saturating_sub(self.since).min(STEP_MAX);
        Timestamp::from_micros(self.clock.as_micros().saturating_add(micros(passed)))
    }
}

#[cfg(test)]
mod tests {
    use oncegate_core::clock::ManualClock;

    use super::*;

    const MS: Duration = Duration::from_millis(1);

    fn at(ms: u64) -> Timestamp {
        Timestamp::from_micros(ms * 1000)
    }

    #[test]
    fn an_end_is_counted_from_the_sending_of_the_read_and_lies_behind_what_the_clock_may_gain() {
        let own = Arc::new(ManualClock::at(Timestamp::default()));
        let time = StoreTime::new(own.clone());
        let sent_at = time.monotonic();
        own.advance(30 * MS);
        let seen = time.observe(at(1000), sent_at);
        assert_eq!((seen.clock, seen.latest), (at(1000), at(1530)));
        assert_eq!(seen.end_of(200 * MS), at(1730));
        own.advance(70 * MS);
        assert_eq!(time.now(), Time { clock: at(1000), latest: at(1600) });
        // A late, older reply changes nothing.
        assert_eq!(time.observe(at(900), sent_at).clock, at(1000));
    }

    #[test]
    fn the_latest_time_does_not_go_back_when_the_clock_is_read_again() {
        let own = Arc::new(ManualClock::at(Timestamp::default()));
        let time = StoreTime::new(own.clone());
        time.observe(at(1000), time.monotonic());
        own.advance(100 * MS);
        assert_eq!(time.now().latest, at(1600));
        assert_eq!(time.observe(at(1001), time.monotonic()), Time { clock: at(1001), latest: at(1600) });
    }

    #[test]
    fn what_is_left_is_never_more_than_was_granted_or_than_is_sure() {
        let now = Time { clock: at(1000), latest: at(1500) };
        assert_eq!(now.left(at(1800), 1_000_000), 300 * MS);
        assert_eq!(now.left(at(9000), 1_000_000), 1000 * MS);
        assert_eq!(now.left(at(1400), 1_000_000), Duration::from_micros(1), "it has not ended, by the clock");
    }

    #[test]
    fn a_tick_adds_the_time_that_has_passed_and_no_more_than_the_largest_step() {
        let last = LastTick { clock: at(1000), mark: 1, since: 50 * MS, is_own: true };
        assert_eq!(last.next(150 * MS), at(1100));
        assert_eq!(last.next(40 * MS), at(1000));
        assert_eq!(last.next(9000 * MS), at(1250), "a gateway that was stopped");
    }

    #[test]
    fn instants_compare_as_their_bytes() {
        assert!(encode(at(1)) < encode(at(300)) && encode(at(300)) < encode(Timestamp::from_micros(u64::MAX)));
        assert_eq!((decode(&encode(at(7))), decode(b"1")), (Some(at(7)), None));
    }
}
