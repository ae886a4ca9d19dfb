//! Callers that wait for replicas: when they are answered, and how often the wait is repeated.

use std::collections::VecDeque;

use futures_util::FutureExt as _;
use oncegate_driver::{Reply, Server};
use tokio::sync::oneshot;

use super::*;
use crate::fake;
use crate::limit::CallTime;
use crate::url::Url;

const SECOND: Duration = Duration::from_secs(1);

/// Time of a wait, and the number of replicas that acknowledge it.
type Wait = (Duration, i64);

/// A server whose waits end like this, one after the other; then all succeed.
struct Fake {
    room: Arc<Room>,
    waits: Arc<Mutex<VecDeque<Wait>>>,
    /// The commands that it got.
    seen: Arc<Mutex<Vec<String>>>,
}

impl Fake {
    fn new(waits: impl IntoIterator<Item = Wait>, write: &'static str) -> Self {
        let waits = Arc::new(Mutex::new(waits.into_iter().collect::<VecDeque<_>>()));
        let seen = Arc::new(Mutex::new(Vec::new()));
        let (planned, got) = (waits.clone(), seen.clone());
        let stream = fake::stream(move |words| {
            got.lock().unwrap().push(words[0].clone());
            match &*words[0] {
                "WAIT" => {
                    let (takes, count) = planned.lock().unwrap().pop_front().unwrap_or((Duration::ZERO, 1));
                    (takes, format!(":{count}\r\n"))
                }
                "PEXPIRE" => (Duration::ZERO, write.into()),
                _ => (Duration::ZERO, "+OK\r\n".into()),
            }
        });
        let url = Arc::new(Url::parse("redis://h?replicas=1").unwrap());
        let server = Arc::new(Server::new("redis", url.to_string(), None));
        let marker = Marker { key: "og:marker".into(), place: None };
        let health = Arc::new(Health::new(url.clone(), server, Some(marker), Arc::default()));
        let wire = Wire::new(stream, 10 * SECOND, 7);
        Self { room: Arc::new(Room::new(wire, health, url.acknowledgement.unwrap())), waits, seen }
    }

    /// Sends a command whose caller waits for this long, and returns the exchange and the answer.
    fn exchange(&self, waits: Duration) -> (impl Future<Output = Result<Fitness, Lost>> + use<>, ReplyReceiver) {
        let (reply, answer) = Reply::new();
        // The wait takes four fifths of a deadline.
        let wait = CallTime::start(waits * 5 / 4, true).wait;
        let caller = Caller { count: 1, wait, reply: Some(reply) };
        (self.room.clone().exchange(redis::cmd("SET").into(), vec![caller]), answer)
    }

    fn count(&self, command: &str) -> usize {
        self.seen.lock().unwrap().iter().filter(|seen| *seen == command).count()
    }
}

type ReplyReceiver = oneshot::Receiver<Result<Vec<Value>, EngineError>>;

fn is_given(answer: Result<Result<Vec<Value>, EngineError>, oneshot::error::RecvError>) -> bool {
    answer.unwrap() == Ok(vec![Value::Okay])
}

fn is_short(answer: Result<Result<Vec<Value>, EngineError>, oneshot::error::RecvError>) -> bool {
    answer.unwrap().is_err_and(|why| why.is_shortfall())
}

fn is_good(ended: &Result<Fitness, Lost>) -> bool {
    matches!(ended, Ok(Fitness::Good))
}

const AT_ONCE: Duration = Duration::ZERO;
const ENOUGH: &str = ":1\r\n";

#[tokio::test(start_paused = true)]
async fn an_answer_is_given_once_enough_replicas_have_it() {
    let fake = Fake::new([], ENOUGH);
    let (exchange, answer) = fake.exchange(SECOND);
    assert!(is_good(&exchange.await) && is_given(answer.await));
    assert!(!fake.room.is_repeated() && fake.room.short().is_none());
    assert_eq!((fake.count("WAIT"), fake.count("SET")), (1, 1));
}

#[tokio::test(start_paused = true)]
async fn the_wait_is_repeated_until_it_succeeds() {
    let fake = Fake::new([(AT_ONCE, 0), (AT_ONCE, 0), (SECOND / 2, 0)], ENOUGH);
    let (exchange, answer) = fake.exchange(5 * SECOND);
    let running = tokio::spawn(exchange);
    sleep(SECOND / 4).await;
    assert!(fake.room.is_repeated() && fake.room.short().is_some_and(|why| why.contains("at 0 replicas")));
    assert!(is_good(&running.await.unwrap()) && is_given(answer.await));
    assert!(!fake.room.is_repeated() && fake.room.short().is_none());
    // The marker is written again with each repetition.
    assert_eq!((fake.count("WAIT"), fake.count("SET")), (4, 1 + 3));
}

