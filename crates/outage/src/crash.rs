//! Crash points for tests: the gateway can be made to crash after a step, to check that its answers hold. Active only
//! with the feature `fault-points`; a release is built without it.

#[cfg(feature = "fault-points")]
pub use armed::{Unknown, arm};

/// Crash point between two steps; the first one is done.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Point {
    /// The store has granted a claim; the caller has no response yet.
    Claimed,
    /// The store has taken an outcome; the caller has no response yet.
    Settled,
    /// A journaled claim has been delivered to the store; its outcome has not.
    Reconciling,
}

/// Ends the process if it is armed to crash here.
#[cfg_attr(not(feature = "fault-points"), inline(always), expect(unused_variables, reason = "nothing is armed"))]
pub fn here(point: Point) {
    #[cfg(feature = "fault-points")]
    armed::pass(point);
}

#[cfg(feature = "fault-points")]
mod armed {
    use std::sync::OnceLock;
    use std::sync::atomic::{AtomicU32, Ordering};

    use crate::crash::Point;

    /// Armed crash point, and how often it is still passed before.
    static ARMED: OnceLock<(Point, AtomicU32)> = OnceLock::new();

    /// Text that names no crash point.
    #[derive(Debug, thiserror::Error)]
    #[error("`{0}` is not a crash point: `claimed`, `settled` or `reconciling`, and `:3` for the third time")]
    pub struct Unknown(String);

    /// Arms a crash point: `settled` for the first time it is reached, `settled:3` for the third time.
    pub fn arm(point: &str) -> Result<(), Unknown> {
        let (name, times) = point.split_once(':').unwrap_or((point, "1"));
        let times: u32 = times.parse().ok().filter(|times| *times > 0).ok_or_else(|| Unknown(name.to_owned()))?;
        let point = match name {
            "claimed" => Point::Claimed,
            "settled" => Point::Settled,
            "reconciling" => Point::Reconciling,
            _ => return Err(Unknown(name.to_owned())),
        };
        // Armed once per process; a second call changes nothing.
        let _ = ARMED.set((point, AtomicU32::new(times - 1)));
        Ok(())
    }

    pub(super) fn pass(point: Point) {
        let Some((armed, left)) = ARMED.get().filter(|(armed, _)| *armed == point) else { return };
        if left.fetch_update(Ordering::Relaxed, Ordering::Relaxed, |left| left.checked_sub(1)).is_err() {
            tracing::error!(point = ?armed, "Crashing at an armed crash point");
            std::process::abort();
        }
    }
}
