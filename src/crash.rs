//! Named places where a test can have the gateway crash, to see that whatever was answered holds. Only the feature
//! `fault-points` makes them more than nothing; a release is built without it.

#[cfg(feature = "fault-points")]
pub use armed::{Unknown, arm};

/// A place between two steps, of which a crash leaves the first one done.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Point {
    /// The store has granted a claim; its caller has not been told.
    Claimed,
    /// The store has taken an outcome; its caller has not been told.
    Settled,
    /// A journalled claim has been brought to the store; its outcome has not.
    Reconciling,
}

/// Ends the process at once if it was to crash here.
#[cfg_attr(not(feature = "fault-points"), inline(always), expect(unused_variables, reason = "nothing is armed"))]
pub fn here(point: Point) {
    #[cfg(feature = "fault-points")]
    armed::pass(point);
}

#[cfg(feature = "fault-points")]
mod armed {
    use std::str::FromStr;
    use std::sync::OnceLock;
    use std::sync::atomic::{AtomicU32, Ordering};

    use super::Point;

    /// Where to crash, and how often that place is still passed before.
    static ARMED: OnceLock<(Point, AtomicU32)> = OnceLock::new();

    /// Text that names no place to crash at.
    #[derive(Debug, thiserror::Error)]
    #[error("`{0}` is no place to crash at: `claimed`, `settled` or `reconciling`, and `:3` for the third time")]
    pub struct Unknown(String);

    impl FromStr for Point {
        type Err = Unknown;

        fn from_str(text: &str) -> Result<Self, Unknown> {
            match text {
                "claimed" => Ok(Self::Claimed),
                "settled" => Ok(Self::Settled),
                "reconciling" => Ok(Self::Reconciling),
                _ => Err(Unknown(text.to_owned())),
            }
        }
    }

    /// Has the process crash at a place: `settled` the first time that it comes there, `settled:3` the third time.
    ///
    /// # Errors
    /// A text that names none.
    pub fn arm(place: &str) -> Result<(), Unknown> {
        let (point, times) = place.split_once(':').unwrap_or((place, "1"));
        let times: u32 = times.parse().ok().filter(|times| *times > 0).ok_or_else(|| Unknown(place.to_owned()))?;
        // Armed once in the life of a process; a second time changes nothing.
        let _ = ARMED.set((point.parse()?, AtomicU32::new(times - 1)));
        Ok(())
    }

    pub(super) fn pass(point: Point) {
        let Some((armed, left)) = ARMED.get().filter(|(armed, _)| *armed == point) else { return };
        if left.fetch_update(Ordering::Relaxed, Ordering::Relaxed, |left| left.checked_sub(1)).is_err() {
            tracing::error!(point = ?armed, "crashing, as it was asked to");
            std::process::abort();
        }
    }
}
