//! What follows on the breaker's opening: what is on its way is not waited for any longer, and the engine is probed until it
//! answers.

use std::sync::atomic::Ordering;
use std::sync::{Arc, Weak};
use std::time::Duration;

use tokio::time::sleep;

use super::Guard;
use crate::engine::EngineError;
use crate::engine::breaker::BreakerState;

/// Between two probes of an engine whose breaker is open. Each lasts for a random time up to twice as long at most, so that
/// gateways do not all come at once.
const PROBE_EVERY: Duration = Duration::from_millis(75);

impl Guard {
    /// The breaker has opened.
    pub(super) fn has_opened(self: &Arc<Self>) {
        self.opened.notify_waiters();
        if !self.is_probed.swap(true, Ordering::SeqCst) {
            let pause = self.probe_pause();
            tokio::spawn(probe_until_answered(Arc::downgrade(self), pause));
        }
    }

    /// A call that was not answered soon: its answer, or that it is not known once the breaker is open. A store that does not
    /// answer others does not answer this one either, and somebody may wait for it to be over: its caller for a policy's
    /// answer, and others for their turn at the same claim. What it came to is known as little as if it were late.
    pub(super) async fn unless_opened<Answer>(
        &self,
        call: impl Future<Output = Result<Answer, EngineError>>,
    ) -> Result<Answer, EngineError> {
        // Hears of all that happens from here on, so it has to stand before the look.
        let opened = self.opened.notified();
        let opened = async {
            if self.breaker.state() != BreakerState::Open {
                opened.await;
            }
        };
        tokio::select! {
            // What has been answered counts.
            biased;
            answer = call => answer,
            () = opened => Err(EngineError::indeterminate("it was on its way when the breaker opened")),
        }
    }

    fn probe_pause(&self) -> Duration {
        PROBE_EVERY + self.random(PROBE_EVERY)
    }
}

/// Asks an engine whose breaker has opened how it is, until a call has been answered, nobody has called meanwhile, or the
/// engine is gone. A call that is tried is watched over: callers may be few, and none of them is to be refused because the
/// store was still away when the one before was sent.
async fn probe_until_answered(guard: Weak<Guard>, mut pause: Duration) {
    loop {
        // Not held while it waits: an engine that nobody uses any more is let go of.
        sleep(pause).await;
        let Some(guard) = guard.upgrade() else { return };
        let now = guard.clock.monotonic();
        guard.changed(guard.breaker.settle(now));
        pause = guard.probe_pause();
        if let Some(left) = guard.breaker.trial_left(now) {
            // Timers count whole milliseconds.
            pause = pause.min(left + Duration::from_millis(1));
        } else if guard.breaker.is_in_doubt() {
            // What it says is seen to there.
            let _answer = guard.probe().await;
        }
        if !guard.breaker.is_in_doubt() {
            guard.is_probed.store(false, Ordering::SeqCst);
            // It may have opened again just before, and then there was a prober still.
            if !guard.breaker.is_in_doubt() || guard.is_probed.swap(true, Ordering::SeqCst) {
                return;
            }
        }
    }
}
