//! Notifications: hints that a record has changed, for callers that wait for it. The hub connects the subscriptions of this
//! process with the engine that learns of changes.

use std::borrow::Borrow;
use std::collections::HashMap;
use std::fmt;
use std::future::poll_fn;
use std::sync::atomic::{AtomicBool, AtomicU8, AtomicUsize, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::task::Poll;

use futures_util::task::AtomicWaker;

use super::RecordName;
use crate::lock::LockName;
use crate::record::Key;
use crate::tenant::AppKey;

/// Name of a record in notifications. The text between braces is the hash tag of the record's key, in stores that have
/// hash tags.
#[derive(Clone, PartialEq, Eq, Hash, Debug)]
pub struct Channel(Arc<str>);

impl Channel {
    /// Returns the channel of a claim.
    pub fn of_claim(key: &Key) -> Self {
        Self(format!("{{{}}}:{}", key.global_id, key.namespace()).into())
    }

    /// Returns the channel of a lock.
    pub fn of_lock(app: &AppKey, name: &LockName) -> Self {
        Self(format!("lock:{{{app}/{name}}}").into())
    }

    /// Returns its text.
    pub fn as_str(&self) -> &str {
        &self.0
    }
}

impl Borrow<str> for Channel {
    fn borrow(&self) -> &str {
        &self.0
    }
}

/// Receives the notifications of one channel until it is dropped. Notifications that arrive before they are awaited are one.
pub struct Subscription {
    signal: Arc<Signal>,
    /// `None`: never notified.
    from: Option<(Arc<Hub>, Channel)>,
}

impl Subscription {
    /// Returns a subscription that is never notified: its namespace has to poll.
    pub fn none() -> Self {
        Self { signal: Arc::new(Signal::new(State::Ended)), from: None }
    }

    /// Waits for a notification. May return without one.
    pub async fn notified(&mut self) {
        let signal = &*self.signal;
        poll_fn(|context| {
            signal.waker.register(context.waker());
            if signal.notified.swap(false, Ordering::AcqRel) { Poll::Ready(()) } else { Poll::Pending }
        })
        .await;
    }

    /// Returns whether changes are notified now, as far as is known. If not, subscribe again.
    pub fn is_live(&self) -> bool {
        self.signal.state() == State::Live
    }

    /// Waits until it is known whether changes are notified.
    pub async fn established(&self) {
        poll_fn(|context| {
            self.signal.waker.register(context.waker());
            if self.signal.state() == State::Starting { Poll::Pending } else { Poll::Ready(()) }
        })
        .await;
    }
}

impl Drop for Subscription {
    fn drop(&mut self) {
        if let Some((hub, channel)) = &self.from {
            hub.remove(channel, &self.signal);
        }
    }
}

impl fmt::Debug for Subscription {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Subscription").field("is_live", &self.is_live()).finish_non_exhaustive()
    }
}

/// Work of an engine for the subscriptions of its hub.
#[derive(Clone, PartialEq, Eq, Debug)]
pub enum Upstream {
    /// Subscribe to this channel, and then call [`Hub::confirm`] or [`Hub::end`].
    Subscribe(Channel),
    /// Unsubscribe from this channel.
    Unsubscribe(Channel),
}

/// The subscriptions of one engine.
pub struct Hub {
    channels: Mutex<HashMap<Channel, Entry>>,
    /// Number of channels, so that an engine without subscriptions pays one load.
    count: AtomicUsize,
    /// `None`: the engine notifies of every change without a request.
    upstream: Option<Box<dyn Fn(Upstream) + Send + Sync>>,
}

struct Entry {
    state: State,
    signals: Vec<Arc<Signal>>,
}

impl Hub {
    /// Returns the hub of an engine all of whose changes are made by this process.
    pub fn local() -> Arc<Self> {
        Arc::new(Self { channels: Mutex::default(), count: AtomicUsize::new(0), upstream: None })
    }

    /// Returns the hub of an engine that has to subscribe at its store. `upstream` is called under a lock, so that the
    /// calls have the order of the changes; it must not block.
    pub fn new(upstream: impl Fn(Upstream) + Send + Sync + 'static) -> Arc<Self> {
        Arc::new(Self { channels: Mutex::default(), count: AtomicUsize::new(0), upstream: Some(Box::new(upstream)) })
    }

