//! Subscriptions at a server: the session over which it notifies is opened with the first one, and replaced when it is lost.

use std::sync::Arc;
use std::time::Duration;

use oncegate_core::attempt::{Entropy as _, SystemEntropy};
use oncegate_core::backoff::Backoff;
use oncegate_core::engine::notification::{Hub, Upstream};
use oncegate_core::engine::{Channel, Subscription};
use tokio::sync::mpsc::{self, UnboundedReceiver};
use tokio::time::{sleep, timeout};

use super::{Call, Pool};

/// Longest time that a subscription waits for the server.
const SUBSCRIBE_TIMEOUT: Duration = Duration::from_millis(250);

/// Pause before a session is opened again. Callers poll until then.
const REOPEN: Backoff = Backoff { first: Duration::from_millis(50), max: Duration::from_secs(2) };

/// Requests of the hub to the listener. The queue is as long as the subscriptions of this gateway, and these are
/// bounded.
pub type Changes = UnboundedReceiver<Upstream>;

/// Opens sessions over which a server notifies.
pub trait Listener: Send + Sync + 'static {
    /// An open session.
    type Session: Send;

    /// Interval of heartbeats, which find a broken session, and time limit of each.
    const HEARTBEAT: Duration = Duration::from_secs(1);

    /// Returns the name of the server, for messages.
    fn server(&self) -> String;

    /// Opens a session. Bounded in time by the implementation.
    ///
    /// # Errors
    /// Reason for its absence.
    fn open(&self) -> impl Future<Output = Result<Self::Session, String>> + Send;

    /// Serves subscriptions until the session must be replaced; returns why. It was opened for the channel `first`.
    fn serve(
        &self,
        session: Self::Session,
        first: Channel,
        hub: &Hub,
        changes: &mut Changes,
    ) -> impl Future<Output = String> + Send;
}

impl<C: Call> Pool<C> {
    /// Returns the subscriptions at a server, and starts their listener.
    pub fn listen(&self, listener: impl Listener) -> Arc<Hub> {
        let (sender, changes) = mpsc::unbounded_channel();
        // Without a listener, the engine is closed.
        let hub = Hub::new(move |change| drop(sender.send(change)));
        let listening = hub.clone();
        self.spawn(|closing| async move {
            closing.run_until_cancelled(Box::pin(run(listener, listening, changes))).await;
        });
        hub
    }
}

/// Subscribes to a channel, and waits for a moment until it is notified.
pub async fn subscribe(hub: &Arc<Hub>, channel: &Channel) -> Subscription {
    let subscription = hub.subscribe(channel);
    // Without notifications so far, its owner polls.
    drop(timeout(SUBSCRIBE_TIMEOUT, subscription.established()).await);
    subscription
}

/// Listens for as long as there is a hub.
async fn run(listener: impl Listener, hub: Arc<Hub>, mut changes: Changes) {
    let mut failures = 0;
    while let Some(change) = changes.recv().await {
        let Upstream::Subscribe(first) = change else { continue };
        let why = match listener.open().await {
            Ok(session) => {
                failures = 0;
                listener.serve(session, first, &hub, &mut changes).await
            }
            Err(why) => why,
        };
        failures += 1;
        let server = listener.server();
        tracing::debug!(server, reason = why, "No notifications from the store; waiting callers poll");
        // A subscription that is queued after this is for the next session.
        while changes.try_recv().is_ok() {}
        hub.end_all();
        sleep(REOPEN.delay(failures, SystemEntropy.bits())).await;
    }
}

