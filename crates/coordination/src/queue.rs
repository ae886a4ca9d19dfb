//! The choice of waiting calls that are sent together.

use std::collections::VecDeque;

use bytes::Bytes;
use hashbrown::HashSet;

use super::operation::{Call, Operation, SingleCall};

/// Most operations in a batch.
pub const OPERATIONS_MAX: usize = 100;

/// A larger operation is sent alone.
const LARGE: usize = 64 << 10;

/// Operations on distinct keys.
pub type Operations = Vec<Box<dyn Operation>>;

/// Next work of a connection.
pub enum Work<S> {
    /// Operations that share their requests.
    Batch(Operations),
    /// A call with its own requests.
    Single(Box<dyn SingleCall<S>>),
}

/// Takes the next batch or single call from the queue; `None` if it is empty. A batch has at most about `bytes_max` bytes. A second operation
/// on a key waits for the next batch. Abandoned operations are dropped.
pub fn next_work<S>(queue: &mut VecDeque<Call<S>>, bytes_max: usize) -> Option<Work<S>> {
    let (mut batch, mut bytes, mut left) = (Operations::new(), 0, VecDeque::new());
    let mut keys: HashSet<Bytes> = HashSet::new();
    while let Some(call) = queue.pop_front() {
        match call {
            Call::Single(call) if batch.is_empty() && left.is_empty() => return Some(Work::Single(call)),
            Call::Keyed(operation) if operation.is_abandoned() => {}
            Call::Keyed(operation) if keys.contains(operation.key()) => left.push_back(Call::Keyed(operation)),
            Call::Keyed(operation) if fits(&batch, bytes, operation.bytes(), bytes_max) => {
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

/// Returns whether an operation of `more` bytes fits with these.
fn fits(batch: &Operations, bytes: usize, more: usize, bytes_max: usize) -> bool {
    let is_alone = more >= LARGE || batch.len() == 1 && bytes >= LARGE;
    batch.is_empty() || !is_alone && batch.len() < OPERATIONS_MAX && bytes + more <= bytes_max
}
