//! Sweeping: all gateways together delete ended records, one page at a time. How far they have come is a key.

use std::sync::Arc;
use std::time::Duration;

use bytes::{BufMut as _, Bytes, BytesMut};
use oncegate_core::attempt::{Entropy as _, SystemEntropy};
use oncegate_core::backoff::jittered;
use oncegate_core::clock::Timestamp;
use oncegate_core::engine::EngineError;
use tokio::time::sleep;
use tokio_util::sync::CancellationToken;

use super::backend::Backend;
use super::time;

/// Time between two pages.
const BREAK: Duration = Duration::from_millis(250);

/// Most records in one page.
const PAGE: usize = 500;

/// Pages that fail one after the other until an operator is warned. The last of them had one record.
const FAILURES: u32 = 10;

/// Sweeps until `closing` is cancelled.
pub(super) async fn run<B: Backend>(backend: Arc<B>, closing: CancellationToken) {
    let (interval, mut pace) = (backend.state().options.sweep_interval, Pace::default());
    while closing.run_until_cancelled(sleep(pause(interval))).await.is_some() {
        let Some(Ok(session)) = closing.run_until_cancelled(backend.clone().open(0)).await else { continue };
        let swept = closing.run_until_cancelled(sweep(&*backend, &session, &mut pace)).await;
        if let Some(Err(why)) = swept {
            tracing::debug!(reason = why.reason(), "A sweep failed; trying again");
        }
    }
}

/// Sweeps for as long as the session is good.
async fn sweep<B: Backend>(backend: &B, session: &B::Session, pace: &mut Pace) -> Result<(), EngineError> {
    loop {
        sweep_next(backend, session, pace).await?;
        backend.look_after_history(session).await?;
        if !pace.goes_on() {
            sleep(pause(backend.state().options.sweep_interval)).await;
        }
    }
}

/// Sweeps the next page, if it is due.
async fn sweep_next<B: Backend>(backend: &B, session: &B::Session, pace: &mut Pace) -> Result<(), EngineError> {
    let (time, stored) = B::read(session.clone(), backend.sweep_key()).await?;
    let cursor = stored.as_ref().map(|stored| Cursor::decode(&stored.value)).unwrap_or_default();
    if time.clock < cursor.due && !pace.goes_on() {
        return Ok(());
    }
    let (next, deleted) = match B::sweep_page(session, cursor.from, pace.page()).await {
        Ok(swept) => swept,
        Err(why) => {
            if pace.failed() {
                let (server, reason) = (backend.state().server.address(), why.reason());
                tracing::warn!(
                    server,
                    reason,
                    "Sweeping fails again and again, so ended records stay and fill the store"
                );
            }
            return Err(why);
        }
    };
    let is_last = next.is_none();
    let cursor = Cursor::after_page(time.clock, next, backend.state().options.sweep_interval);
    // If another gateway was faster, its cursor stays.
    let is_moved = B::move_cursor(session, stored.map(|stored| stored.mark), cursor.encode()).await?;
    pace.swept(deleted, !is_last && is_moved);
    Ok(())
}

/// Returns the pause of a gateway before it looks whether a page is due.
fn pause(sweep_interval: Duration) -> Duration {
    let pause = BREAK.min(sweep_interval);
    jittered(pause, pause / 2, SystemEntropy.bits())
}

/// How one gateway sweeps: how many records its pages have, and whether it pauses between two.
#[derive(Debug)]
struct Pace {
    page: usize,
    failures: u32,
    goes_on: bool,
}

impl Pace {
    /// Returns the number of records in the next page.
    fn page(&self) -> usize {
        self.page
    }

    /// Returns whether the next page follows at once, though it is not due for other gateways: records end faster than pauses allow.
    fn goes_on(&self) -> bool {
        self.goes_on
    }

    /// Records a page that deleted so many records. `is_followed`: it was not the last one, and no other gateway was faster.
    fn swept(&mut self, deleted: usize, is_followed: bool) {
        self.goes_on = is_followed && deleted.saturating_mul(5) >= self.page;
        self.page = PAGE.min(self.page + self.page / 4 + 1);
        self.failures = 0;
    }