#[cfg(test)]
mod tests {
    use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering};

    use oncegate_core::global_id::GlobalId;
    use oncegate_core::record::{Key, Realm};
    use tokio::time::Instant;

    use super::*;

    /// Sessions that end with the first change after they were opened, or are refused.
    #[derive(Default)]
    struct Fake {
        opened: AtomicUsize,
        is_down: AtomicBool,
    }

    impl Listener for Arc<Fake> {
        type Session = ();

        fn server(&self) -> String {
            "a server".into()
        }

        async fn open(&self) -> Result<(), String> {
            self.opened.fetch_add(1, Ordering::SeqCst);
            if self.is_down.load(Ordering::SeqCst) { Err("down".into()) } else { Ok(()) }
        }

        async fn serve(&self, (): (), first: Channel, hub: &Hub, changes: &mut Changes) -> String {
            hub.confirm(first.as_str());
            changes.recv().await;
            "it was lost".into()
        }
    }

    fn channel(number: u8) -> Channel {
        Channel::of_claim(&Key {
            app: "shop".parse().unwrap(),
            realm: Realm::Api,
            global_id: GlobalId::from_bytes([number; 16]),
        })
    }

    fn start() -> (Arc<Fake>, Arc<Hub>) {
        let (fake, (sender, changes)) = (Arc::<Fake>::default(), mpsc::unbounded_channel());
        let hub = Hub::new(move |change| drop(sender.send(change)));
        tokio::spawn(run(fake.clone(), hub.clone(), changes));
        (fake, hub)
    }

    /// Time by which a test may find its condition too late.
    const TOLERANCE: Duration = Duration::from_millis(5);

    fn now() -> Instant {
        sleep(Duration::ZERO).deadline()
    }

    /// Subscribes until a session was opened or refused. Returns the time that this took.
    async fn next(fake: &Fake, hub: &Arc<Hub>) -> Duration {
        let (started, before) = (now(), fake.opened.load(Ordering::SeqCst));
        while fake.opened.load(Ordering::SeqCst) == before {
            drop(hub.subscribe(&channel(1)));
            passes(1).await;
        }
        now() - started
    }

    async fn passes(milliseconds: u64) {
        sleep(Duration::from_millis(milliseconds)).await;
    }

    #[tokio::test(start_paused = true)]
    async fn a_session_is_opened_for_a_subscription_and_again_after_it_was_lost() {
        let (fake, hub) = start();
        passes(1000).await;
        let opened = || fake.opened.load(Ordering::SeqCst);
        assert_eq!(opened(), 0);
        let one = subscribe(&hub, &channel(1)).await;
        assert!(one.is_live() && opened() == 1);
        // The session is lost with this change. Later requests are for the next session, which needs another
        // subscription.
        let (two, three) = (hub.subscribe(&channel(2)), hub.subscribe(&channel(3)));
        passes(1000).await;
        assert!(![one, two, three].iter().any(Subscription::is_live));
        assert_eq!(opened(), 1);
        assert!(subscribe(&hub, &channel(1)).await.is_live());
        assert_eq!(opened(), 2);
    }

    #[tokio::test(start_paused = true)]
    async fn the_pause_grows_while_the_server_is_down_and_begins_anew_after_a_session() {
        let (fake, hub) = start();
        fake.is_down.store(true, Ordering::SeqCst);
        next(&fake, &hub).await;
        for failures in 1..8 {
            let shortest = REOPEN.delay(failures, 0);
            let expected = shortest.saturating_sub(TOLERANCE)..=shortest * 2 + TOLERANCE;
            let paused = next(&fake, &hub).await;
            assert!(expected.contains(&paused), "{failures}: {paused:?}, expected {expected:?}");
        }
        fake.is_down.store(false, Ordering::SeqCst);
        next(&fake, &hub).await;
        fake.is_down.store(true, Ordering::SeqCst);
        assert!(next(&fake, &hub).await <= REOPEN.first + TOLERANCE);
    }

    #[tokio::test(start_paused = true)]
    async fn a_subscription_returns_soon_though_its_server_is_silent() {
        let hub = Hub::new(|_| ());
        let started = now();
        assert!(!subscribe(&hub, &channel(1)).await.is_live());
        assert!(now() - started <= SUBSCRIBE_TIMEOUT + TOLERANCE);
    }
}
