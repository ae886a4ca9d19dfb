//! Time as a parameter: the [`Clock`] trait, the system's clock, and the manual clock of tests. Only this file reads
//! the machine's clocks. All other code gets an instant or a `dyn Clock`. So a test can stop time, and the code shows
//! which clock decides.

mod rfc3339;

use std::fmt;
use std::sync::Arc;
use std::time::Duration;

use serde::{Serialize, Serializer};

/// An instant: microseconds since the Unix epoch, UTC. Shown and serialised as RFC 3339 with six digits of the
/// fraction.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Debug, Default)]
pub struct Timestamp(u64);

impl Timestamp {
    /// Returns the instant this many microseconds after the epoch.
    pub const fn from_micros(micros: u64) -> Self {
        Self(micros)
    }

    /// Returns the microseconds since the epoch.
    pub const fn as_micros(self) -> u64 {
        self.0
    }

    /// Returns a later instant, at most the largest one.
    #[must_use]
    pub fn plus(self, duration: Duration) -> Self {
        Self(self.0.saturating_add(micros(duration)))
    }

    /// Writes the instant's text, the same as `Display`.
    pub fn write(self, text: &mut [u8; rfc3339::LENGTH]) -> &[u8] {
        rfc3339::write(self.0, text)
    }

    fn text(self, text: &mut [u8; rfc3339::LENGTH]) -> &str {
        // It is ASCII.
        std::str::from_utf8(self.write(text)).unwrap_or_default()
    }

    /// Returns an earlier instant, at least the epoch.
    #[must_use]
    pub fn minus(self, duration: Duration) -> Self {
        Self(self.0.saturating_sub(micros(duration)))
    }

    /// Returns the time since `earlier`; zero if that is later.
    pub fn since(self, earlier: Self) -> Duration {
        Duration::from_micros(self.0.saturating_sub(earlier.0))
    }
}

impl fmt::Display for Timestamp {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(self.text(&mut [0; _]))
    }
}

impl Serialize for Timestamp {
    fn serialize<S: Serializer>(&self, serializer: S) -> Result<S::Ok, S::Error> {
        serializer.serialize_str(self.text(&mut [0; _]))
    }
}

/// A source of time.
pub trait Clock: Send + Sync + 'static {
    /// Returns the time of the wall clock. It may be wrong, and may be stepped in either direction: for names and display.
    fn wall(&self) -> Timestamp;

    /// Returns the time since a fixed instant. Never decreases and is never stepped: for measuring.
    fn monotonic(&self) -> Duration;
}

/// The clocks of the machine.
pub struct SystemClock {
    origin: std::time::Instant,
}

impl SystemClock {
    /// Creates a clock whose monotonic time starts now.
    #[expect(clippy::disallowed_methods, reason = "only this file reads the machine's clocks")]
    pub fn new() -> Self {
        Self { origin: std::time::Instant::now() }
    }
}

impl Default for SystemClock {
    fn default() -> Self {
        Self::new()
    }
}

impl Clock for SystemClock {
    #[expect(clippy::disallowed_methods, reason = "only this file reads the machine's clocks")]
    fn wall(&self) -> Timestamp {
        let since_epoch = std::time::SystemTime::now().duration_since(std::time::UNIX_EPOCH);
        Timestamp(since_epoch.map_or(0, micros))
    }

    fn monotonic(&self) -> Duration {
        self.origin.elapsed()
    }
}

/// The clock of a store in this process: a base instant plus monotonic time, so that a stepped wall clock ends no lease. The
/// base is never behind the last instant that the store has persisted, so time does not go back at a restart.
#[derive(Clone)]
pub struct SteadyClock {
    clock: Arc<dyn Clock>,
    base: Timestamp,
    origin: Duration,
}

impl SteadyClock {
    /// Starts at the wall clock's instant, or at `not_before` if the wall clock is behind it.
    pub fn new(clock: Arc<dyn Clock>, not_before: Timestamp) -> Self {
        let base = clock.wall().max(not_before);
        let origin = clock.monotonic();
        Self { clock, base, origin }
    }

    /// Returns the current instant of the store.
    pub fn now(&self) -> Timestamp {
        self.base.plus(self.clock.monotonic().saturating_sub(self.origin))
    }
}

/// Returns a duration in whole milliseconds.
pub fn millis(duration: Duration) -> u64 {
    u64::try_from(duration.as_millis()).unwrap_or(u64::MAX)
}

/// Returns the whole microseconds of a duration, at most the largest `u64`.
pub fn micros(duration: Duration) -> u64 {
    u64::try_from(duration.as_micros()).unwrap_or(u64::MAX)
}

/// A clock that only a test moves.
#[cfg(any(test, feature = "test-util"))]
pub struct ManualClock {
    wall: std::sync::atomic::AtomicU64,
    monotonic: std::sync::atomic::AtomicU64,
}

#[cfg(any(test, feature = "test-util"))]
impl ManualClock {
    /// Creates a clock at this wall time, with monotonic time zero.
    pub fn at(wall: Timestamp) -> Self {
        Self { wall: wall.0.into(), monotonic: 0.into() }
    }

    /// Advances both clocks.
    pub fn advance(&self, by: Duration) {
        self.wall.fetch_add(micros(by), std::sync::atomic::Ordering::SeqCst);
        self.monotonic.fetch_add(micros(by), std::sync::atomic::Ordering::SeqCst);
    }

    /// Sets the wall clock, like an operator or NTP. The monotonic clock stays.
    pub fn step_wall(&self, to: Timestamp) {
        self.wall.store(to.0, std::sync::atomic::Ordering::SeqCst);
    }
}

#[cfg(any(test, feature = "test-util"))]
impl Clock for ManualClock {
    fn wall(&self) -> Timestamp {
        Timestamp(self.wall.load(std::sync::atomic::Ordering::SeqCst))
    }

    fn monotonic(&self) -> Duration {
        Duration::from_micros(self.monotonic.load(std::sync::atomic::Ordering::SeqCst))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const NOON: Timestamp = Timestamp::from_micros(1_700_000_000_000_000);

    #[test]
    fn a_stepped_wall_clock_does_not_move_a_steady_clock() {
        let clock = Arc::new(ManualClock::at(NOON));
        let steady = SteadyClock::new(clock.clone(), Timestamp::default());
        clock.step_wall(NOON.plus(Duration::from_hours(1)));
        assert_eq!((clock.wall(), steady.now()), (NOON.plus(Duration::from_hours(1)), NOON));
        clock.step_wall(Timestamp::default());
        clock.advance(Duration::from_secs(2));
        assert_eq!(steady.now(), NOON.plus(Duration::from_secs(2)));
    }

    #[test]
    fn a_steady_clock_never_starts_before_the_persisted_instant() {
        let clock = Arc::new(ManualClock::at(NOON));
        let persisted = NOON.plus(Duration::from_hours(2));
        assert_eq!(SteadyClock::new(clock, persisted).now(), persisted);
    }

    #[test]
    fn an_earlier_instant_is_at_least_the_epoch() {
        assert_eq!(NOON.minus(Duration::from_micros(1)), Timestamp::from_micros(1_699_999_999_999_999));
        assert_eq!(NOON.minus(Duration::MAX), Timestamp::default());
    }

    #[test]
    fn instants_are_displayed_in_rfc_3339() {
        assert_eq!(NOON.to_string(), "2023-11-14T22:13:20.000000Z");
        assert_eq!(Timestamp::from_micros(1_700_000_000_000_001).to_string(), "2023-11-14T22:13:20.000001Z");
        assert!(Timestamp::from_micros(u64::MAX).to_string().starts_with("9999-"));
    }
}
