//! Consequences of an open breaker: calls in progress are given up, and a prober asks the engine until it answers.

use std::sync::atomic::Ordering;
use std::sync::{Arc, Weak};
use std::time::Duration;

use oncegate_core::backoff::jittered;
use oncegate_core::engine::EngineError;
use oncegate_core::engine::breaker::BreakerState;
use oncegate_telemetry::metrics::EngineCall;
use tokio::time::sleep;

use super::Guard;
use crate::resilience::deadline_budget::PROBE_TIMEOUT;

/// Shortest pause between two probes. At random up to twice as long, so that gateways do not all probe at the same time.
const PROBE_PAUSE: Duration = Duration::from_millis(75);

impl Guard {
    /// Ends the calls in progress, and starts the prober.
    pub(super) fn breaker_opened(self: &Arc<Self>) {
        self.opened.notify_waiters();
        if !self.has_prober.swap(true, Ordering::SeqCst) {
            let pause = self.probe_pause();
            tokio::spawn(probe_until_answered(Arc::downgrade(self), pause));
        }
    }

    /// Returns the answer of a late call, or an uncertain failure once the breaker is open. A store that does not answer others
    /// does not answer this call either, and others may wait for its end: its caller for a policy's answer, and further calls
    /// for their turn on the same key.
    pub(super) async fn unless_opened<Answer>(
        &self,
        call: impl Future<Output = Result<Answer, EngineError>>,
    ) -> Result<Answer, EngineError> {
        // Receives all notifications from here on, so it has to be created before the state is read.
        let opened = self.opened.notified();
        let opened = async {
            if self.breaker.state() != BreakerState::Open {
                opened.await;
            }
        };
        tokio::select! {
            // An answer that has arrived counts.
            biased;
            answer = call => answer,
            () = opened => Err(EngineError::indeterminate("the breaker opened while the call was in progress")),
        }
    }

    /// Probes the engine, and advances the breaker.
    pub(super) async fn probe(self: &Arc<Self>) -> Result<(), EngineError> {
        let answer = self.uncounted(EngineCall::Probe, PROBE_TIMEOUT, self.engine.probe()).await;
        self.meter.lost_data(self.engine.data_lost());
        self.meter.shards(&self.engine.nodes());
        let is_answered = !answer.as_ref().is_err_and(EngineError::is_unavailable);
        self.breaker_changed(self.breaker.advance(is_answered, self.clock.monotonic()));
        answer
    }

    fn probe_pause(&self) -> Duration {
        jittered(PROBE_PAUSE, PROBE_PAUSE, self.entropy.bits())
    }
}

/// Probes an engine until a call was answered, nobody has called meanwhile, or the engine is gone. Also ends a trial call that
/// takes too long: where calls are few, none must be refused because the one before was sent while the store was still out.
async fn probe_until_answered(guard: Weak<Guard>, mut pause: Duration) {
    loop {
        // Without a reference to the engine, which is dropped when its users have gone.
        sleep(pause).await;
        let Some(guard) = guard.upgrade() else { return };
        let now = guard.clock.monotonic();
        guard.breaker_changed(guard.breaker.advance(false, now));
        pause = guard.probe_pause();
        if let Some(left) = guard.breaker.trial_left(now) {
            // Timers count whole milliseconds.
            pause = pause.min(left + Duration::from_millis(1));
        } else if guard.breaker.is_in_doubt() {
            // The probe itself acts on its answer.
            let _answer = guard.probe().await;
        }
        if !guard.breaker.is_in_doubt() {
            guard.has_prober.store(false, Ordering::SeqCst);
            // If the breaker has just opened again, this prober continues, unless another one was started.
            if !guard.breaker.is_in_doubt() || guard.has_prober.swap(true, Ordering::SeqCst) {
                return;
            }
        }
    }
}
