//! Consequences of an open breaker: calls in progress on its shard end, and a prober probes the shard until it answers.

use std::sync::atomic::Ordering;
use std::sync::{Arc, Weak};
use std::time::Duration;

use futures_util::future::join_all;
use oncegate_core::backoff::jittered;
use oncegate_core::engine::breaker::BreakerState;
use oncegate_core::engine::{EngineError, Node, NodeRole};
use oncegate_telemetry::metrics::EngineCall;
use tokio::time::sleep;

use super::Guard;
use crate::resilience::deadline_budget::PROBE_TIMEOUT;

/// Shortest pause between two probes. The pause is at random up to twice as long, so that gateways do not all probe at
/// the same time.
const PROBE_PAUSE: Duration = Duration::from_millis(75);

impl Guard {
    /// Ends the calls in progress on a shard, and starts its prober.
    pub(super) fn breaker_opened(self: &Arc<Self>, shard: u16) {
        let state = self.shards.get(shard);
        state.opened.notify_waiters();
        if !state.has_prober.swap(true, Ordering::SeqCst) {
            let pause = self.probe_pause();
            tokio::spawn(probe_until_answered(Arc::downgrade(self), shard, pause));
        }
    }

    /// Returns the answer of a late call, or an uncertain failure once the breaker is open. A store that does not
    /// answer other calls does not answer this one either. Others may wait for its end: its caller waits for the answer
    /// of a policy, and further calls on the same key wait for their turn.
    pub(super) async fn unless_opened<Answer>(
        &self,
        shard: u16,
        call: impl Future<Output = Result<Answer, EngineError>>,
    ) -> Result<Answer, EngineError> {
        let shard = self.shards.get(shard);
        // Receives all notifications from here on, so it must be created before the state is read.
        let opened = shard.opened.notified();
        let opened = async {
            if shard.breaker.state() != BreakerState::Open {
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

    /// Probes every shard. One answering shard is enough: the others have their own breakers.
    pub(super) async fn probe(self: &Arc<Self>) -> Result<(), EngineError> {
        let shards = self.engine.shards();
        let answers = join_all(shards.iter().map(|shard| self.probe_shard(*shard))).await;
        let answer = match answers.into_iter().reduce(Result::or) {
            Some(answer) => answer,
            None => self.uncounted(EngineCall::Probe, Some(0), PROBE_TIMEOUT, self.engine.probe()).await,
        };
        // Shards come and go.
        self.update_up();
        self.meter.lost_data(self.engine.data_lost());
        self.meter.shards(&self.nodes());
        answer
    }

    /// Probes a shard, and advances its breaker.
    pub(super) async fn probe_shard(self: &Arc<Self>, shard: u16) -> Result<(), EngineError> {
        let probed = self.engine.probe_shard(shard);
        let answer = self.uncounted(EngineCall::Probe, Some(shard), PROBE_TIMEOUT, probed).await;
        let is_answered = !answer.as_ref().is_err_and(EngineError::is_unavailable);
        self.breaker_changed(shard, self.breaker(shard).advance(is_answered, self.clock.monotonic()));
        answer
    }

    /// Returns the servers of the store, each primary with the state of its breaker.
    pub(super) fn nodes(&self) -> Vec<Node> {
        let mut nodes = self.engine.nodes();
        for node in nodes.iter_mut().filter(|node| node.role == NodeRole::Primary) {
            node.breaker = Some(self.breaker(node.shard).state());
        }
        nodes
    }

    fn probe_pause(&self) -> Duration {
        jittered(PROBE_PAUSE, PROBE_PAUSE, self.entropy.bits())
    }
}

/// Probes a shard until a call was answered, no call was made between two probes, or the engine was dropped. Also ends
/// a trial call that takes too long: it may have been sent before the store was back. Without this, rare calls would be refused
/// because of it.
async fn probe_until_answered(guard: Weak<Guard>, shard: u16, mut pause: Duration) {
    loop {
        // Without a reference to the engine, so that the engine is dropped with its last user.
        sleep(pause).await;
        let Some(guard) = guard.upgrade() else { return };
        let now = guard.clock.monotonic();
        let state = guard.shards.get(shard);
        guard.breaker_changed(shard, state.breaker.advance(false, now));
        pause = guard.probe_pause();
        if let Some(left) = state.breaker.trial_left(now) {
            // Timers count whole milliseconds.
            pause = pause.min(left + Duration::from_millis(1));
        } else if state.breaker.is_in_doubt() {
            // The probe itself acts on its answer.
            let _answer = guard.probe_shard(shard).await;
        }
        if !state.breaker.is_in_doubt() {
            state.has_prober.store(false, Ordering::SeqCst);
            // If the breaker has just opened again, this prober continues, unless another one was started.
            if !state.breaker.is_in_doubt() || state.has_prober.swap(true, Ordering::SeqCst) {
                return;
            }
        }
    }
}
