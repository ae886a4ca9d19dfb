//! Start times of operations. Open loop: at scheduled times, independent of earlier operations. Closed loop: as soon as
//! a connection is free.

use std::{
    hint,
    sync::{
        Arc,
        atomic::{AtomicU64, Ordering},
        mpsc,
    },
    thread,
    time::{Duration, Instant},
};

use anyhow::Context as _;
use tokio::sync::Semaphore;

use crate::{
    cores::{Cores, Role},
    proc::Watched,
};

/// Above ten thousand per second, operations start in small groups, since a wake-up for each would be too expensive.
const TICK_NS: u64 = 100_000;

/// Pacing of a run.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, serde::Serialize)]
#[serde(rename_all = "lowercase")]
pub(crate) enum Pacing {
    Open { per_second: u64 },
    Closed,
}

/// Operation to start: its number and its scheduled time.
#[derive(Debug, Clone, Copy)]
pub(crate) struct Slot {
    pub(crate) number: u64,
    pub(crate) due: Instant,
}

/// Hands out slots to connections until the run ends.
#[derive(Debug)]
pub(crate) struct Pace {
    pacing: Pacing,
    starts: Instant,
    ends: Instant,
    slots: u64,
    taken: AtomicU64,
    due: Arc<Semaphore>,
    /// Thread that releases slots. It lives until the pace is dropped, so that its CPU time can be read.
    pacer: Option<(Watched, mpsc::Sender<()>)>,
}

impl Pace {
    /// Starts the pace. Each of `takers` connections takes slots until it receives `None`.
    pub(crate) fn start(
        pacing: Pacing,
        starts: Instant,
        ends: Instant,
        takers: u64,
        cores: &Cores,
    ) -> anyhow::Result<Self> {
        let slots = match pacing {
            Pacing::Open { per_second } => per_second * (ends - starts).as_secs(),
            Pacing::Closed => u64::MAX,
        };
        let due = Arc::new(Semaphore::new(0));
        let mut pacer = None;
        if let Pacing::Open { per_second } = pacing {
            let due = Arc::clone(&due);
            let ((alive, ended), (tell, learn)) = (mpsc::channel(), mpsc::channel());
            let limit = cores.limit(Role::Pacer)?;
            let spins = cores.pacer_spins();
            // A separate thread: the runtime's timer has a resolution of a millisecond, this one about fifty
            // microseconds.
            thread::spawn(move || {
                // Fails only if there is no receiver.
                let _ = tell.send(Watched::pacer());
                release(&due, starts, per_second, slots, takers, spins);
                // An error is the end of the pace.
                let _ = ended.recv();
            });
            drop(limit);
            pacer = Some((learn.recv().context("the pacer did not start")?, alive));
        }
        Ok(Self { pacing, starts, ends, slots, taken: AtomicU64::new(0), due, pacer })
    }

    /// Returns the thread that releases slots, in an open loop.
    pub(crate) fn pacer(&self) -> Option<Watched> {
        self.pacer.as_ref().map(|(pacer, _)| pacer.clone())
    }

    /// Returns the next slot; `None` ends the run for this connection.
    pub(crate) async fn next(&self) -> Option<Slot> {
        match self.pacing {
            Pacing::Open { per_second } => {
                self.due.acquire().await.ok()?.forget();
                let number = self.taken.fetch_add(1, Ordering::Relaxed);
                (number < self.slots).then(|| Slot { number, due: self.starts + due_after(number, per_second) })
            }
            Pacing::Closed => {
                let number = self.taken.fetch_add(1, Ordering::Relaxed);
                let due = Instant::now();
                (due < self.ends).then_some(Slot { number, due })
            }
        }
    }
}

fn release(due: &Semaphore, starts: Instant, per_second: u64, slots: u64, takers: u64, spins: bool) {
    let mut released = 0;
    while released < slots {
        let next = starts + due_after(released, per_second);
        if spins {
            while Instant::now() < next {
                hint::spin_loop();
            }
        } else {
            thread::sleep(next.saturating_duration_since(Instant::now()));
        }
        let elapsed = starts.elapsed();
        let before = released;
        while released < slots && due_after(released, per_second) <= elapsed {
            released += 1;
        }
        due.add_permits(count(released - before));
    }
    // One more permit for each taker, after the last slot, to end it.
    due.add_permits(count(takers));
}

fn due_after(number: u64, per_second: u64) -> Duration {
    let exact = number * 1_000_000_000 / per_second;
    let grouped = if per_second > 1_000_000_000 / TICK_NS { exact / TICK_NS * TICK_NS } else { exact };
    Duration::from_nanos(grouped)
}

fn count(permits: u64) -> usize {
    usize::try_from(permits).unwrap_or(Semaphore::MAX_PERMITS)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn slow_schedules_are_exact_and_fast_ones_are_grouped() {
        assert_eq!(due_after(3, 1000), Duration::from_millis(3));
        assert_eq!(due_after(5, 50_000), Duration::from_micros(100));
        assert_eq!(due_after(50_000, 50_000), Duration::from_secs(1));
    }

    #[tokio::test]
    async fn an_open_pace_hands_out_every_slot_once_and_then_ends_all_takers() {
        let starts = Instant::now();
        let ends = starts + Duration::from_secs(1);
        let pace = Pace::start(Pacing::Open { per_second: 100 }, starts, ends, 2, &Cores::default());
        let pace = pace.expect("no pace");
        let mut numbers = Vec::new();
        while let Some(slot) = pace.next().await {
            assert!(slot.due <= Instant::now(), "slot {} was handed out early", slot.number);
            numbers.push(slot.number);
        }
        assert_eq!(numbers, (0..100).collect::<Vec<_>>());
        assert!(pace.next().await.is_none(), "the second taker waits without end");
        let share = pace.pacer().expect("no pacer").cpu_us();
        assert!(share.is_ok(), "its CPU time can no longer be read: {share:?}");
    }
}
