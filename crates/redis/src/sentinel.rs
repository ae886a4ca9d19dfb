//! The primary that Sentinels name: all of them are asked, and the one with the highest configuration epoch is believed. What
//! was found stays in use while no Sentinel can be reached.

mod reports;
mod watch;

use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::Duration;

use oncegate_core::engine::Determinate;
use tokio::sync::{Notify, watch as channel};
use tokio::time::{sleep, timeout};
use tokio_util::sync::{CancellationToken, DropGuard};

use self::reports::Reports;
use super::target::Version;
use super::url::{Address, Layout, Url};

/// For this long the first connection waits for Sentinels that have not answered: one alone may be behind the others.
const FIRST_WAIT: Duration = Duration::from_millis(300);

/// What is known of the primary.
#[derive(Clone, PartialEq, Eq, Debug)]
pub(super) struct Found {
    pub(super) primary: Option<Address>,
    pub(super) version: Version,
    /// Epoch of the configuration that names it.
    epoch: u64,
    /// Whether every Sentinel was asked at least once.
    is_complete: bool,
    /// Why there is none.
    why_not: String,
}

/// Follows the primary of one name.
pub(super) struct Discovery {
    name: String,
    found: channel::Sender<Found>,
    /// Beside the channel, so that reading it costs no lock.
    version: AtomicU64,
    promotions: AtomicU64,
    asked: Notify,
}

impl Discovery {
    /// Begins to ask the Sentinels of a URL, on the current runtime, until the guard is dropped.
    pub(super) fn start(url: &Arc<Url>) -> (Arc<Self>, DropGuard) {
        let Layout::Sentinel { sentinels, name } = url.layout.clone() else {
            unreachable!("only a URL of Sentinels has a discovery")
        };
        let why_not = format!("no Sentinel of `{name}` has answered yet");
        let found = channel::Sender::new(Found { primary: None, version: 0, epoch: 0, is_complete: false, why_not });
        let closing = CancellationToken::new();
        let discovery = Arc::new(Self {
            name,
            found,
            version: AtomicU64::new(0),
            promotions: AtomicU64::new(0),
            asked: Notify::new(),
        });
        watch::start(url, &sentinels, &discovery, &closing);
        (discovery, closing.drop_guard())
    }

    /// Returns the primary, once the Sentinels have named one.
    pub(super) async fn primary(&self) -> Result<(Address, Version), Determinate> {
        let mut found = self.found.subscribe();
        let complete = async { found.wait_for(|found| found.is_complete).await.map(|found| found.clone()) };
        let found = match timeout(FIRST_WAIT, complete).await {
            Ok(Ok(found)) => found,
            _ => self.found.borrow().clone(),
        };
        match found.primary {
            Some(primary) => Ok((primary, found.version)),
            None => Err(Determinate::Unavailable(found.why_not)),
        }
    }

    /// Returns the number of the primary.
    pub(super) fn version(&self) -> Version {
        self.version.load(Ordering::Acquire)
    }

    /// Returns how often another primary was named.
    pub(super) fn promotions(&self) -> u64 {
        self.promotions.load(Ordering::Acquire)
    }

    /// Returns the address of the primary.
    pub(super) fn address(&self) -> Option<String> {
        self.found.borrow().primary.as_ref().map(ToString::to_string)
    }

    /// Waits until another primary is named.
    pub(super) async fn changed(&self, version: Version) {
        let mut found = self.found.subscribe();
        if found.wait_for(|found| found.version != version).await.is_err() {
            std::future::pending::<()>().await;
        }
    }

    /// Waits until another primary is named, but no longer than this.
    pub(super) async fn changed_within(&self, version: Version, limit: Duration) {
        tokio::select! {
            () = self.changed(version) => {}
            () = sleep(limit) => {}
        }
    }

    /// Has the Sentinels asked again at once.
    pub(super) fn look_again(&self) {
        self.asked.notify_waiters();
    }

    /// Takes over what the Sentinels report together.
    fn learn(&self, reports: &Reports) {
        let name = &self.name;
        self.found.send_if_modified(|found| {
            let before = found.clone();
            found.is_complete = reports.are_complete();
            let best = reports.best(found.epoch);
            found.epoch = best.map_or(found.epoch, |(_, epoch)| epoch);
            match best.map(|(primary, _)| primary) {
                Some(primary) if found.primary.as_ref() != Some(primary) => {
                    if let Some(old) = found.primary.replace(primary.clone()) {
                        tracing::warn!(engine = "redis", name, from = %old, to = %primary, "The Sentinels name another primary");
                        self.promotions.fetch_add(1, Ordering::AcqRel);
                    }
                    found.version += 1;
                    self.version.store(found.version, Ordering::Release);
                }
                Some(_) => {}
                None => found.why_not = reports.why_not(name),
            }
            *found != before
        });
    }
}
