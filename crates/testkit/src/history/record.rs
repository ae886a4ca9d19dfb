//! What is recorded of a call: when it was made and answered by the callers' one clock, what was asked, what was told.
//! No judgement here.

use std::collections::BTreeMap;
use std::fmt;
use std::sync::{Arc, Mutex};
use std::time::Duration;

use oncegate_core::attempt::{Attempt, Nonce};
use oncegate_core::claim::Outcome;
use oncegate_core::clock::Clock;
use oncegate_core::record::ClaimState;
use oncegate_core::terms::Terms;

/// What a caller asks of a key.
#[derive(Clone)]
pub enum Call {
    /// PRE, on these terms.
    Claim { nonce: Nonce, terms: Terms, take_over: bool },
    /// POST. The terms are those that a late outcome takes, where it does not bring its own.
    Settle { attempt: Attempt, outcome: Outcome, terms: Terms },
    /// Renewal, for this long from now.
    Renew { attempt: Attempt, lease: Duration },
}

/// What the contract knows as answers, as far as they tell anything of the store.
#[derive(Clone, PartialEq, Eq)]
pub enum Answer {
    /// 201 to a PRE. `lease` is what is left of it, counted from when the caller asked.
    Granted { attempt: Attempt, fence: Option<u64>, repeated: bool, taken_over: bool, lease: Duration },
    /// 409 to a PRE, with the timestamp of the attempt that stands, in microseconds, and its result if it succeeded.
    Duplicate { timestamp: u64, state: ClaimState, result: Option<Box<str>> },
    /// 200 to a POST. No state if the claim is gone.
    Done { state: Option<ClaimState>, late: Option<bool> },
    /// 200 to a renewal. `lease` is what is left of it, counted from when the caller asked.
    Renewed { lease: Duration },
    /// 409 `lease_lost`.
    LeaseLost,
    /// 409 `already_succeeded`.
    AlreadySucceeded,
    /// 409 `superseded`.
    Superseded { state: ClaimState },
    /// 409 `expired`.
    Expired,
}

/// What became of a call, as its caller sees it.
#[derive(Clone, PartialEq, Eq)]
pub enum Reply {
    /// The store's own word.
    Told(Answer),
    /// The word of a policy, named. The store may hear of it later, or never.
    Degraded(String, Answer),
    /// It may have happened, may happen yet, or never.
    Unknown,
    /// It certainly did not happen, and never will.
    Refused,
}

/// One call.
#[derive(Clone)]
pub struct Event {
    /// Who called.
    pub caller: usize,
    /// Which of the services was called.
    pub service: usize,
    /// When the caller asked.
    pub begun: Duration,
    /// When the caller was told, or gave up.
    pub answered: Duration,
    /// What was asked.
    pub call: Call,
    /// What was told.
    pub reply: Reply,
}

impl Event {
    /// How long its caller waited.
    pub fn took(&self) -> Duration {
        self.answered.saturating_sub(self.begun)
    }
}

/// What happened to every key, as its callers saw it. Cheap to clone; all clones are one.
#[derive(Clone)]
pub struct Story {
    clock: Arc<dyn Clock>,
    keys: Arc<Mutex<BTreeMap<String, Vec<Event>>>>,
}

impl Story {
    /// A story that is told by this clock.
    pub fn new(clock: Arc<dyn Clock>) -> Self {
        Self { clock, keys: Arc::default() }
    }

    /// Now.
    pub fn now(&self) -> Duration {
        self.clock.monotonic()
    }

    /// Makes a call and writes down what became of it.
    pub async fn tell(
        &self,
        (caller, service): (usize, usize),
        key: &str,
        call: Call,
        reply: impl Future<Output = Reply>,
    ) -> Reply {
        let begun = self.now();
        let reply = reply.await;
        let event = Event { caller, service, begun, answered: self.now(), call, reply: reply.clone() };
        self.keys.lock().expect("no panic").entry(key.to_owned()).or_default().push(event);
        reply
    }

    /// What happened to each key, in the order in which calls ended.
    pub fn keys(&self) -> BTreeMap<String, Vec<Event>> {
        self.keys.lock().expect("no panic").clone()
    }
}

impl fmt::Debug for Event {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let [begun, answered] = [self.begun, self.answered].map(|at| at.as_secs_f64() * 1e3);
        write!(f, "{begun:9.1}–{answered:.1} ms  caller {}: {:?} → {:?}", self.caller, self.call, self.reply)
    }
}

impl fmt::Debug for Call {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Claim { nonce, terms, take_over } => {
                let nonce = nonce.as_str();
                let tail = nonce.len().saturating_sub(6);
                let take_over = if *take_over { ", taking over" } else { "" };
                write!(f, "PRE with nonce …{} for {:?}{take_over}", &nonce[tail..], terms.lease)
            }
            Self::Settle { attempt, outcome, .. } => {
                write!(f, "POST {outcome:?} by {}", attempt.timestamp().as_micros())
            }
            Self::Renew { attempt, lease } => {
                write!(f, "renewal by {} for {lease:?}", attempt.timestamp().as_micros())
            }
        }
    }
}

impl fmt::Debug for Answer {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Granted { attempt, fence, repeated, taken_over, lease } => {
                let how = match (repeated, taken_over) {
                    (true, _) => "granted again",
                    (_, true) => "taken over",
                    _ => "granted",
                };
                write!(f, "{how} to {} for {lease:?}, fence {fence:?}", attempt.timestamp().as_micros())
            }
            Self::Duplicate { timestamp, state, result } => {
                write!(f, "duplicate of {timestamp}, {state:?}, result {result:?}")
            }
            Self::Done { state, late } => write!(f, "done: {state:?}, late: {late:?}"),
            Self::Renewed { lease } => write!(f, "renewed for {lease:?}"),
            Self::LeaseLost => f.write_str("lease lost"),
            Self::AlreadySucceeded => f.write_str("already succeeded"),
            Self::Superseded { state } => write!(f, "superseded by one that is {state:?}"),
            Self::Expired => f.write_str("expired"),
        }
    }
}

impl fmt::Debug for Reply {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Told(answer) => write!(f, "{answer:?}"),
            Self::Degraded(policy, answer) => write!(f, "{answer:?} ({policy})"),
            Self::Unknown => f.write_str("unknown"),
            Self::Refused => f.write_str("refused"),
        }
    }
}
