//! Random histories: every answer agrees with the table of transitions.

use std::collections::BTreeMap;

use futures_util::future::join_all;
use rand::rngs::SmallRng;
use rand::{RngExt, SeedableRng};

use super::requests::{attempt, fresh_claim, settle_by, success};
use super::subject::Subject;
use crate::attempt::Attempt;
use crate::canonical::Canonical;
use crate::claim::{
    self, ClaimRequest, ClaimResponse, Effect, Mismatch, Outcome, OutcomeRequest, OutcomeResponse, RenewalRequest,
    RenewalResponse,
};
use crate::operator::{self, ReleaseRequest};
use crate::record::{ClaimState, Key, LiveClaim, Record};
use crate::terms::{LeaseEnd, Retention, Terms};

/// Random histories, each on its own few keys. Each answer is compared with the table of transitions.
pub async fn any_history_agrees_with_the_table(on: &Subject) {
    let seeds: Vec<u64> = match std::option_env!("ONCEGATE_SEED").map(str::parse) {
        Some(Ok(seed)) => vec![seed],
        _ => (0..12).map(|_| attempt().timestamp().as_micros()).collect(),
    };
    // At the same time, because each step waits for the store.
    let histories = seeds.into_iter().map(async |seed| {
        let mut history = History::new(seed);
        for step in 0..150 {
            history.step(on).await.unwrap_or_else(|why| panic!("seed {seed}, step {step}: {why}"));
        }
    });
    join_all(histories).await;
}

/// A random history: the claims that the store should have by the table, and the attempts and keys to choose from.
struct History {
    rng: SmallRng,
    requests: Vec<ClaimRequest>,
    attempts: BTreeMap<Key, Vec<Attempt>>,
    model: BTreeMap<Key, LiveClaim>,
}

impl History {
    fn new(seed: u64) -> Self {
        let requests = (0..3).map(|_| fresh_claim()).collect();
        Self { rng: SmallRng::seed_from_u64(seed), requests, attempts: BTreeMap::new(), model: BTreeMap::new() }
    }

    async fn step(&mut self, on: &Subject) -> Result<(), String> {
        let index = self.rng.random_range(0..self.requests.len());
        let request = self.requests[index].clone();
        let live = self.model.get(&request.key).cloned();
        match self.rng.random_range(0..11) {
            0..4 => {
                let request = self.some_claim(request);
                let (effect, expected) = claim::claim(live.as_ref(), &request, None);
                compare("claim", &on.claim(&request).await.shape(), &expected.shape())?;
                self.attempts.entry(request.key.clone()).or_default().push(request.attempt.clone());
                self.apply(request.key, effect);
            }
            4..8 => {
                let request = self.some_settle(&request);
                let (effect, expected) = claim::settle(live.as_ref(), &request);
                compare("settle", &on.settle(&request).await.shape(), &expected.shape())?;
                self.apply(request.key, effect);
            }
            8 => {
                let attempt = self.some_attempt(&request.key);
                let request = RenewalRequest { key: request.key, attempt, lease: None };
                let (effect, expected) = claim::renew(live.as_ref(), &request);
                compare("renew", &on.renew(&request).await.shape(), &expected.shape())?;
                self.apply(request.key, effect);
            }
            9 => {
                let attempt = self.some_attempt(&request.key);
                let result = self.rng.random_bool(0.3).then(|| "0".into());
                let request = ReleaseRequest { key: request.key, attempt, result };
                let (effect, expected) = operator::release(live.as_ref(), &request);
                compare("release", &on.released(&request).await, &expected)?;
                self.apply(request.key, effect);
            }
            _ => {
                let found = on.read(&request.key).await.map(|live| live.record);
                compare("read", &found, &live.map(|live| live.record))?;
            }
        }
        Ok(())
    }

