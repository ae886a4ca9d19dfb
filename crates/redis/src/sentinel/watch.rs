//! Asks each Sentinel, again and again and whenever it announces a switch. A Sentinel without an answer delays no
//! other.

use std::sync::{Arc, Mutex, PoisonError};
use std::time::Duration;

use futures_util::StreamExt;
use oncegate_core::attempt::{Entropy, SystemEntropy};
use oncegate_core::backoff::Backoff;
use redis::aio::{MultiplexedConnection, PubSub};
use tokio::time::{sleep, timeout};
use tokio_util::sync::CancellationToken;

use super::Discovery;
use super::reports::{Report, Reports};
use crate::address::Address;
use crate::library::{failure, with_files, without_timeouts};
use crate::url::Url;

/// Time between two questions to a Sentinel without announcements.
const INTERVAL: Duration = Duration::from_secs(1);
/// Limit of connecting to a Sentinel, and of its answer.
const LIMIT: Duration = Duration::from_millis(500);
const RECONNECT: Backoff = Backoff { first: Duration::from_millis(50), max: Duration::from_secs(1) };

/// Starts to watch.
pub(super) fn start(url: &Arc<Url>, sentinels: &[Address], discovery: &Arc<Discovery>, closing: &CancellationToken) {
    let reports = Arc::new(Mutex::new(Reports::new(sentinels.to_vec())));
    for (index, sentinel) in sentinels.iter().enumerate() {
        let watch = Watch {
            url: url.clone(),
            sentinel: sentinel.clone(),
            index,
            reports: reports.clone(),
            discovery: discovery.clone(),
        };
        let closing = closing.clone();
        tokio::spawn(async move { closing.run_until_cancelled(watch.run()).await });
    }
}

struct Watch {
    url: Arc<Url>,
    sentinel: Address,
    index: usize,
    reports: Arc<Mutex<Reports>>,
    discovery: Arc<Discovery>,
}

impl Watch {
    async fn run(self) {
        let mut failures: u32 = 0;
        loop {
            let late = |_| Err(format!("it did not answer within {LIMIT:?}"));
            let why = match timeout(LIMIT, self.connect()).await.unwrap_or_else(late) {
                Ok((client, announcements)) => {
                    failures = 0;
                    self.ask_again_and_again(client, announcements).await
                }
                Err(why) => why,
            };
            self.report(Report::Failed(why));
            failures = failures.saturating_add(1);
            sleep(RECONNECT.delay(failures, SystemEntropy.bits())).await;
        }
    }

    async fn connect(&self) -> Result<(MultiplexedConnection, PubSub), String> {
        let sentinel = self.sentinel.clone();
        let client = with_files(&self.url, move |url| url.sentinel_client(&sentinel)).await;
        let client = client.map_err(|why| why.to_string())?;
        let config = without_timeouts();
        let connection = client.get_multiplexed_async_connection_with_config(&config);
        let connection = connection.await.map_err(|error| failure(&error))?;
        let mut announcements = client.get_async_pubsub().await.map_err(|error| failure(&error))?;
        announcements.subscribe("+switch-master").await.map_err(|error| failure(&error))?;
        Ok((connection, announcements))
    }

    /// Returns why the Sentinel cannot be asked any more.
    async fn ask_again_and_again(&self, mut client: MultiplexedConnection, mut announcements: PubSub) -> String {
        let mut announcements = announcements.on_message();
        loop {
            let discovery = &self.discovery;
            let mut pipeline = redis::Pipeline::with_capacity(2);
            pipeline.cmd("SENTINEL").arg("MASTER").arg(&discovery.name);
            pipeline.cmd("SENTINEL").arg("GET-MASTER-ADDR-BY-NAME").arg(&discovery.name);
            match timeout(LIMIT, client.send_packed_commands(&pipeline, 0, 2)).await {
                Ok(Ok(replies)) => {
                    let mut replies = replies.into_iter();
                    let mut reply = || replies.next().unwrap_or(redis::Value::Nil);
                    self.report(Report::read(&reply(), &reply()));
                }
                Ok(Err(error)) => return failure(&error),
                Err(_elapsed) => return format!("it did not answer within {LIMIT:?}"),
            }
            tokio::select! {
                message = announcements.next() => if message.is_none() {
                    return "it closed the connection".into();
                },
                () = discovery.asked.notified() => sleep(Duration::from_millis(50)).await,
                () = sleep(INTERVAL) => {}
            }
        }
    }

    fn report(&self, report: Report) {
        let mut reports = self.reports.lock().unwrap_or_else(PoisonError::into_inner);
        reports.set(self.index, report);
        // Within the lock: of two reports the later one is learned last.
        self.discovery.learn(&reports);
    }
}
