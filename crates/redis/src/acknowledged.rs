//! An exchange whose answers wait for replicas. They are given once enough replicas have what was written before; until then the
//! write and the wait are repeated. A call whose time is over is answered that too few replicas have it.

use std::sync::Arc;
use std::time::Duration;

use oncegate_core::engine::EngineError;
use oncegate_driver::{Fitness, Lost};
use redis::{Cmd, Value};
use tokio::time::sleep;

use super::acknowledgement::{Acknowledged, Acknowledgement};
use super::connection::{Caller, fitness, lose};
use super::health::Health;
use super::limit::Limit;
use super::marker::Marker;
use super::wire::Wire;

/// Pause before the wait is repeated, where the server has refused it at once.
const PAUSE: Duration = Duration::from_millis(10);

/// Sends commands, and answers the callers once replicas have acknowledged all of it.
pub(super) async fn exchange(
    wire: Wire,
    health: Arc<Health>,
    acknowledgement: Acknowledgement,
    mut commands: Vec<Cmd>,
    callers: Vec<Caller>,
) -> Result<Fitness, Lost> {
    let count = commands.len();
    let marker = health.marker();
    commands.extend(acknowledgement.commands(marker.as_deref().map(|marker| &*marker.key), None));
    let mut values = match wire.exchange(commands).await {
        Ok(values) => values,
        Err(why) => return Err(lose(callers, why)),
    };
    let mut acknowledged = acknowledgement.judge(values.split_off(count), marker.is_some());
    let fitness = fitness(&values);
    let mut waiting = answer_refusals(callers, values);
    loop {
        match acknowledged {
            Acknowledged::Yes => {
                for (caller, values) in waiting {
                    caller.reply.send(Ok(values));
                }
                return Ok(fitness);
            }
            Acknowledged::Short(why) => {
                let is_over = |limit: &mut Option<Limit>| limit.as_mut().is_none_or(Limit::is_over);
                for (caller, _) in waiting.extract_if(.., |(caller, _)| is_over(&mut caller.limit)) {
                    caller.reply.send(Err(EngineError::shortfall(&*why)));
                }
            }
            Acknowledged::Never(why) => {
                for (caller, _) in waiting {
                    caller.reply.send(Err(EngineError::shortfall(&*why)));
                }
                return Ok(Fitness::Retire("READONLY: the Redis server has become a replica"));
            }
        }
        if waiting.is_empty() {
            return Ok(fitness);
        }
        sleep(PAUSE).await;
        let marker = health.marker();
        let key = marker.as_deref().map(|marker| &*marker.key);
        let commands = acknowledgement.commands(key, Some(&Marker::value()));
        let replies = match wire.exchange(commands).await {
            Ok(replies) => replies,
            Err(why) => return Err(lose(waiting.into_iter().map(|(caller, _)| caller).collect(), why)),
        };
        acknowledged = acknowledgement.judge(replies, marker.is_some());
    }
}

/// Gives each caller its replies where nothing was executed for it: what was refused needs no replica. Returns the others.
fn answer_refusals(callers: Vec<Caller>, values: Vec<Value>) -> Vec<(Caller, Vec<Value>)> {
    let mut values = values.into_iter();
    let mut waiting = Vec::with_capacity(callers.len());
    for caller in callers {
        let own: Vec<_> = values.by_ref().take(caller.count).collect();
        if own.iter().all(|value| matches!(value, Value::ServerError(_))) {
            caller.reply.send(Ok(own));
        } else {
            waiting.push((caller, own));
        }
    }
    waiting
}