#[tokio::test(start_paused = true)]
async fn a_caller_whose_time_is_over_is_answered_that_too_few_replicas_have_it() {
    let fake = Fake::new((0..1000).map(|_| (AT_ONCE, 0)), ENOUGH);
    let (early, late) = (Limit::after(SECOND), Limit::after(SECOND * 11 / 10));
    let (exchange, answer) = fake.exchange(SECOND);
    assert!(is_good(&exchange.await));
    assert!(early.is_over() && !late.is_over());
    assert!(is_short(answer.await));
    assert!(!fake.room.is_repeated(), "nothing waits any more");
    assert!(fake.room.short().is_some(), "the next call does not wait for a reply that cannot come");
}

#[tokio::test(start_paused = true)]
async fn one_exchange_repeats_the_wait_for_all_that_it_covers() {
    // The second exchange falls short while the first one repeats its wait.
    let fake = Fake::new([(AT_ONCE, 0), (SECOND / 10, 0)], ENOUGH);
    let (first, answer) = fake.exchange(5 * SECOND);
    let first = tokio::spawn(first);
    sleep(Duration::from_millis(5)).await;
    let (second, other) = fake.exchange(5 * SECOND);
    let second = tokio::spawn(second);
    assert!(is_given(answer.await));
    assert!(is_good(&second.await.unwrap()), "it leaves its caller in the room");
    assert!(fake.room.is_repeated());
    assert!(is_good(&first.await.unwrap()) && is_given(other.await));
    assert_eq!(fake.count("WAIT"), 4, "a wait that began before a caller came does not count for it");
}

#[tokio::test(start_paused = true)]
async fn of_several_exchanges_that_fall_short_one_repeats_the_wait() {
    let fake = Fake::new([(AT_ONCE, 0), (AT_ONCE, 0), (SECOND, 1)], ENOUGH);
    let ((first, answer), (second, other)) = (fake.exchange(5 * SECOND), fake.exchange(5 * SECOND));
    let (first, second) = (tokio::spawn(first), tokio::spawn(second));
    sleep(Duration::from_millis(5)).await;
    assert!(second.is_finished() && !first.is_finished());
    assert!(is_given(answer.await) && is_given(other.await));
    assert_eq!(fake.count("WAIT"), 3);
}

#[tokio::test(start_paused = true)]
async fn a_server_that_is_a_replica_now_acknowledges_nothing_any_more() {
    let fake = Fake::new([], "-READONLY x\r\n");
    let (exchange, answer) = fake.exchange(5 * SECOND);
    assert!(matches!(exchange.await, Ok(Fitness::Retire(why)) if why.contains("READONLY")));
    assert!(is_short(answer.await) && fake.count("WAIT") == 1);
}

#[tokio::test(start_paused = true)]
async fn a_caller_of_a_server_that_waits_is_short_and_of_one_that_is_silent_is_not_answered() {
    // A server waits for up to 100 milliseconds, for an exchange and the one before it. After that it does not answer.
    for (is_known, waits, is_answered) in
        [(true, SECOND / 20, true), (true, SECOND / 2, true), (false, SECOND / 20, true), (false, SECOND / 2, false)]
    {
        let fake = Fake::new([(5 * SECOND, 1)], ENOUGH);
        if is_known {
            fake.room.state().short = Some("few".into());
        }
        let (early, late) = (Limit::after(waits), Limit::after(waits + SECOND / 10));
        let (exchange, answer) = fake.exchange(waits);
        let running = tokio::spawn(exchange);
        let answer = answer.await;
        assert!(if is_answered { is_short(answer) } else { is_given(answer) }, "{is_known} {waits:?}");
        assert!(early.is_over() && late.is_over() != is_answered, "{is_known} {waits:?}");
        assert!(is_good(&running.await.unwrap()));
    }
}

#[tokio::test(start_paused = true)]
async fn with_the_connection_all_callers_in_the_room_are_lost() {
    let fake = Fake::new([(AT_ONCE, 0), (20 * SECOND, 1)], ENOUGH);
    let (exchange, answer) = fake.exchange(60 * SECOND);
    assert!(exchange.await.is_err_and(|lost| lost.why.contains("did not answer")));
    assert!(answer.await.unwrap().is_err_and(|why| why.is_uncertain() && !why.is_shortfall()));
    assert!(fake.waits.lock().unwrap().is_empty());
}

#[tokio::test(start_paused = true)]
async fn what_was_refused_or_does_not_wait_is_answered_at_once() {
    let refused = redis::parse_redis_value(b"-OOM x\r\n").unwrap();
    let waits = CallTime::start(SECOND, true).wait;
    let of_grants = CallTime::start(SECOND, true).for_grants().wait;
    for (wait, value, is_answered) in [
        (waits, refused, true),
        (waits, Value::Okay, false),
        (None, Value::Okay, true),
        (of_grants, Value::Okay, true),
        (of_grants, Value::Nil, false),
    ] {
        let (reply, answer) = Reply::new();
        let waiting = answer_at_once(vec![Caller { count: 1, wait, reply: Some(reply) }], vec![value.clone()]);
        assert_eq!(
            (waiting.len(), answer.now_or_never().is_some()),
            (usize::from(!is_answered), is_answered),
            "{value:?}"
        );
    }
}
