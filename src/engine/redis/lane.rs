//! A lane: a queue of calls and the task that owns one connection and answers them. What gathers in the queue while
//! replies are awaited goes out together; nothing waits in order to gather.

use std::pin::pin;
use std::sync::Arc;
use std::time::Duration;

use futures_util::StreamExt;
use futures_util::future::BoxFuture;
use futures_util::stream::FuturesUnordered;
use redis::{Cmd, ServerErrorKind, Value};
use tokio::runtime::{Handle, Id};
use tokio::sync::{mpsc, oneshot};
use tokio::time::{MissedTickBehavior, interval, sleep};
use tokio_util::sync::CancellationToken;
use tokio_util::task::TaskTracker;

use super::link::{Link, Shared};
use crate::domain::attempt::{Entropy, SystemEntropy};
use crate::engine::Determinate;

/// Calls that may wait in a lane; further callers wait for room.
const QUEUE: usize = 1024;
/// Commands that make a batch: no call is added to one that has as many.
pub(super) const BATCH: usize = 128;
/// Batches that may be on their way at once. More would make batches smaller, and each costs an ECHO.
const IN_FLIGHT: usize = 4;
/// A connection that stood for this long was a good one: the next is tried at once.
const STEADY: Duration = Duration::from_secs(1);

/// Why a call has no reply.
#[derive(Clone, Debug)]
pub(super) enum Lost {
    /// It was certainly not sent.
    NotSent(Determinate),
    /// It may have been sent.
    Unanswered(String),
}

/// The callers' end of a lane.
pub(super) struct Lane {
    calls: mpsc::Sender<Call>,
    core: Id,
}

/// Commands that go out together, and who waits for their replies.
struct Call {
    commands: Vec<Cmd>,
    /// Whether they may make claims: refused while the server may evict.
    claims: bool,
    answer: oneshot::Sender<Result<Vec<Value>, Lost>>,
}

impl Call {
    fn refuse(self, why: &Determinate) {
        // An error means that the caller has gone.
        let _ = self.answer.send(Err(Lost::NotSent(why.clone())));
    }
}

impl Lane {
    /// Starts a lane on a core, which ends when `closing` is cancelled.
    pub(super) fn start(shared: Arc<Shared>, closing: CancellationToken, tasks: &TaskTracker, core: &Handle) -> Self {
        let (sender, calls) = mpsc::channel(QUEUE);
        tasks.spawn_on(Driver { shared, closing, calls, failures: 0 }.run(), core);
        Self { calls: sender, core: core.id() }
    }

    /// The runtime it lives on.
    pub(super) fn core(&self) -> Id {
        self.core
    }

    /// Sends a command and waits for its reply. Commands are sent in the order of these calls. May be dropped at any
    /// time; the command is then not sent, or its reply is thrown away.
    pub(super) async fn call(&self, command: Cmd, claims: bool) -> Result<Value, Lost> {
        let replies = self.call_all(vec![command], claims).await?;
        replies.into_iter().next().ok_or_else(|| Lost::Unanswered("there was no reply".into()))
    }

    /// The same for several commands, which go out together: a reply to each, in their order.
    pub(super) async fn call_all(&self, commands: Vec<Cmd>, claims: bool) -> Result<Vec<Value>, Lost> {
        let (answer, replies) = oneshot::channel();
        if self.calls.send(Call { commands, claims, answer }).await.is_err() {
            return Err(Lost::NotSent(closed()));
        }
        // The lane answers all it did not send. A call it let go of was on its way when the connection failed.
        replies
            .await
            .unwrap_or_else(|_| Err(Lost::Unanswered("the connection to the Redis server was given up".into())))
    }
}

fn closed() -> Determinate {
    Determinate::Unavailable("the engine is closed".into())
}

/// The lane's end of a lane.
struct Driver {
    shared: Arc<Shared>,
    closing: CancellationToken,
    calls: mpsc::Receiver<Call>,
    /// Failures since the last connection that stood for a while.
    failures: u32,
}

/// What an answered batch says about its connection.
enum Fitness {
    Good,
    /// To be replaced once what is in flight has been answered.
    Retire(&'static str),
}

impl Driver {
    async fn run(mut self) {
        while let Some(link) = self.connect().await {
            self.shared.status.connected();
            // Lest a server that lets us in only to hang up be called without a pause.
            self.failures += 1;
            let why = self.serve(link).await;
            if self.closing.is_cancelled() {
                self.shared.status.closed();
            } else {
                self.shared.status.lost(&why);
            }
        }
        self.calls.close();
        while let Some(call) = self.calls.recv().await {
            call.refuse(&closed());
        }
    }

    /// Tries until there is a connection; nothing if the lane is to end. Calls wait for the first try, which is bounded
    /// by the connect timeout and mostly succeeds at once; after it has failed they are told so at once.
    async fn connect(&mut self) -> Option<Link> {
        let mut refusal = None;
        loop {
            if self.failures > 0 {
                self.attend(sleep(pause(self.failures)), refusal.as_ref()).await?;
            }
            match self.attend(Link::open(self.shared.clone()), refusal.as_ref()).await? {
                Ok(link) => return Some(link),
                Err(why) => {
                    self.shared.status.unavailable(&why);
                    self.failures = self.failures.saturating_add(1);
                    refusal = Some(why);
                }
            }
        }
    }

