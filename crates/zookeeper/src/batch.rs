//! A batch of operations on distinct keys. Their writes are sent as one multi, which is made as a whole or not at all.
//! If one write is refused, it continues alone, and the others are sent again. After the second refusal each is sent
//! separately, all at once.

use oncegate_coordination::item::{Item, ROUNDS_MAX};
use oncegate_coordination::queue::Operations;
use oncegate_core::engine::EngineError;
use tokio::sync::MutexGuard;

use super::exchange::{Outcome, Sending};
use super::session::Session;
use super::step::{self, Plan};

/// Most bytes in a batch, by a rough count. ZooKeeper takes 1 MiB in a request, unless it is set to less (`jute.maxbuffer`).
pub(super) const BYTES_MAX: usize = 512 << 10;

/// A multi that was refused so often is sent one by one.
const REFUSALS_MAX: u32 = 2;

/// If only the clock itself can guard a write, and ticks have refused it so often, this gateway's clock waits.
const TRIES_BESIDE_TICKS: usize = 2;

/// Answers all operations of a batch. An error is the reason to leave the member.
pub(super) async fn answer(session: &Session, operations: Operations) -> Result<(), String> {
    let state = &session.store().state;
    let mut items: Vec<_> = operations.into_iter().map(|operation| Item::begin(operation, state)).collect();
    let (mut rounds, mut refusals) = (0, 0);
    // While it is held, this gateway does not advance the clock.
    let mut quiet: Option<MutexGuard<'_, ()>> = None;
    while !items.is_empty() {
        if rounds > ROUNDS_MAX {
            items.into_iter().for_each(Item::give_up);
            return Ok(());
        }
        let plans = plans(session, &mut items);
        if quiet.is_none() && rounds >= TRIES_BESIDE_TICKS && plans.iter().any(Plan::is_near) {
            quiet = Some(session.store().ticking.lock().await);
        }
        let sending = Sending::new(session.store(), plans, refusals >= REFUSALS_MAX);
        let is_refused;
        (items, is_refused) = send(session, items, sending).await?;
        refusals += u32::from(is_refused);
        rounds += 1;
    }
    Ok(())
}

/// Returns the requests of each item. An item whose write depends on a state that is too old reads its key first.
fn plans(session: &Session, items: &mut [Item]) -> Vec<Plan> {
    // Read once for all, since they compare the same clock.
    let clock = session.clock_seen();
    let plan = |item: &mut Item| {
        let plan = step::plan(session, clock, item.operation().key(), item.write());
        if matches!(plan, Plan::Read(_)) {
            item.read_first();
        }
        plan
    };
    items.iter_mut().map(plan).collect()
}

/// Sends the steps of these items. Returns the items that have another step, and whether the multi of several items was
/// refused.
async fn send(session: &Session, items: Vec<Item>, mut sending: Sending) -> Result<(Vec<Item>, bool), String> {
    let (changes, gets) = sending.take_requests();
    let replied = match session.run(changes, gets).await {
        Ok(replied) => replied,
        Err(failure) => {
            for item in items {
                item.fail(&failure.answer);
            }
            return if failure.leaves { Err(failure.answer.reason().to_owned()) } else { Ok((Vec::new(), false)) };
        }
    };
    let (time, store) = (replied.time, session.store());
    let (outcomes, is_refused) = sending.outcomes(store, replied);
    let (mut again, mut lost) = (Vec::new(), None);
    for (mut item, outcome) in items.into_iter().zip(outcomes) {
        match outcome {
            Outcome::Stepped(stepped) => again.extend(item.resume(stepped, time, &store.state)),
            Outcome::Again => again.push(item),
            Outcome::ReadFirst => {
                item.read_first();
                again.push(item);
            }
            Outcome::Failed(failure) => {
                item.fail(&failure.answer);
                lost = lost.or(failure.leaves.then(|| failure.answer.reason().to_owned()));
            }
        }
    }
    let Some(why) = lost else { return Ok((again, is_refused)) };
    // The remaining items were not executed: their last step was refused, or was a read.
    let refusal = EngineError::unavailable("the connection to ZooKeeper was lost");
    for item in again {
        item.refuse(refusal.clone());
    }
    Err(why)
}
