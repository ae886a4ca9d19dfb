//! Events of a connection: heartbeats, checks, and the end of the engine.

use std::future::pending;
use std::time::Duration;

use futures_util::StreamExt as _;
use futures_util::future::BoxFuture;
use futures_util::stream::FuturesUnordered;
use tokio::time::{Interval, MissedTickBehavior, interval, sleep};
use tokio_util::sync::CancellationToken;

use super::Intervals;

/// A connection that lasted this long was a good one: the next one is opened at once.
const STEADY: Duration = Duration::from_secs(1);

/// Event of a connection.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(super) enum Event {
    /// The engine is closing.
    Closing,
    /// A heartbeat is due.
    Heartbeat,
    /// A check of the server is due.
    Check,
    /// The connection is a good one.
    Steady,
}

/// Waits for events. Each has a separate waker, since a worker polls this for every call: polling its timers would cost more
/// than the call.
pub(super) struct Events(FuturesUnordered<BoxFuture<'static, (Event, Option<Interval>)>>);

impl Events {
    /// Starts the times of a connection that was just opened, and checked.
    pub(super) async fn start(intervals: Intervals, closing: CancellationToken) -> Self {
        let events = Self(FuturesUnordered::new());
        events.0.push(Box::pin(async move {
            closing.cancelled().await;
            (Event::Closing, None)
        }));
        events.0.push(Box::pin(async {
            sleep(STEADY).await;
            (Event::Steady, None)
        }));
        let ticks = [(Event::Heartbeat, Some(intervals.heartbeat)), (Event::Check, intervals.check)];
        for (event, every) in ticks {
            let Some(every) = every else { continue };
            let mut ticks = interval(every);
            ticks.set_missed_tick_behavior(MissedTickBehavior::Delay);
            // The first tick is at once.
            ticks.tick().await;
            events.wait_for_tick(event, ticks);
        }
        events
    }

    /// Returns the next event.
    pub(super) async fn next(&mut self) -> Event {
        match self.0.next().await {
            Some((event, ticks)) => {
                if let Some(ticks) = ticks {
                    self.wait_for_tick(event, ticks);
                }
                event
            }
            // Not reached: heartbeats never end.
            None => pending().await,
        }
    }

    fn wait_for_tick(&self, event: Event, mut ticks: Interval) {
        self.0.push(Box::pin(async move {
            ticks.tick().await;
            (event, Some(ticks))
        }));
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[tokio::test(start_paused = true)]
    async fn ticks_repeat_and_all_else_happens_once() {
        let (heartbeat, check) = (Duration::from_millis(400), Duration::from_millis(1_100));
        let closing = CancellationToken::new();
        let intervals = Intervals { heartbeat, check: Some(check) };
        let mut events = Events::start(intervals, closing.clone()).await;
        let mut seen = Vec::new();
        for _ in 0..5 {
            seen.push(events.next().await);
        }
        assert_eq!(seen, [Event::Heartbeat, Event::Heartbeat, Event::Steady, Event::Check, Event::Heartbeat]);
        closing.cancel();
        assert_eq!(events.next().await, Event::Closing);
        assert_eq!(events.next().await, Event::Heartbeat);
    }
}
