//! The worker against a server that is played by the test.

use std::collections::VecDeque;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::sync::{Arc, Mutex};
use std::time::Duration;

use oncegate_core::engine::{Determinate, EngineError};
use tokio::time::{sleep, timeout};

use super::*;

/// Reaction of the server to the next exchange; after the last one it answers.
#[derive(Clone, Copy)]
enum Reaction {
    Answer,
    Demote,
    HangUp,
    /// Hangs up, and connections must wait for this long.
    HangUpFor(Duration),
    Freeze,
}

#[derive(Default)]
struct Script {
    /// Refusals of connections, one by one; after the last one, connections are accepted.
    refusals: Mutex<VecDeque<bool>>,
    reactions: Mutex<VecDeque<Reaction>>,
    connects: AtomicUsize,
    heartbeats: AtomicUsize,
    batches: Mutex<Vec<Vec<u32>>>,
}

struct Echo(u32, Reply<u32>);

impl Call for Echo {
    fn refuse(self, why: &Determinate) {
        self.1.refuse(why);
    }
}

struct FakeConnector(Arc<Script>, Server);
struct FakeConnection(Arc<Script>);

impl Connector for FakeConnector {
    type Connection = FakeConnection;

    fn server(&self) -> &Server {
        &self.1
    }

    async fn connect(&self) -> Result<FakeConnection, Determinate> {
        self.0.connects.fetch_add(1, Ordering::Relaxed);
        sleep(Duration::from_millis(1)).await;
        match self.0.refusals.lock().unwrap().pop_front() {
            Some(true) => Err(Determinate::Unavailable("down".into())),
            _ => Ok(FakeConnection(self.0.clone())),
        }
    }
}

impl Connection for FakeConnection {
    type Call = Echo;
    type Done = Fitness;

    fn exchanges_max(&self) -> usize {
        2
    }

    fn send(&mut self, queue: &mut Queue<Echo>) -> Option<Exchange<Fitness>> {
        let calls: Vec<_> = std::iter::from_fn(|| queue.pop()).filter(|call| !call.1.is_abandoned()).collect();
        if calls.is_empty() {
            return None;
        }
        let script = self.0.clone();
        Some(Box::pin(async move {
            script.batches.lock().unwrap().push(calls.iter().map(|call| call.0).collect());
            let reaction = script.reactions.lock().unwrap().pop_front().unwrap_or(Reaction::Answer);
            sleep(Duration::from_millis(5)).await;
            let lost = |reconnect_after| Lost { why: "it hung up".into(), reconnect_after };
            match reaction {
                Reaction::HangUp => return Err(lost(None)),
                Reaction::HangUpFor(span) => return Err(lost(Some(Box::pin(sleep(span))))),
                Reaction::Freeze => std::future::pending().await,
                Reaction::Answer | Reaction::Demote => {}
            }
            for Echo(number, reply) in calls {
                reply.send(Ok(number));
            }
            Ok(if matches!(reaction, Reaction::Demote) { Fitness::Retire("demoted") } else { Fitness::Good })
        }))
    }

    fn heartbeat(&mut self) -> Exchange<Fitness> {
        self.0.heartbeats.fetch_add(1, Ordering::Relaxed);
        Box::pin(async { Ok(Fitness::Good) })
    }

    fn finish(&mut self, done: Fitness, _: &mut Queue<Echo>) -> Fitness {
        done
    }
}

const INTERVALS: Intervals = Intervals { heartbeat: Duration::from_millis(500), check: None };

fn start(reactions: impl Into<VecDeque<Reaction>>, refusals: impl Into<VecDeque<bool>>) -> (Arc<Script>, Pool<Echo>) {
    let script = Arc::new(Script {
        reactions: Mutex::new(reactions.into()),
        refusals: Mutex::new(refusals.into()),
        ..Script::default()
    });
    let connector = |_| FakeConnector(script.clone(), Server::new("fake", "nowhere".into(), None));
    let pool = Pool::start(1, &[], INTERVALS, connector);
    (script, pool)
}

async fn call(pool: &Pool<Echo>, number: u32) -> Result<u32, EngineError> {
    pool.workers()[0].call(|reply| Echo(number, reply)).await
}

#[tokio::test(start_paused = true)]
async fn calls_that_arrive_together_go_out_together_and_each_gets_its_own_answer() {
    let (script, pool) = start([], []);
    let answers = futures_util::future::join_all((0..10).map(|number| call(&pool, number))).await;
    assert_eq!(answers, (0..10).map(Ok).collect::<Vec<_>>());
    assert_eq!(*script.batches.lock().unwrap(), [(0..10).collect::<Vec<_>>()]);
}

#[tokio::test(start_paused = true)]
async fn calls_wait_for_the_first_connect_and_are_refused_after_it_has_failed() {
    let (script, pool) = start([], [true, true, false]);
    let down = Err(EngineError::unavailable("down"));
    assert_eq!(call(&pool, 1).await, down);
    assert_eq!(timeout(Duration::from_millis(1), call(&pool, 2)).await, Ok(down), "it is refused at once");
    sleep(Duration::from_millis(100)).await;
    assert_eq!(call(&pool, 3).await, Ok(3));
    assert_eq!(script.connects.load(Ordering::Relaxed), 3);
}