    /// Subscribes to a channel.
    pub fn subscribe(self: &Arc<Self>, channel: &Channel) -> Subscription {
        let mut channels = self.channels();
        let entry = channels.entry(channel.clone()).or_insert(Entry { state: State::Ended, signals: Vec::new() });
        if entry.state == State::Ended {
            entry.state = State::Live;
            if let Some(upstream) = &self.upstream {
                entry.state = State::Starting;
                upstream(Upstream::Subscribe(channel.clone()));
            }
        }
        let signal = Arc::new(Signal::new(entry.state));
        entry.signals.push(signal.clone());
        self.count.store(channels.len(), Ordering::Release);
        drop(channels);
        Subscription { signal, from: Some((self.clone(), channel.clone())) }
    }

    /// Notifies the subscriptions of a channel.
    pub fn notify(&self, channel: &str) {
        for signal in self.channels().get(channel).map(|entry| &entry.signals[..]).unwrap_or_default() {
            signal.notify();
        }
    }

    /// Notifies the subscriptions of a claim.
    pub fn notify_claim(&self, key: &Key) {
        if self.count.load(Ordering::Acquire) > 0 {
            self.notify(Channel::of_claim(key).as_str());
        }
    }

    /// Notifies the subscriptions of a shared record.
    pub fn notify_record(&self, name: &RecordName) {
        if let RecordName::Lock(app, name) = name
            && self.count.load(Ordering::Acquire) > 0
        {
            self.notify(Channel::of_lock(app, name).as_str());
        }
    }

    /// Records that changes of a channel are notified from now on.
    pub fn confirm(&self, channel: &str) {
        self.set(channel, State::Live);
    }

    /// Returns whether changes of a channel are notified.
    pub fn is_live(&self, channel: &str) -> bool {
        self.channels().get(channel).is_some_and(|entry| entry.state == State::Live)
    }

    /// Records that changes of a channel are not notified any more. Its subscriptions are not notified of that: they poll.
    pub fn end(&self, channel: &str) {
        self.set(channel, State::Ended);
    }

    /// Records that no changes are notified any more.
    pub fn end_all(&self) {
        let mut channels = self.channels();
        channels.values_mut().for_each(|entry| entry.set(State::Ended));
        channels.retain(|_, entry| !entry.signals.is_empty());
        self.count.store(channels.len(), Ordering::Release);
    }

    fn set(&self, channel: &str, state: State) {
        let mut channels = self.channels();
        if let Some(entry) = channels.get_mut(channel) {
            entry.set(state);
            self.close_unused(&mut channels, channel);
        }
    }

    fn remove(&self, channel: &Channel, signal: &Arc<Signal>) {
        let mut channels = self.channels();
        if let Some(entry) = channels.get_mut(channel) {
            entry.signals.retain(|other| !Arc::ptr_eq(other, signal));
            self.close_unused(&mut channels, channel.as_str());
        }
    }

    /// Unsubscribes from a channel without subscriptions, but not before the engine has answered: its answer would be taken for that to
    /// the next subscription, and changes in between would not be notified.
    fn close_unused(&self, channels: &mut HashMap<Channel, Entry>, channel: &str) {
        if channels.get(channel).is_none_or(|entry| !entry.signals.is_empty() || entry.state == State::Starting) {
            return;
        }
        let removed = channels.remove_entry(channel);
        self.count.store(channels.len(), Ordering::Release);
        if let (Some(upstream), Some((channel, Entry { state: State::Live, .. }))) = (&self.upstream, removed) {
            upstream(Upstream::Unsubscribe(channel));
        }
    }

    fn channels(&self) -> MutexGuard<'_, HashMap<Channel, Entry>> {
        self.channels.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

impl Entry {
    fn set(&mut self, state: State) {
        self.state = state;
        for signal in &self.signals {
            signal.state.store(state as u8, Ordering::Release);
            signal.waker.wake();
        }
    }
}

#[derive(Clone, Copy, PartialEq, Eq)]
enum State {
    Starting,
    Live,
    Ended,
}

struct Signal {
    state: AtomicU8,
    notified: AtomicBool,
    waker: AtomicWaker,
}

impl Signal {
    fn new(state: State) -> Self {
        Self { state: AtomicU8::new(state as u8), notified: AtomicBool::new(false), waker: AtomicWaker::new() }
    }

    fn state(&self) -> State {
        match self.state.load(Ordering::Acquire) {
            0 => State::Starting,
            1 => State::Live,
            _ => State::Ended,
        }
    }

    fn notify(&self) {
        self.notified.store(true, Ordering::Release);
        self.waker.wake();
    }
}

#[cfg(test)]
mod tests {
    use futures_util::FutureExt as _;

    use super::*;

