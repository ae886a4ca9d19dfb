//! The memory that unread responses take, over all connections of a listener. Counted only while a write waits for its
//! client, so a response that is read at once costs nothing here.

use std::collections::BTreeMap;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::task::Waker;

use hashbrown::HashMap;
use oncegate_telemetry::metrics::unread::DroppedResponses;

/// The account that an unread response is charged to. Callers without a credential share the account `None`.
type Account = Option<Arc<str>>;

/// A bound on the bytes of all unread responses. Beyond it, the account with the most bytes loses its oldest response.
/// So a caller that reads too slowly harms only itself.
pub(super) struct UnreadResponses {
    bytes_max: usize,
    counts: Mutex<Counts>,
    dropped: DroppedResponses,
}

#[derive(Default)]
struct Counts {
    bytes: usize,
    bytes_by_account: HashMap<Account, usize>,
    /// By age: the lowest number is the oldest.
    responses: BTreeMap<u64, Response>,
    next: u64,
}

struct Response {
    account: Account,
    bytes: usize,
    /// The task that writes it.
    writer: Waker,
}

/// An unread response, counted until it is dropped.
pub(super) struct UnreadResponse {
    all: Arc<UnreadResponses>,
    number: u64,
}

impl UnreadResponses {
    /// Bounds unread responses to this many bytes. A single longer response is allowed.
    pub(super) fn new(bytes_max: usize) -> Self {
        Self { bytes_max, counts: Mutex::default(), dropped: DroppedResponses::default() }
    }

    /// Counts a response of this many bytes.
    pub(super) fn add(self: &Arc<Self>, account: Account, bytes: usize, writer: &Waker) -> UnreadResponse {
        let mut counts = self.lock();
        let number = counts.next;
        counts.next += 1;
        counts.bytes += bytes;
        *counts.bytes_by_account.entry(account.clone()).or_default() += bytes;
        counts.responses.insert(number, Response { account, bytes, writer: writer.clone() });
        while counts.bytes > self.bytes_max && counts.responses.len() > 1 {
            let Some(dropped) = counts.oldest_of_the_largest().and_then(|number| counts.remove(number)) else { break };
            dropped.wake();
            self.dropped.increment();
        }
        drop(counts);
        UnreadResponse { all: self.clone(), number }
    }

    fn lock(&self) -> MutexGuard<'_, Counts> {
        self.counts.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

impl Counts {
    fn oldest_of_the_largest(&self) -> Option<u64> {
        let (largest, _) = self.bytes_by_account.iter().max_by_key(|(_, bytes)| **bytes)?;
        self.responses.iter().find(|(_, response)| response.account == *largest).map(|(number, _)| *number)
    }

    /// Stops counting a response, and returns its writer if it was still counted.
    fn remove(&mut self, number: u64) -> Option<Waker> {
        let Response { account, bytes, writer } = self.responses.remove(&number)?;
        self.bytes -= bytes;
        let rest = self.bytes_by_account.get(&account).map_or(0, |bytes_of_account| bytes_of_account - bytes);
        if rest == 0 {
            self.bytes_by_account.remove(&account);
        } else {
            self.bytes_by_account.insert(account, rest);
        }
        Some(writer)
    }
}

impl UnreadResponse {
    /// Reports whether the response may be kept. Its writer is woken when it no longer may.
    pub(super) fn is_kept(&self, writer: &Waker) -> bool {
        let mut counts = self.all.lock();
        let Some(response) = counts.responses.get_mut(&self.number) else { return false };
        response.writer.clone_from(writer);
        true
    }
}

impl Drop for UnreadResponse {
    fn drop(&mut self) {
        drop(self.all.lock().remove(self.number));
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const NO_WAKER: &Waker = Waker::noop();

    fn account(name: &str) -> Arc<str> {
        name.into()
    }

    fn kept(responses: &[UnreadResponse]) -> Vec<bool> {
        responses.iter().map(|response| response.is_kept(NO_WAKER)).collect()
    }

    #[test]
    fn beyond_the_bound_the_largest_account_loses_its_oldest_response() {
        let all = Arc::new(UnreadResponses::new(100));
        let quiet = [all.add(Some(account("quiet")), 30, NO_WAKER)];
        let mut greedy: Vec<_> = (0..3).map(|_| all.add(Some(account("greedy")), 20, NO_WAKER)).collect();
        assert_eq!((kept(&quiet), kept(&greedy)), (vec![true], vec![true; 3]));
        greedy.push(all.add(Some(account("greedy")), 20, NO_WAKER));
        assert_eq!((kept(&quiet), kept(&greedy)), (vec![true], vec![false, true, true, true]));
        // A response of another account is counted as well, although the bound is reached.
        let _other = all.add(Some(account("other")), 25, NO_WAKER);
        assert_eq!((kept(&quiet), kept(&greedy)), (vec![true], vec![false, false, true, true]));
    }

    #[test]
    fn callers_without_a_credential_share_one_account() {
        let all = Arc::new(UnreadResponses::new(100));
        let shop = [all.add(Some(account("shop")), 40, NO_WAKER)];
        let nobody: Vec<_> = (0..5).map(|_| all.add(None, 20, NO_WAKER)).collect();
        assert_eq!((kept(&shop), kept(&nobody)), (vec![true], vec![false, false, true, true, true]));
    }

    #[test]
    fn a_written_response_makes_room() {
        let all = Arc::new(UnreadResponses::new(100));
        for _ in 0..10 {
            assert!(all.add(Some(account("shop")), 90, NO_WAKER).is_kept(NO_WAKER));
        }
        let counts = all.lock();
        assert_eq!((counts.bytes, counts.bytes_by_account.len(), counts.responses.len()), (0, 0, 0));
    }

    #[test]
    fn one_response_may_be_longer_than_the_bound() {
        let all = Arc::new(UnreadResponses::new(100));
        let responses = [all.add(Some(account("shop")), 500, NO_WAKER)];
        assert_eq!(kept(&responses), [true]);
        let responses = [responses, [all.add(Some(account("shop")), 500, NO_WAKER)]].map(|[response]| response);
        assert_eq!(kept(&responses), [false, true]);
    }

    #[test]
    fn the_writer_of_a_dropped_response_is_woken() {
        struct Flag(std::sync::atomic::AtomicBool);
        impl std::task::Wake for Flag {
            fn wake(self: Arc<Self>) {
                self.0.store(true, std::sync::atomic::Ordering::Relaxed);
            }
        }
        let flag = Arc::new(Flag(false.into()));
        let all = Arc::new(UnreadResponses::new(100));
        let response = all.add(None, 60, NO_WAKER);
        assert!(response.is_kept(&flag.clone().into()));
        let _next = all.add(None, 60, NO_WAKER);
        assert!(flag.0.load(std::sync::atomic::Ordering::Relaxed));
    }
}
