//! The primary that Sentinels name: all of them are asked, and the one with the highest configuration epoch is
//! believed. The primary that was found stays in use while no Sentinel can be reached.

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
use super::address::Address;
use super::url::{Layout, Url};

/// For this long the first connection waits for Sentinels that have not answered: one alone may be behind the others.
const FIRST_WAIT: Duration = Duration::from_millis(300);

/// Counts the primaries that Sentinels have named.
pub(super) type Version = u64;

/// Known state of the primary.
#[derive(Clone, PartialEq, Eq, Debug)]
pub(super) struct Found {
    pub(super) primary: Option<Address>,
    pub(super) version: Version,
    /// Epoch of the configuration that names it.
    epoch: u64,
    /// True if every Sentinel was asked at least once.
    is_complete: bool,
    /// Reason for its absence.
    why_not: String,
}

/// Follows the primary of one name.
pub(super) struct Discovery {
    name: String,
    found: channel::Sender<Found>,
    /// Kept outside the channel, so that reading it takes no lock.
    version: AtomicU64,
    asked: Notify,
}

impl Discovery {
    /// Begins to ask the Sentinels of a URL, on the current runtime, until the guard is dropped.
    pub(super) fn start(url: &Arc<Url>) -> (Arc<Self>, DropGuard) {
        let Layout::Sentinel { sentinels, name } = url.layout.clone() else {
            unreachable!("only a URL of Sentinels has a discovery")
        };
        let closing = CancellationToken::new();
        let discovery = Arc::new(Self::new(name));
        watch::start(url, &sentinels, &discovery, &closing);
        (discovery, closing.drop_guard())
    }

    fn new(name: String) -> Self {
        let why_not = format!("no Sentinel of `{name}` has answered yet");
        let found = Found { primary: None, version: 0, epoch: 0, is_complete: false, why_not };
        Self { name, found: channel::Sender::new(found), version: AtomicU64::new(0), asked: Notify::new() }
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
        // The first primary is no promotion. A named primary stays in use until another one is named.
        self.version().saturating_sub(1)
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

    /// Adopts the common report of the Sentinels.
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

#[cfg(test)]
pub(super) mod tests {
    use futures_util::FutureExt as _;

    use super::reports::Report;
    use super::*;

    /// Has the Sentinels name another primary than before.
    pub(in super::super) fn promote(discovery: &Discovery, to: &str, epoch: u64) {
        discovery.learn(&reports(&[primary(to, epoch)]));
    }

    pub(in super::super) fn discovery() -> Discovery {
        Discovery::new("m".into())
    }

    fn reports(of: &[Report]) -> Reports {
        let mut reports = Reports::new(vec![Address::parse("s:1").unwrap(); of.len()]);
        of.iter().enumerate().for_each(|(index, report)| reports.set(index, report.clone()));
        reports
    }

    fn primary(text: &str, epoch: u64) -> Report {
        Report::Primary { address: Address::parse(text).unwrap(), epoch }
    }

    #[tokio::test(start_paused = true)]
    async fn the_first_primary_is_no_promotion_and_each_other_one_is() {
        let discovery = discovery();
        let refused = discovery.primary().await.unwrap_err().to_string();
        assert!(refused.contains("no Sentinel of `m` has answered yet"), "{refused}");
        let facts = || (discovery.version(), discovery.promotions(), discovery.address());
        for (named, epoch, version, promotions) in
            [("a:1", 3, 1, 0), ("a:1", 3, 1, 0), ("b:1", 4, 2, 1), ("c:1", 5, 3, 2)]
        {
            discovery.learn(&reports(&[primary(named, epoch)]));
            assert_eq!(facts(), (version, promotions, Some(named.to_owned())));
            let (address, seen) = discovery.primary().await.unwrap();
            assert_eq!((address.to_string().as_str(), seen), (named, version));
        }
        discovery.learn(&reports(&[Report::Failed("down".into())]));
        assert_eq!(facts().2.as_deref(), Some("c:1"), "it stays in use");
    }

    #[tokio::test(start_paused = true)]
    async fn a_caller_learns_of_another_primary_and_wakes_the_watch() {
        let discovery = discovery();
        discovery.learn(&reports(&[primary("a:1", 3)]));
        assert!(discovery.changed(1).now_or_never().is_none());
        assert!(discovery.changed_within(1, Duration::from_secs(1)).now_or_never().is_none());
        discovery.changed_within(1, Duration::from_secs(1)).await;
        discovery.learn(&reports(&[primary("b:1", 4)]));
        assert!(discovery.changed(1).now_or_never().is_some());
        assert!(discovery.changed_within(1, Duration::from_secs(1)).now_or_never().is_some());
        let mut waits = Box::pin(discovery.changed(2));
        assert!(waits.as_mut().now_or_never().is_none());
        promote(&discovery, "c:1", 5);
        timeout(Duration::from_secs(10), waits).await.expect("it is woken");
        let asked = discovery.asked.notified();
        tokio::pin!(asked);
        assert!(!asked.as_mut().enable());
        discovery.look_again();
        assert!(asked.now_or_never().is_some());
    }
}
