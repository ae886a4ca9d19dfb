//! Advances the store's clock. Every gateway may try. The gateway of the last write usually writes again; another one
//! takes over if it does not.

use std::sync::Arc;
use std::time::Duration;

use oncegate_core::attempt::{Entropy as _, SystemEntropy};
use oncegate_core::backoff::jittered;
use oncegate_core::engine::EngineError;
use tokio::time::sleep;
use tokio_util::sync::CancellationToken;

use super::State;
use super::time::LastTick;

/// Advances the clock until `closing` is cancelled, or `push` returns nothing. `push` writes the clock from the given
/// last write. Without one, it only reads the clock. It returns the last write of the clock.
pub async fn run<F>(state: Arc<State>, tick: Duration, closing: CancellationToken, push: impl Fn(Option<LastTick>) -> F)
where
    F: Future<Output = Option<Result<LastTick, EngineError>>>,
{
    let mut last: Option<LastTick> = None;
    loop {
        let pause = pause(&state, tick, last);
        let ticked = closing.run_until_cancelled(async {
            sleep(pause).await;
            // If this gateway finds the clock fast, its own writes may be the cause.
            while state.gate.is_clock_fast() {
                sleep(tick).await;
            }
            push(last).await
        });
        // The engine is closed, or gone.
        let Some(Some(answer)) = ticked.await else { return };
        // After a failure it is not known who wrote last: the next one reads first.
        last = answer.ok();
    }
}

/// Returns the time until the next write: a tick after an own one, two to three ticks after another gateway's.
fn pause(state: &State, tick: Duration, last: Option<LastTick>) -> Duration {
    let Some(last) = last else { return tick / 2 };
    let interval = if last.is_own { tick } else { jittered(tick * 2, tick, SystemEntropy.bits()) };
    interval.saturating_sub(state.time.monotonic().saturating_sub(last.since))
}
