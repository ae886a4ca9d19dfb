//! The memory that unread answers hold, over all connections of a listener. Counted only while a write has to wait for its
//! client, so an answer that is taken at once costs nothing here.

use std::collections::BTreeMap;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::task::Waker;

use hashbrown::HashMap;

use crate::domain::tenant::AppKey;

/// A bound on the bytes of all unread answers. Beyond it, the app that holds the most loses its oldest answer, so that an app
/// that reads too slowly harms itself alone. Callers that proved nothing count as one app.
pub struct UnreadAnswers {
    bytes_max: usize,
    held: Mutex<Held>,
}

#[derive(Default)]
struct Held {
    bytes: usize,
    bytes_by_app: HashMap<Option<AppKey>, usize>,
    /// By age: the lowest number is the oldest.
    answers: BTreeMap<u64, Answer>,
    next: u64,
}

struct Answer {
    app: Option<AppKey>,
    bytes: usize,
    /// The task that writes it.
    writer: Waker,
}

/// An unread answer, counted until it is dropped.
pub struct UnreadAnswer {
    all: Arc<UnreadAnswers>,
    number: u64,
}

impl UnreadAnswers {
    /// Bounds unread answers to this many bytes, or to one answer if that one is longer.
    pub fn new(bytes_max: usize) -> Self {
        Self { bytes_max, held: Mutex::default() }
    }

    /// Counts an answer of this many bytes.
    pub fn hold(self: &Arc<Self>, app: Option<AppKey>, bytes: usize, writer: &Waker) -> UnreadAnswer {
        let mut held = self.lock();
        let number = held.next;
        held.next += 1;
        held.bytes += bytes;
        *held.bytes_by_app.entry(app.clone()).or_default() += bytes;
        held.answers.insert(number, Answer { app, bytes, writer: writer.clone() });
        while held.bytes > self.bytes_max && held.answers.len() > 1 {
            let Some(dropped) = held.oldest_of_the_largest().and_then(|number| held.release(number)) else { break };
            dropped.wake();
        }
        drop(held);
        UnreadAnswer { all: self.clone(), number }
    }

    fn lock(&self) -> MutexGuard<'_, Held> {
        self.held.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

impl Held {
    fn oldest_of_the_largest(&self) -> Option<u64> {
        let (largest, _) = self.bytes_by_app.iter().max_by_key(|(_, bytes)| **bytes)?;
        self.answers.iter().find(|(_, answer)| answer.app == *largest).map(|(number, _)| *number)
    }

    /// Stops counting an answer, and returns its writer if it was still counted.
    fn release(&mut self, number: u64) -> Option<Waker> {
        let Answer { app, bytes, writer } = self.answers.remove(&number)?;
        self.bytes -= bytes;
        let rest = self.bytes_by_app.get(&app).map_or(0, |of_app| of_app - bytes);
        if rest == 0 {
            self.bytes_by_app.remove(&app);
        } else {
            self.bytes_by_app.insert(app, rest);
        }
        Some(writer)
    }
}

impl UnreadAnswer {
    /// Returns whether the answer may be kept. Its writer is woken when it no longer may.
    pub fn is_kept(&self, writer: &Waker) -> bool {
        let mut held = self.all.lock();
        let Some(answer) = held.answers.get_mut(&self.number) else { return false };
        answer.writer.clone_from(writer);
        true
    }
}

impl Drop for UnreadAnswer {
    fn drop(&mut self) {
        drop(self.all.lock().release(self.number));
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const NOBODY: &Waker = Waker::noop();

    fn app(key: &str) -> AppKey {
        key.parse().unwrap()
    }

    fn kept(answers: &[UnreadAnswer]) -> Vec<bool> {
        answers.iter().map(|answer| answer.is_kept(NOBODY)).collect()
    }

    #[test]
    fn beyond_the_bound_the_app_that_holds_the_most_loses_its_oldest_answer() {
        let all = Arc::new(UnreadAnswers::new(100));
        let quiet = [all.hold(Some(app("quiet")), 30, NOBODY)];
        let mut greedy: Vec<_> = (0..3).map(|_| all.hold(Some(app("greedy")), 20, NOBODY)).collect();
        assert_eq!((kept(&quiet), kept(&greedy)), (vec![true], vec![true; 3]));
        greedy.push(all.hold(Some(app("greedy")), 20, NOBODY));
        assert_eq!((kept(&quiet), kept(&greedy)), (vec![true], vec![false, true, true, true]));
        // Another app's answer finds room as well, although the bound is reached.
        let _other = all.hold(Some(app("other")), 25, NOBODY);
        assert_eq!((kept(&quiet), kept(&greedy)), (vec![true], vec![false, false, true, true]));
    }

    #[test]
    fn callers_without_a_credential_share_one_account() {
        let all = Arc::new(UnreadAnswers::new(100));
        let app = [all.hold(Some(app("shop")), 40, NOBODY)];
        let nobody: Vec<_> = (0..5).map(|_| all.hold(None, 20, NOBODY)).collect();
        assert_eq!((kept(&app), kept(&nobody)), (vec![true], vec![false, false, true, true, true]));
    }

    #[test]
    fn an_answer_that_was_written_makes_room() {
        let all = Arc::new(UnreadAnswers::new(100));
        for _ in 0..10 {
            assert!(all.hold(Some(app("shop")), 90, NOBODY).is_kept(NOBODY));
        }
        let held = all.lock();
        assert_eq!((held.bytes, held.bytes_by_app.len(), held.answers.len()), (0, 0, 0));
    }

    #[test]
    fn one_answer_may_be_longer_than_the_bound() {
        let all = Arc::new(UnreadAnswers::new(100));
        let answers = [all.hold(Some(app("shop")), 500, NOBODY)];
        assert_eq!(kept(&answers), [true]);
        let answers = [answers, [all.hold(Some(app("shop")), 500, NOBODY)]].map(|[answer]| answer);
        assert_eq!(kept(&answers), [false, true]);
    }

    #[test]
    fn the_writer_of_a_dropped_answer_is_woken() {
        struct Flag(std::sync::atomic::AtomicBool);
        impl std::task::Wake for Flag {
            fn wake(self: Arc<Self>) {
                self.0.store(true, std::sync::atomic::Ordering::Relaxed);
            }
        }
        let flag = Arc::new(Flag(false.into()));
        let all = Arc::new(UnreadAnswers::new(100));
        let answer = all.hold(None, 60, NOBODY);
        assert!(answer.is_kept(&flag.clone().into()));
        let _next = all.hold(None, 60, NOBODY);
        assert!(flag.0.load(std::sync::atomic::Ordering::Relaxed));
    }
}
