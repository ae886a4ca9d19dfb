//! An operation and its next step, while a batch works on it.

use oncegate_core::engine::EngineError;

use super::State;
use super::operation::Operation;
use super::step::{Stepped, Write};
use super::time::Time;
use super::value::Found;

/// Number of times that an operation decides again before it fails.
pub const ROUNDS_MAX: usize = 10;

/// An operation and its next step.
pub struct Item {
    operation: Box<dyn Operation>,
    write: Option<Write>,
}

impl Item {
    /// Returns the first step of an operation: a write based on the probable record of its key, otherwise a read.
    pub fn begin(mut operation: Box<dyn Operation>, state: &State) -> Self {
        let assumed = operation.assumed(&state.seen);
        let is_refused = operation.is_grant() && state.gate.refusal().is_some();
        if is_refused || assumed.is_none() && !operation.expects_absence() {
            return Self { operation, write: None };
        }
        let decided = operation.decide(assumed.as_ref(), state.time.now());
        Self { operation, write: decided.ok().flatten() }
    }

    /// Returns the operation.
    pub fn operation(&self) -> &dyn Operation {
        &*self.operation
    }

    /// Returns the write of the step; `None`: it reads its key.
    pub fn write(&self) -> Option<&Write> {
        self.write.as_ref()
    }

    /// Makes the next step a read.
    pub fn read_first(&mut self) {
        self.write = None;
    }

    /// Continues with the result of the step. Returns the operation if it has another step.
    pub fn resume(mut self, stepped: Stepped, time: Time, state: &State) -> Option<Self> {
        match (stepped, self.write.take()) {
            (Stepped::Written(revision, mark), Some(write)) => {
                let key = self.operation.key();
                match write.put.filter(|_| write.is_remembered) {
                    Some(value) => state.seen.remember(key, Found { value, revision, mark }),
                    None => state.seen.forget(key),
                }
                self.operation.answer(Some(revision), time);
                None
            }
            (Stepped::Found(found), _) => match self.operation.decide(found.as_ref(), time) {
                Ok(Some(write)) => {
                    if let Some(why) = state.gate.refusal().filter(|_| self.operation.is_grant()) {
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
            (Stepped::Written(..), None) => {
                self.operation.fail(EngineError::indeterminate("the store's reply does not fit the request"));
                None
            }
        }
    }

    /// Answers that the request of its step has failed.
    pub fn fail(self, why: &EngineError) {
        let why = if self.write.is_some() { why.clone() } else { why.clone().of_read() };
        self.operation.fail(why);
    }

    /// Answers that its step was not sent, or certainly had no effect.
    pub fn refuse(self, why: EngineError) {
        self.operation.fail(why);
    }

    /// Answers that others were faster each time.
    pub fn give_up(self) {
        self.refuse(EngineError::unavailable("the record was changed by others each time; try again"));
    }
}
