//! A batch of operations on distinct keys. They share one transaction, in which each has its own guards; what others changed in between
//! decides again.

use std::collections::VecDeque;

use bytes::Bytes;
use hashbrown::HashSet;
use oncegate_core::engine::EngineError;

use super::failure::{Failure, Remedy};
use super::operation::{Call, Operation, SingleCall};
use super::proto::{RequestOp, ResponseOp};
use super::session::{Replied, Session, Store};
use super::step::{self, Stepped, Write};
use super::time::Time;
use super::value::Found;

/// Most operations in a batch. etcd takes 128 in a transaction, the clock's included, unless it is set to less.
const OPERATIONS_MAX: usize = 100;
/// Most bytes in a batch, by a rough count. etcd takes 1.5 MiB in a request, unless it is set to less.
const BYTES_MAX: usize = 1 << 20;
/// A larger operation is sent alone.
const LARGE: usize = 64 << 10;
/// How often an operation decides again before it fails.
const ROUNDS_MAX: usize = 10;

type Operations = Vec<Box<dyn Operation>>;

/// What a connection does next.
pub(super) enum Work {
    Batch(Operations),
    Single(Box<dyn SingleCall>),
}

/// An operation and its next step.
struct Item {
    operation: Box<dyn Operation>,
    /// `None`: it reads its key.
    write: Option<Write>,
}

/// Takes the next batch or single call from the queue; `None` if it is empty. A second operation on a key waits for the next batch.
/// Abandoned operations are dropped.
pub(super) fn next_work(queue: &mut VecDeque<Call>) -> Option<Work> {
    let (mut batch, mut bytes, mut left) = (Operations::new(), 0, VecDeque::new());
    let mut keys: HashSet<Bytes> = HashSet::new();
    while let Some(call) = queue.pop_front() {
        match call {
            Call::Single(call) if batch.is_empty() && left.is_empty() => return Some(Work::Single(call)),
            Call::Keyed(operation) if operation.is_abandoned() => {}
            Call::Keyed(operation) if keys.contains(operation.key()) => left.push_back(Call::Keyed(operation)),
            Call::Keyed(operation) if fits(&batch, bytes, operation.bytes()) => {
                bytes += operation.bytes();
                keys.insert(operation.key().clone());
                batch.push(operation);
            }
            call => {
                left.push_back(call);
                break;
            }
        }
    }
    left.append(queue);
    *queue = left;
    (!batch.is_empty()).then_some(Work::Batch(batch))
}

/// Returns whether an operation of `more` bytes goes with these.
fn fits(batch: &Operations, bytes: usize, more: usize) -> bool {
    let is_alone = more >= LARGE || batch.len() == 1 && bytes >= LARGE;
    batch.is_empty() || !is_alone && batch.len() < OPERATIONS_MAX && bytes + more <= BYTES_MAX
}

/// Answers all operations of a batch. An error is the reason for which the member must be left.
pub(super) async fn answer(session: &Session, operations: Operations) -> Result<(), String> {
    let items = operations.into_iter().map(|operation| Item::begin(operation, session.store())).collect();
    let mut groups: VecDeque<(usize, Vec<Item>)> = VecDeque::from([(0, items)]);
    while let Some((rounds, items)) = groups.pop_front() {
        match send(session, &items).await {
            Ok(replied) => {
                let again = resume(session.store(), items, replied);
                if rounds >= ROUNDS_MAX {
                    let why = "the record was changed by others each time; try again";
                    for item in again {
                        item.operation.fail(EngineError::unavailable(why));
                    }
                } else if !again.is_empty() {
                    groups.push_back((rounds + 1, again));
                }
            }
            Err(Failure { remedy: Remedy::OneByOne, .. }) if items.len() > 1 => {
                groups.extend(items.into_iter().map(|item| (rounds, vec![item])));
            }
            Err(Failure { answer, remedy }) => {
                for item in items {
                    item.fail(&answer);
                }
                if remedy == Remedy::Leave {
                    let why = EngineError::unavailable("the connection to etcd was lost");
                    for item in groups.drain(..).flat_map(|(_, items)| items) {
                        item.operation.fail(why.clone());
                    }
                    return Err(answer.reason().to_owned());
                }
            }
        }
    }
    Ok(())
}

/// Sends the steps of these operations as one transaction.
async fn send(session: &Session, items: &[Item]) -> Result<Replied, Failure> {
    let keys = &session.store().keys;
    let operation = |item: &Item| -> RequestOp {
        match &item.write {
            Some(write) => step::conditional(keys, item.operation.key(), write),
            None => step::read(item.operation.key()),
        }
    };
    let replied = session.run(|| items.iter().map(operation).collect()).await?;
    if replied.responses.len() == items.len() {
        Ok(replied)
    } else {
        Err(Failure::lost("etcd's reply does not fit the request"))
    }
}

/// Continues each operation with its reply. Returns those that have another step.
fn resume(store: &Store, items: Vec<Item>, Replied { time, revision, responses }: Replied) -> Vec<Item> {
    let pairs = items.into_iter().zip(responses);
    pairs.filter_map(|(item, response)| item.resume(response, revision, time, store)).collect()
}

impl Item {
    /// Returns the first step of an operation: a write by what its key probably holds, else a read.
    fn begin(mut operation: Box<dyn Operation>, store: &Store) -> Self {
        let assumed = operation.assumed(&store.seen);
        let is_refused = operation.is_grant() && store.gate.refusal().is_some();
        if is_refused || assumed.is_none() && !operation.expects_absence() {
            return Self { operation, write: None };
        }
        let decided = operation.decide(assumed.as_ref(), store.time.now());
        Self { operation, write: decided.ok().flatten() }
    }

    /// Continues with the reply. Returns the operation if it has another step.
    fn resume(mut self, response: ResponseOp, revision: i64, time: Time, store: &Store) -> Option<Self> {
        match (step::result_of(response), self.write.take()) {
            (Ok(Stepped::Written), Some(write)) => {
                let key = self.operation.key();
                match write.put.filter(|_| write.is_remembered) {
                    Some(value) => store.seen.remember(key, Found { value, mod_revision: revision }),
                    None => store.seen.forget(key),
                }
                self.operation.answer(Some(revision), time);
                None
            }
            (Ok(Stepped::Found(found)), _) => match self.operation.decide(found.as_ref(), time) {
                Ok(Some(write)) => {
                    if let Some(why) = store.gate.refusal().filter(|_| self.operation.is_grant()) {
                        self.operation.fail(why.into());
                        return None;
                    }
                    Some(Self { write: Some(write), ..self })
                }
                Ok(None) => {
                    self.operation.answer(None, time);
                    None
                }
                Err(why) => {
                    self.operation.fail(why);
                    None
                }
            },
            (Ok(Stepped::Written), None) | (Err(_), _) => {
                self.operation.fail(EngineError::indeterminate("etcd's reply does not fit the request"));
                None
            }
        }
    }

    /// Answers that the request of its step has failed.
    fn fail(self, why: &EngineError) {
        let why = if self.write.is_some() { why.clone() } else { why.clone().of_read() };
        self.operation.fail(why);
    }
}
