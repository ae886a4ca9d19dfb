//! Records of calls: the request, the answer, and the times of both by the one clock of all callers. Checks nothing.

use std::collections::BTreeMap;
use std::fmt;
use std::sync::{Arc, Mutex};
use std::time::Duration;

use oncegate_core::attempt::{Attempt, Nonce};
use oncegate_core::claim::Outcome;
use oncegate_core::clock::Clock;
use oncegate_core::record::ClaimState;
use oncegate_core::terms::Terms;

/// Request of a caller for a key.
#[derive(Clone)]
pub enum Call {
    /// Claim call, on these terms.
    Claim { nonce: Nonce, terms: Terms, take_over: bool },
    /// Outcome call. The terms apply to a late outcome that brings none itself.
    Settle { attempt: Attempt, outcome: Outcome, terms: Terms },
    /// Renewal for this long from now.
    Renew { attempt: Attempt, lease: Duration },
}

/// Answer of the contract, as far as it depends on the store.
#[derive(Clone, PartialEq, Eq)]
pub enum Answer {
    /// 201 to a claim call. `lease` is the rest of the lease, counted from the call.
    Granted { attempt: Attempt, fence: Option<u64>, repeated: bool, taken_over: bool, lease: Duration },
    /// 409 to a claim call, with the timestamp of the attempt that holds the claim, in microseconds, and its result if it succeeded.
    Duplicate { timestamp: u64, state: ClaimState, result: Option<Box<str>> },
    /// 200 to an outcome call. Without a state if the claim has ended.
    Done { state: Option<ClaimState>, late: Option<bool> },
    /// 200 to a renewal. `lease` is the rest of the lease, counted from the call.
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

/// Result of a call, as its caller sees it.
#[derive(Clone, PartialEq, Eq)]
pub enum Reply {
    /// Answer of the store.
    Answered(Answer),
    /// Answer of an outage policy, with its name. The store may receive the call later, or never.
    Degraded(String, Answer),
    /// The call may have taken effect, may do so later, or never.
    Unknown,
    /// The same, of a claim call that was sent twice. The other one was granted to this attempt.
    Echo(Attempt),
    /// The call certainly took no effect, and never will.
    Refused,
}

/// One call and its result.
#[derive(Clone)]
pub struct Event {
    /// Number of the caller.
    pub caller: usize,
    /// Number of the service that was called.
    pub service: usize,
    /// Time of the call.
    pub started: Duration,
    /// Time of the answer, or when the caller gave up.
    pub answered: Duration,
    /// The request.
    pub call: Call,
    /// The result.
    pub reply: Reply,
}

impl Event {
    /// Returns how long the caller waited.
    pub fn took(&self) -> Duration {
        self.answered.saturating_sub(self.started)
    }
}

/// Calls for every key, as the callers saw them. Cheap to clone; all clones share the records.
#[derive(Clone)]
pub struct History {
    clock: Arc<dyn Clock>,
    keys: Arc<Mutex<BTreeMap<String, Vec<Event>>>>,
}

impl History {
    /// Creates an empty history with times by this clock.
    pub fn new(clock: Arc<dyn Clock>) -> Self {
        Self { clock, keys: Arc::default() }
    }

    /// Returns the current time.
    pub fn now(&self) -> Duration {
        self.clock.monotonic()
    }

    /// Waits for the reply to a call and records both.
    pub async fn record(
        &self,
        (caller, service): (usize, usize),
        key: &str,
        call: Call,
        reply: impl Future<Output = Reply>,
    ) -> Reply {
        let started = self.now();
        let reply = reply.await;
        let event = Event { caller, service, started, answered: self.now(), call, reply: reply.clone() };
        self.keys.lock().expect("no panic").entry(key.to_owned()).or_default().push(event);
        reply
    }

    /// Returns the events of each key, in the order in which the calls ended.
    pub fn keys(&self) -> BTreeMap<String, Vec<Event>> {
        self.keys.lock().expect("no panic").clone()
    }
}

impl fmt::Debug for Event {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let [started, answered] = [self.started, self.answered].map(|at| at.as_secs_f64() * 1e3);
        write!(f, "{started:9.1}–{answered:.1} ms  caller {}: {:?} → {:?}", self.caller, self.call, self.reply)
    }
}

impl fmt::Debug for Call {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Claim { nonce, terms, take_over } => {
                let nonce = nonce.as_str();
                let tail = nonce.len().saturating_sub(6);
                let take_over = if *take_over { ", taking over" } else { "" };
                write!(f, "claim with nonce …{} for {:?}{take_over}", &nonce[tail..], terms.lease)
            }
            Self::Settle { attempt, outcome, .. } => {
                write!(f, "outcome {outcome:?} by {}", attempt.timestamp().as_micros())
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
            Self::Superseded { state } => write!(f, "superseded by a claim that is {state:?}"),
            Self::Expired => f.write_str("expired"),
        }
    }
}

impl fmt::Debug for Reply {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Answered(answer) => write!(f, "{answer:?}"),
            Self::Degraded(policy, answer) => write!(f, "{answer:?} ({policy})"),
            Self::Unknown => f.write_str("unknown"),
            Self::Echo(_) => f.write_str("sent again"),
            Self::Refused => f.write_str("refused"),
        }
    }
}
