//! A batch of operations on distinct keys. They share one transaction, and each has its own guards. An operation whose
//! key another one changed in between decides again.

use std::collections::VecDeque;

use oncegate_coordination::item::{Item, ROUNDS_MAX};
use oncegate_coordination::queue::Operations;
use oncegate_core::engine::EngineError;

use super::failure::{Failure, Remedy};
use super::proto::RequestOp;
use super::session::{Replied, Session};
use super::step;
use super::store::Store;

/// Most bytes in a batch, by a rough count. etcd takes 1.5 MiB in a request, unless it is set to less.
pub(super) const BYTES_MAX: usize = 1 << 20;

/// Answers all operations of a batch. An error is the reason to leave the member.
pub(super) async fn answer(session: &Session, operations: Operations) -> Result<(), String> {
    let items = operations.into_iter().map(|operation| Item::begin(operation, &session.store().state)).collect();
    let mut groups: VecDeque<(usize, Vec<Item>)> = VecDeque::from([(0, items)]);
    while let Some((rounds, items)) = groups.pop_front() {
        match send(session, &items).await {
            Ok(replied) => {
                let again = resume(session.store(), items, replied);
                if rounds >= ROUNDS_MAX {
                    again.into_iter().for_each(Item::give_up);
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
                        item.refuse(why.clone());
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
        match item.write() {
            Some(write) => step::conditional(keys, item.operation().key(), write),
            None => step::read(item.operation().key()),
        }
    };
    let replied = session.run(|| items.iter().map(operation).collect()).await?;
    if replied.responses.len() == items.len() { Ok(replied) } else { Err(Failure::unfit_reply()) }
}

/// Continues each operation with its reply. Returns the items that have another step.
fn resume(store: &Store, items: Vec<Item>, Replied { time, revision, responses }: Replied) -> Vec<Item> {
    let mut again = Vec::new();
    for (item, response) in items.into_iter().zip(responses) {
        match step::result_of(response, revision) {
            Ok(stepped) => again.extend(item.resume(stepped, time, &store.state)),
            Err(failure) => item.fail(&failure.answer),
        }
    }
    again
}
