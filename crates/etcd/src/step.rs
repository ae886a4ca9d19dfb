//! One step on one key, as an operation of a transaction: a read, or a write under guards that reads the key where they do not hold.

use bytes::Bytes;
use oncegate_core::clock::Timestamp;

use super::failure::Failure;
use super::keys::Keys;
use super::proto::{
    Compare, CompareResult, CompareTarget, DeleteRangeRequest, KeyValue, Operand, PutRequest, RangeRequest, Request,
    RequestOp, Response, ResponseOp, TxnRequest,
};
use super::time;
use super::value::Found;

/// What must hold in the step for its write.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(super) enum Guard {
    /// The key is not there.
    Absent,
    /// The key was last written in this revision.
    Revision(i64),
    /// The clock is before this instant.
    Before(Timestamp),
    /// The clock is at this instant or after it.
    From(Timestamp),
}

/// A write, if all guards hold.
#[derive(Clone, PartialEq, Eq, Debug)]
pub(super) struct Write {
    pub(super) guards: Vec<Guard>,
    /// The new value; `None`: the key is deleted.
    pub(super) put: Option<Bytes>,
    /// This gateway is likely to change the key again.
    pub(super) is_remembered: bool,
}

/// Result of a step.
#[derive(Clone, PartialEq, Eq, Debug)]
pub(super) enum Stepped {
    /// The write is done.
    Written,
    /// Nothing was written; the key is this.
    Found(Option<Found>),
}

impl Guard {
    fn compare(self, keys: &Keys, key: &Bytes) -> Compare {
        let of_clock = |result, instant| {
            let operand = Operand::Value(time::encode(instant));
            compare(keys.clock.clone(), result, CompareTarget::Value, operand)
        };
        match self {
            Self::Absent => compare(key.clone(), CompareResult::Equal, CompareTarget::Version, Operand::Version(0)),
            Self::Revision(revision) => {
                compare(key.clone(), CompareResult::Equal, CompareTarget::Mod, Operand::ModRevision(revision))
            }
            Self::Before(instant) => of_clock(CompareResult::Less, instant),
            // There is no "at least". The clock is never zero.
            Self::From(instant) => {
                let before = Timestamp::from_micros(instant.as_micros().saturating_sub(1));
                of_clock(CompareResult::Greater, before)
            }
        }
    }
}

fn compare(key: Bytes, result: CompareResult, target: CompareTarget, operand: Operand) -> Compare {
    Compare { result: result.into(), target: target.into(), key, operand: Some(operand) }
}

/// Returns the operation that reads a key.
pub(super) fn read(key: &Bytes) -> RequestOp {
    operation(Request::Range(RangeRequest { key: key.clone(), ..RangeRequest::default() }))
}

/// Returns the operation that writes a key under guards.
pub(super) fn conditional(keys: &Keys, key: &Bytes, write: &Write) -> RequestOp {
    let effect = match &write.put {
        Some(value) => Request::Put(PutRequest { key: key.clone(), value: value.clone() }),
        None => Request::DeleteRange(DeleteRangeRequest { key: key.clone() }),
    };
    operation(Request::Txn(TxnRequest {
        compare: write.guards.iter().map(|guard| guard.compare(keys, key)).collect(),
        success: vec![operation(effect)],
        failure: vec![read(key)],
    }))
}

/// Returns the result of an operation of [`read`] or [`conditional`].
///
/// # Errors
/// The reply does not fit its request.
pub(super) fn result_of(response: ResponseOp) -> Result<Stepped, Failure> {
    let unexpected = || Failure::lost("etcd's reply does not fit the request");
    match response.response.ok_or_else(unexpected)? {
        Response::Range(range) => Ok(Stepped::Found(range.kvs.into_iter().next().map(found))),
        Response::Txn(txn) if txn.succeeded => Ok(Stepped::Written),
        Response::Txn(txn) => match txn.responses.into_iter().next().and_then(|response| response.response) {
            Some(Response::Range(range)) => Ok(Stepped::Found(range.kvs.into_iter().next().map(found))),
            _ => Err(unexpected()),
        },
        Response::Put(_) | Response::DeleteRange(_) => Err(unexpected()),
    }
}

fn found(KeyValue { value, mod_revision, .. }: KeyValue) -> Found {
    Found { value, mod_revision }
}

fn operation(request: Request) -> RequestOp {
    RequestOp { request: Some(request) }
}
