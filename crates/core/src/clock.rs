//! Time as a parameter: the [`Clock`] trait, the system's clock and the clocks that tests turn by hand.
//!
//! This is the only file that reads the machine's clocks. Everything else is handed an instant or a `dyn Clock`, so
//! that a test can stop time, and so that it stays visible whose clock judges what.

mod rfc3339;

use std::fmt;
use std::sync::Arc;
use std::time::Duration;

use serde::{Serialize, Serializer};

/// An instant: microseconds since the Unix epoch, UTC. Shown and serialised as RFC 3339.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Debug, Default)]
pub struct Timestamp(u64);

impl Timestamp {
    /// The instant that many microseconds after the epoch.
    pub const fn from_micros(micros: u64) -> Self {
        Self(micros)
    }

    /// Microseconds since the epoch.
    pub const fn as_micros(self) -> u64 {
        self.0
    }

    /// This instant moved later; stays at the largest instant instead of overflowing.
    #[must_use]
    pub fn plus(self, duration: Duration) -> Self {
        Self(self.0.saturating_add(micros(duration)))
    }

    /// The instant's text, as it is displayed.
    pub fn write(self, text: &mut [u8; rfc3339::LENGTH_MAX]) -> &str {
        rfc3339::write(self.0, text)
    }

    /// This instant moved earlier; stays at the epoch instead of going before it.
    #[must_use]
    pub fn minus(self, duration: Duration) -> Self {
        Self(self.0.saturating_sub(micros(duration)))
    }

    /// How far this instant lies after `earlier`; zero if it does not.
    pub fn since(self, earlier: Self) -> Duration {
        Duration::from_micros(self.0.saturating_sub(earlier.0))
    }
}

impl fmt::Display for Timestamp {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(self.write(&mut [0; _]))
    }
}

impl Serialize for Timestamp {
    fn serialize<S: Serializer>(&self, serializer: S) -> Result<S::Ok, S::Error> {
        serializer.serialize_str(self.write(&mut [0; _]))
    }
}

/// Where time comes from.
pub trait Clock: Send + Sync + 'static {
    /// The wall clock. It may be wrong and may be stepped in either direction; good for names and for display.
    fn wall(&self) -> Timestamp;

    /// Time passed since some fixed point. Never goes back, is never stepped; good for measuring.
    fn monotonic(&self) -> Duration;
}

/// The machine's own clocks.
pub struct SystemClock {
    origin: std::time::Instant,
}

impl SystemClock {
    /// A clock whose monotonic time starts now.
    #[expect(clippy::disallowed_methods, reason = "this file is where the machine's clocks are read")]
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
    #[expect(clippy::disallowed_methods, reason = "this file is where the machine's clocks are read")]
    fn wall(&self) -> Timestamp {
        let since_epoch = std::time::SystemTime::now().duration_since(std::time::UNIX_EPOCH);
        Timestamp(since_epoch.map_or(0, micros))
    }

    fn monotonic(&self) -> Duration {
        self.origin.elapsed()
    }
}

/// A store's clock inside this process: a base instant plus monotonic time, so that a stepped wall clock ends no lease.
///
/// The base is never behind the last instant that the store has persisted, so time does not run backwards over a
/// restart either.
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

    /// The store's instant.
    pub fn now(&self) -> Timestamp {
        self.base.plus(self.clock.monotonic().saturating_sub(self.origin))
    }
}

/// Whole microseconds of a duration; the largest `u64` instead of overflowing.
pub fn micros(duration: Duration) -> u64 {
    u64::try_from(duration.as_micros()).unwrap_or(u64::MAX)
}

/// A clock that moves only when a test says so.
#[cfg(any(test, feature = "test-util"))]
pub struct ManualClock {
    wall: std::sync::atomic::AtomicU64,
    monotonic: std::sync::atomic::AtomicU64,
}

#[cfg(any(test, feature = "test-util"))]
impl ManualClock {
    /// A clock that stands at `wall`, with monotonic time zero.
    pub fn at(wall: Timestamp) -> Self {
        Self { wall: wall.0.into(), monotonic: 0.into() }
    }

    /// Lets time pass on both clocks.
    pub fn advance(&self, by: Duration) {
        self.wall.fetch_add(micros(by), std::sync::atomic::Ordering::SeqCst);
        self.monotonic.fetch_add(micros(by), std::sync::atomic::Ordering::SeqCst);
    }

    /// Sets the wall clock, as an operator or NTP would, without time passing.
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
        assert_eq!(steady.now(), NOON);
        clock.step_wall(Timestamp::default());
        clock.advance(Duration::from_secs(2));
        assert_eq!(steady.now(), NOON.plus(Duration::from_secs(2)));
    }

    #[test]
    fn a_steady_clock_never_starts_behind_what_was_persisted() {
        let clock = Arc::new(ManualClock::at(NOON));
        let persisted = NOON.plus(Duration::from_hours(2));
        assert_eq!(SteadyClock::new(clock, persisted).now(), persisted);
    }

    #[test]
    fn instants_are_shown_in_rfc_3339() {
        assert_eq!(NOON.to_string(), "2023-11-14T22:13:20Z");
        assert_eq!(Timestamp::from_micros(1_700_000_000_000_001).to_string(), "2023-11-14T22:13:20.000001Z");
        assert!(Timestamp::from_micros(u64::MAX).to_string().starts_with("9999-"));
    }
}