    /// Waits for `event`, refusing calls meanwhile if there is a reason to. Nothing if the lane is to end.
    async fn attend<T>(&mut self, event: impl Future<Output = T>, refusal: Option<&Determinate>) -> Option<T> {
        let mut event = pin!(event);
        loop {
            tokio::select! {
                () = self.closing.cancelled() => return None,
                output = &mut event => return Some(output),
                Some(call) = self.calls.recv(), if refusal.is_some() => {
                    if let Some(why) = refusal { call.refuse(why) }
                }
            }
        }
    }

    /// Answers calls over a connection for as long as it is good; tells why it no longer is.
    ///
    /// Dropping what is in flight lets go of its calls, which are thereby unanswered, and of the connection.
    async fn serve(&mut self, mut link: Link) -> String {
        let mut in_flight: FuturesUnordered<BoxFuture<'static, Result<Fitness, String>>> = FuturesUnordered::new();
        let mut retired = None;
        let mut steady = pin!(sleep(STEADY));
        let mut checks = interval(self.shared.options.health_every);
        checks.set_missed_tick_behavior(MissedTickBehavior::Delay);
        let mut beats = interval(self.shared.options.beat_every);
        beats.set_missed_tick_behavior(MissedTickBehavior::Delay);
        // The first tick is at once, and the link has just been checked.
        checks.tick().await;
        beats.tick().await;
        loop {
            if let (Some(why), true) = (retired, in_flight.is_empty()) {
                return String::from(why);
            }
            let open = retired.is_none();
            tokio::select! {
                // In this order: replies first, and no batch is begun before the last one has been sent.
                biased;
                Some(outcome) = in_flight.next() => match outcome {
                    Ok(Fitness::Good) => {}
                    Ok(Fitness::Retire(why)) => retired = Some(why),
                    Err(why) => return why,
                },
                () = self.closing.cancelled(), if open => retired = Some("the engine is closing"),
                _ = checks.tick(), if open => {
                    let check = link.check();
                    in_flight.push(Box::pin(async { check.await.map(|()| Fitness::Good).map_err(|why| why.to_string()) }));
                }
                _ = beats.tick(), if open => {
                    let beat = link.beat();
                    in_flight.push(Box::pin(async { beat.await.map(|()| Fitness::Good) }));
                }
                () = &mut steady, if self.failures > 0 => self.failures = 0,
                call = self.calls.recv(), if open && in_flight.len() < IN_FLIGHT => match call {
                    None => retired = Some("the engine is gone"),
                    Some(call) => {
                        if let Some(exchange) = self.send(&mut link, call) {
                            in_flight.push(Box::pin(exchange));
                        }
                    }
                }
            }
        }
    }

    /// Puts a call and those that wait behind it on their way: those that are still waited for, and may be sent.
    fn send(
        &mut self,
        link: &mut Link,
        call: Call,
    ) -> Option<impl Future<Output = Result<Fitness, String>> + Send + 'static + use<>> {
        let refusal = self.shared.health.refusal_of_claims();
        let others = self.calls.len().min(BATCH);
        let mut commands = Vec::with_capacity(call.commands.len() + others);
        let mut answers = Vec::with_capacity(1 + others);
        let mut next = Some(call);
        while let Some(mut call) = next {
            match &refusal {
                Some(why) if call.claims => call.refuse(why),
                _ if call.answer.is_closed() => {}
                _ => {
                    answers.push((call.commands.len(), call.answer));
                    commands.append(&mut call.commands);
                }
            }
            next = if commands.len() < BATCH { self.calls.try_recv().ok() } else { None };
        }
        if commands.is_empty() {
            return None;
        }
        let exchange = link.exchange(commands);
        Some(async move {
            let replies = exchange.await;
            let fitness = replies.as_ref().map(|replies| fitness(replies)).map_err(Clone::clone);
            let mut replies = replies.map(Vec::into_iter).map_err(Lost::Unanswered);
            for (count, answer) in answers {
                let own = replies.as_mut().map(|replies| replies.take(count).collect());
                // An error means that the caller has gone.
                let _ = answer.send(own.map_err(|lost| lost.clone()));
            }
            fitness
        })
    }
}

/// A demoted server goes on refusing over this connection; the next one may lead to its successor.
fn fitness(replies: &[Value]) -> Fitness {
    let demoted =
        |reply: &Value| matches!(reply, Value::ServerError(error) if error.kind() == Some(ServerErrorKind::ReadOnly));
    if replies.iter().any(demoted) {
        Fitness::Retire("READONLY: the Redis server has become a replica")
    } else {
        Fitness::Good
    }
}

/// How long to wait before the next try: up to a sixth of a second, so that a store that is back is found well within
/// a second; each lane and gateway for a different time, so that they do not all come at once.
fn pause(failures: u32) -> Duration {
    let longest_ms = 10_u64 << failures.min(4);
    Duration::from_millis(longest_ms / 2 + SystemEntropy.bits() % (longest_ms / 2 + 1))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn pauses_grow_to_a_sixth_of_a_second() {
        for (failures, longest) in [(1, 20), (2, 40), (4, 160), (5, 160), (u32::MAX, 160)] {
            for _ in 0..100 {
                let pause = pause(failures);
                assert!(
                    pause >= Duration::from_millis(longest / 2) && pause <= Duration::from_millis(longest),
                    "{pause:?}"
                );
            }
        }
    }
}
