//! Advances the store's clock.

use std::sync::{Arc, Weak};

use bytes::Bytes;
use oncegate_coordination::operation::Operation;
use oncegate_coordination::routes::Routes;
use oncegate_coordination::seen::Seen;
use oncegate_coordination::step::{Guard, Write};
use oncegate_coordination::tick;
use oncegate_coordination::time::{self, LastTick, Time};
use oncegate_coordination::value::Found;
use oncegate_core::engine::EngineError;
use oncegate_driver::Reply;
use tokio_util::sync::CancellationToken;

use super::session::Session;
use super::step;
use super::store::Store;

/// Advances the clock until `closing` is cancelled.
pub(super) async fn run(store: Arc<Store>, routes: Weak<Routes<Session>>, closing: CancellationToken) {
    let (state, every) = (store.state.clone(), store.url.common.tick);
    let push = |last| {
        let (store, routes) = (store.clone(), routes.clone());
        async move { Some(routes.upgrade()?.call(|reply| Box::new(Tick::new(store, last, reply))).await) }
    };
    tick::run(state, every, closing, push).await;
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
        Some(Found { value: time::encode(last.clock), revision: last.mark, mark: step::mark(last.mark) })
    }

    fn decide(&mut self, found: Option<&Found>, _: Time) -> Result<Option<Write>, EngineError> {
        let now = self.store.state.time.monotonic();
        let found = found.ok_or_else(|| EngineError::unavailable("the clock is missing in etcd"))?;
        if let Some(last) = self.last.take() {
            let clock = last.next(now);
            self.sent = Some(LastTick { clock, mark: 0, since: now, is_own: true });
            let guards = vec![Guard::Unchanged(step::mark(last.mark))];
            return Ok(Some(Write { guards, put: Some(time::encode(clock)), is_remembered: false }));
        }
        // Another gateway has written it, or this one does not know.
        let clock = time::read(&found.value, &String::from_utf8_lossy(&self.store.keys.clock))?;
        self.sent = Some(LastTick { clock, mark: found.mark.number, since: now, is_own: false });
        Ok(None)
    }

    fn answer(self: Box<Self>, revision: Option<i64>, _: Time) {
        let Some(tick) = self.sent else { return self.reply.send(Err(EngineError::no_answer())) };
        let Some(mark) = revision else { return self.reply.send(Ok(tick)) };
        // It had this value after the write was sent.
        self.store.state.time.observe(tick.clock, tick.since);
        self.reply.send(Ok(LastTick { mark, ..tick }));
    }

    fn fail(self: Box<Self>, why: EngineError) {
        self.reply.send(Err(why));
    }
}