#[tokio::test(start_paused = true)]
async fn a_call_under_way_is_uncertain_when_its_connection_is_lost_and_a_queued_one_is_sent_over_the_next() {
    let (script, pool) = start([Reaction::Freeze, Reaction::HangUp], []);
    let after = async |delay_ms, number| {
        sleep(Duration::from_millis(delay_ms)).await;
        call(&pool, number).await
    };
    // The first two are under way when the third comes.
    let (first, second, third) = tokio::join!(call(&pool, 1), after(2, 2), after(3, 3));
    assert!(matches!(first, Err(EngineError::Indeterminate(_))), "{first:?}");
    assert!(matches!(second, Err(EngineError::Indeterminate(_))), "{second:?}");
    assert_eq!(third, Ok(3));
    assert_eq!(script.connects.load(Ordering::Relaxed), 2);
}

#[tokio::test(start_paused = true)]
async fn a_connection_that_does_not_last_is_not_replaced_without_a_pause() {
    let (script, pool) = start(vec![Reaction::HangUp; 1000], []);
    let calls = async {
        loop {
            let _ = call(&pool, 1).await;
        }
    };
    assert!(timeout(Duration::from_secs(1), calls).await.is_err());
    let connects = script.connects.load(Ordering::Relaxed);
    assert!((6..=20).contains(&connects), "{connects}");
}

#[tokio::test(start_paused = true)]
async fn a_retired_connection_is_replaced_without_losing_a_call() {
    let (script, pool) = start([Reaction::Demote], []);
    assert_eq!((call(&pool, 1).await, call(&pool, 2).await), (Ok(1), Ok(2)));
    assert_eq!(script.connects.load(Ordering::Relaxed), 2);
}

#[tokio::test(start_paused = true)]
async fn no_connection_is_opened_before_the_lost_one_allows_it() {
    let (script, pool) = start([Reaction::HangUpFor(Duration::from_secs(5))], []);
    let _ = call(&pool, 1).await;
    sleep(Duration::from_secs(4)).await;
    assert_eq!(call(&pool, 2).await, Err(EngineError::unavailable("it hung up")));
    assert_eq!(script.connects.load(Ordering::Relaxed), 1);
    sleep(Duration::from_secs(2)).await;
    assert_eq!(call(&pool, 3).await, Ok(3));
}

#[tokio::test(start_paused = true)]
async fn heartbeats_are_sent_at_their_interval() {
    let (script, pool) = start([], []);
    assert_eq!(call(&pool, 1).await, Ok(1));
    assert!(pool.workers()[0].readiness().is_ready());
    sleep(Duration::from_secs(10)).await;
    assert_eq!(script.heartbeats.load(Ordering::Relaxed), 20);
}

#[tokio::test(start_paused = true)]
async fn exchanges_under_way_are_bounded_and_what_waits_forms_a_batch() {
    let (script, pool) = start([], []);
    call(&pool, 0).await.unwrap();
    let later = (1..=6).map(|number| async move {
        sleep(Duration::from_millis(u64::from(number))).await;
        number
    });
    let pool = &pool;
    let calls = later.map(|number| async move { call(pool, number.await).await });
    futures_util::future::join_all(calls).await;
    let batches = script.batches.lock().unwrap().clone();
    assert_eq!(batches[1..3], [vec![1], vec![2]]);
    assert!(batches[3].len() > 1, "{batches:?}");
}

#[tokio::test(start_paused = true)]
async fn closing_waits_for_answers_and_refuses_what_was_not_sent() {
    let (_, pool) = start([], []);
    let close = async {
        sleep(Duration::from_millis(3)).await;
        pool.close().await;
    };
    assert_eq!(tokio::join!(call(&pool, 1), close).0, Ok(1));
    assert_eq!(call(&pool, 2).await, Err(EngineError::unavailable("the engine is closed")));
}

#[tokio::test(start_paused = true)]
async fn a_call_whose_caller_has_gone_is_not_sent() {
    let (script, pool) = start([Reaction::Freeze, Reaction::Freeze], []);
    for number in 1..=2 {
        assert!(timeout(Duration::from_millis(10), call(&pool, number)).await.is_err());
    }
    // Two exchanges are under way, so this one waits.
    assert!(timeout(Duration::from_millis(10), call(&pool, 3)).await.is_err());
    assert_eq!(*script.batches.lock().unwrap(), [[1], [2]]);
}

#[test]
fn another_marker_or_none_means_lost_data() {
    let losses = Arc::new(AtomicUsize::new(0));
    let counted = losses.clone();
    let hook: OnDataLoss = Arc::new(move || {
        counted.fetch_add(1, Ordering::Relaxed);
    });
    let server = Server::new("fake", "nowhere".into(), Some(hook));
    for (marker, lost) in [
        (None, 0),
        (Some("a"), 0),
        (Some("a"), 0),
        (Some("b"), 1),
        (Some("b"), 1),
        (None, 2),
        (None, 2),
        (Some("a"), 2),
    ] {
        server.set_marker(marker.map(str::as_bytes));
        assert_eq!(server.data_losses(), lost, "{marker:?}");
        assert_eq!(losses.load(Ordering::Relaxed) as u64, lost);
    }
}
