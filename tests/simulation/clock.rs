//! The clocks of a simulated world. All use the runtime's paused time. It advances only when all tasks wait, so
//! timeouts and clocks advance together.

use std::sync::atomic::{AtomicU64, Ordering};
use std::time::Duration;

use oncegate_core::clock::{Clock, Timestamp};
use tokio::time::Instant;

/// Start of every simulated world, by a correct wall clock: 2026-01-01.
const BEGINNING: Timestamp = Timestamp::from_micros(1_767_225_600_000_000);

/// Real time of a world, which no program in it can read.
#[derive(Clone, Copy)]
pub(crate) struct Time {
    beginning: Instant,
}

impl Time {
    /// Starts now. The runtime's time must be paused.
    #[expect(clippy::disallowed_methods, reason = "this file is the source of a simulated world's time")]
    pub(crate) fn begin() -> Self {
        Self { beginning: Instant::now() }
    }

    /// Returns the time since the start of the world.
    pub(crate) fn now(self) -> Duration {
        self.beginning.elapsed()
    }
}

/// Clocks of a machine: a correct monotonic one, and a wrong wall clock that may be stepped.
pub(crate) struct MachineClock {
    time: Time,
    /// Offset of the wall clock from `BEGINNING` at the start, in microseconds.
    wall_ahead: AtomicU64,
}

impl MachineClock {
    /// Creates clocks with a wall clock that is this far ahead.
    pub(crate) fn new(time: Time, wall_ahead: Duration) -> Self {
        let clock = Self { time, wall_ahead: AtomicU64::new(0) };
        clock.step_wall(wall_ahead);
        clock
    }

    /// Steps the wall clock, forward or back.
    pub(crate) fn step_wall(&self, wall_ahead: Duration) {
        self.wall_ahead.store(micros(wall_ahead), Ordering::Relaxed);
    }
}

impl Clock for MachineClock {
    fn wall(&self) -> Timestamp {
        BEGINNING.plus(self.monotonic() + Duration::from_micros(self.wall_ahead.load(Ordering::Relaxed)))
    }

    fn monotonic(&self) -> Duration {
        self.time.now()
    }
}

/// Clock of the store. It decides all ends. It may be stepped, as a server's clock may.
pub(crate) struct StoreClock {
    time: Time,
    /// Sum of all steps, in microseconds, plus an offset that leaves room for steps back.
    ahead: AtomicU64,
    /// Lower bound: the start of the store's memory.
    floor: AtomicU64,
}

/// More than the sum of all steps back in a world.
const ROOM_MICROS: u64 = 10 * 365 * 86_400_000_000;

impl StoreClock {
    pub(crate) fn new(time: Time) -> Self {
        Self { time, ahead: AtomicU64::new(ROOM_MICROS), floor: AtomicU64::new(0) }
    }

    /// Returns the store's time, in microseconds.
    pub(crate) fn now(&self) -> u64 {
        micros(self.time.now()) + self.ahead.load(Ordering::Relaxed)
    }

    /// Records that the store starts with an empty memory.
    pub(crate) fn begin_anew(&self) {
        self.floor.store(self.now(), Ordering::Relaxed);
    }

    pub(crate) fn step_forward(&self, by: Duration) {
        self.ahead.fetch_add(micros(by), Ordering::Relaxed);
    }

    /// Returns how far it can be stepped back, at most `by`.
    pub(crate) fn room_back(&self, by: Duration) -> Duration {
        by.min(Duration::from_micros(self.now() - self.floor.load(Ordering::Relaxed)))
    }

    /// Steps back by at most the result of [`StoreClock::room_back`].
    pub(crate) fn step_back(&self, by: Duration) {
        self.ahead.fetch_sub(micros(by), Ordering::Relaxed);
    }
}

impl Clock for StoreClock {
    fn wall(&self) -> Timestamp {
        BEGINNING.plus(self.monotonic())
    }

    fn monotonic(&self) -> Duration {
        Duration::from_micros(self.now())
    }
}

/// Returns a time of the store as the instant that its answers name.
pub(crate) fn instant(store_now: u64) -> Timestamp {
    BEGINNING.plus(Duration::from_micros(store_now))
}

pub(crate) fn micros(duration: Duration) -> u64 {
    u64::try_from(duration.as_micros()).expect("a world does not last so long")
}
