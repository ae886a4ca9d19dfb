//! Signals to the process.

use std::future::poll_fn;
use std::task::Poll;
use std::time::Duration;

use anyhow::Context as _;
use oncegate_core::clock::{Clock as _, SystemClock};
pub use rustix::process::Signal;
use tokio::signal::unix::{self, SignalKind, signal};

/// A signal that comes again within this time is the same request: `timeout` and some supervisors send one to the process, and
/// another one to its process group.
const REPEATED_WITHIN: Duration = Duration::from_secs(1);

/// Handlers of some signals.
pub struct Signals {
    handlers: Vec<Handler>,
    clock: SystemClock,
}

struct Handler {
    signals: unix::Signal,
    number: Signal,
    /// Time of its last arrival, not counting repeats.
    came_at: Option<Duration>,
}

impl Signals {
    /// Handles these signals from now on.
    ///
    /// # Errors
    /// One of them cannot be handled.
    pub fn new(signals: &[Signal]) -> anyhow::Result<Self> {
        let handler = |number: &Signal| {
            let signals = signal(SignalKind::from_raw(number.as_raw())).context("cannot listen for signals")?;
            Ok(Handler { signals, number: *number, came_at: None })
        };
        let handlers = signals.iter().map(handler).collect::<anyhow::Result<_>>()?;
        Ok(Self { handlers, clock: SystemClock::new() })
    }

    /// Waits for the next signal.
    pub async fn next(&mut self) -> Signal {
        self.next_and_whether_repeated().await.0
    }

    /// Waits for the next signal that is none of these and no repeat; others are ignored.
    pub async fn next_new_except(&mut self, ignored: &[Signal]) -> Signal {
        loop {
            let (signal, is_repeated) = self.next_and_whether_repeated().await;
            if !is_repeated && !ignored.contains(&signal) {
                return signal;
            }
        }
    }

    async fn next_and_whether_repeated(&mut self) -> (Signal, bool) {
        let Self { handlers, clock } = self;
        poll_fn(|cx| {
            let came = handlers.iter_mut().find_map(|handler| match handler.signals.poll_recv(cx) {
                Poll::Ready(Some(())) => Some((handler.number, handler.is_repeated_at(clock.monotonic()))),
                _ => None,
            });
            came.map_or(Poll::Pending, Poll::Ready)
        })
        .await
    }
}

impl Handler {
    /// Reports whether a signal at this time is a repeat.
    fn is_repeated_at(&mut self, now: Duration) -> bool {
        let is_repeated = self.came_at.is_some_and(|came_at| now.saturating_sub(came_at) < REPEATED_WITHIN);
        if !is_repeated {
            self.came_at = Some(now);
        }
        is_repeated
    }
}
