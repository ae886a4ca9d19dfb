//! The clocks of a simulated world. All stand on the runtime's paused time, which moves only when everybody waits: what
//! the wrappers wait for and what the clocks show advance together.

use std::sync::atomic::{AtomicU64, Ordering};
use std::time::Duration;

use oncegate::domain::clock::{Clock, Timestamp};
use tokio::time::Instant;

/// When every simulated world begins, by an honest wall clock: 2026-01-01.
const BEGINNING: Timestamp = Timestamp::from_micros(1_767_225_600_000_000);

/// The time that really passes in a world, which nobody in it can read.
#[derive(Clone, Copy)]
pub(crate) struct Time {
    beginning: Instant,
}

impl Time {
    /// Begins now. The runtime's time must be paused.
    #[expect(clippy::disallowed_methods, reason = "this file is where a simulated world's time comes from")]
    pub(crate) fn begin() -> Self {
        Self { beginning: Instant::now() }
    }

    /// How long the world has been going on.
    pub(crate) fn now(self) -> Duration {
        self.beginning.elapsed()
    }
}

/// A machine's clocks: an honest monotonic one, and a wall clock that is wrong and may be stepped.
pub(crate) struct MachineClock {
    time: Time,
    /// How far the wall clock is from `BEGINNING` when the world begins, in microseconds.
    wall_ahead: AtomicU64,
}

impl MachineClock {
    /// A wall clock that is so far ahead.
    pub(crate) fn new(time: Time, wall_ahead: Duration) -> Self {
        let clock = Self { time, wall_ahead: AtomicU64::new(0) };
        clock.step_wall(wall_ahead);
        clock
    }

    /// Sets the wall clock, forward or back.
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

/// The store's clock, which judges what has ended. It is stepped as a server's may be.
pub(crate) struct StoreClock {
    time: Time,
    /// What steps have come to, in microseconds, from an offset that leaves room for steps back.
    ahead: AtomicU64,
    /// What it never goes behind: when the store's memory began.
    floor: AtomicU64,
}

/// More than all steps back in a world come to.
const ROOM_MICROS: u64 = 10 * 365 * 86_400_000_000;

impl StoreClock {
    pub(crate) fn new(time: Time) -> Self {
        Self { time, ahead: AtomicU64::new(ROOM_MICROS), floor: AtomicU64::new(0) }
    }

    /// The store's instant, in microseconds.
    pub(crate) fn now(&self) -> u64 {
        micros(self.time.now()) + self.ahead.load(Ordering::Relaxed)
    }

    /// The store begins anew, with an empty memory.
    pub(crate) fn begin_anew(&self) {
        self.floor.store(self.now(), Ordering::Relaxed);
    }

    pub(crate) fn step_forward(&self, by: Duration) {
        self.ahead.fetch_add(micros(by), Ordering::Relaxed);
    }

    /// How far it can be stepped back, at most `by`.
    pub(crate) fn room_back(&self, by: Duration) -> Duration {
        by.min(Duration::from_micros(self.now() - self.floor.load(Ordering::Relaxed)))
    }

    /// At most by what [`StoreClock::room_back`] says.
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

pub(crate) fn micros(duration: Duration) -> u64 {
    u64::try_from(duration.as_micros()).expect("a world does not last so long")
}