    /// Records a page that failed. Large values may not fit a reply, or take too long, so the next page is half as large. Returns
    /// whether a warning is due.
    fn failed(&mut self) -> bool {
        self.goes_on = false;
        self.page = (self.page / 2).max(1);
        self.failures = self.failures.saturating_add(1);
        self.failures == FAILURES
    }
}

impl Default for Pace {
    fn default() -> Self {
        Self { page: PAGE, failures: 0, goes_on: false }
    }
}

/// Position of the sweep that all gateways share.
#[derive(Clone, PartialEq, Eq, Debug, Default)]
pub struct Cursor {
    /// The next page is due at this instant.
    pub due: Timestamp,
    /// First key of the next page; empty: the first key of all.
    pub from: Bytes,
}

impl Cursor {
    /// Returns the cursor after a page that was swept at this instant. `next` is where the next one begins; `None`: it was the last one.
    fn after_page(now: Timestamp, next: Option<Bytes>, sweep_interval: Duration) -> Self {
        let pause = if next.is_some() { BREAK.min(sweep_interval) } else { sweep_interval };
        Self { due: now.plus(pause), from: next.unwrap_or_default() }
    }

    /// Returns the stored form.
    pub fn encode(&self) -> Bytes {
        let mut value = BytesMut::with_capacity(8 + self.from.len());
        value.put_slice(&time::encode(self.due));
        value.put_slice(&self.from);
        value.freeze()
    }

    /// Reads a cursor. A damaged one is that of the first page.
    pub fn decode(value: &Bytes) -> Self {
        let due = value.get(..8).and_then(time::decode).unwrap_or_default();
        Self { due, from: if value.len() > 8 { value.slice(8..) } else { Bytes::new() } }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_page_that_failed_is_halved_down_to_one_record_and_grows_again() {
        let mut pace = Pace::default();
        let failed: Vec<_> = (0..12).map(|_| (pace.page(), pace.failed())).collect();
        let pages: Vec<_> = failed.iter().map(|(page, _)| *page).collect();
        assert_eq!(pages, [500, 250, 125, 62, 31, 15, 7, 3, 1, 1, 1, 1]);
        let warned: Vec<_> = (0..12).filter(|number| failed[*number].1).collect();
        assert_eq!(warned, [9], "one warning, and not before a page of one record has failed");
        let mut before = pace.page();
        for _ in 0..30 {
            pace.swept(0, true);
            assert!(pace.page() == 500 || pace.page() > before, "{before}");
            assert!(pace.page() <= before * 2, "{before}");
            before = pace.page();
        }
        assert_eq!(before, 500);
        assert!(!(0..9).any(|_| pace.failed()), "failures before the last success do not count");
    }

    #[test]
    fn a_page_of_which_much_had_ended_is_followed_at_once() {
        let mut pace = Pace::default();
        let mut goes_on = |deleted, is_followed| {
            pace.swept(deleted, is_followed);
            pace.goes_on()
        };
        assert!(goes_on(500, true) && goes_on(100, true));
        assert!(!goes_on(99, true) && !goes_on(0, true), "few have ended");
        assert!(!goes_on(500, false), "it was the last page, or another gateway sweeps");
        pace.swept(500, true);
        pace.failed();
        assert!(!pace.goes_on());
        // Of a small page a fifth is less.
        pace.swept(50, true);
        assert!(pace.goes_on());
    }

    #[test]
    fn a_cursor_reads_back_and_a_damaged_one_begins_anew() {
        for from in [Bytes::new(), Bytes::from_static(b"/oncegate/c/1")] {
            let cursor = Cursor { due: Timestamp::from_micros(7), from };
            assert_eq!(Cursor::decode(&cursor.encode()), cursor);
        }
        assert_eq!(Cursor::decode(&Bytes::from_static(b"x")), Cursor::default());
    }
}
