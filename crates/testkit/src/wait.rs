//! Waits for a condition instead of a fixed time, and bounds of time.
//!
//! A bound under [`PATIENCE`] is a measurement: `make faults-times` checks it, on an otherwise idle machine.
//! Other runs print slower times, and fail only after [`PATIENCE`], so that no test fails because the machine is busy.

use std::path::Path;
use std::time::Duration;

use oncegate_core::clock::{Clock, SystemClock};

use crate::output::print;

/// Pause between two checks.
const PAUSE: Duration = Duration::from_millis(5);

/// Shortest time until a test fails, if times are not measured.
pub const PATIENCE: Duration = Duration::from_mins(1);

/// Reports whether times are measured, and their bounds checked.
#[expect(clippy::disallowed_methods, reason = "a test has no configuration that could pass the variable on")]
pub fn times_count() -> bool {
    std::env::var_os("ONCEGATE_TIMES").is_some()
}

/// Waits until `holds` returns true. Panics after `bound`, or [`PATIENCE`] where times are not measured.
pub async fn until(what: &str, bound: Duration, mut holds: impl AsyncFnMut() -> bool) {
    let waiting = async {
        while !holds().await {
            tokio::time::sleep(PAUSE).await;
        }
    };
    within(what, bound, waiting).await;
}

/// Waits until no thread of a process runs any more after SIGSTOP. One of them takes the signal and then stops the others, and on a busy
/// machine these still answer until then.
pub fn wait_until_frozen(id: u32) {
    let is_frozen = || {
        let Ok(threads) = Path::new("/proc").join(id.to_string()).join("task").read_dir() else { return true };
        threads.flatten().all(|thread| {
            let stat = std::fs::read_to_string(thread.path().join("stat")).unwrap_or_default();
            // The state follows the name, which is in parentheses and may contain others.
            stat.rsplit_once(") ").is_none_or(|(_name, rest)| rest.starts_with(['T', 't', 'Z', 'X']))
        })
    };
    for _ in 0..10_000 {
        if is_frozen() {
            return;
        }
        std::thread::sleep(Duration::from_millis(1));
    }
    panic!("process {id} does not stop");
}

/// Returns the result of a call. Panics after `bound`, or [`PATIENCE`] where times are not measured.
pub async fn answered_within<Answer>(bound: Duration, call: impl Future<Output = Answer>) -> Answer {
    within("an answer", bound, call).await
}

async fn within<Answer>(what: &str, bound: Duration, call: impl Future<Output = Answer>) -> Answer {
    let (clock, limit) = (SystemClock::new(), limit(bound));
    let started = clock.monotonic();
    let answer = tokio::time::timeout(limit, call).await.unwrap_or_else(|_| panic!("not within {limit:?}: {what}"));
    let took = clock.monotonic().saturating_sub(started);
    if times_count() || took > bound {
        shown(what, took, bound);
    }
    answer
}

/// Checks a time that a test has measured. Panics if it is over `bound`, or over [`PATIENCE`] where times are not measured.
pub fn in_time(what: &str, took: Duration, bound: Duration) {
    shown(what, took, bound);
    let limit = limit(bound);
    assert!(took <= limit, "{what}: {took:?}, {limit:?} is allowed");
}

fn shown(what: &str, took: Duration, bound: Duration) {
    let ratio = took.as_secs_f64() / bound.as_secs_f64();
    print(format_args!("{what}: {took:.1?}, {ratio:.2} of its bound {bound:?}"));
}

fn limit(bound: Duration) -> Duration {
    if times_count() { bound } else { bound.max(PATIENCE) }
}
