//! The session over which the server notifies: opened with the first subscription, and replaced when it is lost. One channel of
//! the database for all records; the payload names the record.

use std::sync::Arc;
use std::time::Duration;

use oncegate_core::attempt::{Entropy as _, SystemEntropy};
use oncegate_core::backoff::Backoff;
use oncegate_core::engine::notification::{Hub, Upstream};
use oncegate_database::listen;
use sqlx::postgres::PgListener;
use tokio::sync::mpsc::{self, UnboundedReceiver};
use tokio::time::{MissedTickBehavior, interval, sleep, timeout};

use super::session::Store;

/// The channel of the database. The statements have the same name.
const CHANNEL: &str = "oncegate";

/// Pause before a session is opened again. Callers poll until then.
const RECONNECT: Backoff = Backoff { first: Duration::from_millis(50), max: Duration::from_secs(2) };

/// Interval of heartbeats, which find a broken connection, and time limit of each.
const HEARTBEAT: Duration = Duration::from_secs(1);

/// What the hub wants of the listener. As long as the subscriptions of this gateway, which are bounded.
type Changes = UnboundedReceiver<Upstream>;

/// Returns the subscriptions of an engine, and what its listener has to do for them.
pub(super) fn hub() -> (Arc<Hub>, Changes) {
    let (sender, changes) = mpsc::unbounded_channel();
    // Without a listener, the engine is closed.
    let hub = Hub::new(move |change| drop(sender.send(change)));
    (hub, changes)
}

/// Listens for as long as there is a hub.
pub(super) async fn run(store: Arc<Store>, hub: Arc<Hub>, mut changes: Changes) {
    let mut failures = 0;
    while let Some(first) = changes.recv().await {
        let Upstream::Subscribe(first) = first else { continue };
        let why = match listen::listen(&store.address, CHANNEL, store.options.connect_timeout).await {
            Ok(listener) => {
                failures = 0;
                hub.confirm(first.as_str());
                serve(listener, &hub, &mut changes).await
            }
            Err(why) => why.to_string(),
        };
        failures += 1;
        let server = store.address.name();
        tracing::debug!(server, reason = why, "No notifications from the store; waiting callers poll");
        // A subscription that is queued after this is for the next session.
        while changes.try_recv().is_ok() {}
        hub.end_all();
        sleep(RECONNECT.delay(failures, SystemEntropy.bits())).await;
    }
}

/// Passes notifications on until the session is to be replaced; returns why.
async fn serve(mut listener: PgListener, hub: &Hub, changes: &mut Changes) -> String {
    let mut heartbeats = interval(HEARTBEAT);
    heartbeats.set_missed_tick_behavior(MissedTickBehavior::Delay);
    loop {
        tokio::select! {
            biased;
            change = changes.recv() => match change {
                Some(Upstream::Subscribe(channel)) => hub.confirm(channel.as_str()),
                Some(Upstream::Unsubscribe(_)) => {}
                None => return "the engine is closed".into(),
            },
            notification = listener.try_recv() => match notification {
                Ok(Some(notification)) => hub.notify(notification.payload()),
                Ok(None) => return "the connection was lost".into(),
                Err(error) => return error.to_string(),
            },
            _ = heartbeats.tick() => match timeout(HEARTBEAT, listen::check(&mut listener)).await {
                Ok(Ok(())) => {}
                Ok(Err(why)) => return why.to_string(),
                Err(_elapsed) => return "the server did not answer in time".into(),
            },
        }
    }
}
