//! Exchanges whose answers wait for replicas. An answer is given once enough replicas have everything that was written
//! before it. If too few have, its caller waits in the `Room` of the connection. There every later successful wait
//! counts, and one exchange repeats the wait. If the time of a call is over, its answer is that too few replicas have
//! the data.

use std::pin::pin;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::Duration;

use oncegate_core::engine::EngineError;
use oncegate_driver::{Fitness, Lost};
use redis::Value;
use tokio::time::sleep;

use super::acknowledgement::{Acknowledged, Acknowledgement};
use super::callers::{Caller, fitness, lose};
use super::commands::Commands;
use super::health::Health;
use super::limit::Limit;
use super::marker::Marker;
use super::wire::Wire;

/// Time between two checks of waiting callers' deadlines, and between two waits.
const TICK: Duration = Duration::from_millis(10);

const WAITING: &str = "replicas have not acknowledged it yet";
const READONLY: Fitness = Fitness::Retire("READONLY: the Redis server has become a replica");

/// State that the exchanges of a connection share.
pub(super) struct Room {
    wire: Wire,
    health: Arc<Health>,
    acknowledgement: Acknowledgement,
    state: Mutex<State>,
}

#[derive(Default)]
struct State {
    /// In ascending order of their numbers.
    waiting: Vec<Waiting>,
    /// Number of the next caller that waits.
    next: u64,
    /// True if an exchange repeats the wait.
    is_repeated: bool,
    /// Reason of the last shortfall, if the last wait fell short.
    short: Option<String>,
}

/// A caller that waits, and its replies.
struct Waiting {
    number: u64,
    caller: Caller,
    values: Vec<Value>,
}

impl Room {
    pub(super) fn new(wire: Wire, health: Arc<Health>, acknowledgement: Acknowledgement) -> Self {
        Self { wire, health, acknowledgement, state: Mutex::default() }
    }

    /// Returns whether an exchange repeats the wait. It is one more than the others.
    pub(super) fn is_repeated(&self) -> bool {
        self.state().is_repeated
    }

    /// Returns the reason of the last shortfall, if the last wait fell short.
    pub(super) fn short(&self) -> Option<String> {
        self.state().short.clone()
    }

    /// Sends commands, and answers the callers once replicas have acknowledged all of it.
    pub(super) async fn exchange(
        self: Arc<Self>,
        mut commands: Commands,
        mut callers: Vec<Caller>,
    ) -> Result<Fitness, Lost> {
        let count = commands.len();
        let marker = self.health.marker();
        commands.extend(self.acknowledgement.commands(marker.as_deref().map(|marker| &*marker.key), None));
        // Callers that join the room later may depend on writes that this wait does not cover.
        let covered = self.state().next;
        // Until then the server waits for replicas: for this exchange and the one before it.
        let reply_due = Limit::after(self.acknowledgement.timeout * 2);
        let mut exchange = pin!(self.wire.exchange(commands));
        let mut values = loop {
            tokio::select! {
                biased;
                values = &mut exchange => match values {
                    Ok(values) => break values,
                    Err(why) => return Err(self.lose(callers, why)),
                },
                () = sleep(TICK) => self.give_up_unanswered(&mut callers, reply_due),
            }
        };
        let acknowledged = self.acknowledgement.read_replies(values.split_off(count), marker.is_some());
        let fitness = if matches!(acknowledged, Acknowledged::Never(_)) { READONLY } else { fitness(&values) };
        let waiting = answer_at_once(callers, values);
        if self.conclude(acknowledged, covered, waiting) { self.repeat(fitness).await } else { Ok(fitness) }
    }

    /// Repeats write and wait until no caller waits any more.
    async fn repeat(&self, fitness: Fitness) -> Result<Fitness, Lost> {
        loop {
            sleep(TICK).await;
            if self.give_up() {
                return Ok(fitness);
            }
            let covered = self.state().next;
            let marker = self.health.marker();
            let key = marker.as_deref().map(|marker| &*marker.key);
            let commands = self.acknowledgement.commands(key, Some(&Marker::value()));
            let mut exchange = pin!(self.wire.exchange(commands.into_iter().collect()));
            let replies = loop {
                tokio::select! {
                    biased;
                    replies = &mut exchange => match replies {
                        Ok(replies) => break replies,
                        Err(why) => return Err(self.lose(Vec::new(), why)),
                    },
                    () = sleep(TICK) => self.answer_late(),
                }
            };
            let acknowledged = self.acknowledgement.read_replies(replies, marker.is_some());
            let is_replica = matches!(acknowledged, Acknowledged::Never(_));
            self.conclude(acknowledged, covered, Vec::new());
            if is_replica {
                return Ok(READONLY);
            }
        }
    }

