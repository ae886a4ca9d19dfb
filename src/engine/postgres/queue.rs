//! What waits in a lane, and which of it goes out together: calls on distinct keys, in the order they came, up to a number
//! and a size. A second call on a key waits for the next gathering.

use std::collections::VecDeque;

use hashbrown::{HashMap, HashSet};

use super::call::{Call, shared_answer};
use crate::domain::record::{Key, LiveClaim};

/// Calls that go out together at most.
const CALLS: usize = 256;
/// Bytes that go out together at most, by a rough count.
const BYTES: usize = 2 << 20;

/// Calls that have come and have not gone out yet.
#[derive(Default)]
pub(super) struct Queue {
    waiting: VecDeque<Call>,
}

impl Queue {
    pub(super) fn push(&mut self, call: Call) {
        self.waiting.push_back(call);
    }

    pub(super) fn len(&self) -> usize {
        self.waiting.len()
    }

    pub(super) fn drain(&mut self) -> impl Iterator<Item = Call> + '_ {
        self.waiting.drain(..)
    }

    /// Takes what is to go out now. What nobody waits for any more is dropped.
    pub(super) fn gather(&mut self) -> Vec<Call> {
        let mut keys = HashSet::new();
        let (mut taken, mut left) = (Vec::new(), VecDeque::new());
        let mut bytes = 0;
        while let Some(call) = self.waiting.pop_front() {
            if call.is_abandoned() {
                continue;
            }
            let fits = taken.is_empty() || bytes + call.bytes() <= BYTES;
            if !fits || taken.len() == CALLS {
                left.push_back(call);
                break;
            }
            if keys.insert(call.key().clone()) {
                bytes += call.bytes();
                taken.push(call);
            } else {
                left.push_back(call);
            }
        }
        // In front of those that were not looked at: no call overtakes another one on its key.
        left.append(&mut self.waiting);
        self.waiting = left;
        taken
    }

    /// Answers those that waited all along by what has been found standing: they need not ask again. Those that came later
    /// have not been pushed yet.
    pub(super) fn answer(&mut self, found: &HashMap<Key, LiveClaim>) {
        if found.is_empty() || self.waiting.is_empty() {
            return;
        }
        let mut left = VecDeque::with_capacity(self.waiting.len());
        for call in self.waiting.drain(..) {
            match found.get(call.key()).and_then(|held| shared_answer(&call, held)) {
                Some(told) => call.tell(Ok(told)),
                None => left.push_back(call),
            }
        }
        self.waiting = left;
    }
}
