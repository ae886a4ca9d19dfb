//! Advances the store's clock.

use std::sync::{Arc, Weak};

use oncegate_coordination::routes::Routes;
use oncegate_coordination::tick;
use oncegate_coordination::time::{self, LastTick};
use oncegate_coordination::value::{Found, Mark};
use oncegate_core::engine::EngineError;
use tokio_util::sync::CancellationToken;

use super::proto::{Body, Change};
use super::session::{Replied, Session};
use super::store::{Store, five_of};

/// Advances the clock until `closing` is cancelled.
pub(super) async fn run(store: Arc<Store>, routes: Weak<Routes<Session>>, closing: CancellationToken) {
    let (state, every) = (store.state.clone(), store.url.common.tick);
    let push = |last| {
        let (store, routes) = (store.clone(), routes.clone());
        async move {
            let _one_at_a_time = store.ticking.lock().await;
            Some(routes.upgrade()?.run(move |session| tick_once(session, last)).await)
        }
    };
    tick::run(state, every, closing, push).await;
}

/// Writes the clock from its last known write, or reads it.
async fn tick_once(session: Session, last: Option<LastTick>) -> Result<LastTick, EngineError> {
    let (keys, time) = (&session.store().keys, &session.store().state.time);
    let (now, mut changes, mut next) = (time.monotonic(), Vec::new(), None);
    if let Some(last) = last
        && let Some(version) = session.version_of(Mark { number: last.mark, seen_at: last.since })
    {
        let clock = last.next(now);
        let mut change = vec![Change::Set(keys.clock.clone(), time::encode(clock), version)];
        if five_of(clock) != five_of(last.clock) {
            // In the same step: while this has its version, the clock is within these five seconds.
            change.push(Change::Set(keys.clock5.clone(), time::encode(five_of(clock)), -1));
        }
        changes.push(change);
        next = Some(clock);
    }
    let Replied { changed, found, .. } = session.run(changes, vec![keys.clock.clone()]).await?;
    if let (Some(clock), Some(Ok(Body::Changed(stats)))) = (next, changed.into_iter().next())
        && let Some(stat) = stats.first()
    {
        // It had this value after the write was sent.
        time.observe(clock, now);
        return Ok(LastTick { clock, mark: stat.version.into(), since: now, is_own: true });
    }
    // Another gateway has written it, or this one does not know.
    let Some(Ok(Some(Found { value, mark, .. }))) = found.into_iter().next() else {
        return Err(EngineError::unavailable("the clock is missing in ZooKeeper"));
    };
    let clock = time::read(&value, &keys.clock)?;
    Ok(LastTick { clock, mark: mark.number, since: time.monotonic(), is_own: false })
}
