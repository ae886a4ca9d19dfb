//! Advances the store's clock. Every gateway tries; the one that did it last does it again, and the others follow if it does not.

use std::sync::{Arc, Weak};
use std::time::Duration;

use bytes::Bytes;
use oncegate_core::attempt::{Entropy as _, SystemEntropy};
use oncegate_core::backoff::jittered;
use oncegate_core::engine::EngineError;
use oncegate_driver::Reply;
use tokio::time::sleep;
use tokio_util::sync::CancellationToken;

use super::operation::Operation;
use super::routes::Routes;
use super::seen::Seen;
use super::session::Store;
use super::step::{Guard, Write};
use super::time::{self, LastTick, Time};
use super::value::Found;

/// Advances the clock until `closing` is cancelled.
pub(super) async fn run(store: Arc<Store>, routes: Weak<Routes>, closing: CancellationToken) {
    let mut last: Option<LastTick> = None;
    loop {
        let pause = pause(&store, last);
        let ticked = closing.run_until_cancelled(async {
            sleep(pause).await;
            // A gateway that finds the clock fast may be the one that makes it so.
            while store.gate.is_clock_fast() {
                sleep(store.url.tick).await;
            }
            let routes = routes.upgrade()?;
            Some(routes.call(|reply| Box::new(Tick::new(store.clone(), last, reply))).await)
        });
        // The engine is closed, or gone.
        let Some(Some(answer)) = ticked.await else { return };
        // After a failure it is not known who wrote last: the next one reads first.
        last = answer.ok();
    }
}

/// Returns the time until the next write: a tick after an own one, two to three ticks after another gateway's.
fn pause(store: &Store, last: Option<LastTick>) -> Duration {
    let tick = store.url.tick;
    let Some(last) = last else { return tick / 2 };
    let interval = if last.is_own { tick } else { jittered(tick * 2, tick, SystemEntropy.bits()) };
    interval.saturating_sub(store.time.monotonic().saturating_sub(last.since))
}

/// A write of the clock, or a look at it.
struct Tick {
    store: Arc<Store>,
    last: Option<LastTick>,
    /// The write that was sent.
    sent: Option<LastTick>,
    reply: Reply<LastTick>,
}

impl Tick {
    fn new(store: Arc<Store>, last: Option<LastTick>, reply: Reply<LastTick>) -> Self {
        Self { store, last, sent: None, reply }
    }
}

impl Operation for Tick {
    fn key(&self) -> &Bytes {
        &self.store.keys.clock
    }

    fn is_abandoned(&self) -> bool {
        self.reply.is_abandoned()
    }

    fn bytes(&self) -> usize {
        128
    }

    fn assumed(&self, _: &Seen) -> Option<Found> {
        let last = self.last?;
        Some(Found { value: time::encode(last.clock), mod_revision: last.mod_revision })
    }

    fn decide(&mut self, found: Option<&Found>, _: Time) -> Result<Option<Write>, EngineError> {
        let now = self.store.time.monotonic();
        let found = found.ok_or_else(|| EngineError::unavailable("the clock is missing in etcd"))?;
        if let Some(last) = self.last.take() {
            let clock = last.next(now);
            self.sent = Some(LastTick { clock, mod_revision: 0, since: now, is_own: true });
            let guards = vec![Guard::Revision(last.mod_revision)];
            return Ok(Some(Write { guards, put: Some(time::encode(clock)), is_remembered: false }));
        }
        // Another gateway has written it, or this one does not know.
        let unreadable = || EngineError::incompatible("the clock in etcd cannot be read by this release");
        let clock = time::decode(&found.value).ok_or_else(unreadable)?;
        self.sent = Some(LastTick { clock, mod_revision: found.mod_revision, since: now, is_own: false });
        Ok(None)
    }

    fn answer(self: Box<Self>, revision: Option<i64>, _: Time) {
        let Some(tick) = self.sent else { return self.reply.send(Err(EngineError::no_answer())) };
        let Some(mod_revision) = revision else { return self.reply.send(Ok(tick)) };
        // It had this value after the write was sent.
        self.store.time.observe(tick.clock, tick.since);
        self.reply.send(Ok(LastTick { mod_revision, ..tick }));
    }

    fn fail(self: Box<Self>, why: EngineError) {
        self.reply.send(Err(why));
    }
}
