//! Minimum pace of bodies that are sent on while they arrive: 1 KiB/s over each 30 s. Counts only the time that the proxy waits for
//! the sender.

use std::pin::Pin;
use std::sync::Arc;
use std::task::{Context, Poll};
use std::time::Duration;

use oncegate_core::clock::Clock;
use oncegate_telemetry::metrics::proxy::BoundMetrics;
use tokio::time::{Sleep, sleep};

use super::torn::{Reason, Torn};

/// Time that a sender may be late by.
const CREDIT: Duration = Duration::from_secs(30);

/// Bytes that pay for a second.
const BYTES_PER_SECOND: u64 = 1 << 10;

/// The pace of a body.
pub(super) struct Pace {
    clock: Arc<dyn Clock>,
    /// Time that the sender may still take without sending anything.
    credit: Duration,
    /// Since when the sender is waited for, and until when.
    waiting: Option<(Duration, Pin<Box<Sleep>>)>,
    pub(super) torn: Torn,
    metrics: BoundMetrics,
}

impl Pace {
    pub(super) fn new(clock: Arc<dyn Clock>, metrics: BoundMetrics) -> Self {
        Self { clock, credit: CREDIT, waiting: None, torn: Torn::default(), metrics }
    }

    /// Notes that this many bytes were received.
    pub(super) fn received(&mut self, bytes: usize) {
        if let Some((since, _timer)) = self.waiting.take() {
            self.credit = self.credit.saturating_sub(self.clock.monotonic().saturating_sub(since));
        }
        let paid = Duration::from_millis(bytes as u64 * 1000 / BYTES_PER_SECOND);
        self.credit = (self.credit + paid).min(CREDIT);
    }

    /// Returns ready when the sender is too slow. Called while nothing has arrived.
    pub(super) fn poll_too_slow(&mut self, cx: &mut Context<'_>) -> Poll<axum::Error> {
        let (_, timer) = self.waiting.get_or_insert_with(|| (self.clock.monotonic(), Box::pin(sleep(self.credit))));
        timer.as_mut().poll(cx).map(|()| {
            if self.torn.record(Reason::TooSlow) {
                self.metrics.reached();
            }
            axum::Error::new(std::io::Error::from(std::io::ErrorKind::TimedOut))
        })
    }
}

#[cfg(test)]
mod tests {
    use std::future::poll_fn;

    use futures_util::FutureExt as _;
    use oncegate_core::clock::Timestamp;
    use oncegate_telemetry::metrics::proxy::Bound;
    use tokio::time::advance;

    use super::*;

    /// The paused clock of the runtime.
    struct Paused(tokio::time::Instant);

    impl Clock for Paused {
        fn wall(&self) -> Timestamp {
            unreachable!()
        }

        fn monotonic(&self) -> Duration {
            self.0.elapsed()
        }
    }

    #[expect(clippy::disallowed_methods, reason = "the source of a test's clock")]
    fn pace() -> Pace {
        Pace::new(Arc::new(Paused(tokio::time::Instant::now())), BoundMetrics::new(Bound::BodyRate))
    }

    /// Lets the sender send pieces of this many bytes, each after this time. Returns when it is cut, at most after an hour.
    async fn cut_after(bytes: usize, pause: Duration) -> Option<Duration> {
        let (mut pace, mut time) = (pace(), Duration::ZERO);
        while time < Duration::from_hours(1) {
            for _ in 0..10 {
                if poll_fn(|cx| pace.poll_too_slow(cx)).now_or_never().is_some() {
                    assert!(pace.torn.problem().is_some());
                    return Some(time);
                }
                advance(pause / 10).await;
                time += pause / 10;
            }
            pace.received(bytes);
        }
        None
    }

    #[tokio::test(start_paused = true)]
    async fn a_body_may_not_dribble() {
        for (bytes, pause) in [(0, 1), (1, 1), (1, 2), (512, 1), (1 << 20, 40)] {
            let cut = cut_after(bytes, Duration::from_secs(pause)).await;
            assert!(cut.is_some_and(|cut| cut < Duration::from_secs(70)), "{bytes} bytes each {pause} s: {cut:?}");
        }
        for (bytes, pause) in [(1100, 1), (30_000, 20), (1 << 20, 29)] {
            assert_eq!(cut_after(bytes, Duration::from_secs(pause)).await, None, "{bytes} bytes each {pause} s");
        }
    }

    #[tokio::test(start_paused = true)]
    async fn time_in_which_nobody_waits_for_the_sender_does_not_count() {
        let mut pace = pace();
        for _ in 0..100 {
            assert!(poll_fn(|cx| pace.poll_too_slow(cx)).now_or_never().is_none());
            pace.received(1);
            advance(Duration::from_secs(40)).await;
        }
    }
}
