//! The session over which the server notifies. One channel of the database for all records; the payload names the record.

use std::sync::Arc;

use oncegate_core::engine::Channel;
use oncegate_core::engine::notification::{Hub, Upstream};
use oncegate_database::listen;
use oncegate_driver::listener::{Changes, Listener};
use sqlx::postgres::PgListener;
use tokio::time::{MissedTickBehavior, interval, timeout};

use super::session::Store;

/// The channel of the database. The statements have the same name.
const CHANNEL: &str = "oncegate";

/// Listens at the primary.
pub(super) struct Listening(pub(super) Arc<Store>);

impl Listener for Listening {
    type Session = PgListener;

    fn server(&self) -> String {
        self.0.address.name()
    }

    async fn open(&self) -> Result<PgListener, String> {
        let listener = listen::listen(&self.0.address, CHANNEL, self.0.options.connect_timeout).await;
        listener.map_err(|why| why.to_string())
    }

    async fn serve(&self, mut listener: PgListener, first: Channel, hub: &Hub, changes: &mut Changes) -> String {
        hub.confirm(first.as_str());
        let mut heartbeats = interval(Self::HEARTBEAT);
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
                _ = heartbeats.tick() => match timeout(Self::HEARTBEAT, listen::check(&mut listener)).await {
                    Ok(Ok(())) => {}
                    Ok(Err(why)) => return why.to_string(),
                    Err(_elapsed) => return "the server did not answer in time".into(),
                },
            }
        }
    }
}
