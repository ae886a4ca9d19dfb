//! The task of one key with waiting callers. It calls the store once for each event, for the first caller.

use std::sync::Arc;
use std::time::Duration;

use oncegate_core::backoff::jittered;
use oncegate_core::claim::ClaimRequest;
use oncegate_core::engine::{Channel, Subscription};
use tokio::time::sleep;

use super::{QueueName, Waiters};
use crate::tenants::App;
use crate::{Gateway, within};

/// Shortest time between two polls, and the maximum of a random addition. Polls are needed because a notification may
/// be lost.
const POLL: Duration = Duration::from_millis(750);
const POLL_JITTER: Duration = Duration::from_millis(500);

/// Time for callers to leave, while the gateway drains.
const WHILE_DRAINING: Duration = Duration::from_millis(20);

/// Added to the rest of a lease, so that the lease has ended when the store is called.
const AFTER_LEASE: Duration = Duration::from_millis(1);

/// Asks for as long as callers wait for the key.
pub(super) async fn run(gateway: Arc<Gateway>, app: Arc<App>, queue: QueueName) {
    let mut driving = Driving { waiters: &gateway.waiters, queue: &queue, has_ended: false };
    let channel = Channel::of_claim(&queue.key);
    let mut subscription = Subscription::none();
    while let Some(first) = gateway.waiters.take_first(&queue) {
        // Before the call to the store, so that no end happens between the two.
        if !subscription.is_live() {
            subscription = gateway.subscribe(&app, &channel).await;
        }
        if first.verdict.is_closed() {
            continue;
        }
        let asked_at = gateway.clock.monotonic();
        // The attempt begins now, and the nonce is the caller's.
        let attempt = gateway.issuer.issue(Some(first.request.attempt.nonce().clone()));
        let bits = attempt.timestamp().as_micros();
        let request = ClaimRequest { attempt, waits: true, ..(*first.request).clone() };
        let context = first.context;
        let call = async { gateway.policies(&app)?.claim(&request, context).await };
        // Boxed: while it waits, the task needs no memory for it.
        let answer = Box::pin(within(context.deadline, call)).await;
        if let Some(left) = gateway.waiters.answered(&queue, first, answer, asked_at) {
            let is_draining = gateway.waiters.draining.is_cancelled();
            let pause = jittered(POLL, POLL_JITTER, bits).min(left.saturating_add(AFTER_LEASE));
            let pause = if is_draining { pause.min(WHILE_DRAINING) } else { pause };
            tokio::select! {
                biased;
                () = subscription.notified() => {}
                () = gateway.waiters.draining.cancelled(), if !is_draining => {}
                () = sleep(pause) => {}
            }
        }
    }
    driving.has_ended = true;
}

/// Ends the queue if its driver ends first, so that no caller waits for a driver that no longer runs.
struct Driving<'a> {
    waiters: &'a Waiters,
    queue: &'a QueueName,
    has_ended: bool,
}

impl Drop for Driving<'_> {
    fn drop(&mut self) {
        if !self.has_ended {
            self.waiters.abandon(self.queue);
        }
    }
}

#[cfg(test)]
mod tests {
    use oncegate_core::call::CallContext;
    use oncegate_core::engine::conformance::fresh_claim;
    use oncegate_core::limits::Limits;
    use oncegate_core::record::LiveClaim;
    use oncegate_core::terms::ClaimOnOutage;

    use super::*;

    #[test]
    fn a_driver_that_is_dropped_leaves_no_queue_behind() {
        for (has_ended, is_left) in [(true, true), (false, false)] {
            let waiters = Waiters::new(&Limits::default());
            let request = Arc::new(fresh_claim());
            let live = LiveClaim { record: request.record(), left: None, ends_at: None, fence: None };
            let context = CallContext { deadline: POLL, on_outage: ClaimOnOutage::FailClosed };
            let queue = QueueName { chain: "default".into(), key: request.key.clone() };
            let (ticket, is_new) =
                waiters.enter(&queue, &request, context, Duration::ZERO, (&live, Duration::ZERO)).unwrap();
            assert!(is_new);
            drop(Driving { waiters: &waiters, queue: &queue, has_ended });
            assert_eq!(waiters.state().queues.contains_key(&queue), is_left);
            drop(ticket);
            assert_eq!(waiters.permits.waiting(), 0);
        }
    }
}
