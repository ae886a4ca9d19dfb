//! One step on one key, as an operation of a transaction: a read, or a write under guards. If the guards do not hold,
//! the write reads the key instead.

use bytes::Bytes;
use oncegate_coordination::step::{Guard, Stepped, Write};
use oncegate_coordination::time;
use oncegate_coordination::value::{Found, Mark};
use oncegate_core::clock::Timestamp;

use super::failure::Failure;
use super::keys::Keys;
use super::proto::{
    Compare, CompareResult, CompareTarget, DeleteRangeRequest, KeyValue, Operand, PutRequest, RangeRequest, Request,
    RequestOp, Response, ResponseOp, TxnRequest,
};

/// Returns a guard as a comparison.
fn comparison(guard: Guard, keys: &Keys, key: &Bytes) -> Compare {
    let of_clock = |result, instant| {
        let operand = Operand::Value(time::encode(instant));
        compare(keys.clock.clone(), result, CompareTarget::Value, operand)
    };
    match guard {
        Guard::Absent => compare(key.clone(), CompareResult::Equal, CompareTarget::Version, Operand::Version(0)),
        Guard::Unchanged(mark) => {
            compare(key.clone(), CompareResult::Equal, CompareTarget::Mod, Operand::ModRevision(mark.number))
        }
        Guard::Before(instant) => of_clock(CompareResult::Less, instant),
        // There is no "at least". The clock is never zero.
        Guard::From(instant) => {
            let before = Timestamp::from_micros(instant.as_micros().saturating_sub(1));
            of_clock(CompareResult::Greater, before)
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

/// Returns a condition that no key fulfils: versions begin at 0.
pub(super) fn never(key: &Bytes) -> Compare {
    compare(key.clone(), CompareResult::Less, CompareTarget::Version, Operand::Version(0))
}

/// Returns the operation that empties a key, to test the rights to it. Only for transactions that do not execute it.
pub(super) fn put(key: &Bytes) -> RequestOp {
    operation(Request::Put(PutRequest { key: key.clone(), value: Bytes::new() }))
}

/// Returns the operation that writes a key under guards.
pub(super) fn conditional(keys: &Keys, key: &Bytes, write: &Write) -> RequestOp {
    let effect = match &write.put {
        Some(value) => Request::Put(PutRequest { key: key.clone(), value: value.clone() }),
        None => Request::DeleteRange(DeleteRangeRequest { key: key.clone() }),
    };
    operation(Request::Txn(TxnRequest {
        compare: write.guards.iter().map(|guard| comparison(*guard, keys, key)).collect(),
        success: vec![operation(effect)],
        failure: vec![read(key)],
    }))
}

/// Returns the result of an operation of [`read`] or [`conditional`], in a transaction of this revision.
///
/// # Errors
/// The reply does not fit its request.
pub(super) fn result_of(response: ResponseOp, revision: i64) -> Result<Stepped, Failure> {
    match response.response.ok_or_else(Failure::unfit_reply)? {
        Response::Range(range) => Ok(Stepped::Found(range.kvs.into_iter().next().map(found))),
        Response::Txn(txn) if txn.succeeded => Ok(Stepped::Written(revision, mark(revision))),
        Response::Txn(txn) => match txn.responses.into_iter().next().and_then(|response| response.response) {
            Some(Response::Range(range)) => Ok(Stepped::Found(range.kvs.into_iter().next().map(found))),
            _ => Err(Failure::unfit_reply()),
        },
        Response::Put(_) | Response::DeleteRange(_) => Err(Failure::unfit_reply()),
    }
}

/// Returns a key with its found value.
pub(super) fn found(KeyValue { value, mod_revision, .. }: KeyValue) -> Found {
    Found { value, revision: mod_revision, mark: mark(mod_revision) }
}

/// Returns the mark of a key that this revision has written. No revision is ever used again, so it means one value only.
pub(super) fn mark(revision: i64) -> Mark {
    Mark { number: revision, ..Mark::default() }
}

fn operation(request: Request) -> RequestOp {
    RequestOp { request: Some(request) }
}