    /// Acts on the result of a wait that covers the callers with lower numbers, and those of its exchange. Returns whether the
    /// exchange must repeat the wait.
    fn conclude(&self, acknowledged: Acknowledged, covered: u64, own: Vec<(Caller, Vec<Value>)>) -> bool {
        let mut state = self.state();
        match acknowledged {
            Acknowledged::Yes => {
                state.short = None;
                let others = state.waiting.extract_if(.., |waiting| waiting.number < covered);
                let others = others.map(|Waiting { caller, values, .. }| (caller, values));
                others.chain(own).for_each(|(mut caller, values)| caller.answer(Ok(values)));
                false
            }
            Acknowledged::Short(why) => {
                for (caller, values) in own {
                    let number = state.next;
                    state.next += 1;
                    state.waiting.push(Waiting { number, caller, values });
                }
                state.short = Some(why);
                let is_first = !state.is_repeated && !state.waiting.is_empty();
                state.is_repeated |= is_first;
                is_first
            }
            Acknowledged::Never(why) => {
                let others = state.waiting.drain(..).map(|waiting| waiting.caller);
                let own = own.into_iter().map(|(caller, _)| caller);
                others.chain(own).for_each(|mut caller| caller.answer(Err(EngineError::shortfall(&*why))));
                false
            }
        }
    }

    /// Answers the waiting callers whose time is over. Returns whether none is left, and the wait is not repeated any
    /// more.
    fn give_up(&self) -> bool {
        self.answer_late();
        let mut state = self.state();
        state.is_repeated = !state.waiting.is_empty();
        !state.is_repeated
    }

    fn answer_late(&self) {
        let mut state = self.state();
        let why = state.short.clone().unwrap_or_else(|| WAITING.into());
        for mut late in state.waiting.extract_if(.., |waiting| waiting.caller.is_late()) {
            late.caller.answer(Err(EngineError::shortfall(&*why)));
        }
    }

    /// Answers callers without a reply whose time is over, if the server still waits for replicas. `reply_due` is the time by which the
    /// server should have replied.
    fn give_up_unanswered(&self, callers: &mut [Caller], reply_due: Limit) {
        let short = self.short();
        if short.is_some() || !reply_due.is_over() {
            let why = short.unwrap_or_else(|| WAITING.into());
            for caller in callers.iter_mut().filter(|caller| caller.is_late()) {
                caller.answer(Err(EngineError::shortfall(&*why)));
            }
        }
    }

    /// Answers the callers, here and in the room, that the effect of their calls is unknown.
    fn lose(&self, callers: Vec<Caller>, why: String) -> Lost {
        let waiting: Vec<_> = self.state().waiting.drain(..).map(|waiting| waiting.caller).collect();
        lose(callers.into_iter().chain(waiting).collect(), why)
    }

    fn state(&self) -> MutexGuard<'_, State> {
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

/// Answers each caller whose replies need no wait: nothing was executed for it, or its reply is final. Returns the others.
fn answer_at_once(callers: Vec<Caller>, values: Vec<Value>) -> Vec<(Caller, Vec<Value>)> {
    let mut values = values.into_iter();
    let mut waiting = Vec::with_capacity(callers.len());
    for mut caller in callers {
        let own: Vec<_> = values.by_ref().take(caller.count).collect();
        // A transaction that was refused ends with an error, too.
        let is_refused = matches!(own.last(), Some(Value::ServerError(_)));
        if is_refused || caller.wait.is_none_or(|wait| !wait.holds(&own)) {
            caller.answer(Ok(own));
        } else {
            waiting.push((caller, own));
        }
    }
    waiting
}

#[cfg(test)]
mod tests;