    /// Returns the claim again: by a new or an old attempt, with or without take-over, sometimes with other contents.
    fn some_claim(&mut self, request: ClaimRequest) -> ClaimRequest {
        let attempt = if self.rng.random_bool(0.3) { self.some_attempt(&request.key) } else { attempt() };
        let fingerprint = self.rng.random_bool(0.1).then_some([1; 32]);
        let contents = if self.rng.random_bool(0.05) { Canonical::trusted("0") } else { request.contents.clone() };
        let on_lease_end = if self.rng.random_bool(0.5) { LeaseEnd::Unknown } else { LeaseEnd::Release };
        let terms = Terms { on_lease_end, ..request.terms };
        ClaimRequest {
            attempt,
            fingerprint,
            contents,
            terms,
            take_over: self.rng.random_bool(0.3),
            waits: self.rng.random_bool(0.5),
            ..request
        }
    }

    fn some_settle(&mut self, request: &ClaimRequest) -> OutcomeRequest {
        let outcome = match self.rng.random_range(0..5) {
            0 => success(None),
            1 => Outcome::Success { result: Some("{\"n\": 1}".into()), retention: Some(Retention::Forever) },
            2 | 3 => Outcome::Failure,
            _ => Outcome::Unknown,
        };
        let attempt = self.some_attempt(&request.key);
        let late = settle_by(request, &attempt, outcome);
        if self.rng.random_bool(0.2) { OutcomeRequest { late: None, ..late } } else { late }
    }

    fn some_attempt(&mut self, key: &Key) -> Attempt {
        let known = self.attempts.get(key).map_or(&[][..], Vec::as_slice);
        match known {
            [] => attempt(),
            known if self.rng.random_bool(0.6) => known[known.len() - 1].clone(),
            known => known[self.rng.random_range(0..known.len())].clone(),
        }
    }

    fn apply(&mut self, key: Key, effect: Effect) {
        match effect {
            Effect::Keep | Effect::Extend(_) => {}
            Effect::Replace(record) => {
                self.model.entry(key).and_modify(|live| live.record = record);
            }
            Effect::Put(record, left) => {
                self.model.insert(key, LiveClaim { record, left, ends_at: None, fence: None });
            }
            Effect::Delete => {
                self.model.remove(&key);
            }
        }
    }
}

fn compare<T: PartialEq + std::fmt::Debug>(what: &str, found: &T, expected: &T) -> Result<(), String> {
    if found == expected { Ok(()) } else { Err(format!("{what}: expected {expected:?}, found {found:?}")) }
}

/// An answer without its durations and fences, which differ between runs on a real clock.
trait Shape {
    type Shape: PartialEq + std::fmt::Debug;
    fn shape(&self) -> Self::Shape;
}

impl Shape for ClaimResponse {
    type Shape = (Option<(Attempt, bool, bool)>, Option<Record>, Option<Mismatch>);

    fn shape(&self) -> Self::Shape {
        match self {
            Self::Granted(grant) => (Some((grant.attempt.clone(), grant.repeated, grant.taken_over)), None, None),
            Self::Duplicate(live) => (None, Some(live.record.clone()), None),
            Self::Mismatch(mismatch) => (None, None, Some(*mismatch)),
        }
    }
}

impl Shape for OutcomeResponse {
    type Shape = (&'static str, Option<ClaimState>, Option<bool>, bool);

    fn shape(&self) -> Self::Shape {
        match self {
            Self::Done { state, late, left, .. } => ("done", *state, *late, left.is_none()),
            Self::AlreadySucceeded => ("already succeeded", None, None, false),
            Self::Superseded { state, .. } => ("superseded", Some(*state), None, false),
            Self::Expired => ("expired", None, None, false),
        }
    }
}

impl Shape for RenewalResponse {
    type Shape = (&'static str, Option<ClaimState>);

    fn shape(&self) -> Self::Shape {
        match self {
            Self::Renewed { .. } => ("renewed", None),
            Self::LeaseLost => ("lease lost", None),
            Self::AlreadySucceeded => ("already succeeded", None),
            Self::Superseded { state, .. } => ("superseded", Some(*state)),
        }
    }
}
