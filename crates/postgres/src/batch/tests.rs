//! The choice of calls for a batch, and the calls of a failed statement.

use std::sync::{Arc, Mutex};

use oncegate_core::claim::ClaimRequest;
use oncegate_core::engine::RecordView;
use oncegate_core::engine::conformance::fresh_claim;
use oncegate_core::record::LiveClaim;
use oncegate_driver::{Readiness, Reply};

use super::super::arguments::FirstStep;
use super::super::locks::{LockKey, LockWork};
use super::super::routes::Routes;
use super::super::row::Written;
use super::*;

/// The keys of the calls that were answered, with a word for the answer.
type Log = Arc<Mutex<Vec<(Key, &'static str)>>>;

/// A call that is answered into a log.
struct Logged {
    key: Key,
    bytes: usize,
    is_abandoned: bool,
    log: Log,
}

impl KeyedCall for Logged {
    fn key(&self) -> &Key {
        &self.key
    }
    fn is_abandoned(&self) -> bool {
        self.is_abandoned
    }
    fn bytes(&self) -> usize {
        self.bytes
    }
    fn first_step(&self) -> FirstStep {
        FirstStep::read(&self.key)
    }
    fn may_write(&self) -> bool {
        self.bytes > 0
    }
    fn written(self: Box<Self>, _: Written) {}
    fn decide(self: Box<Self>, _: Option<&row::Found>) -> Decision {
        Decision::Again(self)
    }
    fn answer_by(self: Box<Self>, found: &LiveClaim) -> Option<Box<dyn KeyedCall>> {
        if found.fence.is_none() {
            return Some(self);
        }
        self.log.lock().unwrap().push((self.key, "found"));
        None
    }
    fn fail(self: Box<Self>, why: EngineError) {
        self.log.lock().unwrap().push((self.key, if why.is_uncertain() { "uncertain" } else { "certain" }));
    }
}

fn call(key: &Key, bytes: usize) -> QueuedCall {
    QueuedCall::Keyed(Box::new(Logged { key: key.clone(), bytes, is_abandoned: false, log: Log::default() }))
}

fn keys(count: usize) -> Vec<Key> {
    (0..count).map(|_| fresh_claim().key).collect()
}

/// A lookup of a lock, and the end of its caller.
fn lookup(name: &str) -> (QueuedCall, impl Sized + use<>) {
    let routes = Routes::new(std::iter::once(Arc::<Readiness>::default()));
    let key = LockKey { app: "shop".into(), name: name.into() };
    let (reply, answer) = Reply::<RecordView>::new();
    let call = LockCall { _route: routes.take(&key), key, work: LockWork::Read(reply) };
    (QueuedCall::Lock(Box::new(call)), answer)
}

/// The keys of the next batch of claims; nothing if there is none.
fn next_claims(queue: &mut VecDeque<QueuedCall>) -> Vec<Key> {
    match next_work(queue) {
        Some(Work::Claims(calls)) => calls.iter().map(|call| call.key().clone()).collect(),
        Some(Work::Locks(_) | Work::Single(_)) => panic!("claims were expected"),
        None => Vec::new(),
    }
}

fn next_locks(queue: &mut VecDeque<QueuedCall>) -> Vec<String> {
    match next_work(queue) {
        Some(Work::Locks(calls)) => calls.into_iter().map(|call| call.key.name).collect(),
        _ => panic!("locks were expected"),
    }
}

#[test]
fn a_second_call_on_a_key_waits_for_the_next_batch() {
    let keys = keys(3);
    let mut queue: VecDeque<_> = [0, 1, 0, 2, 0].iter().map(|at| call(&keys[*at], 1)).collect();
    assert_eq!(next_claims(&mut queue), [keys[0].clone(), keys[1].clone(), keys[2].clone()]);
    assert_eq!(next_claims(&mut queue), [keys[0].clone()]);
    assert_eq!(next_claims(&mut queue), [keys[0].clone()]);
    assert_eq!(next_claims(&mut queue), []);
}

#[test]
fn a_batch_is_bounded_by_its_calls_and_by_their_bytes() {
    let many = keys(CALLS_MAX + 1);
    let mut queue: VecDeque<_> = many.iter().map(|key| call(key, 0)).collect();
    assert_eq!((next_claims(&mut queue).len(), queue.len()), (CALLS_MAX, 1));
    for (bytes, batches) in [
        ([BYTES_MAX / 2, BYTES_MAX / 2, 1], vec![2, 1]),
        ([BYTES_MAX / 2, BYTES_MAX / 2 + 1, 1], vec![1, 2]),
        ([BYTES_MAX + 1, 1, BYTES_MAX - 1], vec![1, 2]),
    ] {
        let mut queue: VecDeque<_> = keys(3).iter().zip(bytes).map(|(key, bytes)| call(key, bytes)).collect();
        let taken: Vec<_> = batches.iter().map(|_| next_claims(&mut queue).len()).collect();
        assert_eq!((taken, queue.len()), (batches, 0), "{bytes:?}");
    }
}

#[test]
fn claims_and_locks_share_no_batch_and_none_overtakes_another_on_its_lock() {
    let keys = keys(2);
    let (names, _answers): (Vec<_>, Vec<_>) = ["a", "b", "a"].into_iter().map(lookup).unzip();
    let mut queue = VecDeque::from([call(&keys[0], 1)]);
    queue.extend(names);
    queue.push_back(call(&keys[1], 1));
    assert_eq!(next_claims(&mut queue), keys);
    queue.push_back(call(&keys[0], 1));
    assert_eq!(next_locks(&mut queue), ["a", "b"]);
    assert_eq!(next_locks(&mut queue), ["a"]);
    assert_eq!(next_claims(&mut queue), [keys[0].clone()]);
}

#[test]
fn calls_whose_callers_have_gone_are_dropped() {
    let keys = keys(2);
    let gone = Logged { key: keys[0].clone(), bytes: 1, is_abandoned: true, log: Log::default() };
    let (abandoned, answer) = lookup("a");
    drop(answer);
    let mut queue = VecDeque::from([QueuedCall::Keyed(Box::new(gone)), abandoned, call(&keys[1], 1)]);
    assert_eq!(next_claims(&mut queue), [keys[1].clone()]);
    assert!(queue.is_empty());
}

#[test]
fn what_was_found_answers_the_calls_that_wait_on_its_key() {
    let (keys, log) = (keys(2), Log::default());
    let waiting = |key: &Key| {
        let (key, log) = (key.clone(), log.clone());
        QueuedCall::Keyed(Box::new(Logged { key, bytes: 1, is_abandoned: false, log }))
    };
    let claim = |fence| {
        let request: ClaimRequest = fresh_claim();
        LiveClaim { record: request.record(), left: None, ends_at: None, fence }
    };
    let mut queue = VecDeque::from([waiting(&keys[0]), waiting(&keys[1]), waiting(&keys[0])]);
    answer_waiting(&mut queue, &Found::new());
    answer_waiting(&mut queue, &Found::from_iter([(keys[0].clone(), claim(None))]));
    assert_eq!(queue.len(), 3, "they need a write");
    answer_waiting(&mut queue, &Found::from_iter([(keys[0].clone(), claim(Some(1)))]));
    assert_eq!(next_claims(&mut queue), [keys[1].clone()]);
    assert_eq!(*log.lock().unwrap(), [(keys[0].clone(), "found"), (keys[0].clone(), "found")]);
    answer_waiting(&mut queue, &Found::from_iter([(keys[0].clone(), claim(Some(1)))]));
}

/// A separate statement that does nothing.
struct Alone;

impl SingleCall for Alone {
    fn run(self: Box<Self>, _: &mut Session) -> futures_util::future::BoxFuture<'_, Result<(), String>> {
        Box::pin(async { Ok(()) })
    }
    fn refuse(self: Box<Self>, _: &oncegate_core::engine::Determinate) {}
}

#[test]
fn a_separate_statement_waits_for_the_batch_before_it() {
    let keys = keys(2);
    let mut queue = VecDeque::from([call(&keys[0], 1), QueuedCall::Single(Box::new(Alone)), call(&keys[1], 1)]);
    assert_eq!(next_claims(&mut queue), [keys[0].clone()]);
    assert!(matches!(next_work(&mut queue), Some(Work::Single(_))));
    assert_eq!(next_claims(&mut queue), [keys[1].clone()]);
}

#[test]
fn a_batch_of_locks_is_bounded_too() {
    let (calls, _answers): (Vec<_>, Vec<_>) = (0..=CALLS_MAX).map(|number| lookup(&format!("n{number}"))).unzip();
    let mut queue = VecDeque::from(calls);
    assert_eq!((next_locks(&mut queue).len(), next_locks(&mut queue).len()), (CALLS_MAX, 1));
}