    fn channel(name: &str) -> Channel {
        Channel(name.into())
    }

    #[test]
    fn a_notification_reaches_every_subscription_of_its_channel_and_no_other() {
        let hub = Hub::local();
        let (mut one, mut two, mut other) =
            (hub.subscribe(&channel("a")), hub.subscribe(&channel("a")), hub.subscribe(&channel("b")));
        hub.notify("a");
        hub.notify("a");
        assert!(one.notified().now_or_never().is_some() && two.notified().now_or_never().is_some());
        assert!(one.notified().now_or_never().is_none(), "two that were not awaited are one");
        assert!(other.notified().now_or_never().is_none());
        assert!(one.is_live() && !Subscription::none().is_live());
    }

    #[test]
    fn the_store_is_subscribed_to_once_for_each_channel_and_unsubscribed_after_the_last() {
        let sent = Arc::new(Mutex::new(Vec::new()));
        let log = sent.clone();
        let hub = Hub::new(move |change| log.lock().unwrap().push(change));
        let one = hub.subscribe(&channel("a"));
        let two = hub.subscribe(&channel("a"));
        assert!(!one.is_live() && one.established().now_or_never().is_none());
        hub.confirm("a");
        assert!(one.is_live() && two.established().now_or_never().is_some());
        drop(one);
        assert_eq!(sent.lock().unwrap().len(), 1);
        drop(two);
        let expected = [Upstream::Subscribe(channel("a")), Upstream::Unsubscribe(channel("a"))];
        assert_eq!(sent.lock().unwrap().split_off(0), expected);
        assert!(hub.channels().is_empty());
    }

    /// The engine would answer the first one after it was dropped, and end it before it begins the second one.
    #[test]
    fn a_subscription_that_is_dropped_before_its_answer_serves_the_next_one() {
        let sent = Arc::new(Mutex::new(Vec::new()));
        let log = sent.clone();
        let hub = Hub::new(move |change| log.lock().unwrap().push(change));
        let sent = || sent.lock().unwrap().split_off(0);
        drop(hub.subscribe(&channel("a")));
        let next = hub.subscribe(&channel("a"));
        assert_eq!(sent(), [Upstream::Subscribe(channel("a"))], "a change between two of them would be missed");
        assert!(!next.is_live());
        hub.confirm("a");
        assert!(next.is_live());
        drop(next);
        assert_eq!(sent(), [Upstream::Unsubscribe(channel("a"))]);
        let unsubscribed_after = |answer: &dyn Fn()| {
            drop(hub.subscribe(&channel("a")));
            assert_eq!((sent().len(), hub.channels().len()), (1, 1), "it waits for its answer");
            answer();
            assert!(hub.channels().is_empty() && hub.count.load(Ordering::Acquire) == 0);
            sent().len()
        };
        assert_eq!(unsubscribed_after(&|| hub.confirm("a")), 1);
        assert_eq!(unsubscribed_after(&|| hub.end("a")), 0);
        assert_eq!(unsubscribed_after(&|| hub.end_all()), 0);
    }

    #[test]
    fn a_dropped_subscription_leaves_those_of_others() {
        let hub = Hub::local();
        let (mut one, two) = (hub.subscribe(&channel("a")), hub.subscribe(&channel("a")));
        drop(two);
        hub.notify("a");
        assert!(one.notified().now_or_never().is_some());
    }

    #[test]
    fn a_channel_that_has_ended_is_subscribed_to_again() {
        let count = Arc::new(AtomicUsize::new(0));
        let counted = count.clone();
        let hub = Hub::new(move |_| {
            counted.fetch_add(1, Ordering::SeqCst);
        });
        let mut old = hub.subscribe(&channel("a"));
        hub.confirm("a");
        hub.end_all();
        assert!(!old.is_live() && old.notified().now_or_never().is_none(), "namespaces poll, each at its own time");
        let again = hub.subscribe(&channel("a"));
        assert_eq!(count.load(Ordering::SeqCst), 2);
        hub.confirm("a");
        assert!(again.is_live() && old.is_live());
    }

    #[test]
    fn a_channel_is_live_from_its_confirmation_to_its_end() {
        let hub = Hub::new(|_| ());
        let subscription = hub.subscribe(&channel("a"));
        assert!(!hub.is_live("a") && !hub.is_live("b"));
        hub.confirm("a");
        assert!(hub.is_live("a") && subscription.is_live());
        hub.end("a");
        assert!(!hub.is_live("a") && !subscription.is_live());
    }
}
